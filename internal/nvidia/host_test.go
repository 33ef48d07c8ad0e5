package nvidia

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// fakeHost is a daemon that accepts every queue.
type fakeHost struct {
	mu      sync.Mutex
	devices []hal.Device
	queues  []*fakeQueue
	turns   map[int]bool // pids whose TakesTurns is set
	slow    bool         // a withdrawn queue is closed by the test, not at once
}

// fakeQueue is an accepted queue. It implements hal.QueueHandle and hal.Process.
type fakeQueue struct {
	host   *fakeHost
	id     sched.QueueID
	offer  hal.Offer
	queue  hal.Queue
	detail atomic.Pointer[hal.Detail]

	withdrawn chan struct{} // nil: not yet
	exited    bool
}

func (h *fakeHost) DeviceFound(d hal.Device) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.devices = append(h.devices, d)
}

func (h *fakeHost) QueueFound(o hal.Offer) (hal.QueueHandle, error) {
	q, err := o.Attach(nil)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := &fakeQueue{host: h, id: sched.QueueID(len(h.queues) + 1), offer: o, queue: q}
	f.detail.Store(&o.Detail)
	h.queues = append(h.queues, f)
	return f, nil
}

func (h *fakeHost) Wake()                     {}
func (h *fakeHost) IsGuardian(int) bool       { return false }
func (h *fakeHost) Account(uid uint32) uint32 { return uid }
func (h *fakeHost) ProcessFound(proc.Process) {}

func (h *fakeHost) Ready(int) (sched.Class, bool, bool) { return sched.Standard, false, false }

// open returns the queues that are not withdrawn.
func (h *fakeHost) open() []*fakeQueue {
	h.mu.Lock()
	defer h.mu.Unlock()
	var open []*fakeQueue
	for _, q := range h.queues {
		if q.withdrawn == nil {
			open = append(open, q)
		}
	}
	return open
}

func (q *fakeQueue) ID() sched.QueueID      { return q.id }
func (q *fakeQueue) Process() hal.Process   { return q }
func (q *fakeQueue) Info() proc.Process     { return q.offer.Process }
func (q *fakeQueue) Replace(hal.Queue)      { panic("not used") }
func (q *fakeQueue) SetDevice(hal.Device)   { panic("not a gate") }
func (q *fakeQueue) SetDetail(d hal.Detail) { q.detail.Store(&d) }

func (q *fakeQueue) Settings() *hal.Settings {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	return &hal.Settings{TakesTurns: q.host.turns[q.offer.Process.PID]}
}

func (q *fakeQueue) Withdraw(exited bool) <-chan struct{} {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	q.withdrawn, q.exited = make(chan struct{}), exited
	switch {
	case exited:
		_ = hal.Abandon(q.queue)
		close(q.withdrawn)
	case !q.host.slow:
		q.close()
	}
	return q.withdrawn
}

// close closes a withdrawn queue, which restores it.
func (q *fakeQueue) close() {
	_ = q.queue.Close()
	close(q.withdrawn)
}

// fakeFacts records what Poll reports.
type fakeFacts struct {
	hal.Facts
	times  map[sched.QueueID]time.Duration
	visits map[sched.QueueID]sched.Visits
	lost   []sched.QueueID // measurements
	spans  []hal.Span
}

func newFacts() *fakeFacts {
	return &fakeFacts{times: map[sched.QueueID]time.Duration{}, visits: map[sched.QueueID]sched.Visits{}}
}

func (f *fakeFacts) Spans(_ hal.Device, spans []hal.Span) { f.spans = append(f.spans, spans...) }

func (f *fakeFacts) MeasurementLost(q hal.QueueHandle) { f.lost = append(f.lost, q.ID()) }

func (f *fakeFacts) DeviceTime(q hal.QueueHandle, total time.Duration, visits sched.Visits) {
	f.times[q.ID()], f.visits[q.ID()] = total, visits
}
