package amd_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/cli"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/pagetest"
)

func TestMain(m *testing.M) {
	if os.Getenv("AMD_TEST") == "guardian" {
		_ = guardian.Run(3, backends.Adopt, slog.New(slog.DiscardHandler))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const gpu = 51545 // kfdtest.MI300X

// machine has a KFD test double behind a real path, real processes and, if the test wants
// one, a daemon.
type machine struct {
	*testing.T
	kfd     *kfdtest.Machine
	control string // the daemon's socket
}

func newMachine(t *testing.T, patched, withDaemon bool) *machine {
	t.Helper()
	m := &machine{T: t, kfd: kfdtest.NewMachine(t, kfdtest.Config{Patched: patched})}
	dir, err := os.MkdirTemp("", "gw") // a socket path is limited to 108 bytes
	m.check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	m.control = filepath.Join(dir, "s")
	if withDaemon {
		m.daemon()
	}
	return m
}

func (m *machine) check(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// daemon runs a daemon until the test is over.
func (m *machine) daemon() {
	m.Helper()
	log := slog.New(slog.DiscardHandler)
	d, err := daemon.New(daemon.Config{
		File: config.Config{Policy: api.Policy{Name: "giveway"}}, Guardian: []string{"/usr/bin/env", "AMD_TEST=guardian", os.Args[0]},
		Backends: []hal.Backend{amd.New(amd.Config{Dev: m.kfd.Path, Sys: kfd.Sysfs(m.kfd.Sys), Only: proc.Everyone})}, Log: log,
	})
	m.check(err)
	s := server.New(d, server.Config{Socket: m.control, Log: log})
	m.check(s.Listen())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- d.Run(ctx) }()
	go func() { ended <- s.Serve(ctx) }()
	m.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				m.Error(err)
			}
		}
	})
}

// start starts a process with compute queues and one SDMA queue, which must be ignored.
func (m *machine) start(queues int) *kfdtest.Process {
	m.Helper()
	p := m.kfd.StartProcess(queues)
	_, err := kfdtest.CreateQueue(p, kfdtest.NewQueue{GPU: gpu, Type: kfdtest.TypeSDMA, Ring: 1 << 30, RingSize: 4096})
	m.check(err)
	return p
}

func (m *machine) eventually(condition string, holds func() bool) {
	m.Helper()
	drivertest.Eventually(m, condition, holds)
}

// build compiles C sources.
func build(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is needed to compile the library")
	}
	out := filepath.Join(t.TempDir(), name)
	args = append([]string{"-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-o", out}, args...)
	if text, err := exec.Command("gcc", append(args, "-pthread")...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %q: %v\n%s", args, err, text)
	}
	return out
}

// driver is a running test/drive.c.
type driver struct {
	*machine
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (m *machine) drive() *driver {
	m.Helper()
	d := &driver{machine: m, cmd: exec.Command(build(m.T, "drive", "test/drive.c", "giveway_amd.c", "-fsanitize=address,undefined"), m.control, m.kfd.Path, m.kfd.Sys)}
	d.cmd.Stderr = os.Stderr
	var err error
	d.in, err = d.cmd.StdinPipe()
	m.check(err)
	out, err := d.cmd.StdoutPipe()
	m.check(err)
	d.out = bufio.NewReader(out)
	m.check(d.cmd.Start())
	m.Cleanup(func() {
		d.in.Close()
		_ = d.cmd.Wait() // it may have been killed
	})
	return d
}

func (d *driver) ask(format string, args ...any) string {
	d.Helper()
	if _, err := fmt.Fprintf(d.in, format+"\n", args...); err != nil {
		d.Fatal(err)
	}
	line, err := d.out.ReadString('\n')
	if err != nil {
		d.Fatalf("%s: %v", fmt.Sprintf(format, args...), err)
	}
	return strings.TrimSpace(line)
}

func (d *driver) expect(want, format string, args ...any) {
	d.Helper()
	if got := d.ask(format, args...); got != want {
		d.Errorf("%.60s: got %s, want %s", fmt.Sprintf(format, args...), got, want)
	}
}

// failed returns the text of a call's result -errno.
func failed(e syscall.Errno) string { return fmt.Sprint(-int(e)) }

// TestList checks the listing of compute queues, with and without room for all, and with
// malformed files in sysfs.
func TestList(t *testing.T) {
	m := newMachine(t, true, false)
	d := m.drive()
	d.expect("0", "l 10")
	p := m.start(2)
	want := fmt.Sprintf("2 %d/%d/%d %d/%d/%d", p.PID, gpu, p.Queues[0].Queue, p.PID, gpu, p.Queues[1].Queue)
	d.expect(want, "l 10")
	d.expect("2", "l 0")
	d.expect(want[:strings.LastIndex(want, " ")], "l 1")
	dir := filepath.Join(m.kfd.Sys, "class/kfd/kfd/proc")
	m.check(os.WriteFile(fmt.Sprintf("%s/%d/queues/%d/gpuid", dir, p.PID, p.Queues[0].Queue), []byte("garbage"), 0o600))
	m.check(os.MkdirAll(filepath.Join(dir, "99999999999999999999/queues/1"), 0o755))
	d.expect(fmt.Sprintf("1 %d/%d/%d", p.PID, gpu, p.Queues[1].Queue), "l 10")
	p.Kill()
	m.eventually("without queues of a killed process", func() bool { return d.ask("l 10") == "0" })
}

// TestUnmapAndRemap checks that queues are unmapped and remapped in one call each, that a
// failed call changes nothing, and that queues are remapped when the handle is freed and
// when the caller is killed.
func TestUnmapAndRemap(t *testing.T) {
	m := newMachine(t, true, false)
	p := m.start(3)
	d := m.drive()
	all := fmt.Sprint(p.Queues[0].Queue, p.Queues[1].Queue, p.Queues[2].Queue)
	updates := m.kfd.Updates(gpu)
	d.expect("3 0 0 0", "u %d %d 0 %s", p.PID, gpu, all)
	if n := m.kfd.Updates(gpu) - updates; p.Running() != 0 || n != 1 {
		t.Errorf("got %d running queues after %d runlist updates, want 0 after 1", p.Running(), n)
	}
	d.expect("1 0", "m %d %d 0 %d", p.PID, gpu, p.Queues[1].Queue)
	if p.Running() != 1 {
		t.Errorf("after remapping one: got %d running queues, want 1", p.Running())
	}
	d.expect("2", "a %d", p.PID)
	d.expect("1 0 -2", "u %d %d 0 %d 77", p.PID, gpu, p.Queues[0].Queue)
	d.expect("2 5 1 1", "c")
	d.expect("0", "x")
	m.eventually("all running after cleanup", func() bool { return p.Running() == 3 && m.kfd.Left() == "" })

	d.expect(failed(syscall.ESRCH)+" "+failed(syscall.ESRCH), "u %d %d 0 1", 1<<22-1, gpu)
	d.expect(failed(syscall.EINVAL), "u %d %d 0", p.PID, gpu)
	d.expect(failed(syscall.EINVAL), "u -1 %d 0%s", gpu, strings.Repeat(" 1", 16))
	d.expect(failed(syscall.EINVAL), "u %d %d 0%s", p.PID, gpu, strings.Repeat(" 1", 1025))
	d.expect("1024", "u %d %d 0%s", p.PID, gpu, strings.Repeat(fmt.Sprintf(" %d", p.Queues[0].Queue), 1024))
	d.expect(failed(syscall.EBADF)+" 0 0 0 0", "f %d", gpu)
	if p.Running() != 2 {
		t.Errorf("after a call of a forked child: got %d running queues, want 2", p.Running())
	}
	m.check(d.cmd.Process.Kill())
	m.eventually("all running after the caller was killed", func() bool { return p.Running() == 3 && m.kfd.Left() == "" })
}

// TestReservation checks reserving slots, reading their use, and ending a reservation.
func TestReservation(t *testing.T) {
	m := newMachine(t, true, false)
	p := m.start(2)
	d := m.drive()
	d.expect("0 0 0 24 2", "h %d", gpu)
	d.expect(failed(syscall.ENODEV)+" 0 0 0 0", "h 1")
	d.expect(failed(syscall.EINVAL), "v %d 24 7", gpu)
	if os.Geteuid() != 0 {
		t.Skip("a reservation needs root")
	}
	d.expect("0", "v %d 23 8", gpu)
	d.expect("0 23 8 24 2", "h %d", gpu)
	d.expect("1 0", "u %d %d 0 %d", p.PID, gpu, p.Queues[0].Queue)
	d.expect("0 "+failed(syscall.ENOSPC), "m %d %d 0 %d", p.PID, gpu, p.Queues[0].Queue)
	d.expect("1", "a %d", p.PID)
	d.expect("0", "v %d 0 0", gpu)
	d.expect("0 0 0 24 2", "h %d", gpu)
}

// TestStockDriverWithoutDaemon checks the errors where neither the patch nor a daemon is
// there.
func TestStockDriverWithoutDaemon(t *testing.T) {
	m := newMachine(t, false, false)
	p := m.start(1)
	d := m.drive()
	d.expect(failed(syscall.ENOTTY)+" "+failed(syscall.ENOTTY), "u %d %d 0 %d", p.PID, gpu, p.Queues[0].Queue)
	d.expect(failed(syscall.ENOTTY), "a %d", p.PID)
	d.expect(failed(syscall.ENOTTY)+" 0 0 0 0", "h %d", gpu)
	d.expect(failed(syscall.ENOENT), "s %d", p.PID)
	d.expect(failed(syscall.EINVAL), "s 0")
	d.expect(failed(syscall.ENOENT), "d")
}

// TestSuspendAndResume checks the functions that go through the daemon, on both drivers.
func TestSuspendAndResume(t *testing.T) {
	for _, patched := range []bool{false, true} {
		t.Run(map[bool]string{true: "patched", false: "stock"}[patched], func(t *testing.T) {
			m := newMachine(t, patched, true)
			p := m.start(3)
			d := m.drive()
			d.expect("0", "s %d", p.PID)
			m.eventually("suspended", func() bool { return p.Running() == 0 })
			if patched {
				d.expect(failed(syscall.EBUSY)+" "+failed(syscall.EBUSY), "u %d %d 0 %d", p.PID, gpu, p.Queues[0].Queue)
			}
			d.expect("0", "r %d", p.PID)
			m.eventually("resumed", func() bool { return p.Running() == 3 })
			d.expect(failed(syscall.ESRCH), "s %d", 1<<22-1)
			var long, here int
			fmt.Sscan(d.ask("p 65536"), &long, &here)
			if long < 100 || here != long {
				t.Errorf("processes: got %d of %d bytes, want all", here, long)
			}
			if fmt.Sscan(d.ask("p 10"), &long, &here); long < 100 || here != 9 {
				t.Errorf("processes with room for 9 bytes: got %d of %d, want 9", here, long)
			}
			if n := d.ask("d"); strings.HasPrefix(n, "-") || n == "0" {
				t.Errorf("status: got length %s, want a positive one", n)
			}
		})
	}
}

// TestMalformedAnswers checks that a daemon which answers garbage causes an error only.
func TestMalformedAnswers(t *testing.T) {
	m := newMachine(t, true, false)
	d := m.drive()
	answers := map[string]syscall.Errno{
		"": syscall.EPROTO, "\x00\x00": syscall.EPROTO, "HTTP/1.0 200 OK\r\n": syscall.EPROTO, "HTTP/1.0 500 x\r\n\r\n": syscall.EPROTO,
		"HTTP/1.0 2000 OK\r\n\r\n": syscall.EPROTO, "HTTP/1.0 403 no\r\n\r\n{}": syscall.EPERM, "HTTP/1.0 409 no\r\n\r\n{}": syscall.EBUSY,
		"HTTP/1.0 400 no\r\n\r\n{}": syscall.EINVAL, "HTTP/1.0 200 OK\r\n\r\n" + strings.Repeat("x", 17<<20): syscall.EPROTO,
	}
	l, err := net.Listen("unix", m.control)
	m.check(err)
	defer l.Close()
	for text, want := range answers {
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, text) // the library may have closed the connection
		}()
		d.expect(failed(want), "s 5")
	}
}

// TestListenerOfAnotherUser checks that nothing is sent to a socket on which another user
// listens.
func TestListenerOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to listen as another user")
	}
	m := newMachine(t, true, false)
	d := m.drive()
	l := pagetest.Listen(t, m.control, 65534, 10)
	defer l.Close()
	got := make(chan int, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		n, _ := c.Read(make([]byte, 4096))
		got <- n
	}()
	d.expect(failed(syscall.EPERM), "s 5")
	if n := <-got; n != 0 {
		t.Errorf("the listener got %d bytes, want none", n)
	}
}

// TestExample runs the example on both drivers, for a process without queues, and on a
// machine without KFD.
func TestExample(t *testing.T) {
	for _, patched := range []bool{true, false} {
		m := newMachine(t, patched, true)
		p, idle := m.start(3), m.start(0)
		example := build(t, "example", "example.c", "giveway_amd.c")
		run := func(pid int, sysfs string) (out, errs string, err error) {
			cmd := exec.Command(example, fmt.Sprint(pid))
			cmd.Env = append(os.Environ(), "EXAMPLE_KFD="+m.kfd.Path, "EXAMPLE_SYS="+sysfs, "GIVEWAY_SOCKET="+m.control)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err = cmd.Run()
			return stdout.String(), stderr.String(), err
		}
		want := "3 queues\nunmapped 3\nremapped 3\n"
		if !patched {
			want = "3 queues\nsuspended\nresumed\n"
		}
		if out, errs, err := run(p.PID, m.kfd.Sys); err != nil || !strings.HasPrefix(out, want) || errs != "" {
			t.Errorf("patched %v: got %v, %q, %q; want %q", patched, err, out, errs, want)
		}
		m.eventually("all running", func() bool { return p.Running() == 3 })
		for name, tt := range map[string]struct {
			pid   int
			sysfs string
			want  string
		}{
			"process without queues": {idle.PID, m.kfd.Sys, "list the queues of the process: No such process\n"},
			"no KFD":                 {p.PID, t.TempDir(), "list the queues of the process: No such file or directory\n"},
		} {
			if out, errs, err := run(tt.pid, tt.sysfs); err == nil || out != "" || errs != tt.want {
				t.Errorf("%s: got %v, %q, %q; want exit 1 and %q", name, err, out, errs, tt.want)
			}
		}
	}
}

// TestPython runs python/tests/drive_amd.py, which drives the Python module.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	m := newMachine(t, true, true)
	p, q := m.start(2), m.start(1)
	cmd := exec.Command(python, "-B", "../python/tests/drive_amd.py", m.control, m.kfd.Path, m.kfd.Sys, fmt.Sprint(p.PID), fmt.Sprint(q.PID))
	cmd.Env = append(os.Environ(), "PYTHONPATH=../python", "GIVEWAY_AMD_LIBRARY="+build(t, "libgiveway-amd.so", "-shared", "-fPIC", "-std=c11", "giveway_amd.c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	m.eventually("all running after the controller was closed", func() bool { return p.Running() == 2 && q.Running() == 1 })
}

// TestCommands checks ps, set, pause, resume, restore and doctor for a KFD process.
func TestCommands(t *testing.T) {
	m := newMachine(t, false, true)
	p := m.start(3)
	t.Setenv("GIVEWAY_SOCKET", m.control)
	call := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := cli.Main(args, &out, &errs); code != 0 && args[0] != "doctor" {
			t.Fatalf("giveway %q: exit %d, %s", args, code, errs.String())
		}
		return out.String()
	}
	pid := fmt.Sprint(p.PID)
	m.eventually("listed by ps", func() bool {
		out := call("ps")
		return strings.Contains(out, pid) && strings.Contains(out, "standard (default)") && strings.Contains(out, "(3 queues)")
	})
	if out := call("set", pid, "--class", "batch"); !strings.Contains(out, "batch") {
		t.Error(out)
	}
	m.eventually("shown by ps as stoppable", func() bool { return strings.Contains(call("ps"), "interrupt") })
	call("pause", pid)
	m.eventually("paused", func() bool { return p.Running() == 0 && strings.Contains(call("ps"), "paused") })
	out := call("doctor")
	for _, says := range []string{"AMD gfx942", "KFD 1.17", "debugger interface", "0 of 24 slots in use", "calls to stop 3 queues"} {
		if !strings.Contains(out, says) {
			t.Errorf("doctor: got\n%s\nwant %q in it", out, says)
		}
	}
	call("resume", pid)
	m.eventually("resumed", func() bool { return p.Running() == 3 })
	call("restore")
	m.eventually("restored", func() bool { return m.kfd.Left() == "" })
	all, err := client.New("").Processes(t.Context())
	if err != nil || len(all) != 1 || all[0].Queues[0].KFDQueues != 3 {
		t.Errorf("got %+v, %v; want one process with 3 native queues", all, err)
	}
}
