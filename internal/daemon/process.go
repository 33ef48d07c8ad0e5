package daemon

import (
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// process is the daemon's record of a process that uses a device. It implements
// hal.Process. Daemon.mu guards all but settings.
type process struct {
	info     proc.Process
	id       sched.ProcessID
	settings atomic.Pointer[hal.Settings]
	queues   []*queue
	gate     *gate // nil: it has not loaded the shim
	exited   bool
	counters sched.Counters
	requests requests
	invalid  uint64 // hints that made no sense

	attr        sched.Attr
	from        string     // where attr.Class came from: default, rule, run, hint, set
	backendAttr sched.Attr // what its backend knows of it
	run         *word      // that it belongs to, or did; nil: none
	said        api.Change // what its owner and itself have said: the last counts, but see classed
	classed     bool       // its owner has set its class, so it cannot itself
	owned       bool       // its owner has set something
	bound       hal.Bound  // on commands in flight, where a policy has no other
	bounded     bool       // the bound was set
	idempotent  bool       // its owner says that its commands may be run twice
	repeats     *bool      // the process says so itself, which overrides idempotent
	predict     bool
	expectAt    time.Time // when its owner expects the next request
}

// Info implements hal.Process.
func (p *process) Info() proc.Process { return p.info }

// Settings implements hal.Process.
func (p *process) Settings() *hal.Settings { return p.settings.Load() }

// newProcess makes the record of a process, with the attributes given so far to it, its
// run and its tree. d.mu is held.
func (d *Daemon) newProcess(info proc.Process) *process {
	d.lastID++
	p := &process{info: info, id: sched.ProcessID(d.lastID)}
	for _, w := range d.treesOf(&info) {
		p.say(w.change)
	}
	p.run = d.runOf(&info)
	d.resolve(p)
	d.publish(p)
	return p
}

// setBackendAttr takes in what a backend knows of a process. d.mu is held.
func (d *Daemon) setBackendAttr(p *process, a sched.Attr) {
	if a != (sched.Attr{}) && a != p.backendAttr {
		p.backendAttr = a
		d.resolve(p)
	}
}

// publish makes what is in force for a process visible to the backends. d.mu is held.
func (d *Daemon) publish(p *process) {
	a := &p.attr
	bySlices := d.policyUsesSlices()
	yields := bySlices // the hardware itself gives way to the process
	for _, q := range p.queues {
		yields = yields && q.device.info.Device.Sliced()
	}
	watch := a.SLO > 0 || a.Deadline > 0 || a.Priority != 0 || a.Class == sched.Online && !yields
	p.settings.Store(&hal.Settings{
		Attr: *a, Managed: p.managed(),
		TakesTurns: a.Class != sched.Online && !(a.Class == sched.Standard && bySlices),
		WatchReady: watch, WatchRequests: watch, TimeRequests: a.Class == sched.Online, RequestsReported: p.requests.byAPI,
		Bound: p.standingBound(), GateOnly: p.gateAlone() != nil,
		Predict: p.predict, Idempotent: p.idempotent, ExpectAt: p.expectAt,
	})
}

// policyUsesSlices reports whether the policy in force gives way by slices alone and
// leaves standard processes as they are. d.mu is held.
func (d *Daemon) policyUsesSlices() bool {
	switch d.policy.Name {
	case "giveway", "slo", "native":
		return true
	}
	return false
}

// managed reports whether any attribute was given to the process.
func (p *process) managed() bool { return p.from != "default" || p.owned || p.attr != (sched.Attr{}) }

// appendAttrs appends that the attributes of the process have changed.
func (p *process) appendAttrs(buf []sched.Event) []sched.Event {
	for _, q := range p.queues {
		buf = append(buf, sched.Event{Kind: sched.AttrsChanged, Queue: q.id, Attr: p.attr})
	}
	return buf
}

// stoppable reports whether there is a way to stop each queue of the process. The
// channel group of an MPS server has none.
func (p *process) stoppable() bool {
	for _, q := range p.queues {
		if q.abilities().Level() == sched.LevelNone && q.detail.NativeQueues == 0 {
			return false
		}
	}
	return true
}

// say is told what the owner of a process wants.
func (p *process) say(c api.Change) {
	p.said, p.owned = p.said.And(c), true
	if c.Class != nil {
		p.classed, p.from = true, "set"
	}
	p.apply(c)
}

// repeatable reports whether what it launches may be run twice.
func (p *process) repeatable() bool {
	if p.repeats != nil {
		return *p.repeats
	}
	return p.idempotent
}

// apply applies what makes sense.
func (p *process) apply(c api.Change) {
	if c.Class != nil {
		p.attr.Class, _ = sched.ParseClass(*c.Class)
	}
	set(&p.attr.Weight, c.Weight)
	set(&p.attr.Priority, c.Priority)
	set(&p.attr.Deadline, c.Deadline)
	set(&p.attr.SLO, c.SLO)
	set(&p.attr.Paused, c.Paused)
	if c.Bound != nil {
		p.bound.Commands, p.bounded = *c.Bound, true
	}
	set(&p.bound.Batch, c.Batch)
	set(&p.predict, c.Predict)
}

// defaultBound is for batch and idle processes that only their gate can stop. A gate
// does not stop what has been launched, and they would launch all the work they have.
const defaultBound = 16

// standingBound is the bound for where the policy sets none.
func (p *process) standingBound() hal.Bound {
	b := p.bound
	low := p.attr.Class == sched.Batch || p.attr.Class == sched.Idle
	if p.gateAlone() != nil && low && !p.bounded {
		b.Commands = defaultBound
	}
	return b
}

// set sets what is asked for, if anything is.
func set[T any](to, what *T) {
	if what != nil {
		*to = *what
	}
}
