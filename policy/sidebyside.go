package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// sideBySide decides which batch queues of a device run side by side.
// Light queues do, all the time, together with the heavy queue whose turn it is. On a device with time
// slices they have the default slice as long as there is no online work. Beside online work they have a
// shorter slice (the parameter shared): it costs them little, and online work waits less.
//
// A queue is found to be light by its visits (load.go), in trials (trial.go) and overlaps (overlap.go),
// or, where visits are not known, by its counters (workperiod.go). The group limits how many run at a
// time beside online work (group.go). For a request that is expected the device is cleared (clear.go).
type sideBySide struct {
	sharedSlice time.Duration // the parameter shared

	lightQueues    int  // light queues that would use a turn now; newcomers in a trial count as light
	lightByCounter int  // of those, the queues whose visits are not known
	newcomersTried bool // there are newcomers in a trial
	mayShare       bool // there are light queues, and other batch queues to run beside
	sharing        bool // mayShare, and the setting allows it: light queues run side by side
	sharingNow     bool // sharing, and the device is not being cleared for a request
	heavyQueues    int  // the other queues that take turns
	heavyTurns     bool // sharing, and there are heavy queues: only those take turns

	// sharesBetweenRequests is set if light queues run side by side only because requests are
	// regular: see setting.betweenRequests.
	sharesBetweenRequests bool

	// weighted is set if batch queues have different weights. Queues whose visits are not known then have
	// no more than their share side by side: see limitShares. They take turns if there is no heavy queue
	// to compare their share with. They also take turns on a device that runs one command at a time,
	// where estimates of device time are too rough.
	weighted bool

	// shareUnknown is set if queues whose load cannot be found run side by side, because there is no
	// online queue. Neither their visits nor their counters are known. Turns would gain little if
	// the queues fill the device, and cost most of their work if they do not.
	shareUnknown bool

	trial    trial
	overlap  overlap
	clearing clearing

	limitedAt    sched.Time    // when limitShares last did something
	limitedClock time.Duration // virtual time of the queues that take turns, then
}

const (
	// Light queues share the device as its slices divide it. Beside heavy queues that take
	// turns, a process that pauses on purpose would so get more than its weight. A queue may
	// get sideBySideShare times its share, and for a moment maxAheadTurns turns more. With
	// less, jobs that are light by nature would lose work. If weights differ and visits are not
	// known, it is its share alone.
	sideBySideShare = 2
	maxAheadTurns   = 2

	// unusedFor is after how long without service a light queue counts as idle.
	unusedFor = 250 * time.Millisecond

	// loadStep is how often the visits of light queues are looked at, and arrivalStep how
	// often those of online queues, to find out whether their requests come regularly.
	loadStep    = 50 * time.Millisecond
	arrivalStep = 10 * time.Millisecond
)

// isLight reports whether q runs side by side with others if there are any.
func (s *sideBySide) isLight(dev *sched.Device, q *sched.Queue, st *queueState) bool {
	switch {
	case !st.takesTurns || q.Attr.Class != sched.Batch || st.overdrawn:
		return false
	case !q.Visits.Known && !st.traced:
		return !q.Counters.Known && s.shareUnknown && !s.weighted || q.Counters.Known && st.load.verdict == lightLoad
	}
	return isCandidate(dev, q, st) && (st.load.verdict == lightLoad || s.inTrial(st))
}

// isCandidate reports whether q would use a turn, so that its load matters, and whether its visits
// can show its load.
func isCandidate(dev *sched.Device, q *sched.Queue, st *queueState) bool {
	return st.takesTurns && q.Attr.Class == sched.Batch && q.Visits.Known && yieldsBySlice(dev, q)
}

// isNewcomer reports whether q is a candidate whose load is unknown.
func isNewcomer(dev *sched.Device, q *sched.Queue, st *queueState) bool {
	return st.load.verdict == unknownLoad && isCandidate(dev, q, st)
}

// watchLoads updates the loads of the batch queues, and which of the light ones are idle.
func (s *sideBySide) watchLoads(v *sched.View, states []queueState, sum *summary) {
	dev := &v.Devices[0]
	s.lightQueues, s.lightByCounter, s.newcomersTried = 0, 0, false
	newcomers := sum.newcomers
	if sum.inRotation < 2 {
		newcomers = 0
	}
	s.chooseNewcomers(v, states, newcomers)
	s.updateTrial(v.Now, dev, newcomers, sum)
	s.weighted, s.shareUnknown = sum.weighted, !sum.hasOnline
	if sum.activeOnline > 0 && sum.unstoppable == 0 {
		judgeByUse(v.Now, states)
	}
	alone := timeAlone(v.Queues)
	for i := range v.Queues {
		q, st := &v.Queues[i], &states[i]
		if q.Attr.Class != sched.Batch {
			continue
		}
		// With a slice in which a queue makes no progress, all its visits are short. With one
		// longer than the default slice, such as that of a floor turn, online work ends them.
		unusable := q.Slice > 0 && q.Slice < dev.MinSharedSlice || q.Slice > dev.Slice
		st.load.watch(q, v.Now, sum.running > 1 && !unusable, sum.activeOnline > 0, alone-q.Visits.Alone)
		if q.State != sched.Running || q.Served != st.servedThen || !st.sideBySide {
			st.servedThen, st.unservedSince = q.Served, v.Now
		}
		if !s.isLight(dev, q, st) {
			continue
		}
		if s.inTrial(st) {
			st.triedAt = s.trial.since
			s.newcomersTried = true
		}
		s.lightQueues++
		if st.judgedByCounters(q) {
			s.lightByCounter++
		}
		if !q.Counters.Known && q.Measured && q.MeasuredAt.Sub(st.unservedSince) >= unusedFor {
			st.unusedTurn = true // it takes no turns from the next plan on
		}
	}
}

// timeAlone returns for how long batch and standard queues have been alone on the device. Online queues
// do not count: their slices are longer than the default one.
func timeAlone(queues []sched.Queue) time.Duration {
	var alone time.Duration
	for i := range queues {
		if c := queues[i].Attr.Class; c == sched.Batch || c == sched.Standard {
			alone += queues[i].Visits.Alone
		}
	}
	return alone
}

// chooseSideBySide sets whether the light queues run side by side, in general and now. All queues take
// turns if the setting says that online work needs it, and at the first requests (see learnPeriod).
// In a trial they do not, unless the parameter shared asks for turns. That holds for the setting in
// which slo begins too: light queues that took turns would show no gain with a milder setting.
//
// While light queues run side by side, the plan changes as soon as a visit shows something new. So
// the wake time is set to look at their visits often. Visits of online queues are looked at often
// while turns change, because turnOver needs the arrivals of requests.
func (s *sideBySide) chooseSideBySide(v *sched.View, states []queueState, sum *summary, set *setting) {
	dev := &v.Devices[0]
	unlimited := s.weighted && s.lightByCounter > 0 && (s.lightQueues == sum.inRotation || dev.Serial) // limitShares could not keep to weights
	s.mayShare = s.lightQueues > 0 && sum.inRotation > 1 && sum.rotationClass == sched.Batch && !sum.longCommands && !unlimited
	adapts := s.sharedSlice != sched.MinSlice // otherwise the user asked for turns
	turns := set.sharedSlice == sched.MinSlice && !(set.betweenRequests && sum.predicted) && !(s.newcomersTried && adapts) ||
		set.sharedSlice > 0 && sum.learning && !s.newcomersTried
	was, sharing := s.sharing, s.mayShare && (!sum.onlineLately() || !turns)
	s.sharing = sharing
	for i := 0; i < len(states) && (sharing || was); i++ {
		st := &states[i]
		st.sideBySide = sharing && s.isLight(dev, &v.Queues[i], st)
	}
	s.heavyQueues = sum.inRotation - s.lightQueues
	s.heavyTurns = sharing && s.heavyQueues > 0
	s.sharingNow = sharing && !sum.wantClear
	s.sharesBetweenRequests = sharing && sum.activeOnline > 0 && set.sharedSlice == sched.MinSlice
	switch {
	case sharing, s.mayShare && sum.learning:
		if sum.onlineLately() {
			s.overlap.leaving = 0
		}
		sum.wake = earlier(sum.wake, sum.onlineChange)
	case sum.inRotation < 2 || !sum.uncounted:
		return
	}
	step := loadStep
	if sum.activeOnline > 0 && !sum.predicted {
		step = arrivalStep
	}
	sum.wake = earlier(sum.wake, v.Now.Add(step))
}

// inTrialOrOverlap reports whether batch queues run side by side with longer slices than those of the
// setting, to find their loads.
func (s *sideBySide) inTrialOrOverlap() bool { return s.trial.since > 0 || s.overlap.leaving != 0 }

// mayHaveTurn reports whether a queue with this state can have the turn.
func (s *sideBySide) mayHaveTurn(st *queueState) bool {
	return st.takesTurns && !(s.heavyTurns && st.sideBySide)
}

// runsBeside reports whether q runs side by side with others now.
func (p *giveway) runsBeside(q *sched.Queue, st *queueState) bool {
	switch {
	case p.overlap.leaving != 0 && (q.ID == p.overlap.leaving || q.ID == p.current):
		return true
	case p.sharingNow:
		return st.sideBySide && !st.outsideGroup || q.ID == p.current && st.takesTurns && q.Attr.Class == sched.Batch
	}
	return false
}

// sliceBeside returns the slice of a queue that runs side by side with others. Zero is the default
// slice. A queue has that without online work, between requests that are predicted, and in a trial
// or a retrial, because only visits with the default slice give a verdict.
func (s *sideBySide) sliceBeside(now sched.Time, dev *sched.Device, st *queueState, sum *summary, set *setting) time.Duration {
	if sum.activeOnline == 0 || set.sharedSlice == 0 || sum.predicted && s.sharingNow {
		return 0
	}
	switch retrial, change := st.load.updateRetrial(now); {
	case !s.sharingNow: // an overlap: the default slice would let online work wait too long
	case s.inTrial(st):
		return 0
	default:
		sum.wake = earlier(sum.wake, change)
		if retrial {
			return 0
		}
	}
	return max(set.sharedSlice, dev.MinSharedSlice)
}

// limitShares lets light queues that had much more than their share take turns until the heavy
// ones have had as much. Without heavy queues no share is enforced.
func (p *giveway) limitShares(v *sched.View, states []queueState) {
	if v.Now <= p.limitedAt { // a second plan at the same instant must be the same as the first
		return
	}
	clock := p.clocks[0].now
	passed := clock - p.limitedClock
	p.limitedAt, p.limitedClock = v.Now, clock
	heavy := false
	for i := range states {
		st := &states[i]
		heavy = heavy || st.class == sched.Batch && (st.takesTurns || st.recentlyReady(v.Now)) && !st.sideBySide && !st.overdrawn
	}
	for i := range states {
		st := &states[i]
		share := time.Duration(sideBySideShare)
		if p.weighted && !st.traced {
			share = 1
		}
		st.ahead = max(st.ahead-share*passed, 0)
		if !heavy {
			st.ahead = 0
		}
		switch {
		case st.ahead == 0:
			st.overdrawn = false
		case st.ahead > share*maxAheadTurns*p.turn && !st.overdrawn:
			st.overdrawn = true
			st.at = max(st.at, clock+st.ahead/share) // its next turn is when the others have caught up
		}
	}
}
