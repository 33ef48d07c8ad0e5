package shim_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// harness runs programs that obey their pages, each on a device of its own that
// takes as long for a command as it is told to.
type harness struct {
	t        *testing.T
	board    *shimpage.StatusPage
	device   *shim.Device
	programs map[sched.QueueID]*program
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	b, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return &harness{t, b, shim.New("opencl"), map[sched.QueueID]*program{}}
}

// program launches what it is given in order: gate, bound, device.
type program struct {
	*shimpage.Program
	page   *shimpage.Page
	gate   *shim.Gate
	work   chan time.Duration
	device chan time.Duration
	done   atomic.Uint64
}

func (h *harness) program() *program {
	h.t.Helper()
	p := &program{work: make(chan time.Duration, 1000), device: make(chan time.Duration, 1000)}
	var err error
	if p.page, err = shimpage.NewPage(); err != nil {
		h.t.Fatal(err)
	}
	page, bell, err := p.page.Descriptors()
	if err != nil {
		h.t.Fatal(err)
	}
	board, err := h.board.Descriptor()
	if err != nil {
		h.t.Fatal(err)
	}
	if p.Program, err = shimpage.Enter(page, board, bell); err != nil {
		h.t.Fatal(err)
	}
	p.gate = shim.NewGate(p.page)
	var ended sync.WaitGroup
	ended.Go(func() {
		for d := range p.work {
			p.Pass()
			for n, bound, _ := p.InFlight(); bound > 0 && n > uint64(bound); n, bound, _ = p.InFlight() {
				time.Sleep(100 * time.Microsecond)
			}
			p.device <- d
		}
		close(p.device)
	})
	ended.Go(func() {
		for d := range p.device {
			time.Sleep(d)
			p.done.Add(1)
			p.Completed(1)
		}
	})
	h.t.Cleanup(func() {
		p.page.Close() // whoever waits goes on
		close(p.work)
		ended.Wait()
		_ = p.Leave()
	})
	return p
}

func (h *harness) Device() hal.Attacher { return h.device }

func (h *harness) Open() hal.Spec {
	id := sched.QueueID(len(h.programs) + 1)
	p := h.program()
	h.programs[id] = p
	h.device.Offer(id, p.gate)
	return hal.Spec{Queue: id}
}

func (h *harness) Submit(s hal.Spec, d time.Duration) { h.programs[s.Queue].work <- d }
func (h *harness) Completed(s hal.Spec) uint64        { return h.programs[s.Queue].done.Load() }
func (h *harness) Unit() time.Duration                { return 20 * time.Millisecond }

// Advance keeps the gates as the daemon's loop does.
func (h *harness) Advance(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, p := range h.programs {
			p.gate.Keep()
		}
	}
}

func TestConformance(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness { return newHarness(t) })
}

// TestLease: a gate that nobody keeps closed opens by itself.
func TestLease(t *testing.T) {
	h := newHarness(t)
	p := h.program()
	q := p.gate.Attach(nil)
	if err := q.Hold(); err != nil {
		t.Fatal(err)
	}
	p.work <- 0
	for begin := time.Now(); p.done.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("it is held still")
		}
	}
}

// TestShared: of the queues of one program any that is held holds it, and the least
// bound counts, over the one that its owner gave.
func TestShared(t *testing.T) {
	h := newHarness(t)
	p := h.program()
	a, b := p.gate.Attach(nil), p.gate.Attach(nil)
	bound := func() [2]uint32 {
		_, n, batch := p.InFlight()
		return [2]uint32{n, batch}
	}
	for _, step := range []struct {
		name string
		do   func() error
		want [2]uint32
	}{
		{"none", func() error { return nil }, [2]uint32{}},
		{"one", func() error { return a.SetBound(8) }, [2]uint32{8, 0}},
		{"less", func() error { return b.SetBound(1) }, [2]uint32{1, 0}},
		{"standing", func() error { p.gate.SetStanding(shim.Bound{Commands: 3, Batch: 2, Grain: shim.Loose}); return nil }, [2]uint32{1, 2}},
		{"gone", b.Close, [2]uint32{8, 2}},
		{"none but the owner's", func() error { return a.SetBound(0) }, [2]uint32{3, 2}},
		{"none", func() error { p.gate.SetStanding(shim.Bound{}); return nil }, [2]uint32{}},
	} {
		if err := step.do(); err != nil || bound() != step.want {
			t.Errorf("%s: %v, bound and batch %v, want %v", step.name, err, bound(), step.want)
		}
	}
	b = p.gate.Attach(nil)
	_, _ = a.Hold(), b.Hold()
	_ = a.Release()
	p.work <- 0
	h.Advance(h.Unit())
	if p.done.Load() != 0 {
		t.Error("one who holds was overruled")
	}
	_ = b.Close()
	h.Advance(h.Unit())
	if p.done.Load() != 1 {
		t.Error("it is held by a queue that is closed")
	}
	// A program that has another page is held and bounded there as it was.
	_, _ = a.Hold(), a.SetBound(6)
	p = h.program()
	h.programs[1] = p
	heir := p.gate.Attach(a)
	p.work <- 0
	h.Advance(h.Unit())
	if bound() != [2]uint32{6, 0} || p.done.Load() != 0 {
		t.Errorf("on its new page it has %v and has done %d", bound(), p.done.Load())
	}
	_ = heir.Release()
	h.Advance(h.Unit())
	if p.done.Load() != 1 {
		t.Error("it is held still")
	}
}

// TestLeft: of a program that has left nothing is claimed to be done, and what must
// be undone is.
func TestLeft(t *testing.T) {
	h := newHarness(t)
	p := h.program()
	q := p.gate.Attach(nil)
	p.page.Close()
	if hal.Outcome(q.Hold()) != sched.Unsupported || hal.Outcome(q.SetBound(4)) != sched.Unsupported {
		t.Error("it claims to hold or bound a program that has left")
	}
	if q.Release() != nil || q.SetBound(0) != nil || q.Close() != nil {
		t.Error("it cannot be undone")
	}
}

type plain struct{ closed, abandoned bool }

func (p *plain) Close() error   { p.closed = true; return nil }
func (p *plain) Abandon() error { p.abandoned = true; return nil }

type slicer struct{ plain }

func (*slicer) SetSlice(time.Duration) error { return nil }

type interrupter struct{ plain }

func (*interrupter) Interrupt() error { return nil }
func (*interrupter) Restore() error   { return nil }

type full struct {
	slicer
	interrupter
}

func (f *full) Close() error   { return f.slicer.Close() }
func (f *full) Abandon() error { return f.slicer.Abandon() }

// TestCombine: a combination claims what its parts can do, and no more.
func TestCombine(t *testing.T) {
	gate := newHarness(t).program().gate
	for _, tt := range []struct {
		queue hal.Queue
		can   sched.Ability
	}{
		{&plain{}, 0}, {&slicer{}, sched.CanSlice}, {&interrupter{}, sched.CanInterrupt}, {&full{}, sched.CanSlice | sched.CanInterrupt},
	} {
		q := hal.Combine(tt.queue, gate.Attach(nil))
		if got, want := hal.Abilities(q), tt.can|sched.CanHold|sched.CanBound; got != want {
			t.Errorf("%T: can %v, want %v", tt.queue, got, want)
		}
	}
	inner := &plain{}
	if err := hal.Abandon(hal.Combine(inner, gate.Attach(nil))); err != nil || !inner.abandoned || inner.closed {
		t.Errorf("abandoned: %+v, %v", inner, err)
	}
	inner = &plain{}
	if err := hal.Combine(inner, gate.Attach(nil)).Close(); err != nil || !inner.closed {
		t.Errorf("closed: %+v, %v", inner, err)
	}
}
