package shimpage_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/internal/stats"
)

// newPair returns a page and the process on its other side.
func newPair(t testing.TB) (*shimpage.Page, *shimpage.StatusPage, *pagetest.Process) {
	t.Helper()
	s, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p := newPage(t)
	return p, s, newProcess(t, p, s)
}

func newPage(t testing.TB) *shimpage.Page {
	t.Helper()
	p, err := shimpage.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func newProcess(t testing.TB, p *shimpage.Page, s *shimpage.StatusPage) *pagetest.Process {
	t.Helper()
	page, doorbell, err := p.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	status, err := s.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	process, err := pagetest.NewProcess(page, status, doorbell)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Close() })
	return process
}

// TestProcessCannotResizeMemoryOrWriteStatus tries all ways to do so with the descriptors
// that a process gets.
func TestProcessCannotResizeMemoryOrWriteStatus(t *testing.T) {
	_, _, process := newPair(t)
	for name, fd := range map[string]int{"page": process.PageFD, "status page": process.StatusFD} {
		for _, size := range []int64{0, 100, 1 << 20} {
			if err := unix.Ftruncate(fd, size); err == nil {
				t.Errorf("%s: ftruncate to %d succeeded", name, size)
			}
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
			t.Errorf("%s: the process added a seal", name)
		}
	}
	for _, protection := range []int{unix.PROT_WRITE, unix.PROT_READ | unix.PROT_WRITE} {
		if _, err := unix.Mmap(process.StatusFD, 0, pageabi.StatusSize, protection, unix.MAP_SHARED); err == nil {
			t.Error("the process mapped the status page writable")
		}
	}
	if _, err := unix.Pwrite(process.StatusFD, []byte{1}, 8); err == nil {
		t.Error("the process wrote to the status page")
	}
}

// TestPunchedPageReadsAsZero lets the process remove the memory of its page.
func TestPunchedPageReadsAsZero(t *testing.T) {
	p, _, process := newPair(t)
	process.AddLaunched(3)
	if err := unix.Fallocate(process.PageFD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageabi.PageSize); err != nil {
		t.Fatal(err)
	}
	if c := p.Counters(); c != (shimpage.Counters{}) {
		t.Errorf("got %+v, want zero counters", c)
	}
}

// TestClosedGateHoldsUntilReleased checks everything that ends a hold: Release, Close and the
// end of the lease.
func TestClosedGateHoldsUntilReleased(t *testing.T) {
	for _, tt := range []struct {
		name    string
		release func(*shimpage.Page)
	}{
		{"released", (*shimpage.Page).Release},
		{"page closed", (*shimpage.Page).Close},
		{"lease over", func(*shimpage.Page) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, _, process := newPair(t)
			if process.Launch() {
				t.Error("a launch waited at an open gate")
			}
			p.Hold(200 * time.Millisecond)
			launched := make(chan bool)
			go func() { launched <- process.Launch() }()
			for p.Counters().Flags&shimpage.Held == 0 {
				runtime.Gosched()
			}
			tt.release(p)
			if waited := <-launched; !waited {
				t.Error("a launch did not wait at a closed gate")
			}
		})
	}
}

func TestLeaseIsLimited(t *testing.T) {
	p, _, process := newPair(t)
	p.Hold(time.Hour)
	for range 5 {
		p.RenewGateLease(time.Hour)
	}
	if left := process.Page.Lease.Load() - pageabi.Now(); left > pageabi.MaxLeaseNS {
		t.Errorf("the lease ends in %v, want at most %v", time.Duration(left), time.Duration(pageabi.MaxLeaseNS))
	}
}

// TestOrdersHaveALease: every order renews the lease of all orders, Close ends it, and a page before
// version 3 has none.
func TestOrdersHaveALease(t *testing.T) {
	for name, set := range map[string]func(*shimpage.Page){
		"bound":          func(p *shimpage.Page) { p.SetBound(4, 2) },
		"parking":        func(p *shimpage.Page) { p.SetParking(time.Millisecond, time.Millisecond) },
		"late entry":     func(p *shimpage.Page) { p.SetLateEntry(shimpage.LateOn) },
		"stream classes": func(p *shimpage.Page) { p.SetStreamClasses(true) },
		"renewal":        func(p *shimpage.Page) { p.RenewOrdersLease(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			p, _, process := newPair(t)
			set(p)
			left := process.Page.OrdersLease.Load() - pageabi.Now()
			if left == 0 || left > pageabi.MaxLeaseNS {
				t.Errorf("the lease ends in %v, want at most %v", time.Duration(left), time.Duration(pageabi.MaxLeaseNS))
			}
			p.Close()
			if lease := process.Page.OrdersLease.Load(); lease != 0 {
				t.Errorf("the lease of a closed page is %d, want 0", lease)
			}
		})
	}
	old, err := shimpage.NewPageOf(2)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	old.SetBound(4, 2)
	fd, doorbell, err := old.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer unix.Close(doorbell)
	lease := make([]byte, 8)
	if _, err := unix.Pread(fd, lease, 2064); err != nil || !bytes.Equal(lease, make([]byte, 8)) {
		t.Errorf("a page of version 2 has the lease %v, %v; want zero", lease, err)
	}
}

// TestHintsAreReadOnceInOrder gives hints in groups of several sizes. Of a group larger than
// the ring only the newest hints are read.
func TestHintsAreReadOnceInOrder(t *testing.T) {
	p, _, process := newPair(t)
	read := func() (values []int64) {
		p.Hints(func(h shimpage.Hint) { values = append(values, h.Value) })
		return values
	}
	next := int64(0)
	for _, n := range []int{0, 1, 31, 32, 33, 100, 5} {
		for range n {
			process.Hint(shimpage.HintPriority, next)
			next++
		}
		got := read()
		if len(got) != min(n, pageabi.HintEntries) || n > 0 && got[len(got)-1] != next-1 || len(got) > 0 && got[0] != next-int64(len(got)) {
			t.Errorf("after %d hints up to %d: got %v", n, next-1, got)
		}
	}
	// A hint that is being overwritten is lost, and no other.
	process.Hint(shimpage.HintPriority, 6)
	process.Hint(shimpage.HintPriority, 7)
	process.Page.Ring[(process.Page.Hints.Load()-2)%pageabi.HintEntries].Seq.Store(0)
	if got := read(); len(got) != 1 || got[0] != 7 {
		t.Errorf("got %v, want [7]", got)
	}
	// On a new page the process continues its counts, but the entries of the old page are
	// not there.
	p, _, process = newPair(t)
	process.Page.Hints.Store(1000)
	process.Page.Requests.Store(1000)
	if got := read(); len(got) != 0 || p.InvalidEntries() != 0 {
		t.Errorf("got %v and %d invalid entries, want none", got, p.InvalidEntries())
	}
	p.Requests(func(r shimpage.Request) { t.Errorf("got request %v, want none", r) })
	process.Hint(shimpage.HintPriority, 8)
	if got := read(); len(got) != 1 || got[0] != 8 {
		t.Errorf("got %v, want [8]", got)
	}
}

// TestReadingEndsWhileCountsGrow: a process that increases its counts during the read is read
// for at most one ring of entries.
func TestReadingEndsWhileCountsGrow(t *testing.T) {
	p, _, process := newPair(t)
	g := process.Page
	for i := range g.Log {
		g.Log[i].Begin.Store(1)
		g.Log[i].End.Store(0)
	}
	g.Log[pageabi.RequestEntries-1].End.Store(2)
	for i := range g.Ring {
		g.Ring[i].Seq.Store(uint32(pageabi.HintEntries + i + 1))
	}
	hints, requests := 0, 0
	g.Hints.Store(2 * pageabi.HintEntries)
	g.Requests.Store(pageabi.RequestEntries)
	p.Hints(func(shimpage.Hint) {
		hints++
		for i := range g.Ring {
			g.Ring[i].Seq.Add(pageabi.HintEntries)
		}
		g.Hints.Add(pageabi.HintEntries)
	})
	p.Requests(func(shimpage.Request) {
		requests++
		g.Requests.Add(pageabi.RequestEntries)
	})
	if hints == 0 || requests == 0 || hints > pageabi.HintEntries || requests > pageabi.RequestEntries ||
		p.InvalidEntries() > pageabi.HintEntries+pageabi.RequestEntries {
		t.Errorf("got %d hints, %d requests, %d invalid entries", hints, requests, p.InvalidEntries())
	}
}

// TestHostileCountsAreLimited: a count that jumps yields at most one ring of entries, and
// later hints are still read.
func TestHostileCountsAreLimited(t *testing.T) {
	for _, count := range []uint64{1, 31, 1 << 32, 1 << 60, math.MaxUint64, 5, 0} {
		p, _, process := newPair(t)
		g := process.Page
		process.Hint(shimpage.HintPriority, 1)
		p.Hints(func(shimpage.Hint) {})
		g.Hints.Store(count)
		g.Requests.Store(count)
		g.Completed.Store(count)
		g.Ring[0].At = math.MaxUint64
		g.Log[0].End.Store(math.MaxUint64)
		hints, requests := 0, 0
		for range 3 {
			p.Hints(func(h shimpage.Hint) {
				hints++
				if h.At > pageabi.Now() {
					t.Errorf("count %d: a hint is from the future", count)
				}
			})
			p.Requests(func(r shimpage.Request) {
				requests++
				if r.Duration < 0 || r.Duration > shimpage.MaxRequest {
					t.Errorf("count %d: a request took %v", count, r.Duration)
				}
			})
		}
		if hints > pageabi.HintEntries || requests > pageabi.RequestEntries {
			t.Errorf("count %d: got %d hints and %d requests", count, hints, requests)
		}
		if c := p.Counters(); c.Completed > c.Launched {
			t.Errorf("count %d: %d of %d commands completed", count, c.Completed, c.Launched)
		}
		g.Hints.Store(1000)
		last := int64(0)
		for i := range int64(2 * pageabi.HintEntries) {
			process.Hint(shimpage.HintWeight, i+1)
			p.Hints(func(h shimpage.Hint) { last = h.Value })
		}
		if last != 2*pageabi.HintEntries {
			t.Errorf("count %d: the last hint read is %d, want %d", count, last, 2*pageabi.HintEntries)
		}
	}
}

// TestRandomPageIsReadSafely fills the page with random bytes.
func TestRandomPageIsReadSafely(t *testing.T) {
	p, s, process := newPair(t)
	d := newDoorbells(t, s, p)
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		process.Scribble(func() byte { return byte(r.Uint32()) })
		hints := 0
		p.Hints(func(shimpage.Hint) { hints++ })
		p.Requests(func(r shimpage.Request) {
			if r.Duration < 0 || r.Duration > shimpage.MaxRequest {
				t.Fatalf("seed %d: a request took %v", seed, r.Duration)
			}
		})
		c := p.Counters()
		if c.Completed > c.Launched || c.HeldFor < 0 || hints > pageabi.HintEntries {
			t.Fatalf("seed %d: got %d hints, %+v", seed, hints, c)
		}
		d.Wait(0)
	}
}

func TestClosedPageDoesNothing(t *testing.T) {
	p, _, process := newPair(t)
	process.Hint(shimpage.HintPriority, 1)
	p.Close()
	p.Close()
	p.Release()
	p.RenewGateLease(time.Second)
	p.SetWatch(shimpage.WatchReady)
	if p.Hold(time.Second) || p.SetBound(1, 1) || p.AckDoorbell() || p.Counters() != (shimpage.Counters{}) {
		t.Error("a closed page was used")
	}
	p.Hints(func(shimpage.Hint) { t.Error("a hint was read") })
	p.Requests(func(shimpage.Request) { t.Error("a request was read") })
	if _, _, err := p.Descriptors(); err == nil {
		t.Error("got descriptors of a closed page")
	}
}

// TestIdled: how often a process ran out of work is known from version 3 on, and limited.
func TestIdled(t *testing.T) {
	s, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for version, want := range map[uint32]uint64{2: 0, 3: 1 << 56} {
		p, err := shimpage.NewPageOf(version)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		newProcess(t, p, s).Page.Idled.Store(math.MaxUint64)
		if got := p.Counters().Idled; got != want {
			t.Errorf("version %d: got %d, want %d", version, got, want)
		}
	}
}

// TestLateEntry: the daemon's word reaches a process with a page of version 2 until the page is
// closed, and no process with a page of version 1. Counters of late entry are limited, and of a
// page of version 1 they are zero.
func TestLateEntry(t *testing.T) {
	s, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, version := range []uint32{1, 2} {
		p, err := shimpage.NewPageOf(version)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		process := newProcess(t, p, s)
		process.Page.ABI.Store(3 - version) // which the daemon does not read
		p.SetLateEntry(shimpage.LateOn)
		process.Page.LateRequests.Store(5)
		process.Page.LateEarly.Store(7)
		process.Page.LateFor.Store(math.MaxUint64)
		process.Page.LateRatios[0].Store(math.MaxUint32)
		process.Page.LateRatios[pageabi.RatioEntries-1].Store(2)
		process.Page.LateGivenUp.Store(math.MaxUint64)
		word, c, pairs := process.Page.LateEntry.Load(), p.Counters(), p.LatePairs()
		if version == 1 {
			if word != pageabi.LateOff || c != (shimpage.Counters{}) || pairs != (shimpage.LatePairs{}) {
				t.Errorf("version 1: the word is %d, the counters are %+v, the pairs %+v; want zero", word, c, pairs)
			}
			continue
		}
		if got, want := pairs.Bins(), []stats.Bin{{From: 0.84, To: 0.845, Count: math.MaxUint32}, {From: 1.155, To: 1.16, Count: 2}}; !slices.Equal(got, want) || pairs.GivenUp > 1<<57 {
			t.Errorf("got pairs %+v and %d times given up, want %+v and a limited number", got, pairs.GivenUp, want)
		}
		process.Page.LateRatios[0].Store(1)
		if again := p.LatePairs(); again != pairs {
			t.Errorf("the pairs went back from %+v to %+v", pairs, again)
		}
		if word != pageabi.LateOn || c.LateRequests != 5 || c.LateEarly != 5 || c.LateFor < 0 || c.LateFor > 1<<57 {
			t.Errorf("version 2: the word is %d, the counters are %+v", word, c)
		}
		process.Page.LateRequests.Store(4)
		process.Page.LateFor.Store(0)
		if again := p.Counters(); again != c {
			t.Errorf("the counters went back from %+v to %+v", c, again)
		}
		p.Close()
		if word := process.Page.LateEntry.Load(); word != pageabi.LateOff {
			t.Errorf("the word is %d after Close, want %d", word, pageabi.LateOff)
		}
	}
}

// TestStreamClasses: the setting reaches a process with a page of version 2 until the page is
// closed, and no process with a page of version 1. Its counters are limited.
func TestStreamClasses(t *testing.T) {
	s, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, version := range []uint32{1, 2} {
		p, err := shimpage.NewPageOf(version)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		process := newProcess(t, p, s)
		p.SetStreamClasses(true)
		process.Page.ClassHolds.Store(math.MaxUint64)
		process.Page.ClassHeldFor.Store(math.MaxUint64)
		process.Page.ClassLetGo.Store(3)
		word, c := process.Page.StreamClasses.Load(), p.Counters()
		if version == 1 {
			if word != 0 || c != (shimpage.Counters{}) {
				t.Errorf("version %d: the word is %d, the counters are %+v; want zero", version, word, c)
			}
			continue
		}
		if word != 1 || c.ClassHolds > 1<<57 || c.ClassHeldFor < 0 || c.ClassHeldFor > 1<<57 || c.ClassLetGo != 3 {
			t.Errorf("version %d: the word is %d, the counters are %+v", version, word, c)
		}
		p.SetStreamClasses(false)
		off := process.Page.StreamClasses.Load()
		p.SetStreamClasses(true)
		p.Close()
		if closed := process.Page.StreamClasses.Load(); off != 0 || closed != 0 {
			t.Errorf("the word is %d when it is off and %d after Close, want 0", off, closed)
		}
	}
}
