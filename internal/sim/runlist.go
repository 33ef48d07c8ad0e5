package sim

import (
	"slices"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// runlist shares a device as an NVIDIA GPU does: one channel group at a time, round-robin
// among those that have work. The period of one group is its turn.
//
//	idle ──launch──> switching ──────────────────> running
//	  ^               ^                             │ │
//	  │               └──slice over, out of work────┘ │
//	  └─────────────out of work, no other waits───────┘
//
// Three properties of the host scheduler are in no manual and were measured:
//
//   - When the host has read all commands of a group, it counts the group's turn as over:
//     the running command goes on, but a later one waits for the group's next turn. One
//     parked kernel therefore costs two switches more than none, and two cost nothing.
//   - A group that has finished all its work leaves if another one waits. A later launch,
//     however soon, waits for the group's next turn: no switch is called off.
//   - When a group is stopped, the context on the GPU is saved and loaded again, whichever it
//     is. A request that is served meanwhile is interrupted for a switch.
type runlist struct {
	d       *device
	m       *RunlistModel
	ring    []*queue // in order of their first launch
	current *queue   // whose context is on the GPU
	target  *queue   // to which the GPU is switching
	phase   phase

	phaseStart   sched.Time    // when the turn, or the switch, began
	progressFrom sched.Time    // since when the running command makes progress that is not yet credited
	pinnedUntil  sched.Time    // until then the group cannot be made to leave
	fetchUntil   sched.Time    // until then no command of the group ends
	hostDone     bool          // the host takes no more commands from current in this turn
	accountedTo  sched.Time    // device time is credited up to here
	left         hal.Departure // how the visit ends, as far as is known

	sliceEnd, commandEnd, switchEnd timer

	lanes []*queue // whose oldest commands run, during a turn
	done  []*queue // buffer
}

type phase uint8

const (
	idle phase = iota
	running
	switching
)

func newRunlist(d *device) *runlist {
	r := &runlist{d: d, m: d.model.Runlist}
	r.sliceEnd.fire = r.onSliceEnd
	r.commandEnd.fire = r.onCommandEnd
	r.switchEnd.fire = r.onSwitchEnd
	return r
}

func (r *runlist) now() sched.Time { return r.d.world.now }

// waiting reports whether the host has noticed that q has work.
func (r *runlist) waiting(q *queue) bool { return q.active() && q.noticedAt <= r.now() }

// next returns the first waiting group after q in the ring, with q itself last.
func (r *runlist) next(q *queue) *queue {
	at := slices.Index(r.ring, q)
	for i := range r.ring {
		if c := r.ring[(at+1+i)%len(r.ring)]; r.waiting(c) {
			return c
		}
	}
	return nil
}

// othersWaiting reports whether a group other than q waits.
func (r *runlist) othersWaiting(q *queue) bool {
	for _, c := range r.ring {
		if c != q && r.waiting(c) {
			return true
		}
	}
	return false
}

// opened does nothing: a group joins the ring at its first launch.
func (r *runlist) opened(*queue) {}

func (r *runlist) launched(lane *queue) {
	q := lane.scheduled()
	if !slices.Contains(r.ring, q) {
		r.ring = append(r.ring, q)
		q.noticeTimer.fire = func() { r.onNotice(q) }
	}
	if q.interrupted {
		return
	}
	switch {
	case r.phase == running && r.current == q:
		switch {
		case lane != q && lane.inFlight() == 1: // it runs beside the commands of other members
			r.advance()
			r.scheduleCommandEnd()
		case lane == q && q.inFlight() == 2 && q.head().begun < r.now() && r.othersWaiting(q):
			r.hostDone = true // before this launch the host had read all commands of q
		}
	case q.inFlight() == 1:
		r.scheduleNotice(q)
	}
}

// scheduleNotice makes the host notice that q has work: at once if the GPU is idle.
func (r *runlist) scheduleNotice(q *queue) {
	if r.phase == idle {
		q.noticedAt = r.now()
		r.switchTo(q)
		return
	}
	q.noticedAt = r.now().Add(r.m.Notice)
	r.d.world.timeline.set(&q.noticeTimer, q.noticedAt)
}

func (r *runlist) onNotice(q *queue) {
	if !r.waiting(q) {
		return
	}
	switch {
	case r.phase == idle:
		r.switchTo(q)
	case r.phase == running && r.current != q:
		r.scheduleSliceEnd()
	}
}

// scheduleSliceEnd sets the end of the current turn: the next multiple of its slice,
// because another group waits.
func (r *runlist) scheduleSliceEnd() {
	slice := r.d.sliceOf(r.current)
	rounds := (r.now().Sub(r.phaseStart) + slice - 1) / slice
	end := max(r.phaseStart.Add(max(rounds, 1)*slice), r.pinnedUntil, r.now())
	r.d.world.timeline.set(&r.sliceEnd, end)
}

func (r *runlist) onSliceEnd() {
	if r.phase == running && r.othersWaiting(r.current) {
		r.left = hal.Preempted
		r.leave()
	}
}

// startTurn begins a turn of q, whose context is on the GPU.
func (r *runlist) startTurn(q *queue) {
	r.account()
	now := r.now()
	r.current, r.phase, r.phaseStart, r.progressFrom, r.hostDone = q, running, now, now, false
	r.pinnedUntil = now
	r.fetchUntil = now
	r.left = hal.LeftItself
	r.lanes = q.lanes(r.lanes[:0])
	if slices.ContainsFunc(r.lanes, func(l *queue) bool { return l.head().begun != 0 }) {
		r.progressFrom, r.pinnedUntil, r.fetchUntil = now.Add(r.m.Refill), now.Add(r.m.Stay), now.Add(r.m.Fetch)
	}
	r.scheduleEnds()
}

// scheduleEnds sets the end of the running commands, and of the turn if another group waits.
func (r *runlist) scheduleEnds() {
	r.scheduleCommandEnd()
	if r.othersWaiting(r.current) {
		r.scheduleSliceEnd()
	}
}

// scheduleCommandEnd sets the end of the running command, or of the first of those that run
// side by side. A parked one has none.
func (r *runlist) scheduleCommandEnd() {
	r.lanes = r.current.lanes(r.lanes[:0])
	for _, l := range r.lanes {
		if c := l.head(); c.begun == 0 {
			c.begun = max(r.now(), 1)
		}
	}
	if left, ok := timeLeft(r.lanes); ok {
		r.d.world.timeline.set(&r.commandEnd, max(max(r.progressFrom, r.now()).Add(left), r.fetchUntil))
	} else {
		r.d.world.timeline.cancel(&r.commandEnd)
	}
}

func (r *runlist) onCommandEnd() {
	q := r.current
	r.advance()
	r.done = r.done[:0]
	for _, l := range r.lanes {
		if c := l.head(); c.left <= 0 && !c.parked {
			l.complete()
			r.done = append(r.done, l)
		}
	}
	if q.active() && !(r.hostDone && r.othersWaiting(q)) {
		r.progressFrom, r.hostDone = r.now(), false
		r.scheduleCommandEnd()
	} else {
		r.leave()
	}
	for _, l := range r.done {
		l.afterComplete()
	}
}

// account credits the group on the GPU with the time since the last call. A group whose
// context is there without work counts as resident.
func (r *runlist) account() {
	now := r.now()
	switch d := now.Sub(r.accountedTo); {
	case r.phase == switching: // reported when it is over
	case r.current == nil:
		r.d.spans.add(hal.SpanIdle, nil, now, hal.Stays)
	default:
		r.d.spans.add(hal.SpanHeld, r.current, now, hal.Stays)
		r.current.resident += d
		if r.phase == running {
			r.current.deviceTime += d
		}
	}
	r.accountedTo = now
}

// advance credits the running commands with their progress so far.
func (r *runlist) advance() {
	r.account()
	if r.phase != running {
		return
	}
	now := r.now()
	if now > r.progressFrom {
		credit(r.lanes, now.Sub(r.progressFrom))
	}
	r.progressFrom = max(r.progressFrom, now)
}

// leave ends the current turn and switches to the next group that waits, if any.
func (r *runlist) leave() {
	w := r.d.world
	q := r.current
	r.advance()
	w.addSegment(r.d, q, r.phaseStart, r.now())
	w.timeline.cancel(&r.commandEnd)
	w.timeline.cancel(&r.sliceEnd)
	r.phase = idle
	if n := r.next(q); n != nil {
		r.switchTo(n)
	}
}

// switchTo brings q onto an idle GPU: at once if its context is there already.
func (r *runlist) switchTo(q *queue) {
	if r.current == q {
		r.startTurn(q)
		return
	}
	r.account()
	r.load(q)
}

// load begins a switch to q. Time is accounted until now.
func (r *runlist) load(q *queue) {
	w := r.d.world
	r.endSpan()
	r.phase, r.target, r.phaseStart = switching, q, r.now()
	w.timeline.set(&r.switchEnd, r.now().Add(r.m.Switch.draw(w.deviceRand)))
}

func (r *runlist) onSwitchEnd() {
	r.d.world.addSegment(r.d, nil, r.phaseStart, r.now())
	r.account()
	r.d.spans.add(hal.SpanSwitch, r.target, r.now(), hal.Stays)
	if q := r.current; r.target == q && !sched.IsFull(r.phaseStart.Sub(q.cameOnAt), r.m.Slice) {
		q.cameOnAt = r.now() // its visit goes on, with another slice
	} else {
		r.endVisit(r.phaseStart, false)
		r.current = r.target
		r.beginVisit()
	}
	r.phase = idle
	if r.waiting(r.current) {
		r.startTurn(r.current)
	} else if n := r.next(r.current); n != nil {
		r.switchTo(n)
	} else if r.current.interrupted || r.current.dead { // since the switch began
		r.remove(true)
	}
}

// remove removes the context of a group that was stopped, or is dead, from the GPU. Cut says that it
// was at work.
func (r *runlist) remove(cut bool) {
	r.account()
	r.endSpan()
	r.endVisit(r.now(), cut)
	r.current = nil
}

// beginVisit counts the visit of the group that has come onto the GPU.
func (r *runlist) beginVisit() {
	q := r.current
	q.visits.Count++
	if left := q.visits.Left; left > 0 && r.now().Sub(left) >= sched.MinAbsence {
		q.visits.Arrived = r.now()
	}
	q.cameOnAt = r.now()
	r.left = hal.LeftItself
}

// endSpan reports the end of the visit of the group on the GPU, if there is one.
func (r *runlist) endSpan() {
	if r.current != nil {
		r.d.spans.add(hal.SpanHeld, r.current, r.now(), r.left)
	}
}

// endVisit ends the visit of the group on the GPU, if there is one. Cut says that a stop ended it.
func (r *runlist) endVisit(at sched.Time, cut bool) {
	if q := r.current; q != nil {
		q.visits.End(at.Sub(q.cameOnAt), r.m.Slice, cut)
		q.visits.Left = at
	}
}

func (r *runlist) interrupting(lane *queue) {
	if r.phase != running || r.current == lane.scheduled() {
		return
	}
	w := r.d.world
	r.advance()
	w.addSegment(r.d, r.current, r.phaseStart, r.now())
	w.timeline.cancel(&r.commandEnd)
	w.timeline.cancel(&r.sliceEnd)
	r.left = hal.Preempted
	r.load(r.current)
}

func (r *runlist) changed(lane *queue) {
	w, q := r.d.world, lane.scheduled()
	if lane != q && lane.dead {
		r.advance()
		lane.leavePool()
	}
	if q.dead {
		r.ring = slices.DeleteFunc(r.ring, func(c *queue) bool { return c == q })
		w.timeline.cancel(&q.noticeTimer)
	}
	if r.current == q && q.interrupted && r.phase == running {
		r.left = hal.Preempted
	}
	switch {
	case r.current == q && r.phase == running && !q.active():
		r.leave()
		if r.current == q {
			if r.phase != switching {
				r.endSpan()
			}
			r.endVisit(r.now(), q.interrupted)
			r.current = nil // a disabled group is removed from the GPU
		}
	case r.current == q && r.phase == running:
		r.advance()
		r.scheduleEnds()
	case r.current == q && (q.interrupted || q.dead) && r.phase == idle:
		r.remove(false)
	case r.waiting(q):
		r.onNotice(q)
	}
}

func (r *runlist) close() {
	r.advance()
	switch r.phase {
	case running:
		r.d.world.addSegment(r.d, r.current, r.phaseStart, r.now())
	case switching:
		r.d.world.addSegment(r.d, nil, r.phaseStart, r.now())
	}
}

func (r *runlist) deactivated(*queue) {}
func (r *runlist) reactivated(*queue) {}
