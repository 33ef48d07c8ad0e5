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
	d     *device
	m     *RunlistModel
	ring  []*queue // in order of their first launch
	cur   *queue   // whose context is on the GPU
	to    *queue   // being switched to
	phase phase

	turn sched.Time // when the turn, or the switch, under way began
	from sched.Time // since when the running command makes progress
	stay sched.Time // until when the group cannot be made to leave
	over bool       // the host takes no more from cur in this turn
	dry  bool       // the switch under way can be called off
	mark sched.Time // device time is accounted up to here

	turnEnd, cmdEnd, switched timer
}

type phase uint8

const (
	resting phase = iota
	running
	switching
)

func newRunlist(d *device) *runlist {
	r := &runlist{d: d, m: d.model.Runlist}
	r.turnEnd.do = r.endTurn
	r.cmdEnd.do = r.endCommand
	r.switched.do = r.endSwitch
	return r
}

func (r *runlist) now() sched.Time { return r.d.world.now }

// waiting reports whether the host knows that q wants the GPU.
func (r *runlist) waiting(q *queue) bool { return q.active() && q.noticed <= r.now() }

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
func (r *runlist) rival(q *queue) bool {
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
		q.notice.do = func() { r.notice(q) }
	}
	if q.off {
		return
	}
	pending := q.launched - q.completed
	switch {
	case r.phase == running && r.cur == q:
		if pending == 2 && q.head().begun < r.now() && r.rival(q) {
			r.over = true
		}
	case r.phase == switching && r.cur == q && r.dry && r.now().Sub(r.turn) < r.m.CallOff:
		r.d.world.timeline.cancel(&r.switched)
		r.d.world.segment(r.d, nil, r.turn, r.now())
		r.run(q)
	case pending == 1:
		r.wake(q)
	}
}

// wake has the host learn that q has work.
func (r *runlist) wake(q *queue) {
	switch r.phase {
	case resting:
		q.noticed = r.now()
		r.goTo(q, false)
	default:
		q.noticed = r.now().Add(r.m.Notice)
		r.d.world.timeline.set(&q.notice, q.noticed)
	}
}

func (r *runlist) notice(q *queue) {
	if !r.waiting(q) {
		return
	}
	switch {
	case r.phase == resting:
		r.goTo(q, false)
	case r.phase == running && r.cur != q:
		r.limitTurn()
	}
}

// limitTurn sets the end of the running turn: the next time its slice is up,
// now that somebody waits for it.
func (r *runlist) limitTurn() {
	slice := r.d.sliceOf(r.cur)
	rounds := (r.now().Sub(r.turn) + slice - 1) / slice
	end := max(r.turn.Add(max(rounds, 1)*slice), r.stay, r.now())
	r.d.world.timeline.set(&r.turnEnd, end)
}

func (r *runlist) endTurn() {
	if r.phase == running && r.rival(r.cur) {
		r.leave(false)
	}
}

// run begins a turn of q, whose context is on the GPU.
func (r *runlist) run(q *queue) {
	r.account()
	now := r.now()
	r.cur, r.phase, r.turn, r.from, r.over = q, running, now, now, false
	c := q.head()
	r.stay = now
	if c.begun != 0 {
		r.from, r.stay = now.Add(r.m.Refill), now.Add(r.m.Stay)
	}
	r.arm(c)
	if r.rival(q) {
		r.limitTurn()
	}
}

// arm sets the end of the command that runs. A parked one has none.
func (r *runlist) arm(c *command) {
	if c.begun == 0 {
		c.begun = max(r.now(), 1)
	}
	if c.parked {
		r.d.world.timeline.cancel(&r.cmdEnd)
		return
	}
	r.d.world.timeline.set(&r.cmdEnd, max(r.from, r.now()).Add(c.left))
}

func (r *runlist) endCommand() {
	q := r.cur
	r.settle()
	q.complete()
	switch {
	case q.active() && !(r.over && r.rival(q)):
		r.from, r.over = r.now(), false
		r.arm(q.head())
	default:
		r.leave(!q.active())
	}
	q.finished()
}

// account bills whoever has been on the GPU since it was last done. A group
// that rests there is on record as well, though it does nothing.
func (r *runlist) account() {
	now := r.now()
	if d := now.Sub(r.mark); r.cur != nil && r.phase != switching {
		r.cur.resident += d
		if r.phase == running {
			r.cur.ran += d
		}
	}
	r.mark = now
}

// settle credits the running command with its progress so far.
func (r *runlist) settle() {
	r.account()
	if r.phase != running {
		return
	}
	now := r.now()
	if c := r.cur.head(); now > r.from && !c.parked {
		c.left -= now.Sub(r.from)
	}
	r.from = max(r.from, now)
}

// leave ends the running turn and goes on to the next group that waits, if any.
func (r *runlist) leave(dry bool) {
	w := r.d.world
	q := r.cur
	if q.launched > q.completed {
		r.settle()
	}
	r.account()
	w.segment(r.d, q, r.turn, r.now())
	w.timeline.cancel(&r.cmdEnd)
	w.timeline.cancel(&r.turnEnd)
	r.phase = resting
	if n := r.next(q); n != nil {
		r.goTo(n, dry)
	}
}

// goTo puts q on a GPU that rests: at once if its context is there already.
func (r *runlist) goTo(q *queue, dry bool) {
	if r.cur == q {
		r.run(q)
		return
	}
	w := r.d.world
	r.account()
	r.phase, r.to, r.turn, r.dry = switching, q, r.now(), dry
	w.timeline.set(&r.switched, r.now().Add(r.m.Switch.draw(w.deviceRand)))
}

func (r *runlist) endSwitch() {
	r.d.world.segment(r.d, nil, r.turn, r.now())
	r.account()
	r.cur, r.phase = r.to, resting
	switch n := r.to; {
	case r.waiting(n):
		r.run(n)
	default:
		if n = r.next(n); n != nil {
			r.goTo(n, false)
		}
	}
}

func (r *runlist) changed(q *queue) {
	w := r.d.world
	if q.dead {
		r.ring = slices.DeleteFunc(r.ring, func(c *queue) bool { return c == q })
		w.timeline.cancel(&q.notice)
	}
	switch {
	case r.cur == q && r.phase == running && !q.active():
		r.leave(false)
		if r.cur == q {
			r.cur = nil // what is disabled is taken off the GPU
		}
	case r.cur == q && r.phase == running:
		r.update(q)
	case r.cur == q && (q.off || q.dead) && r.phase == resting:
		r.account()
		r.cur = nil
	case r.waiting(q):
		r.notice(q)
	}
}

// update takes up that a parked command was released or a slice changed in the
// middle of a turn.
func (r *runlist) update(q *queue) {
	r.settle()
	r.arm(q.head())
	if r.rival(q) {
		r.limitTurn()
	}
}

func (r *runlist) close() {
	r.settle()
	switch r.phase {
	case running:
		r.d.world.segment(r.d, r.cur, r.turn, r.now())
	case switching:
		r.d.world.segment(r.d, nil, r.turn, r.now())
	}
}

func (r *runlist) deactivated(*queue) {}
func (r *runlist) reactivated(*queue) {}
