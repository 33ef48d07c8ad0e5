package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// foresight is what a policy makes of expected arrivals: it clears the device
// ahead of one, and gives up on one that does not come.
type foresight struct {
	lead     time.Duration
	patience time.Duration
}

// The two together stay below the scheduler's StallLimit, or an arrival that
// does not come would look like a policy that has stopped working.
const longestForesight = 500 * time.Millisecond

func (f *foresight) knobs() knobs {
	f.patience = 2 * time.Millisecond
	return knobs{
		durationKnob("lead", &f.lead, 0, longestForesight, "how long before an expected arrival to clear the device; 0s is what the device needs"),
		durationKnob("patience", &f.patience, 0, longestForesight, "how long after an expected arrival to keep it clear"),
	}
}

// ahead is how long before an arrival on any of the devices to begin.
func (f *foresight) ahead(devices []sched.Device) time.Duration {
	if f.lead > 0 {
		return f.lead
	}
	longest := time.Duration(0)
	for i := range devices {
		longest = max(longest, devices[i].StopTime)
	}
	return min(longest, longestForesight)
}

// due reports whether work for q, which has none, is expected any moment now,
// and when the answer changes; zero is never.
func (f *foresight) due(q *sched.Queue, now sched.Time, ahead time.Duration) (bool, sched.Time) {
	at := q.Attr.Expect
	if at <= 0 || q.Attr.Paused {
		return false, 0
	}
	from, until := at.Add(-ahead), at.Add(f.patience)
	switch {
	case now < from:
		return false, from
	case now >= until, q.ReadySince >= from: // it did not come, or has been and gone
		return false, 0
	}
	return true, until
}
