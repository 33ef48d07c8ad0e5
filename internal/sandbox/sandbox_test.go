package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain runs the test program as a process that confines itself and says what it can
// still do.
func TestMain(m *testing.M) {
	before = effective()
	switch os.Getenv("SANDBOX_TEST") {
	case "front-end":
		report(FrontEnd(), frontEndTries())
	case "daemon":
		report(errors.Join(Daemon()), daemonTries())
	case "other-filter":
		filterOneThread()
		fmt.Println("fails:", install(deny(nil)) != nil)
	default:
		os.Exit(m.Run())
	}
}

// before is the set of capabilities with which this process was started.
var before uint64

// effective returns the capabilities of the calling thread.
func effective() uint64 {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		panic(err)
	}
	return uint64(have[1].Effective)<<32 | uint64(have[0].Effective)
}

// privileged reports whether this process was started with the capabilities of the service.
// Without them there is nothing to try.
func privileged() bool {
	const service = kept &^ (1 << unix.CAP_SYS_RESOURCE)
	return before&service == service
}

type try struct {
	name string
	do   func() error
}

func report(err error, tries []try) {
	fmt.Println("confined:", err)
	for _, t := range tries {
		fmt.Printf("%s: %v\n", t.name, t.do())
	}
}

func frontEndTries() []try {
	socket := func(family, kind int) func() error {
		return func() error { _, err := unix.Socket(family, kind, 0); return err }
	}
	return []try{
		{"open", func() error { _, err := os.Open("/etc/passwd"); return errors.Unwrap(err) }},
		{"unix socket", socket(unix.AF_UNIX, unix.SOCK_STREAM)},
		{"internet socket", socket(unix.AF_INET, unix.SOCK_STREAM)},
		{"exec", func() error { return unix.Exec("/bin/true", []string{"true"}, nil) }},
		{"fork", func() error {
			_, _, failed := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
			return failed
		}},
		{"kill", func() error { return unix.Kill(os.Getppid(), 0) }},
		{"signal to another process", func() error { return unix.Tgkill(os.Getppid(), os.Getppid(), 0) }},
		{"ptrace", func() error { return unix.PtraceAttach(os.Getppid()) }},
		{"pidfd", func() error { _, err := unix.PidfdOpen(os.Getppid(), 0); return err }},
		{"bpf", func() error { _, _, failed := unix.RawSyscall(unix.SYS_BPF, 0, 0, 0); return failed }},
		{"become root", func() error {
			_, _, failed := unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0)
			return failed
		}},
		{"threads and time", func() error {
			for range 20 {
				go func() { time.Sleep(time.Millisecond) }()
			}
			time.Sleep(5 * time.Millisecond)
			return nil
		}},
		{"pipe", func() error { return unix.Pipe2(make([]int, 2), 0) }},
	}
}

func TestFrontEnd(t *testing.T) {
	const want = `confined: <nil>
open: operation not permitted
unix socket: operation not permitted
internet socket: operation not permitted
exec: operation not permitted
fork: operation not permitted
kill: operation not permitted
signal to another process: operation not permitted
ptrace: operation not permitted
pidfd: operation not permitted
bpf: operation not permitted
become root: operation not permitted
threads and time: <nil>
pipe: <nil>
`
	check(t, "front-end", want)
}

func daemonTries() []try {
	raw := func(call uintptr) func() error {
		return func() error {
			if _, _, failed := unix.RawSyscall6(call, ^uintptr(0), 0, 0, 0, 0, 0); failed != unix.EPERM {
				return fmt.Errorf("got %d", failed)
			}
			return nil
		}
	}
	return []try{
		{"load a module", raw(unix.SYS_FINIT_MODULE)},
		{"kexec", raw(unix.SYS_KEXEC_LOAD)},
		{"mount", raw(unix.SYS_MOUNT)},
		{"enter a namespace", raw(unix.SYS_SETNS)},
		{"read another process", raw(unix.SYS_PROCESS_VM_READV)},
		{"io_uring", raw(unix.SYS_IO_URING_SETUP)},
		{"capabilities", func() error {
			if got, want := effective(), before&kept; got != want {
				return fmt.Errorf("%#x, want %#x", got, want)
			}
			return nil
		}},
		{"open", func() error { f, err := os.Open("/etc/passwd"); f.Close(); return err }},
		{"copy a descriptor of another user's process", copyDescriptor},
		{"kill a front end", killOther},
		{"make an eBPF map", func() error {
			if !privileged() {
				return nil
			}
			// union bpf_attr of BPF_MAP_CREATE: an array with one value of 4 bytes.
			attr := [16]uint32{0: unix.BPF_MAP_TYPE_ARRAY, 1: 4, 2: 4, 3: 1}
			return bpf(unix.BPF_MAP_CREATE, attr[:])
		}},
		{"start a program", func() error { return exec.Command("/bin/true").Run() }},
		{"the same for a program that it starts", func() error {
			out, err := exec.Command("grep", "-E", "^(NoNewPrivs|Seccomp):", "/proc/self/status").Output()
			if got := strings.Fields(string(out)); err != nil || len(got) != 4 || got[1] != "1" || got[3] != "2" {
				return fmt.Errorf("%q, %w", got, err)
			}
			return nil
		}},
	}
}

// TestDaemon: the calls are refused as such: each would give another error otherwise.
func TestDaemon(t *testing.T) {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0); errno == syscall.ENOTSUP {
		t.Skip("this test was built with cgo, for example for the race detector; only a program without it, as the daemon is, can change all its threads")
	}
	const want = `confined: <nil>
load a module: <nil>
kexec: <nil>
mount: <nil>
enter a namespace: <nil>
read another process: <nil>
io_uring: <nil>
capabilities: <nil>
open: <nil>
copy a descriptor of another user's process: <nil>
kill a front end: <nil>
make an eBPF map: <nil>
start a program: <nil>
the same for a program that it starts: <nil>
`
	check(t, "daemon", want)
}

// TestThreadWithAnotherFilter: a filter that the kernel does not put in force for all threads
// is an error. The kernel then returns the thread's number, not an errno.
func TestThreadWithAnotherFilter(t *testing.T) {
	check(t, "other-filter", "fails: true\n")
}

// filterOneThread makes a thread with a filter of its own.
func filterOneThread() {
	filtered := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = filterThread(deny(nil))
		}
		filtered <- err
		select {} // the thread lives as long as the process
	}()
	if err := <-filtered; err != nil {
		panic(err)
	}
}

func check(t *testing.T, which, want string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"SANDBOX_TEST=" + which, "PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != want {
		t.Errorf("%v, got\n%swant\n%s", err, out, want)
	}
}

// startOther starts a process of another user that ends when its input does.
func startOther(uid uint32) (cmd *exec.Cmd, end func(), err error) {
	cmd = exec.Command("cat")
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	return cmd, func() { input.Close(); _ = cmd.Wait() }, nil
}

// killOther does what the daemon does with a front end that hangs, which has another user.
func killOther() error {
	if !privileged() {
		return nil
	}
	cmd, end, err := startOther(unprivileged)
	if err != nil {
		return err
	}
	defer end()
	return cmd.Process.Kill()
}

// copyDescriptor does what discovery does: it lists the descriptors of another user's
// process and copies one.
func copyDescriptor() error {
	if !privileged() {
		return nil
	}
	cmd, end, err := startOther(12345)
	if err != nil {
		return err
	}
	defer end()
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)); err != nil || len(fds) < 3 {
		return fmt.Errorf("%v, %w", fds, err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		return err
	}
	_, err = unix.PidfdGetfd(pidfd, 0, 0)
	return err
}
