package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// arrivals handles expected requests (Attr.Expect): the policy clears the device
// before one, and stops waiting for one that does not come.
type arrivals struct {
	lead     time.Duration // zero is the stop time of the device
	patience time.Duration
}

// Lead and patience together stay below the scheduler's StallLimit of 2 s. A
// policy that cleared the device for longer would be overruled.
const maxLead = 500 * time.Millisecond

func (a *arrivals) arrivalParams() params {
	a.patience = 2 * time.Millisecond
	return params{
		durationParam("lead", &a.lead, 0, maxLead, "how long before an expected request to clear the device; 0s is the device's stop time"),
		durationParam("patience", &a.patience, 0, maxLead, "how long after the expected time to wait for the request"),
	}
}

// leadTime returns how long before an expected request to clear the devices.
func (a *arrivals) leadTime(devices []sched.Device) time.Duration {
	if a.lead > 0 {
		return a.lead
	}
	var longest time.Duration
	for i := range devices {
		longest = max(longest, devices[i].StopTime)
	}
	return min(longest, maxLead)
}

// due reports whether a request of q, which is idle, is expected now, and when
// the answer changes; zero is never.
func (a *arrivals) due(q *sched.Queue, now sched.Time, lead time.Duration) (bool, sched.Time) {
	at := q.Attr.Expect
	if at <= 0 || q.Attr.Paused {
		return false, 0
	}
	from, until := at.Add(-lead), at.Add(a.patience)
	switch {
	case now < from:
		return false, from
	case now >= until, q.ReadySince >= from: // it has not come, or is finished
		return false, 0
	}
	return true, until
}
