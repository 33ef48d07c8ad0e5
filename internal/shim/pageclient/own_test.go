//go:build linux

package pageclient

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/shim/pageclient/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), pagetest.Hang)
	t.Cleanup(cancel)
	return ctx
}

// pair is a program's page and the daemon's side of it.
func pair(t testing.TB, prepare func(*shimpage.Page)) (*pagetest.Daemon, *Page, *shimpage.Page) {
	t.Helper()
	d := pagetest.New(t, prepare)
	p := NewPage()
	if err := p.Connect(within(t)); err != nil {
		t.Fatal(err)
	}
	return d, p, d.Page()
}

// TestHintsArrive: each kind, by the daemon's name for it, with its value and a time.
func TestHintsArrive(t *testing.T) {
	_, p, theirs := pair(t, nil)
	const apart = uint64(50 * time.Millisecond) // of shm's clock and ours, which were set one after the other
	before := shimpage.Monotonic(time.Now()) - apart
	kinds := []struct {
		ours   Kind
		theirs shimpage.HintKind
	}{
		{Priority, shimpage.HintPriority},
		{Deadline, shimpage.HintDeadline},
		{Laxity, shimpage.HintLaxity},
		{Work, shimpage.HintWork},
		{Expect, shimpage.HintExpect},
		{SLO, shimpage.HintSLO},
		{Idempotent, shimpage.HintIdempotent},
	}
	for round := range 10 {
		for i, k := range kinds {
			if !p.Hint(k.ours, int64(-7+i+100*round)) {
				t.Fatal("nobody listens")
			}
		}
		for i, h := range pagetest.Hints(t, theirs, len(kinds)) {
			if h.Kind != kinds[i].theirs || h.Value != int64(-7+i+100*round) || h.At < before || h.At > shimpage.Monotonic(time.Now())+apart {
				t.Errorf("round %d, hint %d is %+v", round, i, h)
			}
		}
	}
	if n := theirs.InvalidEntries(); n != 0 {
		t.Errorf("%d entries made no sense", n)
	}
}

// TestRinging: a daemon that sleeps is woken by every hint, one that does not is left
// alone; what it looks at by itself changes in any case.
func TestRinging(t *testing.T) {
	d, p, theirs := pair(t, nil)
	memory, bell, err := theirs.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{memory, bell})
	rung := func(wait time.Duration) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(bell), Events: unix.POLLIN}}, int(wait.Milliseconds()))
		if err == nil && n == 1 {
			_, err = unix.Read(bell, make([]byte, 8))
		}
		return err == nil && n == 1
	}
	for range 200 {
		d.Board.SetAsleep(true)
		p.Hint(Priority, 1)
		if !rung(pagetest.Hang) || !theirs.AckDoorbell() {
			t.Fatal("a daemon that sleeps was not woken")
		}
		d.Board.SetAsleep(false)
		p.Hint(Priority, 1)
		if rung(0) || !theirs.AckDoorbell() {
			t.Fatal("a daemon that is awake was rung for, or was not told")
		}
	}
}

// TestRequests: they overlap, are counted while open, and are in the log when over.
func TestRequests(t *testing.T) {
	_, p, theirs := pair(t, nil)
	first, second := p.Begin(), p.Begin()
	if n := theirs.Counters().OpenRequests; n != 2 {
		t.Errorf("%d are open, want 2", n)
	}
	time.Sleep(2 * time.Millisecond)
	first()
	first()
	second()
	var took []time.Duration
	theirs.Requests(func(r shimpage.Request) { took = append(took, r.Duration) })
	if len(took) != 2 || took[0] < 2*time.Millisecond {
		t.Errorf("the log has %v", took)
	}
	if n := theirs.Counters().OpenRequests; n != 0 {
		t.Errorf("%d are open at the end", n)
	}
	want := []shimpage.HintKind{shimpage.HintBegin, shimpage.HintBegin, shimpage.HintEnd, shimpage.HintEnd}
	for i, h := range pagetest.Hints(t, theirs, 4) {
		if h.Kind != want[i] || h.Value != int64(1+i%2) {
			t.Errorf("hint %d is %+v", i, h)
		}
	}
}

// TestManyThreads: nothing is lost where many tell at once.
func TestManyThreads(t *testing.T) {
	_, p, theirs := pair(t, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				over := p.Begin()
				p.Hint(Priority, 3)
				p.Enter()
				p.Run()
				p.Leave(false)
				p.Done()
				over()
			}
		})
	}
	all.Wait()
	c := theirs.Counters()
	if c.Launched != 1600 || c.Completed != 1600 || c.OpenRequests != 0 || c.Flags != 0 {
		t.Errorf("the daemon reads %+v", c)
	}
	n := 0
	theirs.Requests(func(shimpage.Request) { n++ })
	if n != maxRequests || theirs.InvalidEntries() != 0 {
		t.Errorf("%d requests in the log, %d entries of nonsense", n, theirs.InvalidEntries())
	}
}

// TestGate: a closed gate holds until it is opened, or the daemon is gone.
func TestGate(t *testing.T) {
	for name, open := range map[string]func(*pagetest.Daemon, *shimpage.Page){
		"opened":        func(_ *pagetest.Daemon, p *shimpage.Page) { p.Release() },
		"page closed":   func(_ *pagetest.Daemon, p *shimpage.Page) { p.Close() },
		"daemon killed": func(d *pagetest.Daemon, _ *shimpage.Page) { d.Die() },
	} {
		t.Run(name, func(t *testing.T) {
			d, p, theirs := pair(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
			through := make(chan struct{})
			go func() {
				p.Enter()
				close(through)
			}()
			pagetest.Until(t, "it is held", func() bool { return theirs.Counters().Flags == shimpage.Held|shimpage.Ready })
			select {
			case <-through:
				t.Fatal("it passed a gate that is shut")
			case <-time.After(2 * pagetest.Lease):
			}
			open(d, theirs)
			select {
			case <-through:
			case <-time.After(pagetest.Hang):
				t.Fatal("it is held still")
			}
			p.Run()
			p.Leave(true)
			if name == "opened" {
				c := theirs.Counters()
				if c.Flags != 0 || c.Holds != 1 || c.HeldFor < pagetest.Lease || c.Launched != 1 || c.Completed != 1 || c.Runtimes != runtimeQueue {
					t.Errorf("the daemon reads %+v", c)
				}
				n := 0
				theirs.Requests(func(shimpage.Request) { n++ })
				if n != 1 {
					t.Errorf("%d requests in the log, want that from ready to idle", n)
				}
			}
		})
	}
}

// TestToldRequests: where the owner says what a request is none is guessed; what the
// program itself says of its own is logged all the same.
func TestToldRequests(t *testing.T) {
	_, p, theirs := pair(t, func(p *shimpage.Page) { p.SetWatch(shimpage.WatchRequests | shimpage.ExplicitRequests) })
	logged := func() (n int) {
		theirs.Requests(func(shimpage.Request) { n++ })
		return n
	}
	command := func() {
		p.Enter()
		p.Run()
		if c := theirs.Counters(); c.OpenRequests != 0 || c.Flags != shimpage.Ready {
			t.Errorf("while it runs the daemon reads %+v", c)
		}
		p.Leave(true)
	}
	command()
	if n := logged(); n != 0 {
		t.Errorf("%d requests in the log, and the owner tells of them", n)
	}
	theirs.SetWatch(shimpage.WatchRequests)
	command()
	if n := logged(); n != 1 {
		t.Errorf("%d requests in the log, want that from ready to idle", n)
	}
	theirs.SetWatch(shimpage.WatchRequests | shimpage.ExplicitRequests)
	p.Begin()()
	if n := logged(); n != 1 {
		t.Errorf("%d requests in the log, want the program's own", n)
	}
}

// TestBound: as many as the daemon says are on the device, until nothing moves.
func TestBound(t *testing.T) {
	_, p, theirs := pair(t, func(p *shimpage.Page) { p.SetBound(2, 1) })
	for range 2 {
		p.Enter()
		p.Run()
		p.Leave(false)
	}
	third := make(chan struct{})
	go func() {
		p.Enter()
		p.Run()
		p.Leave(false)
		close(third)
	}()
	p.Done()
	select {
	case <-third:
	case <-time.After(pagetest.Hang):
		t.Fatal("there is room, and it waits")
	}
	if c := theirs.Counters(); c.Overruns > 1 { // one, if this machine slept for 100 ms before Done
		t.Errorf("%d overruns", c.Overruns)
	}
	before := theirs.Counters().Overruns
	p.Enter() // nothing is ever done: it gets through all the same
	p.Run()
	p.Leave(false)
	if c := theirs.Counters(); c.Overruns != before+1 || c.Launched != 4 || c.Completed != 1 {
		t.Errorf("the daemon reads %+v", c)
	}
}

// TestDaemonComesLater: what stands is told to the next daemon, and what is under way.
func TestDaemonComesLater(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	t.Setenv("GIVEWAY_SOCKET", socket)
	p := NewPage()
	if err := p.Connect(within(t)); err == nil {
		t.Fatal("there is a daemon where there is none")
	}
	if p.Hint(Priority, 1) || p.Hint(Priority, 9) || p.Hint(Expect, 5) || p.Connected() {
		t.Error("somebody listens")
	}
	over := p.Begin()
	p.Enter()
	p.Run()
	p.Leave(false)
	for round := range 2 {
		d := pagetest.At(t, socket, nil)
		pagetest.Until(t, "it is found", func() bool { p.Hint(Deadline, 3); return p.Connected() })
		theirs := d.Page()
		c := theirs.Counters()
		if c.OpenRequests != 1 || c.Launched != 1 || c.Completed != 0 || c.Flags != shimpage.Ready {
			t.Errorf("round %d: the daemon reads %+v", round, c)
		}
		told := map[shimpage.HintKind]int64{}
		theirs.Hints(func(h shimpage.Hint) { told[h.Kind] = h.Value })
		if len(told) != 2 || told[shimpage.HintPriority] != 9 || told[shimpage.HintDeadline] != 3 {
			t.Errorf("round %d: it is told %v", round, told)
		}
		d.Die()
		pagetest.Until(t, "it is gone", func() bool { return !p.Connected() })
	}
	over()
	p.Done()
}

// TestBadDaemons: whatever comes for an answer, there is an error and nothing is left
// open.
func TestBadDaemons(t *testing.T) {
	send := func(text string, fds ...int) func(*net.UnixConn) {
		return func(c *net.UnixConn) {
			_, _, _ = c.WriteMsgUnix([]byte(text), syscall.UnixRights(fds...), nil)
		}
	}
	const yes = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
	good, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	fd, bell, err := good.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{fd, bell})
	memory := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("bad", unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	zeros := memory(4096, unix.F_SEAL_SHRINK)
	for name, answer := range map[string]func(*net.UnixConn){
		"hangs up":     func(c *net.UnixConn) { _ = c.Close() },
		"silent":       func(*net.UnixConn) {},
		"refuses":      func(c *net.UnixConn) { _, _ = c.Write([]byte("HTTP/1.1 403 Forbidden\r\n\r\n")) },
		"no memory":    func(c *net.UnixConn) { _, _ = c.Write([]byte(yes)) },
		"too little":   send(yes, fd, bell),
		"too much":     send(yes, fd, fd, bell, bell, bell),
		"no yes":       send("HTTP/1.1 200 OK\r\n\r\n", fd, fd, bell),
		"zeros":        send(yes, zeros, zeros, bell),
		"not sealed":   send(yes, memory(4096, 0), zeros, bell),
		"small":        send(yes, memory(64, unix.F_SEAL_SHRINK), zeros, bell),
		"bells":        send(yes, bell, bell, bell),
		"board zeros":  send(yes, fd, zeros, bell),
		"board a bell": send(yes, fd, bell, bell),
	} {
		t.Run(name, func(t *testing.T) {
			d := pagetest.New(t, nil)
			d.Answer(answer)
			before := openFiles(t)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			p := NewPage()
			if err := p.Connect(ctx); err == nil {
				t.Error("it has a page")
			}
			p.Hint(Priority, 1)
			p.Enter()
			p.Run()
			p.Leave(true)
			d.Die()
			pagetest.Until(t, "nothing is left open", func() bool { return openFiles(t) < before+1 })
		})
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestLibraryHasThePage: where the preload library is loaded there is no second page.
func TestLibraryHasThePage(t *testing.T) {
	pagetest.New(t, nil)
	name := filepath.Join(t.TempDir(), "libgiveway-test.so")
	if err := os.WriteFile(name, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPage()
	if err := p.Connect(within(t)); !errors.Is(err, ErrLibrary) {
		t.Errorf("with the library loaded: %v", err)
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	if err := p.Connect(within(t)); err != nil {
		t.Errorf("without: %v", err)
	}
}

// BenchmarkHint is what a hint costs while the daemon is awake, and while it sleeps.
func BenchmarkHint(b *testing.B) {
	for _, asleep := range []bool{false, true} {
		b.Run(map[bool]string{false: "awake", true: "asleep"}[asleep], func(b *testing.B) {
			d, p, _ := pair(b, nil)
			d.Board.SetAsleep(asleep)
			for b.Loop() {
				p.Hint(Priority, 1)
			}
		})
	}
}
