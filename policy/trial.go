package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// trial is the moment in which newcomers, whose loads are unknown, run side by side with the
// other batch queues, so that their visits show whether they are light.
type trial struct {
	since sched.Time    // when the trial began; zero: there is none
	end   sched.Time    // of the last trial
	took  time.Duration // of the last trial
	most  int           // newcomers in it, at a time
}

const (
	// maxOnlineTrial is the longest trial of newcomers beside online work if there are few
	// queues: what six visits with the default slice take. Visits of several trials count
	// together.
	maxOnlineTrial = 2 * maxOnlineOverlap

	// trialQueues is how many newcomers run side by side in a trial. If all are heavy, that
	// many can be judged within trialLength: of 64 at once each would make too few visits.
	// Beside online work, which waits for a slice of each, there are fewer.
	trialQueues       = 12
	onlineTrialQueues = 3
)

// inTrial reports whether the queue of st is a newcomer in the trial that goes on.
func (s *sideBySide) inTrial(st *queueState) bool {
	return s.trial.since > 0 && st.load.verdict == unknownLoad && !st.triedLater
}

// updateTrial begins the trial of newcomers if there are any, and ends it when all are known
// or it takes too long. Where jobs come and go all the time, newcomers would otherwise have
// most of the device, and online work would wait for them: see trialLimits.
func (s *sideBySide) updateTrial(now sched.Time, dev *sched.Device, newcomers int, sum *summary) {
	limit, rarity := trialLimits(dev, sum)
	if s.trial.most = trialQueues; rarity == overlapRarity {
		s.trial.most = onlineTrialQueues
	}
	next := s.trial.end.Add(rarity * s.trial.took)
	switch took := now.Sub(s.trial.since); {
	case s.trial.since > 0 && (newcomers == 0 || took >= limit):
		s.trial.since, s.trial.end, s.trial.took = 0, now, took
		next = now.Add(rarity * took)
		if rarity == overlapRarity {
			s.overlap.next = max(s.overlap.next, next) // it is as rare after a trial as after another overlap
		}
	case s.trial.since == 0 && newcomers > 0 && now >= next:
		s.trial.since = max(now, 1)
	}
	switch {
	case s.trial.since > 0:
		sum.wake = earlier(sum.wake, s.trial.since.Add(limit))
	case newcomers > 0:
		sum.wake = earlier(sum.wake, next)
	}
}

// trialLimits returns how long a trial of newcomers may take, and how many times as long the
// next one must wait. Beside online work that is not predicted, trials are as rare as
// overlaps, and take no longer than a verdict about all queues needs.
func trialLimits(dev *sched.Device, sum *summary) (limit, rarity time.Duration) {
	if sum.activeOnline > 0 && !sum.predicted {
		needed := (windowVisits + 2) * time.Duration(sum.inRotation) * dev.Slice * 9 / 8 // with the switches
		return min(max(maxOnlineTrial, needed), trialLength), overlapRarity
	}
	return trialLength, 4
}
