package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// onlineSummary is the part of the summary that watchOnline sets, on a device with slices. The
// online queues that had work lately are the active ones.
type onlineSummary struct {
	activeOnline  int
	first         sched.QueueID // the active one that goes before all others; zero if there is none
	firstPriority int32
	firstSLO      time.Duration
	learning      bool       // it is not known yet whether the requests of one of them are regular: see learnPeriod
	uncounted     bool       // the requests of one of them are known only from the trace
	predicted     bool       // all active ones are predictable
	serving       bool       // one of them is known to have work
	expecting     bool       // a request is expected now, or served after it was announced: turns do not change
	wantClear     bool       // the device is to be clear for it: only one batch queue may run
	onlineChange  sched.Time // when any of this changes without an event
}

// onlineState is what giveway knows about an online queue.
type onlineState struct {
	activeAt sched.Time    // when it last had work, or may have had
	seen     time.Duration // Queue.Served then
	visits   uint64        // Queue.Visits.Count then
	ready    bool          // it was ready at the last plan, by its counters

	rhythm  rhythm
	arrival sched.Time    // of the last request
	served  time.Duration // Queue.Served then
	work    meanTime      // device time of a request
	learnBy sched.Time    // its first requests after a pause are over by then: see learning

	clear  requestClear
	goesOn bool // its requests run out of work for moments, and the device is clear only until the first of those

	clearFor   sched.Time // the predicted request for which the device was last cleared
	clearUntil sched.Time
	announced  announced
}

const (
	// activeFor is for how long after its last work an online queue counts as active. If none
	// is, light batch queues have the default slice.
	activeFor = 2 * time.Second

	// learnTime is how long after the first request light batch queues take turns at most, until it
	// is known whether requests are regular. If they are, the device is cleared for each. If
	// light queues ran side by side before that, the first requests would be the slowest. Where
	// online processes come and go, this takes at most 1/(1+learnRarity) of the time.
	learnTime   = 500 * time.Millisecond
	learnRarity = 4
)

// clearTime is for how long the device is clear besides the request itself: before it, because the
// light queues must be stopped, and after it, until they are started again.
type clearTime struct{ before, after time.Duration }

// learnPeriod is the time in which light batch queues take turns because of the first requests of
// a queue.
type learnPeriod struct {
	since sched.Time // when it began; zero: there is none
	next  sched.Time // none begins before this
}

// update begins and ends the period. learning: there is a queue with its first requests. update
// reports whether there is a period now, and when that changes without an event; zero: it does not.
func (l *learnPeriod) update(now sched.Time, learning bool) (bool, sched.Time) {
	switch took := now.Sub(l.since); {
	case l.since == 0 && learning && now >= l.next:
		l.since = max(now, 1)
	case l.since > 0 && (!learning || took >= learnTime):
		l.since, l.next = 0, now.Add(learnRarity*took)
	}
	if l.since > 0 {
		return true, l.since.Add(learnTime)
	}
	return false, 0
}

// watch updates the state from what is known of q: when it last had work, when its last request
// arrived, and what its requests need of the device. Without counters and measurements the queue
// counts as active.
func (o *onlineState) watch(q *sched.Queue, now sched.Time) {
	ready, wasReady := knownBusy(q), o.ready
	o.watchArrival(q, now, ready)
	o.clear.regular = o.rhythm.expected(now) > 0
	o.clear.watch(q, now, ready || wasReady) // after the arrival, so that it counts for the new request
}

// watchArrival updates all but clear.
func (o *onlineState) watchArrival(q *sched.Queue, now sched.Time, ready bool) {
	if o.activeAt == 0 || ready || q.OpenRequests > 0 || q.Visits.Count != o.visits || q.Served != o.seen || !q.Counters.Known && !q.Measured {
		o.activeAt, o.seen, o.visits = max(now, 1), q.Served, q.Visits.Count
	}
	at := q.Visits.Arrived
	if q.Counters.Known {
		at = 0
		switch {
		case !ready || o.ready:
		case o.arrival == 0 || q.ReadySince.Sub(o.clear.lastWork) >= requestGap:
			at = q.ReadySince
		default:
			o.clear.paused = true
		}
	}
	o.ready = ready
	// The hardware's time of one arrival differs by a little from reading to reading, because its
	// clock is compared with ours each time.
	if at <= o.arrival || !q.Counters.Known && at < o.arrival.Add(sched.MinAbsence) {
		return
	}
	if at.Sub(o.arrival) < o.rhythm.period*3/2 {
		o.work.add(q.Served - o.served)
	}
	if o.arrival == 0 || at.Sub(o.arrival) >= activeFor {
		o.learnBy = at.Add(learnTime)
	}
	o.arrival, o.served = at, q.Served
	o.rhythm.arrived(at)
	o.clear.arrived(at, q)
}

// active reports whether the queue had work lately, and when that changes.
func (o *onlineState) active(now sched.Time) (bool, sched.Time) {
	until := o.activeAt.Add(activeFor)
	return now < until, until
}

// learning reports whether it is still open, for a short time, whether the requests of the queue are
// regular, or how much device time they need.
func (o *onlineState) learning(now sched.Time) bool {
	r := &o.rhythm
	return now < o.learnBy && (r.n < len(r.intervals) || r.period > 0 && o.work.n == 0)
}

// margin is how early the device must be clear for an expected request.
func (o *onlineState) margin() time.Duration {
	return min(max(2*o.rhythm.jitter, 100*time.Microsecond), time.Millisecond)
}

// predictable reports whether the requests of the queue come regularly, the device would be clear for them
// for less than half of the time, and they are over then: between them light queues have the default slice.
func (o *onlineState) predictable(now sched.Time, t clearTime) bool {
	r := &o.rhythm
	return !o.goesOn && r.expected(now) > 0 && o.work.n > 0 && 2*(t.before+2*o.margin()+o.work.mean+t.after) < r.period
}

// updateClear begins and ends the time in which the device is to be clear for a predicted request of
// q. It reports whether that is so now, and when it changes without an event; zero: it does not.
func (o *onlineState) updateClear(q *sched.Queue, now sched.Time, t clearTime) (bool, sched.Time) {
	r := &o.rhythm
	if now < o.clearUntil {
		switch {
		case q.Counters.Known && q.ReadySince >= o.clearFor.Add(-t.before-o.margin()) && !q.Ready():
			o.clearUntil = now // the request is over
		case !q.Counters.Known && o.arrival > o.clearFor.Add(-r.period/2):
			o.clearUntil = min(o.clearUntil, o.arrival.Add(o.work.mean+t.after))
		}
	}
	if now < o.clearUntil {
		return true, o.clearUntil
	}
	if !o.predictable(now, t) {
		return false, 0
	}
	at := r.expected(now)
	if at.Sub(o.clearFor) <= r.period/2 || now >= at.Add(o.margin()+o.work.mean+t.after) { // it was cleared for, or is over
		at = at.Add(r.period)
	}
	if from := at.Add(-t.before - o.margin()); now < from {
		return false, from
	}
	o.clearFor, o.clearUntil = at, at.Add(o.margin()+o.work.mean+t.after)
	return true, o.clearUntil
}

// watchOnline updates the states of the online queues, and what the plan depends on.
func (p *giveway) watchOnline(v *sched.View, t clearTime, s *summary, set *setting) {
	online := p.onlineStates.update(v.Queues)
	predictable, learning := 0, false
	for i := range v.Queues {
		q, o := &v.Queues[i], &online[i]
		if q.Attr.Class != sched.Online || q.Attr.Paused {
			continue
		}
		o.watch(q, v.Now)
		if active, change := o.active(v.Now); active {
			s.activeOnline++
			s.uncounted = s.uncounted || !q.Counters.Known && q.Visits.Known
			s.onlineChange = earlier(s.onlineChange, change)
			p.updateFirst(q, s)
		}
		learning = learning || o.learning(v.Now)
		s.serving = s.serving || o.ready
		o.goesOn = o.clear.pauses >= usualRequests && !(set.clearRequests && o.clear.wanted(set.betweenRequests))
		if o.predictable(v.Now, t) {
			predictable++
		}
		predicted, change := o.updateClear(q, v.Now, t)
		expected, inTime, at := o.announced.update(q, v.Now, t.before, p.patience, p.turnLength()/turnDelay)
		whole, look := o.clear.update(q, v.Now, p.sharing && set.clearRequests, set.betweenRequests)
		if whole {
			s.expecting, s.wantClear = true, true
		}
		change = earlier(change, look)
		s.expecting = s.expecting || predicted || expected
		s.wantClear = s.wantClear || predicted || expected && inTime
		s.onlineChange = earlier(s.onlineChange, earlier(change, at))
	}
	s.predicted = predictable > 0 && predictable == s.activeOnline
	var change sched.Time
	s.learning, change = p.learn.update(v.Now, learning)
	s.onlineChange = earlier(s.onlineChange, change)
}

// updateFirst notes q if it goes before all active online queues seen so far: by priority and then,
// under slo, by the tighter SLO. A queue without an SLO goes neither before nor after the others.
// It is not known how long its requests may wait, and its long slice could break the SLO of another.
func (p *giveway) updateFirst(q *sched.Queue, s *summary) {
	slo := max(q.Attr.SLO, 0)
	if !p.readsSLO {
		slo = 0
	}
	switch priority := q.Attr.Priority; {
	case s.activeOnline == 1 || priority > s.firstPriority:
		s.first, s.firstPriority, s.firstSLO = q.ID, priority, slo
	case priority < s.firstPriority:
	case slo == 0 || s.firstSLO == 0:
		s.first, s.firstSLO = 0, 0
	case slo == s.firstSLO:
		s.first = 0
	case slo < s.firstSLO:
		s.first, s.firstSLO = q.ID, slo
	}
}

// sliceOfOnline returns the slice of an online queue. Beside batch work it is longer than a
// request, so that requests are not interrupted by switches. If other online queues are
// active, only one that goes before all of them has it: with the others a long request
// would keep short ones waiting.
func (p *giveway) sliceOfOnline(dev *sched.Device, q *sched.Queue, s *summary, set *setting) time.Duration {
	if !s.hasBatch || set.onlineSlice == 0 || !yieldsBySlice(dev, q) || s.activeOnline > 1 && q.ID != s.first {
		return 0
	}
	return max(set.onlineSlice, dev.MinSharedSlice)
}
