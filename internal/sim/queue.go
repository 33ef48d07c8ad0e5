package sim

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// command is one piece of device work: a kernel, a copy.
type command struct {
	left   time.Duration // device time still needed
	order  uint64        // of launches on the device
	begun  sched.Time    // when it first ran; zero if it has not
	parked bool          // spins until it is released
}

// parkedEnd is how long a parked command takes to notice that it is released.
const unparkTime = time.Microsecond

// queue is a program's queue: the shim's half, if there is a shim, and the
// device's.
type queue struct {
	device  *device
	id      sched.QueueID
	process sched.ProcessID
	owner   *client // may be nil, in conformance tests

	// Commands submitted and not completed, oldest first. Those before
	// launched are the device's, the rest wait in the shim.
	cmds                           []command
	headIndex                      int // of cmds that is still wanted
	submitted, launched, completed uint64

	gated         bool // there is a shim
	held          bool
	flushed       bool          // what was launched and had not begun was taken back
	bound         uint32        // zero: the model's
	interrupted   bool          // interrupted
	deactivatedAt sched.Time    // deactivated since; zero if not
	slice         time.Duration // zero: as found
	initialSlice  time.Duration // set before anybody looked; zero: the model's
	dead          bool
	mapped        bool       // the device has it on its list
	inSlot        bool       // it has a slot
	restoredAt    sched.Time // when it is restored

	noticedAt  sched.Time    // when the device's host knows, or knew, that it has work
	deviceTime time.Duration // device time it has had
	// resident is how long its context was on the device, at work or not: the
	// most that the hardware's record can tell.
	resident       time.Duration
	slotTime       time.Duration // how long it has had a slot
	lastCompletion sched.Time    // when its last command ended
	unreported     bool          // counters have changed since they were reported
	hal            hal.Queue
	noticeTimer    timer
}

func (q *queue) head() *command { return &q.cmds[q.headIndex] }

// active reports whether the device has work of q that it may do.
func (q *queue) active() bool { return q.launched > q.completed && !q.interrupted && !q.dead }

// submit gives q one more command.
func (q *queue) submit(work time.Duration, parked bool) {
	if q.dead {
		return
	}
	if q.headIndex > 64 && q.headIndex > len(q.cmds)/2 {
		q.cmds = q.cmds[:copy(q.cmds, q.cmds[q.headIndex:])]
		q.headIndex = 0
	}
	wasReady := q.submitted > q.completed
	q.cmds = append(q.cmds, command{left: work, parked: parked})
	q.submitted++
	q.countersChanged(!wasReady)
	q.pump()
}

// pump launches what the gate lets through.
func (q *queue) pump() {
	limit := uint64(1 << 62)
	if q.gated {
		w := q.bound
		if w == 0 {
			w = q.device.model.Bound
		}
		if w > 0 {
			limit = uint64(w)
		}
	}
	for q.launched < q.submitted && q.launched-q.completed < limit && !q.held && !q.flushed && !q.dead {
		q.device.launchCount++
		q.cmds[q.headIndex+int(q.launched-q.completed)].order = q.device.launchCount
		q.launched++
		q.device.engine.arrived(q)
	}
}

// complete takes the head command, which has run to its end, out.
func (q *queue) complete() {
	c := q.head()
	w := q.device.world
	switch {
	case q.dead:
		w.violation("queue %d: a command finished after its process died", q.id)
	case q.interrupted:
		w.violation("queue %d: a command finished while interrupted", q.id)
	case q.deactivatedAt != 0 && c.begun > q.deactivatedAt:
		w.violation("queue %d: a command began while deactivated", q.id)
	case c.left > 0 || c.parked:
		w.violation("queue %d: a command finished with %v of work left", q.id, c.left)
	case q.completed >= q.launched:
		w.violation("queue %d: a command finished that was not launched", q.id)
	}
	if c.order <= q.device.lastOrder(q) {
		w.violation("queue %d: commands finished out of order", q.id)
	}
	q.device.lastCompleted[q.id] = c.order
	q.headIndex++
	q.completed++
	q.lastCompletion = w.now
	q.countersChanged(q.completed == q.submitted || q.held && q.completed == q.launched)
}

// finished is called when the device is in order again after complete.
func (q *queue) finished() {
	q.pump()
	if q.owner != nil {
		q.owner.finished(q.completed)
	}
}

// tell notes that the counters have changed. The shim wakes the daemon only
// when the queue goes from ready to idle or back, or has drained while held.
func (q *queue) countersChanged(wake bool) {
	if !q.gated {
		return
	}
	d := q.device.world.daemon
	if !q.unreported {
		q.unreported = true
		d.countersOf = append(d.countersOf, q)
	}
	if wake {
		d.notify()
	}
}

// release lets parked commands go.
func (q *queue) unpark() {
	q.device.engine.settle()
	for i := q.headIndex; i < len(q.cmds); i++ {
		if c := &q.cmds[i]; c.parked {
			c.parked, c.left = false, unparkTime
		}
	}
	q.device.engine.changed(q)
}

// die is what SIGKILL does: everything of the process is gone.
func (q *queue) kill() {
	q.dead = true
	q.device.engine.changed(q)
}

// asFound reports whether nothing about q is changed.
func (q *queue) unchanged() bool {
	return !q.interrupted && !q.held && !q.flushed && q.deactivatedAt == 0 && q.slice == 0 && q.bound == 0
}

func (q *queue) changes() string {
	return fmt.Sprintf("off %v, held %v, inactive %v, slice %v, window %d", q.interrupted, q.held, q.deactivatedAt != 0, q.slice, q.bound)
}

// What can be done to a queue, as the type that Attach returns claims.
type (
	control     struct{ q *queue }
	gate        struct{ control } // through the shim
	deactivator struct{ control } // level 2
	interrupter struct{ control } // level 3
	slicer      struct{ control }

	ungatedGroup struct { // a channel group of a stock driver
		control
		interrupter
		slicer
	}
	gatedGroup struct {
		control
		gate
		interrupter
		slicer
	}
	gatedInterrupter struct {
		control
		gate
		interrupter
	}
	gatedDeactivator struct {
		control
		gate
		deactivator
	}
	gateOnly struct {
		control
		gate
	}
)

// claim returns q as the type that tells what its device can do.
func (q *queue) halQueue() hal.Queue {
	c := control{q}
	m := &q.device.model
	switch {
	case m.Runlist != nil && q.gated:
		return gatedGroup{c, gate{c}, interrupter{c}, slicer{c}}
	case m.Runlist != nil:
		return ungatedGroup{c, interrupter{c}, slicer{c}}
	case m.Slots.Interrupt && q.gated:
		return gatedInterrupter{c, gate{c}, interrupter{c}}
	case m.Slots.Interrupt:
		return interrupter{c}
	case m.Slots.Deactivate != NoDeactivate && q.gated:
		return gatedDeactivator{c, gate{c}, deactivator{c}}
	case q.gated:
		return gateOnly{c, gate{c}}
	}
	return c
}

func (c control) effect() error {
	if c.q.dead {
		return fmt.Errorf("queue %d: %w", c.q.id, hal.ErrGone)
	}
	c.q.device.engine.changed(c.q)
	c.q.device.checkSlices()
	return nil
}

// Close implements hal.Queue.
func (c control) Close() error {
	q := c.q
	q.held, q.interrupted, q.slice, q.bound = false, false, 0, 0
	wasInactive := q.deactivatedAt != 0
	q.deactivatedAt = 0
	if wasInactive {
		q.device.engine.reactivated(q)
	}
	if !q.dead {
		q.device.engine.changed(q)
		q.pump()
	}
	return nil
}

func (g gate) Hold() error { g.q.held = true; return g.effect() }
func (g gate) Release() error {
	g.q.held = false
	err := g.effect()
	g.q.pump()
	return err
}

func (g gate) SetBound(n uint32) error {
	g.q.bound = n
	err := g.effect()
	g.q.pump()
	return err
}

func (b deactivator) Deactivate() error {
	if b.q.deactivatedAt == 0 {
		b.q.deactivatedAt = max(b.q.device.world.now, 1)
		b.q.device.engine.deactivated(b.q)
	}
	return b.effect()
}

func (b deactivator) Reactivate() error {
	if b.q.deactivatedAt != 0 {
		b.q.deactivatedAt = 0
		b.q.device.engine.reactivated(b.q)
	}
	return b.effect()
}

func (s interrupter) Interrupt() error { s.q.interrupted = true; return s.effect() }
func (s interrupter) Restore() error   { s.q.interrupted = false; return s.effect() }

func (s slicer) SetSlice(d time.Duration) error { s.q.slice = d; return s.effect() }
