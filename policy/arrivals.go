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

// An announcement may be late by 1/lateNotice of the lead.
const lateNotice = 4

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

// announced is the next request of an online queue on a device with slices, if the queue has
// announced it (Attr.Expect).
type announced struct {
	at     sched.Time // when the request is expected; zero: none is announced
	since  sched.Time // when it was announced
	inTime bool       // that was early enough to clear the device for it
	begun  bool       // it is expected now, or was: the lead may have become shorter since
	over   bool       // it has been served, or it did not come
}

// update reports whether the announced request of q is expected or served now, whether the device is
// to be clear for it, and when either changes without an event; zero: it does not. lead is how long it
// takes to clear the device. The policy does not wait for a request that does not come within
// patience, and does not protect one for more than longest.
//
// If less than lead is left when a request is announced, or it comes much too early, batch queues would
// be stopped while it is served. Each stop interrupts it, so the device is not cleared then.
func (a *announced) update(q *sched.Queue, now sched.Time, lead, patience, longest time.Duration) (expected, clear bool, change sched.Time) {
	if at := q.Attr.Expect; at != a.at {
		*a = announced{at: at, since: now, inTime: at.Sub(now) >= lead-lead/lateNotice}
	}
	if a.over {
		return false, false, 0
	}
	from, until := a.at.Add(-lead), a.at.Add(patience)
	arrived := q.Counters.Known && q.ReadySince >= a.since
	if arrived {
		until = q.ReadySince.Add(longest)
	}
	switch {
	case arrived && !q.Ready() || now >= until:
		a.over = true
		return false, false, 0
	case !arrived && now < from && !a.begun:
		return false, false, from
	}
	a.begun = true
	return true, a.inTime && !(arrived && q.ReadySince < from), until
}
