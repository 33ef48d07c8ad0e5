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

func checkGroup(t *testing.T, g Group, pid int, c nvrmtest.Context) {
	t.Helper()
	p := g.Process
	if p.PID != pid || p.Start == 0 || p.Parent != os.Getpid() || p.UID != uint32(os.Getuid()) || !strings.Contains(p.Command, "exe") {
		t.Errorf("process %+v, want %d", p, pid)
	}
	if g.Client != c.Client || g.Handle != c.Compute.Group || g.Subdevice != c.Subdevice || !slices.Equal(g.Channels, c.Compute.Channels) {
		t.Errorf("group %+v, want %+v", g, c)
	}
	if g.GPU != "GPU-abcd0000-0000-0000-0000-000000000001" || g.MPSServer {
		t.Errorf("GPU %s, MPS server %v", g.GPU, g.MPSServer)
	}
}

// Programs that run before we look are found, those that come later as well; each
// once, and each is gone when its process is. Nothing is guessed.
func TestProcIsPolled(t *testing.T) {
	rm, path, m := mounted(t)
	first, second := m.Start(t), m.Start(t)
	w := watching(t, Config{Control: path, Only: proc.Everyone, NoBPF: true})
	checkGroup(t, w.found(), first.Pid, first.Context)
	checkGroup(t, w.found(), second.Pid, second.Context)
	w.quiet()
	third := m.Start(t)
	g := w.found()
	checkGroup(t, g, third.Pid, third.Context)
	if n := rm.Logged(); n != 0 || w.Guesses() != 0 {
		t.Errorf("%d lines in the kernel's log, %d wrong guesses", n, w.Guesses())
	}
	third.Kill()
	if got := w.gone(); got != (Gone{PID: third.Pid, Start: g.Process.Start}) {
		t.Errorf("gone: %+v", got)
	}
	if err := first.Exit(); err != nil {
		t.Error(err)
	}
	for { // it may be seen between the free and its end
		if got := w.gone(); got.PID != first.Pid {
			t.Errorf("gone: %+v", got)
		} else if got.Group == 0 || got.Group == first.Context.Compute.Group {
			break
		}
	}
	for _, c := range w.Checks() {
		if c.OK != (c.Name != "eBPF") || c.Detail == "" || c.OK != (c.Fix == "") {
			t.Errorf("check %+v", c)
		}
	}
}

// checkBoth wants two programs found. Where the machine is slow, the newer is found
// first.
func checkBoth(t *testing.T, w *watch, one, two *nvrmtest.Program) {
	t.Helper()
	g := w.found()
	if g.Process.PID == two.Pid {
		one, two = two, one
	}
	checkGroup(t, g, one.Pid, one.Context)
	checkGroup(t, w.found(), two.Pid, two.Context)
}

// However many clients have come and gone, before a program and since, it is found.
func TestLongAfter(t *testing.T) {
	for name, first := range map[string]nvrm.Handle{
		"after 300": 0xc1d00000 + 300, "after 5000": 0xc1d00000 + 5000, "before RM counts round": 0xc1dfffff,
	} {
		t.Run(name, func(t *testing.T) {
			rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}, FirstClient: first})
			m := nvrmtest.Mounted(t, rm)
			one := m.Start(t)
			comeAndGo(t, rm, 500)
			two := m.Start(t)
			comeAndGo(t, rm, 500)
			w := watching(t, Config{Control: m.Path, Only: proc.Everyone, NoBPF: true})
			checkBoth(t, w, one, two)
			comeAndGo(t, rm, 100)
			three := m.Start(t)
			checkGroup(t, w.found(), three.Pid, three.Context)
			if n := rm.Logged(); n != 0 || w.Guesses() != 0 {
				t.Errorf("%d lines in the kernel's log, %d wrong guesses", n, w.Guesses())
			}
		})
	}
}

// What the first look does not come to, later ones do; and who looks Once does not end
// before.
func TestLongBefore(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}, FirstClient: 0xc1dfffff - 6000})
	m := nvrmtest.Mounted(t, rm)
	p := m.Start(t)
	comeAndGo(t, rm, 8000) // round, and so far that it is not looked for at once
	w := watching(t, Config{Control: m.Path, Only: proc.Everyone, NoBPF: true})
	checkGroup(t, w.found(), p.Pid, p.Context)
	once, err := Watch(t.Context(), Config{Control: m.Path, Only: proc.Everyone, NoBPF: true, Once: true})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for e := range once.Events() {
		checkGroup(t, *e.Found, p.Pid, p.Context)
		e.Found.File.Close()
		found++
	}
	if found != 1 {
		t.Errorf("who looks once found %d groups", found)
	}
	if n := rm.Logged(); n != 0 || w.Guesses() != 0 {
		t.Errorf("%d lines in the kernel's log, %d wrong guesses", n, w.Guesses())
	}
}

// Where RM does not tell, programs are found by guessing, and the log is counted.
func TestGuessing(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}, FirstClient: 0xc1d00000 + 5000})
	rm.Inject(nvrmtest.Share(), nvrmtest.Fault{Status: nvrm.ErrNotSupported})
	m := nvrmtest.Mounted(t, rm)
	one := m.Start(t)
	comeAndGo(t, rm, 100)
	two := m.Start(t)
	comeAndGo(t, rm, 100)
	w := watching(t, Config{Control: m.Path, Only: proc.Everyone, NoBPF: true})
	checkBoth(t, w, one, two)
	if n := w.Guesses(); n < uint64(rm.Logged()) || n < 200 || n > 3000 {
		t.Errorf("counted %d wrong guesses, the kernel's log has %d", n, rm.Logged())
	}
}

// With eBPF no handle is guessed, and what changes is seen when it happens.
func TestCallsAreTraced(t *testing.T) {
	rm, path, _ := mounted(t)
	w := watching(t, Config{Control: path, Only: proc.Everyone})
	w.quiet() // the first look, which may guess
	p := start(t, path)
	c := p.make()
	pid := p.cmd.Process.Pid
	g := w.found()
	checkGroup(t, g, pid, c)

	p.tell("free channel")
	g = w.found()
	if len(g.Channels) != 7 {
		t.Errorf("%d channels, want 7", len(g.Channels))
	}
	p.tell("free group")
	if got := w.gone(); got != (Gone{PID: pid, Start: g.Process.Start, Client: c.Client, Group: c.Compute.Group}) {
		t.Errorf("gone: %+v", got)
	}
	w.quiet()
	p.tell("close")
	p.tell("reopen")
	c = p.make()
	checkGroup(t, w.found(), pid, c)
	p.kill()
	if got := w.gone(); got != (Gone{PID: pid, Start: g.Process.Start}) {
		t.Errorf("gone: %+v", got)
	}
	if n := rm.Logged(); n != 0 || w.Guesses() != 0 {
		t.Errorf("%d lines in the kernel's log, %d wrong guesses", n, w.Guesses())
	}
	for _, c := range w.Checks() {
		if !c.OK {
			t.Errorf("check %+v", c)
		}
	}
}

// A descriptor that was closed is noticed although nothing was freed.
func TestDescriptorIsClosed(t *testing.T) {
	for _, noBPF := range []bool{false, true} {
		t.Run("NoBPF="+strconv.FormatBool(noBPF), func(t *testing.T) {
			rm, path, _ := mounted(t)
			w := watching(t, Config{Control: path, Only: proc.Everyone, NoBPF: noBPF})
			p := start(t, path)
			c := p.make()
			g := w.found()
			p.tell("close")
			if got := w.gone(); got != (Gone{PID: p.cmd.Process.Pid, Start: g.Process.Start, Client: c.Client, Group: c.Compute.Group}) {
				t.Errorf("gone: %+v", got)
			}
			settled(t, "clients", 0, rm.Clients)
		})
	}
}

// A client belongs to an open file. A process that inherited it is not reported,
// even when it is looked at first, until the older one has gone.
func TestInheritedDescriptor(t *testing.T) {
	_, path, _ := mounted(t)
	w := watching(t, Config{Control: path, Only: proc.Everyone, NoBPF: true})
	p := start(t, path)
	heir, err := strconv.Atoi(p.tell("bequeath"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(heir, unix.SIGKILL) })
	c := p.make()
	w.Rescan(heir)
	checkGroup(t, w.found(), p.cmd.Process.Pid, c)
	w.Rescan(heir)
	w.quiet()
	p.cmd.Process.Kill()
	_, _ = p.cmd.Process.Wait()
	if got := w.gone(); got.PID != p.cmd.Process.Pid || got.Group != 0 {
		t.Errorf("gone: %+v", got)
	}
	if g := w.found(); g.Process.PID != heir || g.Client != c.Client {
		t.Errorf("got client %v of %d, want %v of %d", g.Client, g.Process.PID, c.Client, heir)
	}
}

func TestOnlyOneUser(t *testing.T) {
	_, path, m := mounted(t)
	m.Start(t)
	w := watching(t, Config{Control: path, Only: os.Getuid() + 1, NoBPF: true})
	w.quiet()
	if n := w.Guesses(); n != 0 {
		t.Errorf("%d guesses at somebody else's", n)
	}
}

// Files that are only called like the device are not asked anything.
func TestOtherFileOfThatName(t *testing.T) {
	rm, path, m := mounted(t)
	m.Start(t)
	other := t.TempDir() + "/nvidiactl"
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := watching(t, Config{Control: other, Only: proc.Everyone, NoBPF: true})
	w.quiet()
	if n := rm.Calls(nvrmtest.Control(nvrmtest.GetHandleInfo)); n != 0 {
		t.Errorf("%d calls on %s, want calls on %s only", n, path, other)
	}
}

// A pid that another process has taken is another process.
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
	if f, err := w.proc.Open(p.Pid, 1); err != proc.ErrReplaced {
		t.Errorf("opened %v, %v; want %v", f, err, proc.ErrReplaced)
	}
	if n := openFiles(t); n != before {
		t.Errorf("%d open files, %d before", n, before)
	}
	go func() {
		defer close(w.events)
		w.scan(p.Pid, nil, true)
		w.holders[p.Pid].process.Start-- // as if it had been an older process
		w.scan(p.Pid, nil, true)
		cancel()
		for _, h := range w.holders {
			h.pidfd.Close()
		}
		w.waiters.Wait()
	}()
	var starts []uint64
	for e := range w.Events() {
		if e.Found != nil {
			starts = append(starts, e.Found.Process.Start)
			e.Found.File.Close()
		} else if *e.Gone != (Gone{PID: p.Pid, Start: starts[0] - 1}) {
			t.Errorf("gone: %+v", *e.Gone)
		} else {
			starts = append(starts, 0)
		}
	}
	if want := []uint64{starts[0], 0, starts[0]}; !slices.Equal(starts, want) {
		t.Errorf("start times found, 0 for gone: %v, want %v", starts, want)
	}
}

// Many short processes leave nothing behind: watching's end sees to it.
func TestShortProcesses(t *testing.T) {
	_, path, m := mounted(t)
	w := watching(t, Config{Control: path, Only: proc.Everyone, NoBPF: true, Poll: 5e6})
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
	go func() { // what is still on its way
		for e := range w.Events() {
			if e.Found != nil {
				e.Found.File.Close()
			}
		}
	}()
	settled(t, "open files", files, func() int { return openFiles(t) })
}
