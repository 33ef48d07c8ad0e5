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
const parkedEnd = time.Microsecond

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
	first                          int // of cmds that is still wanted
	submitted, launched, completed uint64

	gated    bool // there is a shim
	held     bool
	flushed  bool          // what was launched and had not begun was taken back
	window   uint32        // zero: the model's
	off      bool          // interrupted
	inactive sched.Time    // deactivated since; zero if not
	slice    time.Duration // zero: as found
	found    time.Duration // set before anybody looked; zero: the model's
	dead     bool
	mapped   bool       // the device has it on its list
	seat     bool       // it has a slot
	back     sched.Time // when it is restored

	noticed sched.Time    // when the device's host knows, or knew, that it has work
	ran     time.Duration // device time it has had
	// resident is how long its context was on the device, at work or not: the
	// most that the hardware's record can tell.
	resident time.Duration
	seated   time.Duration // how long it has had a slot
	last     sched.Time    // when its last command ended
	changed  bool          // counters have changed since they were reported
	self     hal.Queue
	notice   timer
}

func (q *queue) head() *command { return &q.cmds[q.first] }

// active reports whether the device has work of q that it may do.
func (q *queue) active() bool { return q.launched > q.completed && !q.off && !q.dead }

// submit gives q one more command.
func (q *queue) submit(work time.Duration, parked bool) {
	if q.dead {
		return
	}
	if q.first > 64 && q.first > len(q.cmds)/2 {
		q.cmds = q.cmds[:copy(q.cmds, q.cmds[q.first:])]
		q.first = 0
	}
	wasReady := q.submitted > q.completed
	q.cmds = append(q.cmds, command{left: work, parked: parked})
	q.submitted++
	q.tell(!wasReady)
	q.pump()
}

// pump launches what the gate lets through.
func (q *queue) pump() {
	limit := uint64(1 << 62)
	if q.gated {
		w := q.window
		if w == 0 {
			w = q.device.model.Window
		}
		if w > 0 {
			limit = uint64(w)
		}
	}
	for q.launched < q.submitted && q.launched-q.completed < limit && !q.held && !q.flushed && !q.dead {
		q.device.launches++
		q.cmds[q.first+int(q.launched-q.completed)].order = q.device.launches
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
	case q.off:
		w.violation("queue %d: a command finished while interrupted", q.id)
	case q.inactive != 0 && c.begun > q.inactive:
		w.violation("queue %d: a command began while deactivated", q.id)
	case c.left > 0 || c.parked:
		w.violation("queue %d: a command finished with %v of work left", q.id, c.left)
	case q.completed >= q.launched:
		w.violation("queue %d: a command finished that was not launched", q.id)
	}
	if c.order <= q.device.lastOrder(q) {
		w.violation("queue %d: commands finished out of order", q.id)
	}
	q.device.done[q.id] = c.order
	q.first++
	q.completed++
	q.last = w.now
	q.tell(q.completed == q.submitted || q.held && q.completed == q.launched)
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
func (q *queue) tell(wake bool) {
	if !q.gated {
		return
	}
	d := q.device.world.daemon
	if !q.changed {
		q.changed = true
		d.changed = append(d.changed, q)
	}
	if wake {
		d.news()
	}
}

// release lets parked commands go.
func (q *queue) release() {
	q.device.engine.settle()
	for i := q.first; i < len(q.cmds); i++ {
		if c := &q.cmds[i]; c.parked {
			c.parked, c.left = false, parkedEnd
		}
	}
	q.device.engine.changed(q)
}

// die is what SIGKILL does: everything of the process is gone.
func (q *queue) die() {
	q.dead = true
	q.device.engine.changed(q)
}

// asFound reports whether nothing about q is changed.
func (q *queue) asFound() bool {
	return !q.off && !q.held && !q.flushed && q.inactive == 0 && q.slice == 0 && q.window == 0
}

func (q *queue) changes() string {
	return fmt.Sprintf("off %v, held %v, inactive %v, slice %v, window %d", q.off, q.held, q.inactive != 0, q.slice, q.window)
}

// What can be done to a queue, as the type that Attach returns claims.
type (
	control  struct{ q *queue }
	gate     struct{ control } // through the shim
	breaker  struct{ control } // level 2
	switcher struct{ control } // level 3
	slicer   struct{ control }

	group struct { // a channel group of a stock driver
		control
		switcher
		slicer
	}
	gatedGroup struct {
		control
		gate
		switcher
		slicer
	}
	gatedSwitch struct {
		control
		gate
		switcher
	}
	gatedBreaker struct {
		control
		gate
		breaker
	}
	gateOnly struct {
		control
		gate
	}
)

// claim returns q as the type that tells what its device can do.
func (q *queue) claim() hal.Queue {
	c := control{q}
	m := &q.device.model
	switch {
	case m.Runlist != nil && q.gated:
		return gatedGroup{c, gate{c}, switcher{c}, slicer{c}}
	case m.Runlist != nil:
		return group{c, switcher{c}, slicer{c}}
	case m.Slots.Interrupt && q.gated:
		return gatedSwitch{c, gate{c}, switcher{c}}
	case m.Slots.Interrupt:
		return switcher{c}
	case m.Slots.Deactivate != NoDeactivate && q.gated:
		return gatedBreaker{c, gate{c}, breaker{c}}
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
	c.q.device.checkShort()
	return nil
}

// Close implements hal.Queue.
func (c control) Close() error {
	q := c.q
	q.held, q.off, q.slice, q.window = false, false, 0, 0
	wasInactive := q.inactive != 0
	q.inactive = 0
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
	g.q.window = n
	err := g.effect()
	g.q.pump()
	return err
}

func (b breaker) Deactivate() error {
	if b.q.inactive == 0 {
		b.q.inactive = max(b.q.device.world.now, 1)
		b.q.device.engine.deactivated(b.q)
	}
	return b.effect()
}

func (b breaker) Reactivate() error {
	if b.q.inactive != 0 {
		b.q.inactive = 0
		b.q.device.engine.reactivated(b.q)
	}
	return b.effect()
}

func (s switcher) Interrupt() error { s.q.off = true; return s.effect() }
func (s switcher) Restore() error   { s.q.off = false; return s.effect() }

func (s slicer) SetSlice(d time.Duration) error { s.q.slice = d; return s.effect() }
