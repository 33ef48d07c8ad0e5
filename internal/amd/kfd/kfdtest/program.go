package kfdtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"golang.org/x/sys/unix"
)

// The test's own binary is another program when the environment says so. That is
// seen to before any test, or flag, is looked at, so a package whose tests start
// Programs needs nothing for it.
const envProgram = "KFDTEST_PROGRAM"

func init() {
	if os.Getenv(envProgram) != "" {
		runtime.LockOSThread() // the first thread: what it traces it traces for good
		obey(os.Stdin, os.Stdout)
		os.Exit(0)
	}
}

// order is what a Program is told to do: open a path, make an ioctl on what it
// opened or on an inherited descriptor, trace a process.
type order struct {
	Open    string
	Request uint32
	Arg     []byte
	FD      int // 0: what it opened
	Seize   int
}

// outcome is what came of it.
type outcome struct {
	N     int
	Errno unix.Errno
	Arg   []byte
}

// Program is another process, that does what it is told. It implements kfd.Ioctler
// for requests whose arguments point at nothing.
type Program struct {
	PID int

	cmd  *exec.Cmd
	mu   sync.Mutex // one order at a time
	in   *json.Encoder
	out  *json.Decoder
	pipe io.Closer
	over sync.Once
}

// Start starts a Program as a user; it inherits files from descriptor 3 on. It
// ends with the test, if not before.
func Start(t testing.TB, uid int, files ...*os.File) *Program {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	// Under the race detector a program dawdles for a second before it ends. Signals
	// that Go sends itself would stop it when it is traced by who does not attend.
	cmd.Env = append(os.Environ(), envProgram+"=1", "GORACE=atexit_sleep_ms=0", "GODEBUG=asyncpreemptoff=1")
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, files
	if uid != os.Getuid() {
		cmd.SysProcAttr = &unix.SysProcAttr{Credential: credential(uid)}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a program as user %d: %v", uid, err)
	}
	p := &Program{PID: cmd.Process.Pid, cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(out), pipe: in}
	t.Cleanup(p.Kill)
	return p
}

// Kill ends it by SIGKILL and waits until it is gone.
func (p *Program) Kill() {
	p.over.Do(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		p.pipe.Close()
		_ = p.cmd.Wait() // it was killed
	})
}

func (p *Program) tell(o order) (outcome, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.in.Encode(o); err != nil {
		return outcome{}, err
	}
	var came outcome
	if err := p.out.Decode(&came); err != nil {
		return outcome{}, fmt.Errorf("program %d did not answer: %w", p.PID, err)
	}
	if came.Errno != 0 {
		return came, came.Errno
	}
	return came, nil
}

// Open has it open the device.
func (p *Program) Open(path string) error {
	_, err := p.tell(order{Open: path})
	return err
}

// Seize has it trace a process.
func (p *Program) Seize(pid int) error {
	_, err := p.tell(order{Seize: pid})
	return err
}

// Ioctl implements kfd.Ioctler, on what it opened.
func (p *Program) Ioctl(request uint32, arg []byte) (int, error) { return p.IoctlOn(0, request, arg) }

// IoctlOn makes the call on a descriptor of its.
func (p *Program) IoctlOn(fd int, request uint32, arg []byte) (int, error) {
	came, err := p.tell(order{Request: request, Arg: arg, FD: fd})
	copy(arg, came.Arg)
	return came.N, err
}

// obey is the Program's life.
func obey(r io.Reader, w io.Writer) {
	in, out := json.NewDecoder(r), json.NewEncoder(w)
	var opened *kfd.File
	for {
		var o order
		if in.Decode(&o) != nil {
			return
		}
		var came outcome
		var err error
		switch {
		case o.Open != "":
			opened, err = kfd.Open(o.Open)
		case o.Seize != 0:
			err = seize(o.Seize)
		case o.FD != 0:
			came.N, err = ioctl(o.FD, o.Request, o.Arg)
		case opened == nil:
			err = unix.EBADF
		default:
			came.N, err = opened.Ioctl(o.Request, o.Arg)
		}
		came.Arg = o.Arg
		if err != nil && !errors.As(err, &came.Errno) {
			came.Errno = unix.EIO
		}
		if out.Encode(came) != nil {
			return
		}
	}
}

// seize begins to trace a process, which goes on.
func seize(pid int) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
