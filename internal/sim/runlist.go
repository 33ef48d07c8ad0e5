package sim

import (
	"slices"

	"github.com/giveway/giveway/sched"
)

// runlist shares a device as an NVIDIA GPU does: one group at a time, in a
// round of those that are ready.
//
//	resting ──launch──> switching ──────────> running
//	   ^                 ^     │                │ │
//	   │                 │     └─called off────>│ │
//	   │                 └──slice over, ran dry─┘ │
//	   └───────────────ran dry, nobody else───────┘
//
// Two ways of the host are not in any manual, and were measured:
//
//   - When the host has read all that a group has queued, the group's turn is
//     over in its books: what it has begun runs on, but what comes later waits
//     for its next turn. A lone parked kernel thus costs two switches more than
//     none at all, and two parked kernels cost nothing.
//   - A switch away from a group that has run dry is called off when a launch
//     comes soon enough.
type runlist struct {
	d       *device
	m       *RunlistModel
	ring    []*queue // in order of their first launch
	current *queue   // whose context is on the GPU
	target  *queue   // being switched to
	phase   phase

	phaseStart   sched.Time // when the turn, or the switch, under way began
	progressFrom sched.Time // since when the running command makes progress
	pinnedUntil  sched.Time // until when the group cannot be made to leave
	hostDone     bool       // the host takes no more from cur in this turn
	canCallOff   bool       // the switch under way can be called off
	accountedTo  sched.Time // device time is accounted up to here

	sliceEnd, commandEnd, switchEnd timer
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

// waiting reports whether the host knows that q wants the GPU.
func (r *runlist) waiting(q *queue) bool { return q.active() && q.noticedAt <= r.now() }

// next returns the first group after q in the round that waits, q itself last.
func (r *runlist) next(q *queue) *queue {
	at := slices.Index(r.ring, q)
	for i := range r.ring {
		if c := r.ring[(at+1+i)%len(r.ring)]; r.waiting(c) {
			return c
		}
	}
	return nil
}

// rival reports whether a group other than q waits.
func (r *runlist) othersWaiting(q *queue) bool {
	for _, c := range r.ring {
		if c != q && r.waiting(c) {
			return true
		}
	}
	return false
}

// opened does nothing: a group is in the round from its first launch on.
func (r *runlist) opened(*queue) {}

func (r *runlist) arrived(q *queue) {
	if !slices.Contains(r.ring, q) {
		r.ring = append(r.ring, q)
		q.noticeTimer.fire = func() { r.onNotice(q) }
	}
	if q.interrupted {
		return
	}
	pending := q.launched - q.completed
	switch {
	case r.phase == running && r.current == q:
		if pending == 2 && q.head().begun < r.now() && r.othersWaiting(q) {
			r.hostDone = true
		}
	case r.phase == switching && r.current == q && r.canCallOff && r.now().Sub(r.phaseStart) < r.m.CallOff:
		r.d.world.timeline.cancel(&r.switchEnd)
		r.d.world.addSegment(r.d, nil, r.phaseStart, r.now())
		r.startTurn(q)
	case pending == 1:
		r.scheduleNotice(q)
	}
}

// wake has the host learn that q has work.
func (r *runlist) scheduleNotice(q *queue) {
	switch r.phase {
	case idle:
		q.noticedAt = r.now()
		r.switchTo(q, false)
	default:
		q.noticedAt = r.now().Add(r.m.Notice)
		r.d.world.timeline.set(&q.noticeTimer, q.noticedAt)
	}
}

func (r *runlist) onNotice(q *queue) {
	if !r.waiting(q) {
		return
	}
	switch {
	case r.phase == idle:
		r.switchTo(q, false)
	case r.phase == running && r.current != q:
		r.scheduleSliceEnd()
	}
}

// limitTurn sets the end of the running turn: the next time its slice is up,
// now that somebody waits for it.
func (r *runlist) scheduleSliceEnd() {
	slice := r.d.sliceOf(r.current)
	rounds := (r.now().Sub(r.phaseStart) + slice - 1) / slice
	end := max(r.phaseStart.Add(max(rounds, 1)*slice), r.pinnedUntil, r.now())
	r.d.world.timeline.set(&r.sliceEnd, end)
}

func (r *runlist) onSliceEnd() {
	if r.phase == running && r.othersWaiting(r.current) {
		r.leave(false)
	}
}

// run begins a turn of q, whose context is on the GPU.
func (r *runlist) startTurn(q *queue) {
	r.account()
	now := r.now()
	r.current, r.phase, r.phaseStart, r.progressFrom, r.hostDone = q, running, now, now, false
	c := q.head()
	r.pinnedUntil = now
	if c.begun != 0 {
		r.progressFrom, r.pinnedUntil = now.Add(r.m.Refill), now.Add(r.m.Stay)
	}
	r.scheduleCommandEnd(c)
	if r.othersWaiting(q) {
		r.scheduleSliceEnd()
	}
}

// arm sets the end of the command that runs. A parked one has none.
func (r *runlist) scheduleCommandEnd(c *command) {
	if c.begun == 0 {
		c.begun = max(r.now(), 1)
	}
	if c.parked {
		r.d.world.timeline.cancel(&r.commandEnd)
		return
	}
	r.d.world.timeline.set(&r.commandEnd, max(r.progressFrom, r.now()).Add(c.left))
}

func (r *runlist) onCommandEnd() {
	q := r.current
	r.settle()
	q.complete()
	switch {
	case q.active() && !(r.hostDone && r.othersWaiting(q)):
		r.progressFrom, r.hostDone = r.now(), false
		r.scheduleCommandEnd(q.head())
	default:
		r.leave(!q.active())
	}
	q.finished()
}

// account bills whoever has been on the GPU since it was last done. A group
// that rests there is on record as well, though it does nothing.
func (r *runlist) account() {
	now := r.now()
	if d := now.Sub(r.accountedTo); r.current != nil && r.phase != switching {
		r.current.resident += d
		if r.phase == running {
			r.current.deviceTime += d
		}
	}
	r.accountedTo = now
}

// settle credits the running command with its progress so far.
func (r *runlist) settle() {
	r.account()
	if r.phase != running {
		return
	}
	now := r.now()
	if c := r.current.head(); now > r.progressFrom && !c.parked {
		c.left -= now.Sub(r.progressFrom)
	}
	r.progressFrom = max(r.progressFrom, now)
}

// leave ends the running turn and goes on to the next group that waits, if any.
func (r *runlist) leave(dry bool) {
	w := r.d.world
	q := r.current
	if q.launched > q.completed {
		r.settle()
	}
	r.account()
	w.addSegment(r.d, q, r.phaseStart, r.now())
	w.timeline.cancel(&r.commandEnd)
	w.timeline.cancel(&r.sliceEnd)
	r.phase = idle
	if n := r.next(q); n != nil {
		r.switchTo(n, dry)
	}
}

// goTo puts q on a GPU that rests: at once if its context is there already.
func (r *runlist) switchTo(q *queue, dry bool) {
	if r.current == q {
		r.startTurn(q)
		return
	}
	w := r.d.world
	r.account()
	r.phase, r.target, r.phaseStart, r.canCallOff = switching, q, r.now(), dry
	w.timeline.set(&r.switchEnd, r.now().Add(r.m.Switch.draw(w.deviceRand)))
}

func (r *runlist) onSwitchEnd() {
	r.d.world.addSegment(r.d, nil, r.phaseStart, r.now())
	r.account()
	r.current, r.phase = r.target, idle
	switch n := r.target; {
	case r.waiting(n):
		r.startTurn(n)
	default:
		if n = r.next(n); n != nil {
			r.switchTo(n, false)
		}
	}
}

func (r *runlist) changed(q *queue) {
	w := r.d.world
	if q.dead {
		r.ring = slices.DeleteFunc(r.ring, func(c *queue) bool { return c == q })
		w.timeline.cancel(&q.noticeTimer)
	}
	switch {
	case r.current == q && r.phase == running && !q.active():
		r.leave(false)
		if r.current == q {
			r.current = nil // what is disabled is taken off the GPU
		}
	case r.current == q && r.phase == running:
		r.update(q)
	case r.current == q && (q.interrupted || q.dead) && r.phase == idle:
		r.account()
		r.current = nil
	case r.waiting(q):
		r.onNotice(q)
	}
}

// update takes up that a parked command was released or a slice changed in the
// middle of a turn.
func (r *runlist) update(q *queue) {
	r.settle()
	r.scheduleCommandEnd(q.head())
	if r.othersWaiting(q) {
		r.scheduleSliceEnd()
	}
}

func (r *runlist) close() {
	r.settle()
	switch r.phase {
	case running:
		r.d.world.addSegment(r.d, r.current, r.phaseStart, r.now())
	case switching:
		r.d.world.addSegment(r.d, nil, r.phaseStart, r.now())
	}
}

func (r *runlist) deactivated(*queue) {}
func (r *runlist) reactivated(*queue) {}
