package daemon

import (
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// queue is a queue under the daemon's control: a hardware queue, with the gate of its
// process in front of it if there is one, or that gate alone. It implements
// hal.QueueHandle. d.mu guards what may change.
type queue struct {
	d       *Daemon
	id      sched.QueueID
	process *process
	device  *device
	removed bool

	hardware hal.Queue    // as the backend attached it; nil: the queue is the gate alone
	gate     hal.Gate     // nil: the process has had no gate so far
	behind   *processGate // where gate was attached; it may have been withdrawn since
	detail   hal.Detail
	counters sched.Counters // as last reported to the scheduler

	hadMembers       bool          // it is a pool and has had a member
	servedAtEstimate time.Duration // its device time when that of its members was last estimated
	estimatedAt      time.Time     // when that was

	launchedAtCheck uint64 // counters.Launched at the last checkBackground

	// Only the loop uses these.
	traced       bool          // its visits are known
	resident     time.Duration // its device time, as last measured
	residentThen time.Duration // at the last checkBackground
}

// ID implements hal.QueueHandle.
func (q *queue) ID() sched.QueueID { return q.id }

// Process implements hal.QueueHandle.
func (q *queue) Process() hal.Process { return q.process }

// SetDevice implements hal.QueueHandle. The device of a hardware queue is fixed.
func (q *queue) SetDevice(hal.Device) {}

// SetDetail implements hal.QueueHandle.
func (q *queue) SetDetail(detail hal.Detail) {
	for _, m := range detail.Members {
		q.d.lockProcess(m) // adds it
		q.d.mu.Unlock()
	}
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.detail = detail
	if !q.removed && q.d.running {
		q.d.setMembers(q, detail.Members)
	}
}

// Replace implements hal.QueueHandle.
func (q *queue) Replace(hardware hal.Queue) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.removed || !q.d.running {
		return
	}
	q.hardware = hardware
	q.install()
	q.d.events.post(sched.Event{Kind: sched.QueueOpened, Queue: q.id, Can: q.abilities()})
}

// Withdraw implements hal.QueueHandle.
func (q *queue) Withdraw(exited bool) <-chan struct{} {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.removed || !q.d.running {
		return done()
	}
	q.removed = true
	p := q.process
	p.exited = p.exited || exited
	undone := q.d.removeQueue(q, exited)
	q.d.loseServer(q, exited)
	q.d.updateQueues(p)
	q.d.forget(p)
	return undone
}

// done returns a channel that is closed.
func done() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// install gives the executor the queue as it is now. d.mu is held.
func (q *queue) install() {
	now := q.hardware
	if q.gate != nil {
		now = hal.Combine(q.hardware, q.gate)
	}
	q.d.exec.replace(q.id, now)
}

// abilities returns what can be done to the queue. A gate that was withdrawn can do
// nothing any more. d.mu is held.
func (q *queue) abilities() (can sched.Ability) {
	if q.hardware != nil {
		can = hal.Abilities(q.hardware)
	}
	if q.gate != nil && q.behind == q.process.gate {
		can |= hal.Abilities(q.gate)
	}
	return can
}

// processGate is the gate that a backend offered for a process. It implements
// hal.QueueHandle.
type processGate struct {
	d       *Daemon
	process *process
	offer   hal.Offer
	device  *device // nil: the process has not used a device yet
	base    uint64  // commands that earlier gates of the process counted
	idled   uint64  // how often it ran out of work, likewise
}

// gateFound accepts the gate of a process.
func (d *Daemon) gateFound(o hal.Offer) (hal.QueueHandle, error) {
	p := d.lockProcess(o.Process)
	defer d.mu.Unlock()
	if !d.running {
		return nil, errStopping
	}
	g := &processGate{d: d, process: p, offer: o, base: p.counters.Submitted, idled: p.counters.Idled}
	if o.Device != nil {
		g.device = d.device(o.Device)
	}
	p.setGate(g)
	p.idempotent = nil // a new page: the process writes this hint again
	p.merge()
	d.setBackendAttr(p, o.Attr)
	d.updateQueues(p)
	return g, nil
}

// ID implements hal.QueueHandle.
func (g *processGate) ID() sched.QueueID { return 0 }

// Process implements hal.QueueHandle.
func (g *processGate) Process() hal.Process { return g.process }

// Replace implements hal.QueueHandle. A gate does not change.
func (g *processGate) Replace(hal.Queue) {}

// SetDetail implements hal.QueueHandle. A gate has none.
func (g *processGate) SetDetail(hal.Detail) {}

// SetDevice implements hal.QueueHandle.
func (g *processGate) SetDevice(dev hal.Device) {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	if g.process.gate == g && g.d.running {
		g.device = g.d.device(dev)
		g.d.updateQueues(g.process)
	}
}

// Withdraw implements hal.QueueHandle. Nothing reports the process's work any more, so
// it counts as having work, and its open requests as finished.
func (g *processGate) Withdraw(exited bool) <-chan struct{} {
	d, p := g.d, g.process
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.gate != g {
		return done()
	}
	p.setGate(nil)
	p.pool.gate = nil
	p.exited = p.exited || exited
	if p.counters.Known {
		p.counters.Submitted++
	}
	for _, q := range p.queues {
		if q.counters.Known {
			q.counters = p.counters
			unknown := p.counters
			unknown.Known = false // for the record: from now on it is an estimate when the queue has work
			d.events.post(sched.Event{Kind: sched.Progressed, Queue: q.id, Counters: unknown})
		}
		for range p.requests.reported {
			d.events.post(sched.Event{Kind: sched.RequestFinished, Queue: q.id})
		}
	}
	p.requests.reported = 0
	if d.running {
		d.updateQueues(p)
		d.forget(p)
	}
	return done()
}

// stats returns what the gate counts, or nil if there is none.
func (g *processGate) stats() *hal.GateStats {
	if g == nil || g.offer.GateStats == nil {
		return nil
	}
	s := g.offer.GateStats()
	return &s
}

// updateQueues makes the queues of a process those that it should have now: its hardware queues,
// each behind the gate if there is one, or the gate alone. d.mu is held.
func (d *Daemon) updateQueues(p *process) {
	g, alone := p.gate, p.gateAlone()
	usable := g != nil && g.device != nil && !p.exited
	wanted := usable && len(p.pool.queues) == 0 && (len(p.queues) == 0 || len(p.queues) == 1 && alone != nil)
	fits := wanted && alone != nil && alone.behind == g
	if alone != nil && !fits {
		alone.removed = true
		d.removeQueue(alone, false)
	}
	if wanted && !fits {
		d.openGate(p)
	}
	for _, q := range p.queues {
		if q.hardware == nil {
			continue
		}
		if usable && q.behind != g {
			q.attachGate(g)
			q.install()
		}
		if q.gate != nil {
			d.events.post(sched.Event{Kind: sched.QueueOpened, Queue: q.id, Can: q.abilities()})
		}
	}
	d.pauseMember(p)
	d.publish(p)
}

// openGate opens the queue of a process that has nothing but its gate. d.mu is held.
func (d *Daemon) openGate(p *process) {
	q := &queue{d: d, id: sched.QueueID(d.lastID.Add(1)), process: p, device: p.gate.device}
	q.attachGate(p.gate)
	p.queues = append(p.queues, q)
	d.exec.add(q.id, q.gate, workerConfig{})
	d.recorder.noteOwner(q.id, p)
	d.events.post(sched.Event{
		Kind: sched.QueueOpened, Queue: q.id, Process: p.id, Device: q.device.info.Device.ID, Can: q.abilities(), Attr: p.attr,
	})
}

// attachGate puts the queue behind a gate, held and bounded as it was behind the last.
// d.mu is held.
func (q *queue) attachGate(g *processGate) {
	var prev hal.Queue
	if q.gate != nil {
		prev = q.gate
	}
	attached, err := g.offer.Attach(prev)
	if gated, ok := attached.(hal.Gate); ok && err == nil {
		q.gate, q.behind = gated, g
	}
}

// gateAlone returns the queue that is the process's gate alone, or nil. d.mu is held.
func (p *process) gateAlone() *queue {
	if i := slices.IndexFunc(p.queues, func(q *queue) bool { return q.hardware == nil }); i >= 0 {
		return p.queues[i]
	}
	return nil
}

// requests tracks the requests of a process.
type requests struct {
	count    uint64
	last     [256]finished // the last ones
	reported uint32        // open ones that a backend reported
	marked   marks         // through the API
}

// finished is a request that is over.
type finished struct {
	took time.Duration
	at   sched.Time
}

func (r *requests) add(took time.Duration, now sched.Time) {
	r.last[r.count%uint64(len(r.last))] = finished{took, now}
	r.count++
}
