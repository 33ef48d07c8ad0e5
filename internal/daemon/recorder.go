package daemon

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/sched"
)

// recorder writes the record: in the loop what each turn brought, and from other goroutines
// orders and notes. It implements loop.Recorder.
type recorder struct {
	d     *Daemon
	rec   *record.Record
	tally *metrics.Tally

	// Used by the loop only:
	queues    map[sched.QueueID]*recordedQueue
	processes map[int32]int // number of queues, by pid
	overruled map[sched.DeviceID]bool
	inverted  map[sched.DeviceID]sched.Time // when the last inversion with a note began
	accounts  *record.Accounts
	entry     record.Entry  // reused
	buf       []sched.Queue // reused
	inputs    inputs
	nextCount sched.Time // of device time

	lastDelays   lastAnswer[api.Delays]
	lastPressure lastAnswer[api.Pressure]

	mu      sync.Mutex
	owners  map[sched.QueueID]owner       // of queues that the loop has not seen yet
	devices map[sched.DeviceID]hal.Device // the same
}

// owner is the process of a queue.
type owner struct {
	pid  int32
	uid  uint32
	pod  string // as podOf returns it
	name metrics.Process
}

// recordedQueue is what the record needs to know of a queue.
type recordedQueue struct {
	owner
	device   sched.DeviceID
	attr     sched.Attr
	decision uint64       // the number of the last one
	pending  sched.Action // ID is zero if there is none
	ordered  sched.Time
	cause    uint64 // the decision because of which it was ordered
	onFloor  bool   // the last decision is a floor turn
}

// countPeriod is how often device time is counted for metrics.
const countPeriod = 100 * time.Millisecond

func newRecorder(d *Daemon) *recorder {
	rec, tally := record.New(d.start, 0), metrics.NewTally(d.cfg.File.Metrics)
	wait := func(e *record.Entry) {
		rec.Add(e)
		tally.Waited(e.Device, e.End.Sub(e.Begin))
	}
	return &recorder{
		d: d, rec: rec, tally: tally, accounts: record.NewAccounts(wait), devices: make(map[sched.DeviceID]hal.Device),
		queues: make(map[sched.QueueID]*recordedQueue), processes: make(map[int32]int),
		overruled: make(map[sched.DeviceID]bool), inverted: make(map[sched.DeviceID]sched.Time), owners: make(map[sched.QueueID]owner),
	}
}

// noteOwner notes the process of a queue that is about to be opened.
func (r *recorder) noteOwner(id sched.QueueID, p *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owners[id] = owner{int32(p.info.PID), p.info.UID, r.d.podOf(p.info.Containers), nameOf(p)}
}

// nameOf returns a process as metrics name it.
func nameOf(p *process) metrics.Process {
	m := metrics.Process{PID: p.info.PID, UID: p.info.UID, User: p.user, Container: p.info.Container, Pod: p.info.Pod}
	if c := p.container; c != nil {
		m.Container, m.Pod, m.Namespace = cmp.Or(c.Name, c.ID), cmp.Or(c.Pod, c.PodUID), c.Namespace
	}
	return m
}

// noteDevice notes a device that is about to be opened.
func (r *recorder) noteDevice(dev hal.Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.devices[dev.Info().Device.ID] = dev
}

// takeDevice returns a device that the loop sees for the first time.
func (r *recorder) takeDevice(id sched.DeviceID) hal.Device {
	r.mu.Lock()
	defer r.mu.Unlock()
	dev := r.devices[id]
	delete(r.devices, id)
	return dev
}

// takeOwner returns the process of a queue that the loop sees for the first time.
func (r *recorder) takeOwner(id sched.QueueID) owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.owners[id]
	delete(r.owners, id)
	return o
}

// Record implements loop.Recorder.
func (r *recorder) Record(now sched.Time, events []sched.Event, actions []sched.Action) {
	for i := range events {
		r.event(now, &events[i])
	}
	r.decisions(now)
	r.inversions(now)
	for _, a := range actions {
		if q := r.queues[a.Queue]; q != nil {
			q.pending, q.ordered, q.cause = a, now, q.decision
		}
	}
	r.spans(now)
	r.inputs.step(now, events, actions)
	if now >= r.nextCount {
		r.count(now)
	}
	r.accounts.Update(now, func() []sched.Queue {
		r.buf = r.d.sched.Queues(r.buf[:0])
		return r.buf
	})
	r.d.afterTurn()
}

// count counts the device time of all queues for metrics.
func (r *recorder) count(now sched.Time) {
	r.nextCount = now.Add(countPeriod)
	r.buf = r.d.sched.Queues(r.buf[:0])
	r.tally.Served(now, r.buf)
}

// begin returns an entry to fill in and add.
func (r *recorder) begin(kind record.Kind, now sched.Time) *record.Entry {
	r.entry = record.Entry{Kind: kind, At: now}
	return &r.entry
}

// about fills in the queue of an entry.
func (q *recordedQueue) about(e *record.Entry, id sched.QueueID) {
	e.Queue, e.Device, e.PID, e.UID, e.Pod = id, q.device, q.pid, q.uid, q.pod
}

// event records what an event says.
func (r *recorder) event(now sched.Time, ev *sched.Event) {
	switch ev.Kind {
	case sched.DeviceOpened, sched.DeviceClosed:
		if dev := r.takeDevice(ev.Device); dev != nil {
			r.accounts.Device(now, ev.Device, dev.Info().Index, func() bool { return traced(dev) })
		}
		e := r.begin(record.State, now)
		e.Device, e.What, e.Change = ev.Device, record.Device, record.Appeared
		if ev.Kind == sched.DeviceClosed {
			e.Change = record.Gone
		}
		r.rec.Add(e)
	case sched.PolicyChosen:
		e := r.begin(record.State, now)
		e.Device, e.What, e.Change, e.Text = ev.Device, record.Device, record.Policy, ev.Choice.Name
		r.rec.Add(e)
	case sched.QueueOpened:
		if r.queues[ev.Queue] == nil && ev.Device != "" {
			r.opened(now, ev)
		}
	case sched.QueueClosed:
		r.closed(now, ev.Queue)
	case sched.AttrsChanged:
		if q := r.queues[ev.Queue]; q != nil && q.shows(&ev.Attr) {
			q.attr = ev.Attr
			r.accounts.Attrs(now, ev.Queue, &ev.Attr)
			r.tally.SetClass(ev.Queue, ev.Attr.Class)
			r.state(now, ev.Queue, q, record.Queue, record.Attributes)
		}
	case sched.Progressed:
		r.accounts.Progress(now, ev.Queue, &ev.Counters)
	case sched.RequestStarted:
		r.accounts.RequestStarted(now, ev.Queue)
	case sched.RequestFinished:
		r.accounts.RequestFinished(now, ev.Queue, ev.Duration, ev.At)
	case sched.ActionDone:
		if q := r.queues[ev.Queue]; q != nil && q.pending.ID == ev.Action && ev.Action != 0 {
			r.action(now, q, ev)
		}
	}
}

// shows reports whether new attributes differ in what the record shows.
func (q *recordedQueue) shows(a *sched.Attr) bool {
	was := &q.attr
	return was.Class != a.Class || was.Weight != a.Weight || was.Priority != a.Priority || was.SLO != a.SLO || was.Paused != a.Paused
}

func (r *recorder) opened(now sched.Time, ev *sched.Event) {
	q := &recordedQueue{owner: r.takeOwner(ev.Queue), device: ev.Device, attr: ev.Attr}
	r.queues[ev.Queue] = q
	r.accounts.Open(now, ev.Queue, ev.Device, q.pid, &ev.Attr)
	r.accounts.Count(ev.Queue, func(class sched.Class, u record.Use) {
		r.tally.Used(r.d.Now(), q.device, class, &q.name, metrics.Use(u))
	})
	r.tally.Open(ev.Queue, ev.Device, ev.Attr.Class, q.name)
	if r.processes[q.pid]++; r.processes[q.pid] == 1 {
		r.state(now, 0, q, record.Process, record.Appeared)
	}
	r.state(now, ev.Queue, q, record.Queue, record.Appeared)
}

func (r *recorder) closed(now sched.Time, id sched.QueueID) {
	q := r.queues[id]
	if q == nil {
		return
	}
	delete(r.queues, id)
	r.accounts.Close(now, id)
	r.tally.Close(id)
	r.state(now, id, q, record.Queue, record.Gone)
	if r.processes[q.pid]--; r.processes[q.pid] == 0 {
		delete(r.processes, q.pid)
		r.state(now, 0, q, record.Process, record.Gone)
	}
}

// state records a change of a process or a queue.
func (r *recorder) state(now sched.Time, id sched.QueueID, q *recordedQueue, what record.What, change record.Change) {
	e := r.begin(record.State, now)
	q.about(e, id)
	if what == record.Process {
		e.Device = ""
	}
	e.What, e.Change = what, change
	e.Class, e.Bound, e.Holder, e.Slice, e.Paused = q.attr.Class, q.attr.Weight, q.attr.Priority, q.attr.SLO, q.attr.Paused
	r.rec.Add(e)
}

// action records that an action is over.
func (r *recorder) action(now sched.Time, q *recordedQueue, ev *sched.Event) {
	a := &q.pending
	e := r.begin(record.Action, now)
	q.about(e, ev.Queue)
	e.Number, e.Cause, e.Verb, e.Level, e.Slice, e.Bound = uint64(a.ID), q.cause, a.Verb, a.Level, a.Slice, a.Bound
	e.Begin, e.End, e.Cost, e.Outcome = q.ordered, now, ev.Duration, ev.Outcome
	r.rec.Add(e)
	over := metrics.Action{At: now, PID: int(q.pid), Verb: a.Verb, Level: a.Level, Outcome: ev.Outcome, Took: now.Sub(q.ordered), Cost: ev.Duration}
	if r.tally.Over(over) {
		note := record.Entry{Kind: record.Note, At: now, Text: "action", Words: &record.Details{Note: over.String()}}
		q.about(&note, ev.Queue)
		r.rec.Add(&note)
	}
	a.ID = 0
	if ev.Outcome == sched.Gone {
		r.closed(now, ev.Queue)
	}
}

// decisions records what the turn decided, and policies that are overruled.
func (r *recorder) decisions(now sched.Time) {
	all := r.d.sched.Decisions()
	for i := range all {
		d := &all[i]
		q := r.queues[d.Queue]
		if q == nil {
			continue
		}
		q.decision = d.Number
		r.accounts.Decided(now, d.Queue, d.Reason)
		e := r.begin(record.Decision, now)
		q.about(e, d.Queue)
		e.Number, e.Run, e.Reason, e.Slice, e.Bound, e.Text = d.Number, d.Run, d.Reason, d.Slice, d.Bound, d.Policy
		r.rec.Add(e)
		floor := d.Run && d.Reason == sched.FloorTurn
		if floor && !q.onFloor {
			r.tally.FloorTurn(d.Device)
		}
		if q.onFloor = floor; d.Reason == sched.PolicyOverruled && !r.overruled[d.Device] {
			mistake, _, _ := r.d.sched.Overruled(d.Device)
			r.overruled[d.Device] = true
			r.tally.Overruled(d.Device)
			r.rec.Note(d.Device, 0, "overruled", d.Policy+" "+mistake.String())
		}
	}
	for id := range r.overruled { //shape:unordered each adds its own note; there is hardly ever one
		if _, _, yes := r.d.sched.Overruled(id); !yes {
			delete(r.overruled, id)
			r.rec.Note(id, 0, "resumed", "")
		}
	}
}

// spans records what the devices did.
func (r *recorder) spans(now sched.Time) {
	for i := range r.d.facts.spans {
		s := &r.d.facts.spans[i]
		e := r.begin(record.Span, now)
		e.Device, e.PID = s.device, int32(s.PID)
		e.Begin, e.End, e.SpanKind, e.Left = s.Begin, s.End, s.Kind, s.Left
		r.rec.Add(e)
		r.accounts.Span(now, e.Device, &s.Span)
	}
}

// request records a request that is over. d.mu is held.
func (r *recorder) request(p *process, took time.Duration, ended sched.Time) {
	if took <= 0 {
		return
	}
	now := r.d.Now()
	r.tally.Request(now, p.attr.Class, nameOf(p), took, p.attr.SLO)
	e := record.Entry{Kind: record.Request, At: now, PID: int32(p.info.PID), UID: p.info.UID, Pod: r.d.podOf(p.info.Containers), Slice: p.attr.SLO}
	if e.End = ended; ended == 0 {
		e.End, e.Estimated = now, true
	}
	e.Begin, e.Late = e.End.Add(-took), p.attr.SLO > 0 && took > p.attr.SLO
	if len(p.queues) == 1 {
		e.Queue, e.Device = p.queues[0].id, p.queues[0].device.info.Device.ID
	}
	r.rec.Add(&e)
}

// config records that the configuration was read again: what it was and what it is, or why it
// was refused.
func (r *recorder) config(file, from, to string, err error) {
	r.tally.ConfigRead(err != nil)
	o := api.Order{Name: "config", From: record.Printable(from), To: record.Printable(file)}
	if err != nil {
		o.Refused, o.Reason = true, record.Printable(err.Error())
	} else {
		o.To = record.Printable(file + ": " + to)
	}
	r.rec.Order(0, o, record.Details{AffectsAll: true})
}

// lastAnswer is an answer from the accounts, and the number of the update that it is from.
// One computation uses it at a time: see shared.
type lastAnswer[T any] struct {
	of    uint64
	value T
}

// ask lets the loop compute an answer, unless the accounts are as they were at the last one.
// So users that ask often do not keep the loop busy.
func ask[T any](r *recorder, last *lastAnswer[T], compute func() T) T {
	r.d.events.inLoop(func() {
		if n := r.accounts.Updates(); n != last.of || n == 0 {
			last.of, last.value = n, compute()
		}
	})
	return last.value
}

func (d *Daemon) readDelays() api.Delays {
	all := ask(d.recorder, &d.recorder.lastDelays, d.recorder.accounts.Delays)
	all.Clock, all.Delays = d.recorder.rec.Clock(), slices.Clone(all.Delays)
	record.SortDelays(all.Delays)
	return all
}

func (d *Daemon) readPressure() api.Pressure {
	all := ask(d.recorder, &d.recorder.lastPressure, d.recorder.accounts.Pressure)
	all.Clock = d.recorder.rec.Clock()
	return all
}

// Delays implements server.Node.
func (d *Daemon) Delays() api.Delays { return d.delays.get() }

// Pressure implements server.Node.
func (d *Daemon) Pressure() api.Pressure { return d.pressure.get() }

// Tally implements server.Node. Device time is counted up to now.
func (d *Daemon) Tally() *metrics.Tally {
	d.counted.get()
	return d.recorder.tally
}

// Record implements server.Node.
func (d *Daemon) Record() *record.Record { return d.recorder.rec }

// traced reports whether spans of a device are reported.
func traced(dev hal.Device) bool {
	t, ok := dev.(hal.Tracing)
	return ok && t.Tracing()
}
