package sim

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// command is one piece of device work: a kernel or a copy.
type command struct {
	time   time.Duration // device time that it needs
	left   time.Duration // of that, still needed
	order  uint64        // its number among all launches on the device
	begun  sched.Time    // when it first ran; zero: not yet
	parked bool          // spins until it is unparked
	use    use
}

// unparkTime is how long a parked command takes to end once it is unparked.
const unparkTime = time.Microsecond

// queue is a queue of a process: the shim's part, if the process has the shim, and the
// device's part.
type queue struct {
	device  *device
	id      sched.QueueID
	process sched.ProcessID
	pid     int // of its spans
	trace   traced
	owner   *client // nil on a Bench

	// Commands submitted and not completed, oldest first. The device has the first
	// launched-completed of them; the rest wait in the shim.
	cmds                           fifo[command]
	submitted, launched, completed uint64
	idled                          uint64        // times that its client had waited for all of it
	lastOrder                      uint64        // of the command completed last
	lastTime                       time.Duration // device time of that command

	changes
	gated        bool          // the process has the shim
	defaultBound uint32        // zero: the model's
	initialSlice time.Duration // set by the process itself; zero: the model's
	dead         bool          // its process was killed
	behindWait   bool          // of a late entry: commands are not launched

	pool    string   // name, of a pool
	members []*queue // of a pool
	group   *queue   // of a member: its pool

	// On a runlist.
	noticedAt   sched.Time // when the host notices its work
	noticeTimer timer

	// In slots.
	mapped       bool // the device may run it
	inSlot       bool
	slotSince    sched.Time    // when it got its slot
	slotTime     time.Duration // how long it had a slot
	restoredAt   sched.Time    // when its context is back on the device
	restoreTimer timer

	deviceTime time.Duration
	// resident is how long its context was on the device, busy or not: what the
	// context-switch trace can tell.
	resident       time.Duration
	visits         sched.Visits
	cameOnAt       sched.Time // when its context last came onto the device
	lastCompletion sched.Time
	unreported     bool      // counters have changed since the daemon last read them
	attached       hal.Queue // as a backend attaches it
}

// changes is what control calls have changed about a queue. Zero value: nothing.
type changes struct {
	held          bool          // level 1
	deactivatedAt sched.Time    // level 2; zero: not deactivated
	flushed       bool          // by level 2: launched commands that had not begun were taken back
	interrupted   bool          // level 3
	claimed       bool          // level 3 was reported as done and had no effect
	bound         uint32        // zero: defaultBound
	slice         time.Duration // zero: initialSlice
}

func (q *queue) head() *command { return q.cmds.at(0) }

// active reports whether the device has commands of q that it may run.
func (q *queue) active() bool { return q.inFlight() > 0 && !q.interrupted && !q.dead }

func (q *queue) counters() sched.Counters {
	return sched.Counters{Submitted: q.submitted, Launched: q.launched, Completed: q.completed, Idled: q.idled, Known: q.gated}
}

// submit adds a command that fills the device and takes so much time.
func (q *queue) submit(work time.Duration, parked bool) {
	q.submitCommand(command{time: work, left: work, parked: parked, use: use{occupancy: 1}})
}

func (q *queue) submitCommand(c command) {
	if q.dead {
		return
	}
	wasReady := q.submitted > q.completed
	q.cmds.push(c)
	q.submitted++
	q.countersChanged(!wasReady)
	q.launch()
}

// launch hands commands to the device as far as the gate and the bound allow.
func (q *queue) launch() {
	limit := uint64(math.MaxUint64)
	if bound := cmp.Or(q.bound, q.defaultBound, q.device.model.Bound); q.gated && bound > 0 {
		limit = uint64(bound)
		if grain := q.device.model.Grain; grain > 0 && q.lastTime > grain {
			limit = max(min(limit, 2), uint64(time.Duration(bound)*grain/min(q.lastTime, maxCommand)))
		}
	}
	before := q.launched
	for q.launched < q.submitted && q.launched-q.completed < limit && !q.held && !q.flushed && !q.behindWait && !q.dead {
		q.device.launchCount++
		q.cmds.at(int(q.launched - q.completed)).order = q.device.launchCount
		q.launched++
		q.device.engine.launched(q)
	}
	if q.launched != before {
		q.countersChanged(false)
	}
}

// complete removes the oldest command, which has run to its end. The engine calls
// afterComplete when its own state is consistent again.
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
	if c.order <= q.lastOrder {
		w.violation("queue %d: commands finished out of order", q.id)
	}
	q.lastOrder, q.lastTime = c.order, c.time
	q.cmds.pop()
	q.completed++
	q.lastCompletion = w.now
	drained := q.held && q.completed == q.launched || q.deactivatedAt != 0
	q.countersChanged(q.completed == q.submitted || drained)
}

func (q *queue) afterComplete() {
	q.launch()
	if q.owner != nil {
		q.owner.completed(q.completed)
	}
}

// countersChanged notifies the observer. The shim wakes the daemon only when the queue
// becomes ready or idle, or has drained while stopped.
func (q *queue) countersChanged(wake bool) {
	if q.gated {
		q.device.world.observer.countersChanged(q, wake)
	}
}

// unpark lets parked commands end.
func (q *queue) unpark() {
	q.device.engine.advance()
	for i := range q.cmds.len() {
		if c := q.cmds.at(i); c.parked {
			c.parked, c.left = false, unparkTime
		}
	}
	q.device.engine.changed(q)
}

// kill does what SIGKILL of its process does: all commands are gone.
func (q *queue) kill() {
	q.dead = true
	q.device.engine.changed(q)
}

// apply carries out an action. It takes no time; perform adds the time of the call.
func (q *queue) apply(a sched.Action) error {
	e := q.device.engine
	stop := a.Verb == sched.Stop
	switch {
	case a.Verb == sched.SetSlice:
		q.slice = a.Slice
	case a.Verb == sched.SetBound:
		q.bound = a.Bound
	case a.Level == sched.LevelHold:
		q.held = stop
	case a.Level == sched.LevelInterrupt:
		if stop && !q.interrupted {
			e.interrupting(q)
		}
		q.interrupted, q.claimed = stop, false
	case stop && q.deactivatedAt == 0:
		q.deactivatedAt = max(q.device.world.now, 1)
		e.deactivated(q)
	case !stop && q.deactivatedAt != 0:
		q.deactivatedAt = 0
		e.reactivated(q)
	}
	if q.dead {
		return fmt.Errorf("queue %d: %w", q.id, hal.ErrGone)
	}
	e.changed(q)
	q.device.checkSlices()
	if isGateCall(a) && !stop {
		q.launch()
	}
	return nil
}

// restore undoes every change.
func (q *queue) restore() error {
	deactivated := q.deactivatedAt != 0
	q.changes = changes{flushed: q.flushed} // which reactivated resets
	if deactivated {
		q.device.engine.reactivated(q)
	}
	if !q.dead {
		q.device.engine.changed(q)
		q.launch()
	}
	return nil
}

// abilities returns what can be done to q.
func (q *queue) abilities() sched.Ability {
	var can sched.Ability
	if q.gated {
		can = sched.CanHold | sched.CanBound
	}
	m := &q.device.model
	switch {
	case q.pool != "":
		can = sched.CanSlice
	case m.Runlist != nil:
		can |= sched.CanInterrupt | sched.CanSlice
	case m.Slots.Interrupt:
		can |= sched.CanInterrupt
	case m.Slots.Deactivate != NoDeactivate && q.gated:
		can |= sched.CanDeactivate
	}
	return can
}
