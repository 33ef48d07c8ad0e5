package shimpage

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair is a page and the program on its other side.
func pair(t testing.TB) (*Page, *StatusPage, *Program) {
	t.Helper()
	b, err := NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	p, err := NewPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, b, enter(t, p, b)
}

func enter(t testing.TB, p *Page, b *StatusPage) *Program {
	t.Helper()
	page, bell, err := p.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	board, err := b.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	program, err := Enter(page, board, bell)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Leave() })
	return program
}

// TestSealed: nobody who has the descriptors can change the size of the memory, or
// write to the board.
func TestSealed(t *testing.T) {
	_, _, program := pair(t)
	for name, m := range map[string]memory{"page": program.mem, "board": program.notice} {
		for _, size := range []int64{0, 100, 1 << 20} {
			if err := unix.Ftruncate(m.fd, size); err == nil {
				t.Errorf("the %s was cut to %d bytes", name, size)
			}
		}
		if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
			t.Errorf("the %s was sealed by its reader", name)
		}
	}
	for _, how := range []int{unix.PROT_WRITE, unix.PROT_READ | unix.PROT_WRITE} {
		if _, err := unix.Mmap(program.notice.fd, 0, boardSize, how, unix.MAP_SHARED); err == nil {
			t.Error("the board was mapped to be written")
		}
	}
	if _, err := unix.Pwrite(program.notice.fd, []byte{1}, 8); err == nil {
		t.Error("the board was written to")
	}
}

// TestPunched: a program that takes the memory away from under the page finds zeros
// there, and so do we.
func TestPunched(t *testing.T) {
	p, _, program := pair(t)
	program.Launched(3)
	if err := unix.Fallocate(program.mem.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageSize); err != nil {
		t.Fatal(err)
	}
	if c := p.Counters(); c != (Counters{}) {
		t.Errorf("read %+v", c)
	}
}

// TestGate: a closed gate holds until it is opened, or the lease is over, or the
// page is.
func TestGate(t *testing.T) {
	for _, tt := range []struct {
		name string
		open func(*Page)
	}{
		{"opened", (*Page).Release},
		{"page closed", (*Page).Close},
		{"lease over", func(*Page) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, _, program := pair(t)
			if program.Pass() {
				t.Error("an open gate held")
			}
			p.Hold(200 * time.Millisecond)
			passed := make(chan bool)
			go func() { passed <- program.Pass() }()
			for p.Counters().Flags&Held == 0 {
				runtime.Gosched()
			}
			tt.open(p)
			if waited := <-passed; !waited {
				t.Error("nobody waited")
			}
		})
	}
	p, _, program := pair(t)
	p.Hold(time.Hour) // more than anybody would believe
	for range 5 {
		p.RenewGateLease(time.Hour)
	}
	if left := program.page.lease.Load() - now(); left > leaseMost {
		t.Errorf("the lease is for %v", time.Duration(left))
	}
}

// TestHints: each is taken once and in order; more than there is room for are those
// that came last.
func TestHints(t *testing.T) {
	p, _, program := pair(t)
	take := func() (values []int64) {
		p.Hints(func(h Hint) { values = append(values, h.Value) })
		return values
	}
	next := int64(0)
	for _, n := range []int{0, 1, 31, 32, 33, 100, 5} {
		for range n {
			program.Hint(HintPriority, next)
			next++
		}
		got := take()
		if len(got) != min(n, maxHints) || n > 0 && got[len(got)-1] != next-1 || len(got) > 0 && got[0] != next-int64(len(got)) {
			t.Errorf("of %d hints up to %d: %v", n, next-1, got)
		}
	}
	// One that is being overwritten is lost, and no other.
	program.Hint(HintPriority, 6)
	program.Hint(HintPriority, 7)
	program.page.ring[(program.page.hints.Load()-2)%maxHints].seq.Store(0)
	if got := take(); len(got) != 1 || got[0] != 7 {
		t.Errorf("took %v", got)
	}
	// On a new page the counts go on, and what the old one held is not there.
	p, _, program = pair(t)
	program.page.hints.Store(1000)
	program.page.requests.Store(1000)
	if got := take(); len(got) != 0 || p.InvalidEntries() != 0 {
		t.Errorf("took %v, %d times nonsense", got, p.InvalidEntries())
	}
	p.Requests(func(r Request) { t.Errorf("took %v", r) })
	program.Hint(HintPriority, 8)
	if got := take(); len(got) != 1 || got[0] != 8 {
		t.Errorf("took %v", got)
	}
}

// TestCountsThatRun: counts that change while they are looked at cost no more than a
// ring's worth either.
func TestCountsThatRun(t *testing.T) {
	p, _, program := pair(t)
	for i := range program.page.log {
		program.page.log[i].begin.Store(1)
		program.page.log[i].end.Store(0)
	}
	program.page.log[maxRequests-1].end.Store(2)
	for i := range program.page.ring {
		program.page.ring[i].seq.Store(uint32(maxHints + i + 1))
	}
	hints, requests := 0, 0
	program.page.hints.Store(2 * maxHints)
	program.page.requests.Store(maxRequests)
	p.Hints(func(Hint) {
		hints++
		for i := range program.page.ring {
			program.page.ring[i].seq.Add(maxHints)
		}
		program.page.hints.Add(maxHints)
	})
	p.Requests(func(Request) {
		requests++
		program.page.requests.Add(maxRequests)
	})
	if hints == 0 || requests == 0 || hints > maxHints || requests > maxRequests || p.InvalidEntries() > maxHints+maxRequests {
		t.Errorf("%d hints, %d requests, %d entries of nonsense", hints, requests, p.InvalidEntries())
	}
}

// TestHostileCounts: counts that jump cost no more than a ring's worth, and are
// forgotten.
func TestHostileCounts(t *testing.T) {
	for _, count := range []uint64{1, 31, 1 << 32, 1 << 60, math.MaxUint64, 5, 0} {
		p, _, program := pair(t)
		program.Hint(HintPriority, 1)
		p.Hints(func(Hint) {})
		program.page.hints.Store(count)
		program.page.requests.Store(count)
		program.page.completed.Store(count)
		for range maxHints {
			program.page.ring[0].at.Store(math.MaxUint64)
			program.page.log[0].end.Store(math.MaxUint64)
		}
		hints, requests := 0, 0
		for range 3 {
			p.Hints(func(h Hint) {
				hints++
				if h.At > now() {
					t.Errorf("a hint of the future")
				}
			})
			p.Requests(func(r Request) {
				requests++
				if r.Duration < 0 || r.Duration > longest {
					t.Errorf("a request took %v", r.Duration)
				}
			})
		}
		if hints > maxHints || requests > maxRequests {
			t.Errorf("a count of %d gave %d hints and %d requests", count, hints, requests)
		}
		if c := p.Counters(); c.Completed > c.Launched {
			t.Errorf("%d of %d completed", c.Completed, c.Launched)
		}
		// It is listened to all the same.
		program.page.hints.Store(1000)
		heard := int64(0)
		for i := range int64(2 * maxHints) {
			program.Hint(HintWeight, i+1)
			p.Hints(func(h Hint) { heard = h.Value })
		}
		if heard != 2*maxHints {
			t.Errorf("after a count of %d, the last hint heard is number %d", count, heard)
		}
	}
}

// TestScribbled: whatever is in the page, reading it ends and what it gives is sane.
func TestScribbled(t *testing.T) {
	p, b, program := pair(t)
	e, err := NewDoorbells(b)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Add(p); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		program.Scribble(func() byte { return byte(r.Uint32()) })
		hints := 0
		p.Hints(func(Hint) { hints++ })
		p.Requests(func(r Request) {
			if r.Duration < 0 || r.Duration > longest {
				t.Fatalf("seed %d: a request took %v", seed, r.Duration)
			}
		})
		c := p.Counters()
		if c.Completed > c.Launched || c.HeldFor < 0 || hints > maxHints {
			t.Fatalf("seed %d: %d hints, %+v", seed, hints, c)
		}
		e.Wait(0)
	}
}

// TestAfterClose: a page that is closed does nothing, whoever calls.
func TestAfterClose(t *testing.T) {
	p, _, program := pair(t)
	program.Hint(HintPriority, 1)
	p.Close()
	p.Close()
	p.Release()
	p.RenewGateLease(time.Second)
	p.SetWatch(WatchReady)
	if p.Hold(time.Second) || p.SetBound(1, 1) || p.AckDoorbell() || p.Counters() != (Counters{}) {
		t.Error("a closed page was used")
	}
	p.Hints(func(Hint) { t.Error("a hint was read") })
	p.Requests(func(Request) { t.Error("a request was read") })
	if _, _, err := p.Descriptors(); err == nil {
		t.Error("it was given away")
	}
}
