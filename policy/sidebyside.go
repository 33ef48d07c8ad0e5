package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// sideBySide decides which batch queues of a device with time slices run side by side.
// Light queues do, all the time, together with the heavy queue whose turn it is. Without
// online work they have the device's default slice. Beside online work they have a shorter
// one, which costs them little and online work waits less: the parameter shared.
//
// A request that is expected finds only one batch queue on the device, the one whose turn
// it is, with the minimum slice: the others are stopped shortly before, and started again
// when the request is over.
//
// If there are only heavy queues, they take turns and nothing can be told from their
// visits. So from time to time the queue that leaves and the one that enters run beside
// each other for a moment: an overlap.
type sideBySide struct {
	shared time.Duration

	lightQueues int  // light queues that would use a turn now; unknown ones count as light in a trial
	mayShare    bool // there are light queues, and other batch queues to run beside
	sharing     bool // the light queues run side by side, but not while the device is cleared for a request
	sharingNow  bool // the light queues run side by side now
	heavyTurns  bool // light queues run side by side, and only heavy ones take turns

	sharesBetweenRequests bool // light queues run side by side only because requests are regular

	trialSince sched.Time    // since when newcomers run side by side with the others; zero: they do not
	trialEnd   sched.Time    // when they last stopped doing so
	trialTook  time.Duration // how long they did then

	limitedAt    sched.Time    // when limitShares last did something
	limitedClock time.Duration // virtual time of the queues that take turns, then

	clearing  sched.Time // since when the device is being cleared for a request; zero: it is not, or is clear
	cleared   bool       // it was cleared at the last plan
	clearTime meanTime   // how long that takes

	overlapped  sched.QueueID // the queue that leaves, during an overlap; zero: there is none
	overlapFrom sched.Time
	nextOverlap sched.Time
}

const (
	// An overlap takes 5 to 20 ms: two readings of the trace. Beside online work it is at
	// most one part in overlapRarity of the time, so that the P99 of requests is not one
	// of those that meet it.
	maxOverlap       = 40 * time.Millisecond
	maxOnlineOverlap = 25 * time.Millisecond
	overlapPause     = time.Second
	overlapRarity    = 150
	overlapStep      = 2 * time.Millisecond // how often the daemon looks during one

	// maxOnlineTrial is the longest trial of newcomers beside online work if there are few
	// queues: what six visits with the default slice take. Visits of several trials count
	// together.
	maxOnlineTrial = 2 * maxOnlineOverlap

	// Light queues share the device as its slices divide it. Beside heavy queues that take
	// turns, a process that pauses on purpose would so get more than its weight. A queue may
	// get sideBySideShare times its share, and for a moment maxAheadTurns turns more. With
	// less, jobs that are light by nature would lose work.
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
func (s *sideBySide) isLight(dev *sched.Device, q *sched.Queue, a *account) bool {
	return isCandidate(dev, q, a) && !a.overdrawn && (a.load.load == lightLoad || a.load.load == unknownLoad && s.trialSince > 0)
}

// isCandidate reports whether the load of q matters, and can be found out.
func isCandidate(dev *sched.Device, q *sched.Queue, a *account) bool {
	return a.takesTurns && q.Attr.Class == sched.Batch && q.Visits.Known && yieldsBySlice(dev, q)
}

// updateTrial begins the trial of newcomers if there are any, and ends it when all are known
// or it takes too long. Where jobs come and go all the time, newcomers would otherwise have
// most of the device, and online work would wait for them: see trialLimits.
func (s *sideBySide) updateTrial(now sched.Time, dev *sched.Device, newcomers int, sum *summary) {
	limit, rarity := trialLimits(dev, sum)
	next := s.trialEnd.Add(rarity * s.trialTook)
	switch took := now.Sub(s.trialSince); {
	case s.trialSince > 0 && (newcomers == 0 || took >= limit):
		s.trialSince, s.trialEnd, s.trialTook = 0, now, took
		next = now.Add(rarity * took)
		if rarity == overlapRarity {
			s.nextOverlap = max(s.nextOverlap, next) // it is as rare after a trial as after another overlap
		}
	case s.trialSince == 0 && newcomers > 0 && now >= next:
		s.trialSince = max(now, 1)
	}
	switch {
	case s.trialSince > 0:
		sum.wake = earlier(sum.wake, s.trialSince.Add(limit))
	case newcomers > 0:
		sum.wake = earlier(sum.wake, next)
	}
}

// trialLimits returns how long a trial of newcomers may take, and how many times as long the
// next one must wait. Beside online work that is not predicted, trials are as rare as
// overlaps, and take no longer than a verdict about all queues needs.
func trialLimits(dev *sched.Device, sum *summary) (limit, rarity time.Duration) {
	if sum.active > 0 && !sum.predicted {
		needed := (windowVisits + 2) * time.Duration(sum.turns) * dev.Slice * 9 / 8 // with the switches
		return min(max(maxOnlineTrial, needed), trialLength), overlapRarity
	}
	return trialLength, 4
}

// limitShares lets light queues that had much more than their share take turns until the heavy
// ones have had as much.
func (p *giveway) limitShares(v *sched.View, accounts []account) {
	if v.Now <= p.limitedAt { // a second plan at the same instant must be the same as the first
		return
	}
	clock := p.clocks[0].now
	passed := clock - p.limitedClock
	p.limitedAt, p.limitedClock = v.Now, clock
	heavy := false
	for i := range accounts {
		a := &accounts[i]
		heavy = heavy || a.class == sched.Batch && a.takesTurns && !a.sideBySide && !a.overdrawn
	}
	for i := range accounts {
		a := &accounts[i]
		if a.ahead = max(a.ahead-passed, 0); !heavy {
			a.ahead = 0
		}
		switch {
		case a.ahead == 0:
			a.overdrawn = false
		case a.ahead > maxAheadTurns*p.turn && !a.overdrawn:
			a.overdrawn = true
			a.at = max(a.at, clock+a.ahead) // its next turn is when the others have caught up
		}
	}
}

// watchLoads updates the loads of the batch queues, and which of the light ones are idle.
func (s *sideBySide) watchLoads(v *sched.View, accounts []account, sum *summary) {
	dev := &v.Devices[0]
	s.lightQueues = 0
	newcomers := sum.newcomers
	if sum.turns < 2 {
		newcomers = 0
	}
	s.updateTrial(v.Now, dev, newcomers, sum)
	if !sum.traced {
		return
	}
	for i := range v.Queues {
		q, a := &v.Queues[i], &accounts[i]
		if q.Attr.Class != sched.Batch {
			continue
		}
		// With a slice in which a queue makes no progress, all its visits are short.
		tooShort := q.Slice > 0 && q.Slice < dev.MinSharedSlice
		a.load.watch(q, v.Now, sum.running > 1 && !tooShort)
		if q.State != sched.Running || q.Served != a.seen || !a.sideBySide {
			a.seen, a.unservedSince = q.Served, v.Now
		}
		if !s.isLight(dev, q, a) {
			continue
		}
		s.lightQueues++
		if !q.Counters.Known && q.Measured && q.MeasuredAt.Sub(a.unservedSince) >= unusedFor {
			a.unusedTurn = true // as of the next plan
		}
	}
}

// decide sets whether the light queues take no turns, and whether they run side by side
// now. All queues take turns if online work needs it, by the setting.
func (s *sideBySide) decide(v *sched.View, accounts []account, sum *summary, set *setting) {
	s.mayShare = s.lightQueues > 0 && sum.turns > 1 && sum.class == sched.Batch
	was, sharing := s.sharing, s.mayShare && (sum.active == 0 || set.shared != sched.MinSlice || set.betweenRequests && sum.predicted)
	s.sharing = sharing
	dev := &v.Devices[0]
	for i := 0; i < len(accounts) && (sharing || was); i++ {
		a := &accounts[i]
		a.sideBySide = sharing && s.isLight(dev, &v.Queues[i], a)
	}
	s.heavyTurns = sharing && s.lightQueues < sum.turns
	s.sharingNow = sharing && !sum.clear
	s.sharesBetweenRequests = sharing && sum.active > 0 && set.shared == sched.MinSlice
	if !sharing {
		return
	}
	s.overlapped = 0
	sum.wake = earlier(sum.wake, sum.onlineChange)
	step := loadStep
	if sum.active > 0 && !sum.predicted {
		step = arrivalStep
	}
	sum.wake = earlier(sum.wake, v.Now.Add(step))
}

// measureClear learns how long it takes until only one batch queue is on the device.
func (p *giveway) measureClear(v *sched.View, accounts []account, sum *summary) {
	if !sum.clear || !p.mayShare {
		p.clearing, p.cleared = 0, false
		return
	}
	if !p.cleared {
		p.cleared, p.clearing = true, v.Now
		return
	}
	if p.clearing == 0 {
		return
	}
	for i := range v.Queues {
		if q := &v.Queues[i]; accounts[i].sideBySide && q.ID != p.current && q.State != sched.Stopped && q.Level() != sched.LevelNone || q.ID == p.current && q.Slice == 0 {
			return
		}
	}
	p.clearTime.add(v.Now.Sub(p.clearing))
	p.clearing = 0
}

// clearLead returns how long before a request the light queues must be stopped: what it
// has taken so far, with a reserve that all but a few exceptions fit into. The driver makes
// one call after the other, so its time varies.
func (p *giveway) clearLead(dev *sched.Device, lead time.Duration, turns int) time.Duration {
	if p.clearTime.n == 0 {
		return lead + time.Duration(max(turns-1, 0))*dev.StopTime/2
	}
	mean := p.clearTime.mean
	return max(lead, mean+min(max(mean/8, 3*p.clearTime.off), mean))
}

// takesPart reports whether a queue with this account can have the turn.
func (s *sideBySide) takesPart(a *account) bool {
	return a.takesTurns && !(s.heavyTurns && a.sideBySide)
}

// runsBeside reports whether q runs side by side with others now.
func (p *giveway) runsBeside(q *sched.Queue, a *account) bool {
	switch {
	case p.sharingNow:
		return a.sideBySide || q.ID == p.current && a.takesTurns && q.Attr.Class == sched.Batch
	case p.overlapped != 0:
		return q.ID == p.overlapped || q.ID == p.current
	}
	return false
}

// sliceBeside returns the slice of a queue that runs side by side with others.
func (s *sideBySide) sliceBeside(now sched.Time, dev *sched.Device, a *account, sum *summary, set *setting) time.Duration {
	if sum.active == 0 || set.shared == 0 || sum.predicted && s.sharingNow {
		return 0
	}
	switch trial, change := a.load.inTrial(now); {
	case !s.sharingNow:
	case a.load.load == unknownLoad && s.trialSince > 0:
		return 0
	default:
		if sum.wake = earlier(sum.wake, change); trial {
			return 0
		}
	}
	return max(set.shared, dev.MinSharedSlice)
}

// beginOverlap lets the queue whose turn is over run on beside the next, if it is time to.
func (s *sideBySide) beginOverlap(now sched.Time, leaving, entering *sched.Queue, sum *summary, set *setting) {
	if s.lightQueues > 0 || sum.clear || now < s.nextOverlap || leaving.ID == entering.ID || !leaving.Visits.Known || !entering.Visits.Known ||
		sum.active > 0 && (set.shared == sched.MinSlice || sum.newcomers > 0) || sum.class != sched.Batch {
		return
	}
	s.overlapped, s.overlapFrom = leaving.ID, now
	s.nextOverlap = now.Add(overlapPause)
}

// updateOverlap ends the overlap when both queues are judged, when a request is expected, or
// when it takes too long.
func (p *giveway) updateOverlap(v *sched.View, accounts []account, sum *summary) {
	if p.overlapped == 0 {
		return
	}
	limit, rarity := maxOverlap, time.Duration(1)
	if sum.active > 0 {
		limit, rarity = maxOnlineOverlap, overlapRarity
	}
	took := v.Now.Sub(p.overlapFrom)
	if p.judgedInOverlap(v, accounts, p.overlapped) && p.judgedInOverlap(v, accounts, p.current) || took >= limit || sum.clear {
		p.overlapped = 0
		p.nextOverlap = max(p.nextOverlap, v.Now.Add(rarity*took))
		return
	}
	sum.wake = earlier(earlier(sum.wake, sum.onlineChange), min(v.Now.Add(overlapStep), p.overlapFrom.Add(limit)))
}

// judgedInOverlap reports whether a queue was judged since the overlap began, or is gone.
func (p *giveway) judgedInOverlap(v *sched.View, accounts []account, id sched.QueueID) bool {
	i, ok := index(v.Queues, id)
	return !ok || accounts[i].load.judgedAt >= p.overlapFrom
}
