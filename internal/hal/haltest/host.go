package haltest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// Host is a hal.Host for tests of backends. It accepts every queue and records what the
// backend reports. As the daemon does, it attaches a queue without a lock held.
type Host struct {
	mu        sync.Mutex
	devices   []hal.Device
	processes map[int]*process
	queues    []*Queue
	lastID    sched.QueueID

	Wakes atomic.Int64 // calls of Wake
}

// NewHost returns a Host without devices and queues.
func NewHost() *Host { return &Host{processes: make(map[int]*process)} }

// Devices returns the devices found.
func (h *Host) Devices() []hal.Device {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.devices)
}

// Queues returns the queues that were offered and not withdrawn, in order.
func (h *Host) Queues() []*Queue {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.queues)
}

// DeviceFound implements hal.Host.
func (h *Host) DeviceFound(d hal.Device) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.device(d)
}

func (h *Host) device(d hal.Device) {
	if !slices.ContainsFunc(h.devices, func(o hal.Device) bool { return o.Info().Device.ID == d.Info().Device.ID }) {
		h.devices = append(h.devices, d)
	}
}

// QueueFound implements hal.Host.
func (h *Host) QueueFound(o hal.Offer) (hal.QueueHandle, error) {
	attached, err := o.Attach(nil)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.Device != nil {
		h.device(o.Device)
	}
	p := h.processes[o.Process.PID]
	if p == nil || p.info.Start != o.Process.Start {
		p = &process{info: o.Process}
		p.settings.Store(&hal.Settings{Attr: o.Attr})
		h.processes[o.Process.PID] = p
	}
	h.lastID++
	q := &Queue{Offer: o, host: h, id: h.lastID, process: p, queue: attached}
	h.queues = append(h.queues, q)
	return q, nil
}

// Wake implements hal.Host.
func (h *Host) Wake() { h.Wakes.Add(1) }

// ProcessFound implements hal.Host.
func (h *Host) ProcessFound(proc.Process) {}

// IsGuardian implements hal.Host.
func (h *Host) IsGuardian(int) bool { return false }

// Account implements hal.Host.
func (h *Host) Account(uid uint32) uint32 { return uid }

// Ready implements hal.Host. A process with queues has work.
func (h *Host) Ready(pid int) (class sched.Class, ready, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.processes[pid]; p != nil {
		return p.Settings().Attr.Class, true, true
	}
	return sched.Standard, false, false
}

// process implements hal.Process.
type process struct {
	info     proc.Process
	settings atomic.Pointer[hal.Settings]
}

func (p *process) Info() proc.Process      { return p.info }
func (p *process) Settings() *hal.Settings { return p.settings.Load() }

// Queue is a queue that was offered. It implements hal.QueueHandle.
type Queue struct {
	Offer   hal.Offer
	host    *Host
	id      sched.QueueID
	process *process
	queue   hal.Queue
}

// Attached returns the queue that the backend attached.
func (q *Queue) Attached() hal.Queue {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	return q.queue
}

// Detail returns what giveway ps would show.
func (q *Queue) Detail() hal.Detail {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	return q.Offer.Detail
}

// SetSettings publishes what is in force for the process of the queue.
func (q *Queue) SetSettings(s hal.Settings) { q.process.settings.Store(&s) }

// ID implements hal.QueueHandle.
func (q *Queue) ID() sched.QueueID { return q.id }

// Process implements hal.QueueHandle.
func (q *Queue) Process() hal.Process { return q.process }

// Replace implements hal.QueueHandle.
func (q *Queue) Replace(by hal.Queue) {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	q.queue = by
}

// SetDetail implements hal.QueueHandle.
func (q *Queue) SetDetail(d hal.Detail) {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	q.Offer.Detail = d
}

// SetDevice implements hal.QueueHandle.
func (q *Queue) SetDevice(d hal.Device) {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	q.Offer.Device = d
	q.host.device(d)
}

// Withdraw implements hal.QueueHandle. The queue is closed on another goroutine, as the
// daemon does it.
func (q *Queue) Withdraw(exited bool) <-chan struct{} {
	q.host.mu.Lock()
	defer q.host.mu.Unlock()
	q.host.queues = slices.DeleteFunc(q.host.queues, func(o *Queue) bool { return o == q })
	attached, done := q.queue, make(chan struct{})
	go func() {
		defer close(done)
		if exited {
			_ = hal.Abandon(attached)
		} else {
			_ = attached.Close()
		}
	}()
	return done
}

// Facts records what a backend reports when it is polled. It implements hal.Facts.
type Facts struct {
	DeviceTimes map[sched.QueueID]time.Duration
	Visits      map[sched.QueueID]sched.Visits
	SpansOf     map[sched.DeviceID][]hal.Span
	Progresses  map[int]hal.Progress // the last, by pid
	Started     map[int]int          // requests, by pid
	Finished    map[int][]time.Duration
	Hints       map[int][]Hint
}

// Hint is a hint as reported.
type Hint struct {
	Kind  uint32
	Value int64
}

// NewFacts returns empty Facts.
func NewFacts() *Facts {
	return &Facts{
		DeviceTimes: make(map[sched.QueueID]time.Duration), Visits: make(map[sched.QueueID]sched.Visits),
		SpansOf: make(map[sched.DeviceID][]hal.Span), Progresses: make(map[int]hal.Progress),
		Started: make(map[int]int), Finished: make(map[int][]time.Duration), Hints: make(map[int][]Hint),
	}
}

// DeviceTime implements hal.Facts.
func (f *Facts) DeviceTime(q hal.QueueHandle, total time.Duration, visits sched.Visits) {
	f.DeviceTimes[q.ID()], f.Visits[q.ID()] = total, visits
}

// MeasurementLost implements hal.Facts.
func (f *Facts) MeasurementLost(q hal.QueueHandle) {
	delete(f.DeviceTimes, q.ID())
	delete(f.Visits, q.ID())
}

// Spans implements hal.Facts.
func (f *Facts) Spans(d hal.Device, spans []hal.Span) {
	id := d.Info().Device.ID
	f.SpansOf[id] = append(f.SpansOf[id], spans...)
}

// Progress implements hal.Facts.
func (f *Facts) Progress(p hal.Process, c hal.Progress) { f.Progresses[p.Info().PID] = c }

// RequestStarted implements hal.Facts.
func (f *Facts) RequestStarted(p hal.Process) { f.Started[p.Info().PID]++ }

// RequestFinished implements hal.Facts.
func (f *Facts) RequestFinished(p hal.Process, took time.Duration, _ sched.Time) {
	f.Finished[p.Info().PID] = append(f.Finished[p.Info().PID], took)
}

// Hint implements hal.Facts.
func (f *Facts) Hint(p hal.Process, kind uint32, value int64) {
	f.Hints[p.Info().PID] = append(f.Hints[p.Info().PID], Hint{kind, value})
}

var (
	_ hal.Host        = (*Host)(nil)
	_ hal.Process     = (*process)(nil)
	_ hal.QueueHandle = (*Queue)(nil)
	_ hal.Facts       = (*Facts)(nil)
)
