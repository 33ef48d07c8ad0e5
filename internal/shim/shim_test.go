package shim

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// harness runs processes with a page each, on a device of their own that takes
// as long for a command as the test says.
type harness struct {
	t         *testing.T
	status    *shimpage.StatusPage
	processes map[sched.QueueID]*process
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	b, err := shimpage.NewStatusPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return &harness{t, b, map[sched.QueueID]*process{}}
}

// process launches commands in order: gate, bound, device.
type process struct {
	*pagetest.Process
	page   *shimpage.Page
	gate   *Gate
	work   chan time.Duration
	device chan time.Duration
	done   atomic.Uint64
}

func (h *harness) start() *process {
	h.t.Helper()
	p := &process{work: make(chan time.Duration, 1000), device: make(chan time.Duration, 1000)}
	var err error
	if p.page, err = shimpage.NewPage(); err != nil {
		h.t.Fatal(err)
	}
	page, doorbell, err := p.page.Descriptors()
	if err != nil {
		h.t.Fatal(err)
	}
	status, err := h.status.Descriptor()
	if err != nil {
		h.t.Fatal(err)
	}
	if p.Process, err = pagetest.NewProcess(page, status, doorbell); err != nil {
		h.t.Fatal(err)
	}
	p.gate = NewGate(p.page)
	var ended sync.WaitGroup
	ended.Go(func() {
		for d := range p.work {
			p.Launch()
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
			p.AddCompleted(1)
		}
	})
	h.t.Cleanup(func() {
		p.page.Close() // ends the waits at the gate
		close(p.work)
		ended.Wait()
		_ = p.Close()
	})
	return p
}

func (h *harness) Device() hal.Device { return device("opencl") }

func (h *harness) Attach(id sched.QueueID) (hal.Queue, error) {
	return h.processes[id].gate.Attach(nil)
}

// attach returns a queue behind a gate.
func (g *Gate) attach(prev hal.Queue) *Queue {
	q, _ := g.Attach(prev)
	return q.(*Queue)
}

func (h *harness) Open() sched.QueueID {
	id := sched.QueueID(len(h.processes) + 1)
	p := h.start()
	h.processes[id] = p
	return id
}

func (h *harness) Submit(id sched.QueueID, d time.Duration) { h.processes[id].work <- d }
func (h *harness) Completed(id sched.QueueID) uint64        { return h.processes[id].done.Load() }
func (h *harness) Unit() time.Duration                      { return 20 * time.Millisecond }

// Advance keeps the gates as the daemon's loop does.
func (h *harness) Advance(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, p := range h.processes {
			p.gate.Renew()
		}
	}
}

func TestConformance(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness { return newHarness(t) })
}

// TestGateOpensAtEndOfLease: a closed gate whose lease is not renewed opens by itself.
func TestGateOpensAtEndOfLease(t *testing.T) {
	h := newHarness(t)
	p := h.start()
	q := p.gate.attach(nil)
	if err := q.Hold(); err != nil {
		t.Fatal(err)
	}
	p.work <- 0
	for begin := time.Now(); p.done.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the gate is still closed")
		}
	}
}

// TestQueuesShareOneGate: the gate is closed while any queue is held, and the lowest
// bound is in force, before the standing one.
func TestQueuesShareOneGate(t *testing.T) {
	h := newHarness(t)
	p := h.start()
	a, b := p.gate.attach(nil), p.gate.attach(nil)
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
		{"standing", func() error {
			p.gate.setStanding(standingBound{hal.Bound{Commands: 3, Batch: 2}, looseGrain})
			return nil
		}, [2]uint32{1, 2}},
		{"gone", b.Close, [2]uint32{8, 2}},
		{"none but the owner's", func() error { return a.SetBound(0) }, [2]uint32{3, 2}},
		{"none", func() error { p.gate.setStanding(standingBound{}); return nil }, [2]uint32{}},
	} {
		if err := step.do(); err != nil || bound() != step.want {
			t.Errorf("%s: %v, bound and batch %v, want %v", step.name, err, bound(), step.want)
		}
	}
	b = p.gate.attach(nil)
	_, _ = a.Hold(), b.Hold()
	_ = a.Release()
	p.work <- 0
	h.Advance(h.Unit())
	if p.done.Load() != 0 {
		t.Error("the gate opened while one queue was held")
	}
	_ = b.Close()
	h.Advance(h.Unit())
	if p.done.Load() != 1 {
		t.Error("a closed queue still holds the gate")
	}
	// On a new page the process is held and bounded as it was on the old one.
	_, _ = a.Hold(), a.SetBound(6)
	p = h.start()
	h.processes[1] = p
	moved := p.gate.attach(a)
	p.work <- 0
	h.Advance(h.Unit())
	if bound() != [2]uint32{6, 0} || p.done.Load() != 0 {
		t.Errorf("on its new page the bound is %v and %d commands are done, want [6 0] and 0", bound(), p.done.Load())
	}
	_ = moved.Release()
	h.Advance(h.Unit())
	if p.done.Load() != 1 {
		t.Error("the gate is still closed")
	}
}

// TestClosedPage: holding and bounding a closed page fail, undoing does not.
func TestClosedPage(t *testing.T) {
	h := newHarness(t)
	p := h.start()
	q := p.gate.attach(nil)
	p.page.Close()
	if hal.Outcome(q.Hold()) != sched.Unsupported || hal.Outcome(q.SetBound(4)) != sched.Unsupported {
		t.Error("Hold or SetBound succeeded on a closed page")
	}
	if q.Release() != nil || q.SetBound(0) != nil || q.Close() != nil {
		t.Error("Release, SetBound(0) or Close failed on a closed page")
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

// TestCombine: a combined queue claims what its parts can do, and no more.
func TestCombine(t *testing.T) {
	gate := newHarness(t).start().gate
	for _, tt := range []struct {
		queue hal.Queue
		can   sched.Ability
	}{
		{&plain{}, 0}, {&slicer{}, sched.CanSlice}, {&interrupter{}, sched.CanInterrupt}, {&full{}, sched.CanSlice | sched.CanInterrupt},
	} {
		q := hal.Combine(tt.queue, gate.attach(nil))
		if got, want := hal.Abilities(q), tt.can|sched.CanHold|sched.CanBound; got != want {
			t.Errorf("%T: can %v, want %v", tt.queue, got, want)
		}
	}
	inner := &plain{}
	if err := hal.Abandon(hal.Combine(inner, gate.attach(nil))); err != nil || !inner.abandoned || inner.closed {
		t.Errorf("abandoned: %+v, %v", inner, err)
	}
	inner = &plain{}
	if err := hal.Combine(inner, gate.attach(nil)).Close(); err != nil || !inner.closed {
		t.Errorf("closed: %+v, %v", inner, err)
	}
}

// TestPageLimits: the number of pages is limited for each user and in all, and no number of
// users can take those of others.
func TestPageLimits(t *testing.T) {
	b := &Backend{uid: proc.Everyone}
	if b.refusal(server.ShimProcess{UID: 1000, Account: 1000}) == nil {
		t.Error("a backend that was not started gave out a page")
	}
	b.host = struct{ hal.Host }{}
	of := func(uid uint32) server.ShimProcess { return server.ShimProcess{UID: uid, Account: uid, All: uid == 0} }
	ofContainer := server.ShimProcess{} // uid 0, without root's rights
	// A process of a subordinate uid of user 1000.
	sub := server.ShimProcess{UID: 100_007, Account: 1000}
	take := func(all ...server.ShimProcess) (n int) {
		for i := 0; b.refusal(all[i%len(all)]) == nil; i++ {
			b.connections = append(b.connections, &connection{account: all[i%len(all)].Account})
			n++
		}
		return n
	}
	if n := take(of(1000), sub); n < 200 || n > pageQuota.Each {
		t.Errorf("one user got %d pages, want 200 to %d", n, pageQuota.Each)
	}
	if !server.IsLimit(b.refusal(of(1000))) || !server.IsLimit(b.refusal(sub)) || b.refusal(of(1001)) != nil || b.refusal(of(0)) != nil {
		t.Error("the limit of one user is not that user's alone")
	}
	for user := uint32(1001); user < 1110; user++ { // as many as a node has pods
		if n := take(of(user)); n < 3 {
			t.Errorf("user %d got %d pages, want 3 at least", user, n)
		}
	}
	for user := uint32(2000); len(b.connections) < maxPages-pagesForRoot; user++ {
		b.connections = append(b.connections, &connection{account: user})
	}
	if !server.IsLimit(b.refusal(of(1))) || !server.IsLimit(b.refusal(ofContainer)) || b.refusal(of(0)) != nil {
		t.Error("no pages are kept for root")
	}
	if take(of(0)); len(b.connections) != maxPages {
		t.Errorf("there are %d pages, want %d", len(b.connections), maxPages)
	}
	b.connections = nil
	if n := take(ofContainer); n > pageQuota.Each {
		t.Errorf("root of containers got %d pages", n)
	}
	b.connections, b.uid = nil, 1000
	if b.refusal(of(1000)) != nil || b.refusal(of(0)) == nil {
		t.Error("a process of another user got a page")
	}
}

// TestPageHasItsBound: a process that the daemon knows gets its page with the bound on it, not
// at the next poll: until then it could launch any number of commands.
func TestPageHasItsBound(t *testing.T) {
	b, err := New(proc.Everyone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	host := haltest.NewHost()
	if err := b.Start(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	admit := func() *pagetest.Process {
		fds, leave, err := b.Admit(server.ShimProcess{PID: os.Getpid(), Runtime: "opencl", All: true})
		if err != nil {
			t.Fatal(err)
		}
		p, err := pagetest.NewProcess(fds[0], fds[1], fds[2])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			leave()
			_ = p.Close()
		})
		return p
	}
	if _, bound, _ := admit().InFlight(); bound != 0 {
		t.Errorf("the bound of a process without settings is %d, want 0", bound)
	}
	host.Queues()[0].SetSettings(hal.Settings{Bound: hal.Bound{Commands: 7}})
	if _, bound, _ := admit().InFlight(); bound != 7 { // a second page, as after exec
		t.Errorf("the bound is %d, want 7", bound)
	}
}
