package discover

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
)

func mounted(t *testing.T) (*nvrmtest.RM, string, *nvrmtest.Mount) {
	t.Helper()
	rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}})
	m := nvrmtest.Mounted(t, rm)
	return rm, m.Path, m
}

func wantGroup(t *testing.T, g Group, pid int, c nvrmtest.Context) {
	t.Helper()
	p := g.Process
	if p.PID != pid || p.Start == 0 || p.Parent != os.Getpid() || p.UID != uint32(os.Getuid()) || !strings.Contains(p.Command, "exe") {
		t.Errorf("process: got %+v, want pid %d", p, pid)
	}
	if g.Client != c.Client || g.Handle != c.Compute.Group || g.Subdevice != c.Subdevice || !slices.Equal(g.Channels, c.Compute.Channels) {
		t.Errorf("group: got %+v, want %+v", g, c)
	}
	if g.GPU != "GPU-abcd0000-0000-0000-0000-000000000001" || g.MPSServer {
		t.Errorf("got GPU %s, MPS server %v", g.GPU, g.MPSServer)
	}
}

// TestProcIsScanned checks that processes from before and after the start are found once
// each, and are gone when they exit, without eBPF and without a guess.
func TestProcIsScanned(t *testing.T) {
	rm, path, m := mounted(t)
	first, second := m.Start(t), m.Start(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true})
	wantGroup(t, w.wantFound(), first.PID, first.Context)
	wantGroup(t, w.wantFound(), second.PID, second.Context)
	w.wantNothing()
	third := m.Start(t)
	g := w.wantComplete(third.Context)
	wantGroup(t, g, third.PID, third.Context)
	if n := rm.Logged(); n != 0 || w.WrongGuesses() != 0 {
		t.Errorf("got %d log lines and %d wrong guesses, want none", n, w.WrongGuesses())
	}
	third.Kill()
	if got := w.wantGone(); got != (Gone{PID: third.PID, Start: g.Process.Start}) {
		t.Errorf("got %+v gone", got)
	}
	if err := first.Exit(); err != nil {
		t.Error(err)
	}
	for { // a scan may come between the free and the exit
		if got := w.wantGone(); got.PID != first.PID {
			t.Errorf("got %+v gone", got)
		} else if got.Handle == 0 || got.Handle == first.Context.Compute.Group {
			break
		}
	}
	for _, c := range w.Checks() {
		if c.OK != (c.Name != "eBPF") || c.Detail == "" || c.OK != (c.Fix == "") {
			t.Errorf("check: got %+v", c)
		}
	}
}

// wantBoth checks that two processes are found. On a slow machine the newer may be first.
func wantBoth(t *testing.T, w *testWatcher, one, two *nvrmtest.Program) {
	t.Helper()
	g := w.wantFound()
	if g.Process.PID == two.PID {
		one, two = two, one
	}
	wantGroup(t, g, one.PID, one.Context)
	wantGroup(t, w.wantFound(), two.PID, two.Context)
}

// TestProcessIsFoundAmongManyClients checks that a process is found however many clients
// were made and freed before and after it.
func TestProcessIsFoundAmongManyClients(t *testing.T) {
	for name, first := range map[string]nvrm.Handle{
		"after 300": 0xc1d00000 + 300, "after 5000": 0xc1d00000 + 5000, "before the counter wraps": 0xc1dfffff,
	} {
		t.Run(name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}, FirstClient: first})
			m := nvrmtest.Mounted(t, rm)
			one := m.Start(t)
			churnClients(t, rm, 500)
			two := m.Start(t)
			churnClients(t, rm, 500)
			w := startWatcher(t, Config{Control: m.Path, Only: proc.Everyone, NoBPF: true})
			wantBoth(t, w, one, two)
			churnClients(t, rm, 100)
			three := m.Start(t)
			wantGroup(t, w.wantComplete(three.Context), three.PID, three.Context)
			if n := rm.Logged(); n != 0 || w.WrongGuesses() != 0 {
				t.Errorf("got %d log lines and %d wrong guesses, want none", n, w.WrongGuesses())
			}
		})
	}
}

// TestOldProcessIsFoundLater checks that a process whose client the first update does not
// reach is found later, and that a Watcher with Once does not end before.
func TestOldProcessIsFoundLater(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}, FirstClient: 0xc1dfffff - 6000})
	m := nvrmtest.Mounted(t, rm)
	p := m.Start(t)
	churnClients(t, rm, 8000) // beyond the wrap, and more than the first update covers
	w := startWatcher(t, Config{Control: m.Path, Only: proc.Everyone, NoBPF: true})
	wantGroup(t, w.wantFound(), p.PID, p.Context)
	once, err := Watch(t.Context(), Config{Control: m.Path, Only: proc.Everyone, NoBPF: true, Once: true})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for e := range once.Events() {
		wantGroup(t, *e.Found, p.PID, p.Context)
		e.Found.File.Close()
		found++
	}
	if found != 1 {
		t.Errorf("groups with Once: got %d, want 1", found)
	}
	if n := rm.Logged(); n != 0 || w.WrongGuesses() != 0 {
		t.Errorf("got %d log lines and %d wrong guesses, want none", n, w.WrongGuesses())
	}
}

// TestProcessesAreFoundByGuessing checks that processes are found where OwnerOf does not
// work, and that wrong guesses are counted.
func TestProcessesAreFoundByGuessing(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}, FirstClient: 0xc1d00000 + 5000})
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrNotSupported})
	m := nvrmtest.Mounted(t, rm)
	one := m.Start(t)
	churnClients(t, rm, 100)
	two := m.Start(t)
	churnClients(t, rm, 100)
	w := startWatcher(t, Config{Control: m.Path, Only: proc.Everyone, NoBPF: true})
	wantBoth(t, w, one, two)
	if n := w.WrongGuesses(); n < uint64(rm.Logged()) || n < 200 || n > 3000 {
		t.Errorf("wrong guesses: got %d, want 200 to 3000 and at least the %d log lines", n, rm.Logged())
	}
}

// TestCallsAreTraced checks that with eBPF changes are reported as they happen and no handle
// is guessed.
func TestCallsAreTraced(t *testing.T) {
	rm, path, _ := mounted(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone})
	w.wantNothing() // the first scan, which may guess
	p := startProcess(t, path)
	c := p.make()
	pid := p.PID
	g := w.wantComplete(c)
	wantGroup(t, g, pid, c)

	p.order("free channel")
	g = w.wantFound()
	if len(g.Channels) != 7 {
		t.Errorf("channels: got %d, want 7", len(g.Channels))
	}
	p.order("free group")
	if got := w.wantGone(); got != (Gone{PID: pid, Start: g.Process.Start, Key: Key{c.Client, c.Compute.Group}}) {
		t.Errorf("got %+v gone", got)
	}
	w.wantNothing()
	p.order("close")
	waitForCount(t, "clients", 0, rm.Clients) // otherwise the next scan tries the old client on the new descriptor
	p.order("reopen")
	c = p.make()
	wantGroup(t, w.wantComplete(c), pid, c)
	p.Kill()
	if got := w.wantGone(); got != (Gone{PID: pid, Start: g.Process.Start}) {
		t.Errorf("got %+v gone", got)
	}
	if n := rm.Logged(); n != 0 || w.WrongGuesses() != 0 {
		t.Errorf("got %d log lines and %d wrong guesses, want none", n, w.WrongGuesses())
	}
	for _, c := range w.Checks() {
		if !c.OK {
			t.Errorf("check: got %+v", c)
		}
	}
}

// TestGroupIsReportedBeforeItIsComplete checks that a process is scanned at the first traced
// call that makes a compute object, once in a burst of calls.
func TestGroupIsReportedBeforeItIsComplete(t *testing.T) {
	_, path, _ := mounted(t)
	p := startProcess(t, path)
	c := p.make()
	w, err := newWatcher(t.Context(), Config{Control: path, Only: proc.Everyone})
	if err != nil {
		t.Fatal(err)
	}
	w.tracedSince = 0
	found := make(chan int)
	go func() {
		n := 0
		for e := range w.events {
			e.Found.File.Close()
			n++
		}
		found <- n
	}()
	made := call{pid: p.PID, fd: 3, client: c.Client, object: c.Compute.Channels[0], class: 0xc86f}
	now := time.Now()
	note := func() {
		w.noteCall(made, now)
		w.scanDue(now)
	}
	note()
	if n := w.looks.Load(); n != 0 {
		t.Errorf("after a channel was made: %d descriptors looked at, want 0", n)
	}
	made.object, made.class = made.object+1, 0xcbc0
	note()
	looks := w.looks.Load()
	if h := w.openers[p.PID]; h == nil || len(h.groups) != 1 || looks == 0 {
		t.Fatalf("after a compute object was made: got %+v and %d looks, want one group", h, looks)
	}
	for range 3 {
		made.client++ // a process can claim what it likes
		note()
	}
	if n := w.looks.Load(); n != looks {
		t.Errorf("scanned again in the same burst: %d looks, want %d", n, looks)
	}
	if b := w.pending[p.PID]; b == nil || !b.due.Equal(now.Add(burstGap)) {
		t.Errorf("got pending %+v, want a scan at the end of the burst", b)
	}
	w.stop()
	w.openers[p.PID].pidfd.Close()
	w.waiters.Wait()
	close(w.events)
	if n := <-found; n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
}

// TestClosedDescriptorIsNoticed checks that closing a descriptor is noticed although nothing
// was freed.
func TestClosedDescriptorIsNoticed(t *testing.T) {
	for _, noBPF := range []bool{false, true} {
		t.Run("NoBPF="+strconv.FormatBool(noBPF), func(t *testing.T) {
			rm, path, _ := mounted(t)
			w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: noBPF})
			p := startProcess(t, path)
			c := p.make()
			g := w.wantComplete(c)
			p.order("close")
			if got := w.wantGone(); got != (Gone{PID: p.PID, Start: g.Process.Start, Key: Key{c.Client, c.Compute.Group}}) {
				t.Errorf("got %+v gone", got)
			}
			waitForCount(t, "clients", 0, rm.Clients)
		})
	}
}

// TestInheritedDescriptor checks that a process which inherited an open file is not reported,
// even if it is scanned first, until the older process has exited. The group is still there
// then, so it is reported as gone by its key: whatever was changed of it must be undone.
func TestInheritedDescriptor(t *testing.T) {
	_, path, _ := mounted(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true})
	p := startProcess(t, path)
	child, err := strconv.Atoi(p.order("pass on"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	c := p.make()
	w.Rescan(child)
	wantGroup(t, w.wantComplete(c), p.PID, c)
	w.Rescan(child)
	w.wantNothing()
	p.Kill()
	for _, want := range []Key{{c.Client, c.Compute.Group}, {}} {
		if got := w.wantGone(); got.PID != p.PID || got.Key != want {
			t.Errorf("got %+v gone, want %+v of process %d", got, want, p.PID)
		}
	}
	if g := w.wantFound(); g.Process.PID != child || g.Client != c.Client {
		t.Errorf("got client %v of %d, want %v of %d", g.Client, g.Process.PID, c.Client, child)
	}
}

// TestInheritedDescriptorThatWasNeverUsed checks that a process is found which has inherited an
// open file and has made no call through it, when the process that made its groups has exited.
func TestInheritedDescriptorThatWasNeverUsed(t *testing.T) {
	_, path, _ := mounted(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone})
	p := startProcess(t, path)
	c := p.make()
	wantGroup(t, w.wantComplete(c), p.PID, c)
	child, err := strconv.Atoi(p.order("pass on"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	w.wantNothing()
	p.Kill()
	for _, want := range []Key{{c.Client, c.Compute.Group}, {}} {
		if got := w.wantGone(); got.PID != p.PID || got.Key != want {
			t.Fatalf("got %+v gone, want %+v of process %d", got, want, p.PID)
		}
	}
	if g := w.wantFound(); g.Process.PID != child || g.Client != c.Client {
		t.Errorf("got client %v of %d, want %v of %d", g.Client, g.Process.PID, c.Client, child)
	}
}

func TestOnlyOneUser(t *testing.T) {
	_, path, m := mounted(t)
	m.Start(t)
	w := startWatcher(t, Config{Control: path, Only: os.Getuid() + 1, NoBPF: true})
	w.wantNothing()
	if n := w.WrongGuesses(); n != 0 {
		t.Errorf("guesses for a process of another user: got %d, want 0", n)
	}
}

// TestOtherFileOfSameName checks that no call is made on a file which only has the name of
// the device.
func TestOtherFileOfSameName(t *testing.T) {
	rm, path, m := mounted(t)
	m.Start(t)
	other := t.TempDir() + "/nvidiactl"
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := startWatcher(t, Config{Control: other, Only: proc.Everyone, NoBPF: true})
	w.wantNothing()
	if n := rm.Calls(nvrmtest.Control(nvrmtest.GetHandleInfo)); n != 0 {
		t.Errorf("calls on %s: got %d, want 0", path, n)
	}
}

// TestNoClientsOfOtherFileAreLookedFor checks that a process with another file of the same
// name, whose client is not known, does not make the Watcher ask about every handle.
func TestNoClientsOfOtherFileAreLookedFor(t *testing.T) {
	_, _, other := mounted(t)
	other.Start(t)
	rm, path, m := mounted(t)
	p := m.Start(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true, Once: true})
	wantGroup(t, w.wantFound(), p.PID, p.Context)
	if e, more := <-w.Events(); more {
		t.Errorf("got %+v, want the end", e)
	}
	if n := rm.Calls(nvrmtest.Share()); n > 2*minAsk {
		t.Errorf("handles asked about: got %d, want at most %d", n, 2*minAsk)
	}
}

// TestReusedPID checks that a process with the pid of an earlier one is another process.
func TestReusedPID(t *testing.T) {
	_, path, m := mounted(t)
	p := m.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := newWatcher(ctx, Config{Control: path, Only: proc.Everyone})
	if err != nil {
		t.Fatal(err)
	}
	w.bpfErr = os.ErrInvalid
	before := openFiles(t)
	if f, err := w.proc.OpenPidfd(p.PID, 1); err != proc.ErrReplaced {
		t.Errorf("got %v, %v; want %v", f, err, proc.ErrReplaced)
	}
	if n := openFiles(t); n != before {
		t.Errorf("open files: got %d, want %d", n, before)
	}
	go func() {
		defer close(w.events)
		w.scan(p.PID, nil, true)
		w.openers[p.PID].process.Start-- // as if it had been an older process
		w.scan(p.PID, nil, true)
		cancel()
		for _, h := range w.openers {
			h.pidfd.Close()
		}
		w.waiters.Wait()
	}()
	var starts []uint64
	for e := range w.Events() {
		if e.Found != nil {
			starts = append(starts, e.Found.Process.Start)
			e.Found.File.Close()
		} else if *e.Gone != (Gone{PID: p.PID, Start: starts[0] - 1}) {
			t.Errorf("got %+v gone", *e.Gone)
		} else {
			starts = append(starts, 0)
		}
	}
	if want := []uint64{starts[0], 0, starts[0]}; !slices.Equal(starts, want) {
		t.Errorf("start times, 0 for gone: got %v, want %v", starts, want)
	}
}

// TestShortProcesses checks that many short processes leave no file and no goroutine behind
// (startWatcher checks the latter).
func TestShortProcesses(t *testing.T) {
	_, path, m := mounted(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true, Poll: 5e6})
	files := openFiles(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 24 {
				_ = exec.Command("sh", "-c", "exec 3<>"+path+"; sleep 0.01").Run()
			}
		})
	}
	for range 8 {
		m.Start(t).Kill()
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for going := true; going; {
		select {
		case e := <-w.Events():
			if e.Found != nil {
				e.Found.File.Close()
			}
		case <-done:
			going = false
		}
	}
	go func() { // remaining events
		for e := range w.Events() {
			if e.Found != nil {
				e.Found.File.Close()
			}
		}
	}()
	waitForCount(t, "open files", files, func() int { return openFiles(t) })
}
