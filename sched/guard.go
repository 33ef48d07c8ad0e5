package sched

// Mistake is an error of a policy.
type Mistake uint8

const (
	NoMistake      Mistake = iota
	NoSuchQueue            // granted a queue that does not exist, or is on a device of another policy
	TwoShortSlices         // granted two queues of a device slices too short for either to make progress
	NoPlan                 // returned no valid plan
	Stalled                // granted no ready queue for Config.StallLimit
	HeldTooLong            // did not grant a ready queue for Config.StallLimit, without a floor
)

var mistakeNames = []string{
	"none", "granted a queue that does not exist", "granted two slices too short to make progress",
	"returned no valid plan", "granted no ready queue for too long", "held a ready queue for too long",
}

func (m Mistake) String() string { return name(mistakeNames, int(m)) }

// guard watches one policy. As in Linux's sched_ext, the default behaviour is
// restored whenever an error is detected. Unlike there, the policy is still
// called, and decides again when it has made no mistake for StallLimit.
type guard struct {
	mistake  Mistake // why the policy is overruled
	since    Time    // since when the policy is overruled; Never if it is not
	stalled  Time    // since when no ready queue is granted; Never if one is
	behaving Time    // since when an overruled policy has made no mistake; Never if its last plan was one
	wake     Time    // when to check again
}

func newGuard() guard { return guard{since: Never, stalled: Never, behaving: Never, wake: Never} }

// checkPolicy updates the guard after the plan of this epoch, in which
// markGrants found mistake. It reports whether the policy is overruled.
func (s *Scheduler) checkPolicy(d *domain, mistake Mistake) bool {
	ready, granted, held := d.ready(), d.granted, Never
	if s.cfg.Floor == 0 {
		held = s.earliestHeld(d)
	}
	g := &d.guard
	switch {
	case !ready || granted:
		g.stalled = Never
	case g.stalled == Never:
		g.stalled = s.now
	}
	g.wake = min(g.stalled.Add(s.cfg.StallLimit), held.Add(s.cfg.StallLimit))
	if mistake == NoMistake && g.wake <= s.now {
		mistake = Stalled
		if g.stalled.Add(s.cfg.StallLimit) > s.now {
			mistake = HeldTooLong
		}
	}
	switch {
	case mistake != NoMistake:
		if g.since == Never {
			g.since = s.now
		}
		g.mistake, g.behaving, g.wake = mistake, Never, Never
	case g.since != Never:
		if g.behaving == Never {
			g.behaving = s.now
		}
		if s.now.Sub(g.behaving) >= s.cfg.StallLimit {
			g.since, g.mistake, g.behaving = Never, NoMistake, Never
		} else {
			g.wake = min(g.wake, g.behaving.Add(s.cfg.StallLimit))
		}
	}
	return g.since != Never
}

// ready reports whether any queue of d is ready and not paused.
func (d *domain) ready() bool {
	for _, dev := range d.devices {
		if dev.ready > 0 {
			return true
		}
	}
	return false
}

// earliestHeld returns the earliest time at which a ready queue of d, not of class Idle, was left
// without a grant, or Never. It is used only without a floor: with one, every queue gets to run.
func (s *Scheduler) earliestHeld(d *domain) Time {
	held := Never
	for _, dev := range d.devices {
		for i := range dev.queues {
			q := &dev.queues[i]
			switch {
			case !q.Runnable() || q.act.epoch == s.epoch:
				q.heldSince = Never
			case q.heldSince == Never:
				q.heldSince = s.now
			}
			if q.Attr.Class != Idle {
				held = min(held, q.heldSince)
			}
		}
	}
	return held
}

// Overruled reports whether the policy in force on a device is overruled, why, and
// since when.
func (s *Scheduler) Overruled(id DeviceID) (Mistake, Time, bool) {
	for _, d := range s.devices {
		if d.ID == id {
			g := &d.domain.guard
			return g.mistake, g.since, g.since != Never
		}
	}
	return NoMistake, Never, false
}
