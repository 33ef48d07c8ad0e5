package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// trial is a short period in which newcomers, whose loads are unknown, run side by side with the
// other batch queues, so that their visits show whether they are light.
type trial struct {
	since sched.Time    // when the trial began; zero: there is none
	end   sched.Time    // of the last trial
	took  time.Duration // of the last trial
	most  int           // how many newcomers are in it at a time
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

// inTrial reports whether the queue of st is a newcomer in the present trial.
func (s *sideBySide) inTrial(st *queueState) bool {
	return s.trial.since > 0 && st.load.verdict == unknownLoad && !st.triedLater
}

// chooseNewcomers sets which newcomers wait for a later trial if there are more than a trial takes.
// Those in the trial stay until their loads are known. Free places go to those whose last trial was
// longest ago, so that newcomers whose trials give no verdict do not keep out the rest. It keeps the
// chosen ones in a list that is sorted as it grows.
func (s *sideBySide) chooseNewcomers(v *sched.View, states []queueState, newcomers int) {
	if newcomers <= s.trial.most {
		return // triedLater is not set
	}
	var chosen [trialQueues]*queueState
	n := 0
	for i := range states {
		st := &states[i]
		if !isNewcomer(&v.Devices[0], &v.Queues[i], st) {
			continue
		}
		st.triedLater = true
		at := n
		for at > 0 && s.triedBefore(st, chosen[at-1]) {
			at--
		}
		if at == s.trial.most {
			continue
		}
		n = min(n+1, s.trial.most)
		copy(chosen[at+1:n], chosen[at:])
		chosen[at] = st
	}
	for _, st := range chosen[:n] {
		st.triedLater = false
	}
}

// triedBefore reports whether the newcomer of st goes before the other in the choice for a trial.
func (s *sideBySide) triedBefore(st, other *queueState) bool {
	in, otherIn := s.wasInTrial(st), s.wasInTrial(other)
	return in && !otherIn || in == otherIn && st.triedAt < other.triedAt
}

// wasInTrial reports whether the newcomer of st was in the present trial at the last plan.
func (s *sideBySide) wasInTrial(st *queueState) bool {
	return s.trial.since > 0 && st.triedAt == s.trial.since
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
// overlaps, and take no longer than a verdict about all queues needs: twice as many visits, because
// some of the queues join during the trial.
func trialLimits(dev *sched.Device, sum *summary) (limit, rarity time.Duration) {
	if sum.activeOnline > 0 && !sum.predicted {
		needed := 2 * windowVisits * time.Duration(sum.inRotation) * dev.Slice * 9 / 8 // with the switches
		return min(max(maxOnlineTrial, needed), trialLength), overlapRarity
	}
	return trialLength, 4
}
