package discover

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
)

// The test binary runs itself as the processes that are watched.
const (
	childEnv  = "DISCOVER_TEST_CHILD"
	childFile = "DISCOVER_TEST_FILE"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(childEnv) {
	case "":
		os.Exit(m.Run())
	case "fiemap":
		err = fiemapChild(os.Getenv(childFile))
	case "orders":
		err = followOrders(os.Getenv(childFile))
	case "inherit": // hold an inherited descriptor until killed
		fmt.Println(os.Getpid())
		time.Sleep(time.Minute)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// followOrders acts as a CUDA process. It carries out one order per input line and answers
// each with a line.
func followOrders(path string) error {
	f, err := nvrm.Open(path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	var c nvrmtest.Context
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		answer := "ok"
		order, number, _ := strings.Cut(in.Text(), " by ")
		n, _ := strconv.Atoi(number)
		switch order {
		case "make":
			if c, err = nvrmtest.NewContext(f); err == nil {
				b, _ := json.Marshal(c)
				answer = string(b)
			}
		case "more groups":
			err = c.MoreGroups(f, n)
		case "free group":
			err = nvrm.Free(f, c.Client, c.Device, c.Compute.Group)
		case "remake":
			err = c.Remake(f)
		case "free channel":
			err = nvrm.Free(f, c.Client, c.Compute.Group, c.Compute.Channels[7])
		case "close":
			err = f.Close()
		case "reopen":
			f, err = nvrm.Open(path)
		case "hold more": // descriptors of another file
			err = duplicate(n)
		case "open more": // files of the control device, without a client
			for ; n > 0 && err == nil; n-- {
				_, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
			}
		case "become": // another user
			err = syscall.Setuid(n)
		case "pass on", "fork": // behind n others; under the number that it has here
			if order == "fork" {
				n = f.Fd() - 3 // the first number of ExtraFiles
			}
			other := child("inherit", path)
			other.ExtraFiles = append(slices.Repeat([]*os.File{os.Stdin}, n), os.NewFile(uintptr(f.Fd()), "nvidiactl"))
			out, _ := other.StdoutPipe()
			if err = other.Start(); err == nil {
				answer, err = bufio.NewReader(out).ReadString('\n')
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.Text(), err)
		}
		fmt.Println(strings.TrimSpace(answer))
	}
	return nil
}

// duplicate opens n descriptors of one file.
func duplicate(n int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for range n {
		if _, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return err
		}
	}
	return nil
}

// child returns a command that runs this binary in a role.
func child(role, path string) *exec.Cmd {
	return drivertest.Self(childEnv+"="+role, childFile+"="+path)
}

// testProcess is a process that follows orders.
type testProcess struct {
	*drivertest.Child
	t     *testing.T
	lines *bufio.Reader
}

func startProcess(t *testing.T, path string) *testProcess {
	t.Helper()
	c := drivertest.Start(t, child("orders", path))
	return &testProcess{c, t, bufio.NewReader(c.Out)}
}

func (p *testProcess) order(o string) string {
	p.t.Helper()
	fmt.Fprintln(p.In, o)
	answer, err := p.lines.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s: %v", o, err)
	}
	return strings.TrimSpace(answer)
}

func (p *testProcess) make() (c nvrmtest.Context) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.order("make")), &c); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// testWatcher is a Watcher under test.
type testWatcher struct {
	*Watcher
	t      *testing.T
	cancel context.CancelFunc
}

// startWatcher starts a Watcher. At the end of the test it checks that no goroutine and no
// file is left.
func startWatcher(t *testing.T, c Config) *testWatcher {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	if c.Poll == 0 {
		c.Poll = 20 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := Watch(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if !c.NoBPF && w.bpfErr != nil {
		t.Skipf("eBPF: %v", w.bpfErr)
	}
	t.Cleanup(func() {
		cancel()
		for e := range w.Events() {
			if e.Found != nil {
				e.Found.File.Close()
			}
		}
		waitForCount(t, "goroutines", goroutines, runtime.NumGoroutine)
		waitForCount(t, "open files", files, func() int { return openFiles(t) })
	})
	return &testWatcher{w, t, cancel}
}

// waitForCount waits until a count is at most what it was before.
func waitForCount(t *testing.T, what string, before int, count func() int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for count() > before {
		if time.Now().After(deadline) {
			t.Errorf("%s after 20 s: got %d, want %d", what, count(), before)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func openFiles(t *testing.T) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func (w *testWatcher) nextEvent() Event {
	w.t.Helper()
	select {
	case e := <-w.Events():
		return e
	case <-time.After(20 * time.Second):
		w.t.Fatalf("no event in 20 s; wrong guesses: %d; checks: %+v", w.WrongGuesses(), w.Checks())
		return Event{}
	}
}

// wantFound returns the next event, which must be a group, and closes its descriptor.
func (w *testWatcher) wantFound() Group {
	w.t.Helper()
	e := w.nextEvent()
	if e.Found == nil {
		w.t.Fatalf("got %+v, want a group", *e.Gone)
	}
	if _, err := (nvrm.Group{File: e.Found.File, Client: e.Found.Client, Handle: e.Found.Handle}).Timeslice(); err != nil {
		w.t.Errorf("call through the copied descriptor: %v", err)
	}
	if err := e.Found.File.Close(); err != nil {
		w.t.Error(err)
	}
	return *e.Found
}

// wantComplete returns the group of a new context when it is reported with all its channels. It
// is first reported when its first compute object was made.
func (w *testWatcher) wantComplete(c nvrmtest.Context) Group {
	w.t.Helper()
	for {
		if g := w.wantFound(); len(g.Channels) == len(c.Compute.Channels) {
			return g
		}
	}
}

func (w *testWatcher) wantGone() Gone {
	w.t.Helper()
	e := w.nextEvent()
	if e.Gone == nil {
		w.t.Fatalf("got group %v of process %d, want Gone", e.Found.Handle, e.Found.Process.PID)
	}
	return *e.Gone
}

// wantNothing checks that there is no event during a few scans.
func (w *testWatcher) wantNothing() {
	w.t.Helper()
	select {
	case e := <-w.Events():
		w.t.Fatalf("got %+v, want no event", e)
	case <-time.After(150 * time.Millisecond):
	}
}
