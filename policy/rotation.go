package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// In a round every queue has a turn. With many queues turns are shorter, so that a round takes
// maxRound and no queue waits for as long as the scheduler's floor allows; but not so short that
// most of a turn is spent on starting one queue and stopping another.
const (
	defaultTurn  = 50 * time.Millisecond
	maxRound     = 2 * time.Second
	shortestTurn = 10 * time.Millisecond
)

// A turn that is over while a request is served or expected goes on, for at most 1/turnDelay
// of its length, because the calls of the driver that change turns interrupt the request. Measured
// on an H200: requests of 1.3 ms took 1.4 to 1.8 ms with a change of turns in them.
const turnDelay = 4

// classIdleStopTurns is for how many turns class-idle queues are stopped after a turn in which the
// device was busy: each attempt costs the busy queues two switches.
const classIdleStopTurns = 20

// rotate decides whose turn it is among the queues that take turns, of class
// batch if there are any: the current one until its turn is over, then the one
// with the lowest virtual time.
//
// A queue that becomes runnable joins at the clock: see vclock. Batch and class-idle queues have one
// clock each, because a class-idle queue may be far behind after hours without service.
func (p *giveway) rotate(v *sched.View, states []queueState, s *summary, set *setting) {
	best, end := p.nextTurn(v, states, s)
	current := s.current
	switch {
	case best < 0 && current >= 0 && !states[current].unusedTurn:
		// No queue needs the turn. The current one, which has no work for a
		// moment, keeps its turn and its slice. That saves two calls.
		return
	case best < 0:
		p.current = 0
		return
	case current < 0 || !p.mayHaveTurn(&states[current]) || states[current].class != s.rotationClass || p.turnOver(v.Now, end, s):
		p.overlap.leaving = 0
		if current >= 0 && p.mayHaveTurn(&states[current]) {
			p.beginOverlap(v.Now, &v.Queues[current], &v.Queues[best], s, set)
		}
		current = best
		states[best].lastTurn = v.Now
		if p.heavyTurns {
			p.group.advance(v.Now, states)
		}
		p.current, p.turnStart.Time = v.Queues[best].ID, v.Now
		p.inRotation = s.inRotation
		if s.rotationClass == sched.Idle {
			p.turnStart.Time = max(v.Now, p.classIdleStop) // a turn in which it is stopped would end like the last one
		}
		end = p.turnStart.Add(p.turnLength())
		for i := range states {
			st := &states[i]
			st.servedAtTurn, st.withheld, st.back = st.served, false, false
			st.aheadAtTurn = givesWay(&v.Queues[i]) && st.at > p.clocks[st.class-sched.Batch].now
		}
	}
	if q := &v.Queues[current]; s.inRotation > 1 || q.Measured && !q.Counters.Known {
		if v.Now >= end { // the turn goes on: see turnDelay
			end = earlier(end.Add(p.turnLength()/turnDelay), s.onlineChange)
		}
		s.wake = earlier(s.wake, end)
	}
}

// nextTurn returns the queue that has the next turn, or -1, and when the current turn is over: with the
// turn's length, or earlier if a queue has come back since the turn began. One that rests between its steps
// would otherwise wait for half a turn or more after each rest. It is next, unless the queue that would
// be next is owed a turn: several queues that come back by turns would keep that one waiting. After a
// rest of less than shortRest it comes back only if it had used its turn: each change of turns costs
// calls. New queues are not preferred: as soon as one ends, another can come, and it owes nothing.
func (p *giveway) nextTurn(v *sched.View, states []queueState, s *summary) (next int, end sched.Time) {
	for i := range p.clocks {
		p.clocks[i].tick(v.Now)
	}
	next, back := -1, -1
	for i := range states {
		st := &states[i]
		if !givesWay(&v.Queues[i]) {
			continue
		}
		was := st.joined
		p.clocks[st.class-sched.Batch].join(&st.vtime, (st.takesTurns || st.recentlyReady(v.Now)) && !st.sideBySide, 0)
		takes := st.takesTurns && !st.sideBySide
		if takes && !st.tookTurns && st.lastTurn > 0 && (!was || st.usedTurn) {
			st.back = true
		}
		st.tookTurns = takes
		if !p.mayHaveTurn(st) || st.class != s.rotationClass {
			continue
		}
		if next < 0 || st.before(&states[next]) {
			next = i
		}
		if st.back && i != s.current && (back < 0 || st.before(&states[back])) {
			back = i
		}
	}
	if back >= 0 && s.current >= 0 && states[s.current].class == s.rotationClass && !states[next].isOwed(p.turnLength(), &states[back].vtime) {
		return back, p.turnStart.Add(min(p.turnLength(), shortestTurn))
	}
	return next, p.turnStart.Add(p.turnLength())
}

// turnOver reports whether the current turn, which is over at end, ends now.
func (p *giveway) turnOver(now, end sched.Time, s *summary) bool {
	return now >= end && (!s.serving && !s.expecting || now >= end.Add(p.turnLength()/turnDelay))
}

// before reports whether the queue of st gets the next turn before the other. Among queues that
// run side by side it is the one whose last turn is longest ago. They have turns only to choose
// which of them stays when the device is cleared for a request.
func (st *queueState) before(other *queueState) bool {
	if st.sideBySide && other.sideBySide {
		return st.lastTurn < other.lastTurn
	}
	return st.at < other.at
}

// turnLength returns the length of the current turn: the parameter, or less if many queues
// take turns. A parameter above the default is not shortened, because a user has set it.
func (p *giveway) turnLength() time.Duration {
	if p.turn > defaultTurn {
		return p.turn
	}
	return min(p.turn, max(maxRound/time.Duration(max(p.inRotation, 1)), shortestTurn))
}

// endTurn updates the state of the queue whose turn is over. If a class-idle queue got almost
// nothing although it was let run, the device is busy: class-idle queues are then stopped for a while.
func (p *giveway) endTurn(now sched.Time, dev *sched.Device, q *sched.Queue, st *queueState) {
	if st.class == sched.Idle && !st.withheld && q.Measured && yieldsBySlice(dev, q) && st.served-st.servedAtTurn < p.turnLength()/10 {
		p.classIdleStop = now.Add(classIdleStopTurns * p.turn)
	}
	took, used := q.MeasuredAt.Sub(p.turnStart.Time), st.served-st.servedAtTurn
	measured := q.Measured && !q.Counters.Known && q.State == sched.Running && took >= p.turnLength()/2
	if measured {
		st.load.use.add(time.Duration(used.Seconds() / took.Seconds() * float64(time.Second)))
	}
	switch {
	case measured && used == 0:
		// Without counters only the hardware shows whether the queue had work. It measures whose
		// context was on the device, at work or not. So a queue whose context was never there is
		// idle. One with work gets there, if only for a moment, however busy the others are.
		st.unusedTurn, st.takesTurns = true, false
	case used == 0:
		st.prepay(p.turnLength())
	}
}

// judgeByUse makes a queue light if it uses less than three quarters of what another uses of its
// turns. Beside online work the context of a queue without work leaves the device and does not come
// back. It must not be called when a queue that cannot be stopped runs in the turns of others.
func judgeByUse(now sched.Time, states []queueState) {
	const turns = 4 // that a verdict needs
	var most time.Duration
	for i := range states {
		if st := &states[i]; st.class == sched.Batch && st.joined && st.takesTurns && st.load.use.n >= turns {
			most = max(most, st.load.use.mean)
		}
	}
	for i := range states {
		if st := &states[i]; st.load.use.n >= turns && 4*(st.load.use.mean+st.load.use.spread) < 3*most {
			st.load.foundLight(now)
			st.load.use = meanTime{} // also if the verdict still holds
		}
	}
}

// recentlyReady reports whether the queue took turns until at most shortRest ago. A process that waits
// after each step has no work for such moments, and others must not gain from them.
func (st *queueState) recentlyReady(now sched.Time) bool {
	return st.joined && !st.unusedTurn && now < st.readyAt.Add(shortRest)
}
