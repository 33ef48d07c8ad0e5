package sim

import (
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Node is a simulated node without a simulated daemon: its owner advances the clock,
// reads the events and makes the control calls. It never ends: traces of arrivals repeat,
// and clients that were killed start again. It is not safe for concurrent use.
type Node struct {
	w      *World
	events []sched.Event
}

// maxBacklog is how many requests of a client of a Node may wait.
const maxBacklog = 256

// NewNode returns a Node at time zero. Of the configuration's faults, lost wake-ups, stalls and
// crashes of the daemon do not apply.
func NewNode(cfg Config) *Node {
	cfg.repeat = max(cfg.Warmup+cfg.Length, time.Second)
	cfg.maxBacklog = maxBacklog
	cfg.Policy, cfg.Recorder, cfg.Started = sched.PolicyChoice{}, nil, nil
	cfg.Warmup, cfg.Length, cfg.Drain, cfg.Segments, cfg.Requests = 0, 0, 0, 0, 0
	n := &Node{w: New(cfg)}
	n.w.observer = n
	for _, d := range n.w.devices {
		if d.model.Runlist != nil && d.model.TraceInterval > 0 {
			d.spans = &spanLog{}
		}
	}
	n.w.scheduleKills()
	n.w.scheduleTraceFailures()
	return n
}

// Now returns the time of the Node's clock.
func (n *Node) Now() sched.Time { return n.w.now }

// Next returns when something happens next.
func (n *Node) Next() sched.Time { return n.w.timeline.next() }

// AdvanceTo advances the clock to t. It does nothing if that has passed.
func (n *Node) AdvanceTo(t sched.Time) { n.w.runUntil(t, nil) }

// Devices describes the devices, in the order of Config.Devices.
func (n *Node) Devices() []hal.Info {
	var all []hal.Info
	for i, d := range n.w.devices {
		info := d.info()
		info.Index = i
		all = append(all, info)
	}
	return all
}

// Events appends what has happened since the last call, and returns the result:
//
//	QueueOpened      Queue was opened: Node.Queue describes it
//	QueueClosed      its process was killed, or it was destroyed
//	Progressed       Queue became ready or idle, or drained while held
//	RequestStarted   a request to Queue arrived
//	RequestFinished  it was answered after Duration
//	AttrsChanged     the process expects its next launch at Attr.Expect
//
// At is when it happened.
func (n *Node) Events(buf []sched.Event) []sched.Event {
	buf = append(buf, n.events...)
	n.events = n.events[:0]
	return buf
}

func (n *Node) observe(q *queue, ev sched.Event) {
	ev.Queue, ev.At = q.id, n.w.now
	n.events = append(n.events, ev)
	if ev.Kind == sched.QueueClosed {
		delete(n.w.queues, q.id)
	}
}

func (n *Node) countersChanged(q *queue, wake bool) {
	if wake {
		n.observe(q, sched.Event{Kind: sched.Progressed})
	}
}

// Apply carries out one action in no time: the gate of the shim is only memory.
func (n *Node) Apply(a sched.Action) error {
	q := n.w.queues[a.Queue]
	if q == nil {
		return hal.ErrGone
	}
	var errs [1]error
	q.device.effect([]sched.Action{a}, errs[:])
	return errs[0]
}

// Call makes the control calls that the actions need, of at most one action a queue. The
// time that they take passes as the clock advances; then done is called with the error of
// each action. Call returns when that will be.
func (n *Node) Call(actions []sched.Action, done func([]error)) (end sched.Time) {
	return n.w.performAll(actions, done)
}

// DeviceTimes appends the device time of each queue according to the context-switch trace,
// as events of kind DeviceTimeMeasured, for each device whose trace may be read again. If it
// cannot be read, by a fault, the events are of kind MeasurementLost.
func (n *Node) DeviceTimes(buf []sched.Event) []sched.Event {
	for _, d := range n.w.devices {
		buf = d.readTrace(buf)
	}
	return buf
}

// Violations lists the invariants that were broken.
func (n *Node) Violations() []string { return n.w.violations }

// NodeQueue is a queue of a Node.
type NodeQueue struct {
	Client  *ClientConfig
	Process sched.ProcessID
	Slice   time.Duration // zero: the device has no slices
	// Batch says that one call can stop and start several queues of the process.
	Batch bool
	// Saturating says that the client makes the next request as soon as it can, so that
	// its requests mean nothing.
	Saturating bool

	q *queue
}

// Queue returns an open queue, or nil if there is no such queue.
func (n *Node) Queue(id sched.QueueID) *NodeQueue {
	q := n.w.queues[id]
	if q == nil {
		return nil
	}
	c, m := q.owner.cfg, &q.device.model
	nq := &NodeQueue{Client: c, Process: q.process, Saturating: c.saturating(), q: q}
	if m.Runlist != nil {
		nq.Slice = q.device.sliceOf(q)
	}
	nq.Batch = m.Slots != nil && m.Slots.Batch
	return nq
}

// Attach returns the queue as a backend offers it. The methods of the hal.Queue pass their
// action to do, and Close calls restore.
func (q *NodeQueue) Attach(do func(sched.Action) error, restore func() error) hal.Queue {
	return newControl(q.q.abilities(), control{q.q.id, do, restore})
}

// QueueID returns the queue that Attach returned q for.
func QueueID(q hal.Queue) sched.QueueID {
	return q.(interface{ queueID() sched.QueueID }).queueID()
}

// Restore undoes every change of the queue in no time.
func (q *NodeQueue) Restore() error { return q.q.restore() }

// SetDefaultBound sets the bound on commands in flight that applies where the policy sets
// none; zero is the model's.
func (q *NodeQueue) SetDefaultBound(bound uint32) {
	if q.q.defaultBound != bound {
		q.q.defaultBound = bound
		q.q.launch()
	}
}

// Counters returns the counters of the queue. Known is false if its process has no shim: a
// daemon could not know them.
func (q *NodeQueue) Counters() sched.Counters { return q.q.counters() }

// Submit adds a command, besides those of the client. Tests use it.
func (q *NodeQueue) Submit(work time.Duration) { q.q.submit(work, false) }
