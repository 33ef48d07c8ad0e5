package sched

// Mistake is what a policy did wrong.
type Mistake uint8

const (
	NoMistake      Mistake = iota
	NoSuchQueue            // granted a queue that does not exist, or is not its own
	TwoShortSlices         // granted two queues of a device slices in which neither makes progress
	NoPlan                 // had no plan
	Stalled                // left the device without a grant for any ready queue
	HeldTooLong            // withheld the device from a ready queue, where there is no floor
)

var mistakeNames = []string{
	"none", "granted a queue that does not exist", "granted two slices too short to make progress in",
	"had no plan", "left a ready device unused", "held a ready queue too long",
}

func (m Mistake) String() string { return name(mistakeNames, int(m)) }

// guard watches one policy. Like sched_ext, it restores the default behaviour
// whenever an error is detected; unlike it, it goes on asking, and gives the
// device back to a policy that has behaved for as long as the limit.
type guard struct {
	mistake  Mistake // for which the policy is overruled
	since    Time    // it is overruled; Never if it is not
	stalled  Time    // since when no ready queue has been granted; Never if one is
	behaving Time    // since when an overruled policy has made no mistake; Never if it does
	wake     Time    // when to look again
}

func newGuard() guard { return guard{since: Never, stalled: Never, behaving: Never, wake: Never} }

// judge takes note of what the plan of this epoch does to the queues and
// reports whether the policy is overruled.
func (s *Scheduler) judge(d *domain, mistake Mistake) bool {
	ready, granted, held := d.ready(), d.granted, Never
	if s.cfg.Floor == 0 {
		held = s.longestHeld(d)
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

// ready reports whether any queue of d has work that it may do.
func (d *domain) ready() bool {
	for _, dev := range d.devices {
		if dev.ready > 0 {
			return true
		}
	}
	return false
}

// longestHeld returns since when the longest held queue of d has been held. With
// a floor nothing counts as held: the floor sees to it that it runs.
func (s *Scheduler) longestHeld(d *domain) Time {
	held := Never
	for _, dev := range d.devices {
		for i := range dev.queues {
			q := &dev.queues[i]
			switch {
			case !q.mayRun() || q.act.epoch == s.epoch:
				q.held = Never
			case q.held == Never:
				q.held = s.now
			}
			if q.Attr.Class != Idle {
				held = min(held, q.held)
			}
		}
	}
	return held
}

// Overruled tells whether the policy in charge of a device is overruled, for
// what, and since when.
func (s *Scheduler) Overruled(id DeviceID) (Mistake, Time, bool) {
	for _, d := range s.devices {
		if d.ID == id {
			g := &d.domain.guard
			return g.mistake, g.since, g.since != Never
		}
	}
	return NoMistake, Never, false
}
