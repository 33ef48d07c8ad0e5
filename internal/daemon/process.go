package daemon

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// process is what the daemon knows about a process that uses a device. It implements
// hal.Process. Daemon.mu guards all but settings and reporting.
type process struct {
	info     proc.Process
	user     string     // the name of its user, printable
	owner    orderOwner // what limits on it count for
	lineage  []proc.ID  // it and its ancestors, as they were when the process was found
	id       sched.ProcessID
	settings atomic.Pointer[hal.Settings]
	// reporting is gate, for the loop, which reads it without Daemon.mu while it polls.
	reporting atomic.Pointer[processGate]
	queues    []*queue
	gate      *processGate // nil: it has not loaded the shim
	pool      membership   // in a pool, or in another MPS server
	exited    bool
	foundAt   time.Time // when a backend announced it, if it did
	counters  sched.Counters
	requests  requests
	invalid   uint64 // number of invalid hints

	layers     attr.Layers    // what each source gave it
	container  *api.Container // the registered container that it is in; nil: none
	limits     attr.Limits    // on what its user and the process itself may ask for
	attrs      attr.Resolved  // merged from layers, within limits
	reduced    attr.Values    // what was asked for beyond the limits
	logged     attr.Values    // attributes of which the log has said that they were reduced
	attr       sched.Attr     // the part of attrs that the scheduler reads
	run        *treeAttrs     // the run that it belongs to, or did; nil: none
	hasOrders  bool           // attributes were set by 'giveway set'
	restored   bool           // by giveway restore: backend, rule and run have no effect until a policy is chosen
	idempotent *bool          // the process's own hint, which overrides its owner's; nil: none
	announced  announcements  // of requests by hints
	claim      claim          // of hints
	expectAt   time.Time      // when its owner expects the next request

	besideBackground bool // at the last checkBackground
}

// Info implements hal.Process.
func (p *process) Info() proc.Process { return p.info }

// Settings implements hal.Process.
func (p *process) Settings() *hal.Settings { return p.settings.Load() }

// setBackendAttr takes in what a backend knows of a process. d.mu is held.
func (d *Daemon) setBackendAttr(p *process, a sched.Attr) {
	if v := attr.FromSched(a); !v.Empty() && v != p.layers[attr.FromBackend] {
		p.layers[attr.FromBackend] = v
		p.merge()
	}
}

// publish makes what is in force for a process visible to the backends. d.mu is held.
func (d *Daemon) publish(p *process) {
	a := &p.attr
	bySlices, sliced := len(p.queues) > 0 || givesWayBySlices(d.policy.Name), true
	for _, q := range p.queues {
		bySlices = bySlices && givesWayBySlices(d.policyOf(q.device))
		sliced = sliced && q.device.info.Device.Sliced()
	}
	yields := bySlices && sliced // the hardware itself gives way to the process
	watch := a.SLO > 0 || a.Deadline > 0 || a.Priority != 0 || a.Class == sched.Online && !yields
	p.settings.Store(&hal.Settings{
		Attr: *a, Managed: p.managed(),
		TakesTurns: a.Class != sched.Online && !(a.Class == sched.Standard && bySlices),
		WatchReady: watch, WatchRequests: watch, TimeRequests: a.Class == sched.Online, RequestsReported: p.requests.marked.inForce,
		Bound: p.standingBound(bySlices), GateOnly: p.gateAlone() != nil,
		Predict: p.attrs.Bool(attr.Predict), LateEntry: p.lateEntry(), StreamClasses: p.attrs.Bool(attr.StreamClasses), Idempotent: p.ownerSaysIdempotent(), ExpectAt: p.expectAt,
	})
}

// managed reports whether a process was given an attribute by anything but the default
// and its own CPU scheduling parameters.
func (p *process) managed() bool {
	layers := p.inForce()
	return p.hasOrders || slices.ContainsFunc(layers[attr.FromBackend:], func(v attr.Values) bool { return !v.Empty() })
}

// appendAttrs appends that the attributes of the process have changed.
func (p *process) appendAttrs(buf []sched.Event) []sched.Event {
	for _, q := range p.queues {
		buf = append(buf, sched.Event{Kind: sched.AttrsChanged, Queue: q.id, Attr: p.attr})
	}
	return buf
}

// setGate sets the gate of the process. Daemon.mu is held.
func (p *process) setGate(g *processGate) {
	p.gate = g
	p.reporting.Store(g)
}

// stoppable reports whether there is a way to stop each queue of the process, or may be one
// soon. The channel group of an MPS server has none.
func (p *process) stoppable() bool {
	for _, q := range p.queues {
		if q.abilities().Level() == sched.LevelNone && q.detail.NativeQueues == 0 && !q.detail.Settling {
			return false
		}
	}
	return true
}

// simulated reports whether a process that is not in /proc exists nevertheless, in a
// simulation. Daemon.mu need not be held.
func (p *process) simulated() bool { return p.info.PID > maxPID }

// maxPID is PID_MAX_LIMIT of Linux on 64 bits: no real process has a larger pid.
const maxPID = 4 << 20

// merge merges the attributes that the sources gave to a process.
func (p *process) merge() {
	p.layers[attr.FromRun] = attr.Values{}
	if p.run != nil {
		p.layers[attr.FromRun] = p.run.values
	}
	layers, limits := p.inForce(), p.limits
	limits.HintsLower = p.claim.doubted
	p.attrs, p.reduced = layers.Within(&limits)
	p.claim.raised = !p.claim.doubted && p.raisedByHints(&layers)
	p.attr = p.attrs.Sched()
}

// inForce returns what each source gave to a process and is in force.
func (p *process) inForce() attr.Layers {
	layers := p.layers
	if p.restored {
		layers[attr.FromBackend], layers[attr.FromRule], layers[attr.FromRun] = attr.Values{}, attr.Values{}, attr.Values{}
	}
	if p.idempotent != nil {
		layers[attr.FromHint].Set(attr.Idempotent, 0)
		if *p.idempotent {
			layers[attr.FromHint].Set(attr.Idempotent, 1)
		}
	}
	return layers
}

// give adds attributes to those that a source gave to a process.
func (p *process) give(from attr.Source, v attr.Values) {
	p.layers[from] = p.layers[from].With(v)
	p.merge()
}

// ownerSaysIdempotent reports whether a hint of the owner says that commands may be run
// twice. The shim combines it with what the process itself says.
func (p *process) ownerSaysIdempotent() bool {
	value, _ := p.layers[attr.FromHint].Get(attr.Idempotent)
	return value != 0
}

// defaultBound is for processes that give way or take turns and that only their gate can
// stop. A gate does not stop what has been launched, and they would launch all the work
// they have.
const defaultBound = 16

// standingBound is the bound for where the policy sets none. bySlices says that the policy
// stops batch and idle processes only.
func (p *process) standingBound(bySlices bool) hal.Bound {
	b := hal.Bound{Commands: uint32(p.attrs.Int(attr.Bound)), Batch: uint32(p.attrs.Int(attr.BoundBatch))}
	stopped := !bySlices || p.attr.Class == sched.Batch || p.attr.Class == sched.Idle
	if p.gateAlone() != nil && stopped && p.attrs.Source(attr.Bound) == attr.FromDefault {
		b.Commands = defaultBound
	}
	return b
}
