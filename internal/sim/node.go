package sim

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Node is a simulated node without a simulated daemon: its owner advances the clock,
// reads the events and makes the control calls. It never ends (Config.Repeat). It is not
// safe for concurrent use.
type Node struct {
	w      *World
	events []sched.Event
}

// maxBacklog is how many requests of a client of a Node may wait.
const maxBacklog = 256

// NewNode returns a Node at time zero. Of the configuration's faults, lost wake-ups and
// crashes of the daemon do not apply.
func NewNode(cfg Config) *Node {
	cfg.Repeat = max(cfg.Warmup+cfg.Length, time.Second)
	cfg.MaxBacklog = maxBacklog
	cfg.Policy, cfg.Recorder = sched.PolicyChoice{}, nil
	cfg.Warmup, cfg.Length, cfg.Drain, cfg.Segments = 0, 0, 0, 0
	n := &Node{w: New(cfg)}
	n.w.observer = n
	n.w.scheduleKills()
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
//	QueueOpened      Queue has a NodeQueue
//	QueueClosed      its process was killed, or it was destroyed
//	Progressed       Queue became ready or idle, or drained while held
//	RequestStarted   a request to Queue arrived
//	RequestFinished  it was answered after Duration
//	AttrsChanged     the process expects its next launch at Attr.Expect
func (n *Node) Events(buf []sched.Event) []sched.Event {
	buf = append(buf, n.events...)
	n.events = n.events[:0]
	return buf
}

func (n *Node) observe(q *queue, ev sched.Event) {
	ev.Queue = q.id
	n.events = append(n.events, ev)
}

func (n *Node) countersChanged(q *queue, wake bool) {
	if wake {
		n.observe(q, sched.Event{Kind: sched.Progressed})
	}
}

// NodeQueue describes a queue of a Node.
type NodeQueue struct {
	Client  *ClientConfig
	Process sched.ProcessID
	Device  int // index in Config.Devices
	Slice   time.Duration
	// Batch says that one call can stop and start several queues of the process.
	Batch bool
	// Saturating says that the client makes the next request as soon as it can, so that
	// its requests mean nothing.
	Saturating bool
}

// Queue describes a queue.
func (n *Node) Queue(id sched.QueueID) (NodeQueue, error) {
	q, err := n.queue(id)
	if err != nil {
		return NodeQueue{}, err
	}
	c, m := q.owner.cfg, &q.device.model
	info := NodeQueue{Client: c, Process: q.process, Device: c.Device, Saturating: c.saturating()}
	if m.Runlist != nil {
		info.Slice = q.device.sliceOf(q)
	}
	info.Batch = m.Slots != nil && m.Slots.Batch
	return info, nil
}

func (n *Node) queue(id sched.QueueID) (*queue, error) {
	if q := n.w.queues[id]; q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("queue %d: %w", id, hal.ErrGone)
}

// Attach returns a queue as a backend offers it. The methods of the hal.Queue pass their
// action to do, and Close calls restore.
func (n *Node) Attach(id sched.QueueID, do func(sched.Action) error, restore func() error) (hal.Queue, error) {
	q, err := n.queue(id)
	if err != nil || q.dead {
		return nil, fmt.Errorf("attach queue %d: %w", id, hal.ErrGone)
	}
	return newControl(q.abilities(), control{id, do, restore}), nil
}

// QueueID returns the queue that Attach returned q for.
func QueueID(q hal.Queue) sched.QueueID {
	if c, ok := q.(interface{ queueID() sched.QueueID }); ok {
		return c.queueID()
	}
	return 0
}

// Apply carries out one action in no time: the gate of the shim is only memory.
func (n *Node) Apply(a sched.Action) error {
	q, err := n.queue(a.Queue)
	if err != nil {
		return err
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

// Restore undoes every change of a queue in no time.
func (n *Node) Restore(id sched.QueueID) error {
	if q := n.w.queues[id]; q != nil {
		return q.restore()
	}
	return nil
}

// SetDefaultBound sets the bound on commands in flight that applies where the policy sets
// none; zero is the model's.
func (n *Node) SetDefaultBound(id sched.QueueID, bound uint32) {
	if q := n.w.queues[id]; q != nil && q.defaultBound != bound {
		q.defaultBound = bound
		q.launch()
	}
}

// Counters returns the counters of a queue. Known is false if its process has no shim: a
// daemon could not know them.
func (n *Node) Counters(id sched.QueueID) sched.Counters {
	if q := n.w.queues[id]; q != nil {
		return q.counters()
	}
	return sched.Counters{}
}

// Submit adds a command to a queue, besides those of its client. Tests use it.
func (n *Node) Submit(id sched.QueueID, work time.Duration) { n.w.queues[id].submit(work, false) }

// DeviceTimes appends the device time of each queue according to the context-switch trace,
// as events of kind DeviceTimeMeasured, for each device whose trace may be read again.
func (n *Node) DeviceTimes(buf []sched.Event) []sched.Event {
	for _, d := range n.w.devices {
		buf = d.readTrace(buf)
	}
	return buf
}

// Forget drops a closed queue, to which no call is made any more.
func (n *Node) Forget(id sched.QueueID) {
	if q := n.w.queues[id]; q != nil && q.dead {
		delete(n.w.queues, id)
		delete(q.device.lastCompleted, id)
	}
}

// Violations lists the invariants that were broken.
func (n *Node) Violations() []string { return n.w.violations }
