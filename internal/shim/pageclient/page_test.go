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

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), pagetest.Timeout)
	t.Cleanup(cancel)
	return ctx
}

// newPair returns a daemon, the process's side of a page and the daemon's side of it.
func newPair(t testing.TB, prepare func(*shimpage.Page)) (*pagetest.Daemon, *Page, *shimpage.Page) {
	t.Helper()
	d := pagetest.New(t, prepare)
	p := NewPage()
	if err := p.Connect(timeout(t)); err != nil {
		t.Fatal(err)
	}
	return d, p, d.Page()
}

// run runs a command that is done when it returns.
func (p *Page) run() {
	p.Enter()
	p.Start()
	p.Launched(true)
}

// launch runs a command that is done later.
func (p *Page) launch() {
	p.Enter()
	p.Start()
	p.Launched(false)
}

// TestPageVersions: a process takes a page from a daemon of the release with version 1, of this
// version and of the next, and none from a daemon that has no version of its own.
func TestPageVersions(t *testing.T) {
	next := uint32(pageabi.Version + 1)
	for name, c := range map[string]struct {
		prepare func(*pagetest.Daemon)
		want    uint32
	}{
		"released": {(*pagetest.Daemon).Released, 1},
		"first":    {func(d *pagetest.Daemon) { d.Speak(pageabi.Versions{Lowest: 1, Highest: 1}) }, 1},
		"this":     {func(*pagetest.Daemon) {}, pageabi.Version},
		"next":     {func(d *pagetest.Daemon) { d.Speak(pageabi.Versions{Lowest: 1, Highest: next}) }, pageabi.Version},
		"too new":  {func(d *pagetest.Daemon) { d.Speak(pageabi.Versions{Lowest: next, Highest: next}) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := pagetest.New(t, nil)
			c.prepare(d)
			err := NewPage().Connect(timeout(t))
			if c.want == 0 {
				if err == nil {
					t.Error("connected to a daemon of another version")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := pagetest.PageVersion(t, d.Page()); got != c.want {
				t.Errorf("the page has version %d, want %d", got, c.want)
			}
		})
	}
}

func TestDaemonReadsAllHints(t *testing.T) {
	_, p, theirs := newPair(t, nil)
	before := pageabi.Now()
	kinds := []pageabi.HintKind{
		pageabi.HintPriority, pageabi.HintDeadline, pageabi.HintLaxity, pageabi.HintWork,
		pageabi.HintExpect, pageabi.HintSLO, pageabi.HintIdempotent,
	}
	for round := range 10 {
		for i, kind := range kinds {
			if !p.Hint(kind, int64(-7+i+100*round)) {
				t.Fatal("Hint returned false with a daemon")
			}
		}
		for i, h := range pagetest.Hints(t, theirs, len(kinds)) {
			if want := int64(-7 + i + 100*round); h.Kind != kinds[i] || h.Value != want || h.At < before || h.At > pageabi.Now() {
				t.Errorf("round %d, hint %d: got %+v, want kind %d and value %d", round, i, h, kinds[i], want)
			}
		}
	}
	if n := theirs.InvalidEntries(); n != 0 {
		t.Errorf("%d entries were invalid", n)
	}
}

// TestHintRingsSleepingDaemon: the doorbell's eventfd is written only while the daemon sleeps;
// its word on the page changes with every hint.
func TestHintRingsSleepingDaemon(t *testing.T) {
	d, p, theirs := newPair(t, nil)
	memory, doorbell, err := theirs.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{memory, doorbell})
	written := func(wait time.Duration) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(doorbell), Events: unix.POLLIN}}, int(wait.Milliseconds()))
		if err == nil && n == 1 {
			_, err = unix.Read(doorbell, make([]byte, 8))
		}
		return err == nil && n == 1
	}
	for range 200 {
		d.Status.SetAsleep(true)
		p.Hint(pageabi.HintPriority, 1)
		if !written(pagetest.Timeout) || !theirs.AckDoorbell() {
			t.Fatal("a sleeping daemon was not woken")
		}
		d.Status.SetAsleep(false)
		p.Hint(pageabi.HintPriority, 1)
		if written(0) || !theirs.AckDoorbell() {
			t.Fatal("the eventfd was written for a daemon that is awake, or the word did not change")
		}
	}
}

// TestRequestsAreLogged: requests may overlap, are counted while they are open, and are in
// the log afterwards.
func TestRequestsAreLogged(t *testing.T) {
	_, p, theirs := newPair(t, nil)
	endFirst, endSecond := p.Begin(), p.Begin()
	if n := theirs.Counters().OpenRequests; n != 2 {
		t.Errorf("%d requests are open, want 2", n)
	}
	time.Sleep(2 * time.Millisecond)
	endFirst()
	endFirst()
	endSecond()
	var took []time.Duration
	theirs.Requests(func(r shimpage.Request) { took = append(took, r.Duration) })
	if len(took) != 2 || took[0] < 2*time.Millisecond {
		t.Errorf("the log has %v, want two requests of at least 2ms", took)
	}
	if n := theirs.Counters().OpenRequests; n != 0 {
		t.Errorf("%d requests are open at the end, want 0", n)
	}
	want := []shimpage.HintKind{shimpage.HintBegin, shimpage.HintBegin, shimpage.HintEnd, shimpage.HintEnd}
	for i, h := range pagetest.Hints(t, theirs, 4) {
		if h.Kind != want[i] || h.Value != int64(1+i%2) {
			t.Errorf("hint %d: got %+v, want kind %d and value %d", i, h, want[i], 1+i%2)
		}
	}
}

func TestConcurrentUseLosesNothing(t *testing.T) {
	_, p, theirs := newPair(t, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				end := p.Begin()
				p.Hint(pageabi.HintPriority, 3)
				p.launch()
				p.Completed()
				end()
			}
		})
	}
	all.Wait()
	c := theirs.Counters()
	if c.Launched != 1600 || c.Completed != 1600 || c.OpenRequests != 0 || c.Flags != 0 {
		t.Errorf("got %+v, want 1600 launched and completed, nothing open", c)
	}
	n := 0
	theirs.Requests(func(shimpage.Request) { n++ })
	if n != pageabi.RequestEntries || theirs.InvalidEntries() != 0 {
		t.Errorf("%d requests in the log and %d invalid entries, want %d and 0", n, theirs.InvalidEntries(), pageabi.RequestEntries)
	}
}

// TestClosedGateHoldsUntilReleased checks everything that ends a hold.
func TestClosedGateHoldsUntilReleased(t *testing.T) {
	for name, release := range map[string]func(*pagetest.Daemon, *shimpage.Page){
		"released":      func(_ *pagetest.Daemon, p *shimpage.Page) { p.Release() },
		"page closed":   func(_ *pagetest.Daemon, p *shimpage.Page) { p.Close() },
		"daemon killed": func(d *pagetest.Daemon, _ *shimpage.Page) { d.Die() },
	} {
		t.Run(name, func(t *testing.T) {
			d, p, theirs := newPair(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
			entered := make(chan struct{})
			go func() {
				p.Enter()
				close(entered)
			}()
			pagetest.Until(t, "the command is held", func() bool { return theirs.Counters().Flags == shimpage.Held|shimpage.Ready })
			select {
			case <-entered:
				t.Fatal("a command passed a closed gate")
			case <-time.After(2 * pagetest.Lease):
			}
			release(d, theirs)
			select {
			case <-entered:
			case <-time.After(pagetest.Timeout):
				t.Fatal("the command is still held")
			}
			p.Start()
			p.Launched(true)
			if name == "released" {
				c := theirs.Counters()
				if c.Flags != 0 || c.Holds != 1 || c.HeldFor < pagetest.Lease || c.Launched != 1 || c.Completed != 1 || c.Runtimes != runtimeQueue {
					t.Errorf("got %+v", c)
				}
				n := 0
				theirs.Requests(func(shimpage.Request) { n++ })
				if n != 1 {
					t.Errorf("%d requests in the log, want 1: from ready to idle", n)
				}
			}
		})
	}
}

// TestNoRequestIsGuessedWhenAnnounced: with ExplicitRequests the time from ready to idle is
// not logged as a request. What the process itself announces is.
func TestNoRequestIsGuessedWhenAnnounced(t *testing.T) {
	_, p, theirs := newPair(t, func(p *shimpage.Page) { p.SetWatch(shimpage.WatchRequests | shimpage.ExplicitRequests) })
	expectLogged := func(step string, want int) {
		t.Helper()
		n := 0
		theirs.Requests(func(shimpage.Request) { n++ })
		if n != want {
			t.Errorf("%s: %d requests in the log, want %d", step, n, want)
		}
	}
	run := func() {
		p.Enter()
		p.Start()
		if c := theirs.Counters(); c.OpenRequests != 0 || c.Flags != shimpage.Ready {
			t.Errorf("while a command runs: got %+v", c)
		}
		p.Launched(true)
	}
	run()
	expectLogged("announced through the API", 0)
	theirs.SetWatch(shimpage.WatchRequests)
	run()
	expectLogged("not announced", 1)
	theirs.SetWatch(shimpage.WatchRequests | shimpage.ExplicitRequests)
	p.Begin()()
	expectLogged("announced by the process", 1)
}

// TestIdledCountsEachTimeOutOfWork: two commands in flight at a time are one period with work.
func TestIdledCountsEachTimeOutOfWork(t *testing.T) {
	_, p, theirs := newPair(t, nil)
	for range 5 {
		p.launch()
		p.launch()
		p.Completed()
		p.Completed()
	}
	p.launch()
	if c := theirs.Counters(); c.Idled != 5 {
		t.Errorf("got %+v, want 5 times out of work", c)
	}
}

// TestBoundLimitsCommandsInFlight also checks that the bound is ignored when no command
// completes.
func TestBoundLimitsCommandsInFlight(t *testing.T) {
	_, p, theirs := newPair(t, func(p *shimpage.Page) { p.SetBound(2, 1) })
	p.launch()
	p.launch()
	third := make(chan struct{})
	go func() {
		p.launch()
		close(third)
	}()
	p.Completed()
	select {
	case <-third:
	case <-time.After(pagetest.Timeout):
		t.Fatal("a command waits although the bound is not reached")
	}
	if c := theirs.Counters(); c.Overruns > 1 { // one, if this machine stood still for 100 ms before Completed
		t.Errorf("%d overruns, want at most 1", c.Overruns)
	}
	before := theirs.Counters().Overruns
	p.launch() // nothing completes: it passes all the same
	if c := theirs.Counters(); c.Overruns != before+1 || c.Launched != 4 || c.Completed != 1 {
		t.Errorf("got %+v, want %d overruns, 4 launched, 1 completed", c, before+1)
	}
}

// TestBoundEndsWithItsLease: a daemon that hangs does not bound a process.
func TestBoundEndsWithItsLease(t *testing.T) {
	d, p, theirs := newPair(t, func(p *shimpage.Page) { p.SetBound(1, 1) })
	d.HangWhile(func() {
		time.Sleep(pagetest.Lease + 50*time.Millisecond)
		for range 8 {
			p.launch()
		}
	})
	if c := theirs.Counters(); c.Launched != 8 || c.Overruns != 0 {
		t.Errorf("%d launched, %d overruns; want 8 and 0", c.Launched, c.Overruns)
	}
}

// TestLaterDaemonGetsState: a daemon that starts later gets the hints that hold, the open
// requests and the commands in flight.
func TestLaterDaemonGetsState(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	t.Setenv("GIVEWAY_SOCKET", socket)
	p := NewPage()
	if err := p.Connect(timeout(t)); err == nil {
		t.Fatal("connected without a daemon")
	}
	if p.Hint(pageabi.HintPriority, 1) || p.Hint(pageabi.HintPriority, 9) || p.Hint(pageabi.HintExpect, 5) || p.Connected() {
		t.Error("a hint was accepted without a daemon")
	}
	end := p.Begin()
	p.launch()
	for round := range 2 {
		d := pagetest.At(t, socket, nil)
		pagetest.Until(t, "the page is connected", func() bool { p.Hint(pageabi.HintDeadline, 3); return p.Connected() })
		theirs := d.Page()
		c := theirs.Counters()
		if c.OpenRequests != 1 || c.Launched != 1 || c.Completed != 0 || c.Flags != shimpage.Ready {
			t.Errorf("round %d: got %+v, want 1 open request, 1 command in flight", round, c)
		}
		got := map[shimpage.HintKind]int64{}
		theirs.Hints(func(h shimpage.Hint) { got[h.Kind] = h.Value })
		if len(got) != 2 || got[shimpage.HintPriority] != 9 || got[shimpage.HintDeadline] != 3 {
			t.Errorf("round %d: got hints %v, want priority 9 and deadline 3", round, got)
		}
		d.Die()
		pagetest.Until(t, "the page is disconnected", func() bool { return !p.Connected() })
	}
	end()
	p.Completed()
}

// TestBadAnswersAreRefused: after any bad answer there is an error, hints and commands go on,
// and no descriptor is left open.
func TestBadAnswersAreRefused(t *testing.T) {
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
	page, doorbell, err := good.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{page, doorbell})
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
	zeros := memory(pageabi.PageSize, unix.F_SEAL_SHRINK)
	for name, answer := range map[string]func(*net.UnixConn){
		"closes":                  func(c *net.UnixConn) { _ = c.Close() },
		"silent":                  func(*net.UnixConn) {},
		"refuses":                 func(c *net.UnixConn) { _, _ = c.Write([]byte("HTTP/1.1 403 Forbidden\r\n\r\n")) },
		"no descriptors":          func(c *net.UnixConn) { _, _ = c.Write([]byte(yes)) },
		"too few descriptors":     send(yes, page, doorbell),
		"too many descriptors":    send(yes, page, page, doorbell, doorbell, doorbell),
		"wrong status code":       send("HTTP/1.1 200 OK\r\n\r\n", page, page, doorbell),
		"zeros":                   send(yes, zeros, zeros, doorbell),
		"not sealed":              send(yes, memory(pageabi.PageSize, 0), zeros, doorbell),
		"too small":               send(yes, memory(64, unix.F_SEAL_SHRINK), zeros, doorbell),
		"eventfds":                send(yes, doorbell, doorbell, doorbell),
		"status page of zeros":    send(yes, page, zeros, doorbell),
		"eventfd for status page": send(yes, page, doorbell, doorbell),
	} {
		t.Run(name, func(t *testing.T) {
			d := pagetest.New(t, nil)
			d.Answer(answer)
			before := openFiles(t)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			p := NewPage()
			if err := p.Connect(ctx); err == nil {
				t.Error("Connect returned no error")
			}
			p.Hint(pageabi.HintPriority, 1)
			p.run()
			d.Die()
			pagetest.Until(t, "all descriptors are closed", func() bool { return openFiles(t) < before+1 })
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

// TestNoPageWithLibrary: while the shim is loaded there is no second page.
func TestNoPageWithLibrary(t *testing.T) {
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
	if err := p.Connect(timeout(t)); !errors.Is(err, ErrLibrary) {
		t.Errorf("with the library: got %v, want %v", err, ErrLibrary)
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	if err := p.Connect(timeout(t)); err != nil {
		t.Errorf("without the library: %v", err)
	}
}

// BenchmarkHint measures a hint while the daemon is awake and while it sleeps.
func BenchmarkHint(b *testing.B) {
	for _, asleep := range []bool{false, true} {
		b.Run(map[bool]string{false: "awake", true: "asleep"}[asleep], func(b *testing.B) {
			d, p, _ := newPair(b, nil)
			d.Status.SetAsleep(asleep)
			for b.Loop() {
				p.Hint(pageabi.HintPriority, 1)
			}
		})
	}
}
