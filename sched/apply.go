package sched

import (
	"cmp"
	"slices"
	"time"
)

// apply updates the state for one event and marks its domain for a new plan.
// Events about closed devices and queues are stale, not errors, and are dropped.
func (s *Scheduler) apply(ev *Event) {
	switch ev.Kind {
	case DeviceOpened, DeviceClosed, PolicyChosen, PlanOffered, ShutdownStarted:
		s.applyToDevices(ev)
		return
	case QueueOpened:
		if s.deviceOf[ev.Queue] == nil && ev.Queue != 0 && ev.Device != "" {
			s.openQueue(ev)
			return
		}
	}
	d, q := s.find(ev.Queue)
	if q == nil {
		return
	}
	d.beforeChange(q, s.now)
	switch ev.Kind {
	case QueueOpened:
		q.Can = ev.Can
	case QueueClosed:
		s.closeQueue(d, ev)
		return
	case Progressed:
		before, use := q.Counters, q.act.use
		changed := s.progress(q, &ev.Counters)
		s.countCommands(d, q, before)
		if !changed && q.usage() == use {
			return // nothing that a plan depends on
		}
	case DeviceTimeMeasured:
		q.MeasuredAt = s.now
		before, served := q.Visits, q.Served
		s.measure(q, ev.Duration)
		q.visited(&ev.Visits)
		d.countWasted(q, &before, served)
	case MeasurementLost:
		if !q.Measured && !q.Visits.Known {
			return
		}
		q.Measured, q.Visits.Known = false, false
	case RequestStarted, RequestFinished:
		s.request(d, q, ev)
		return
	case AttrsChanged:
		was := hasFloor(q)
		q.Attr = ev.Attr
		if !was {
			q.floor = floorMark{at: s.now, served: q.useful()}
		}
	case ActionDone:
		if ev.Outcome == Gone && q.act.id != 0 && q.act.id == ev.Action {
			d.domain.notify(s.now, ev)
			s.closeQueue(d, &Event{Kind: QueueClosed, Queue: ev.Queue})
			return
		}
		s.finishAction(q, ev)
	}
	d.afterChange(q)
	d.domain.notify(s.now, ev)
}

// request counts the open requests of q. A policy is called when the first request
// starts, when the oldest one finishes and when the last one does; a policy with
// Observe also when any other request starts or finishes.
func (s *Scheduler) request(d *device, q *Queue, ev *Event) {
	was, since := q.OpenRequests, q.RequestSince
	s.countRequest(q, ev)
	if o := d.domain.observer; o != nil {
		o.Observe(s.now, ev)
		d.domain.dirty = true
	}
	d.domain.dirty = d.domain.dirty || (was == 0) != (q.OpenRequests == 0) || q.RequestSince != since
}

func (s *Scheduler) countRequest(q *Queue, ev *Event) {
	if ev.Kind == RequestFinished && ev.Duration > 0 {
		q.pace.finished(s.now, ev.Duration)
	}
	switch {
	case ev.Kind == RequestStarted:
		q.OpenRequests++
		if len(q.requests) == maxRequestTimes {
			q.requests = q.requests[:maxRequestTimes-1]
		}
		q.requests = append(q.requests, s.now)
	case ev.Kind == RequestFinished && q.OpenRequests > 0:
		q.OpenRequests--
		q.forgetRequest(s.now.Add(-ev.Duration), ev.Duration > 0)
	}
	switch n := len(q.requests); {
	case q.OpenRequests == 0:
		q.RequestSince, q.NewestRequest = 0, 0
	case n > 0:
		q.RequestSince, q.NewestRequest = q.requests[0], q.requests[n-1]
	default:
		q.RequestSince, q.NewestRequest = s.now, s.now // more were open than times are kept
	}
}

// maxRequestTimes is for how many open requests of a queue the start is kept: the oldest
// ones and the newest.
const maxRequestTimes = 64

// forgetRequest removes the start that is nearest to began, or the oldest if began is
// not known. Requests may finish in any order, and began is later than the start
// that was reported by as much as the report of the end was late.
func (q *Queue) forgetRequest(began Time, known bool) {
	if len(q.requests) == 0 {
		return
	}
	nearest := 0
	for i := 1; known && i < len(q.requests); i++ {
		if q.requests[i].Sub(began).Abs() < q.requests[nearest].Sub(began).Abs() {
			nearest = i
		}
	}
	q.requests = slices.Delete(q.requests, nearest, nearest+1)
}

// notify passes an event to the policy and marks the domain for a new plan.
func (d *domain) notify(now Time, ev *Event) {
	d.dirty = true
	if d.observer != nil {
		d.observer.Observe(now, ev)
	}
}

func (s *Scheduler) applyToDevices(ev *Event) {
	switch ev.Kind {
	case DeviceOpened:
		d := s.device(ev.Device)
		d.Device = ev.About
		d.ID = ev.Device
		for i := range d.queues {
			q := &d.queues[i]
			a := &q.act // MinSharedSlice may have changed
			a.short = d.tooShort(q.Slice) || a.unsureSlice || a.id != 0 && d.tooShort(a.pending.Slice)
		}
		s.assignDomains()
	case DeviceClosed:
		s.closeDevice(ev)
	case PolicyChosen:
		s.choosePolicy(ev)
	case ShutdownStarted:
		s.shuttingDown = true
	}
	for _, d := range s.domains {
		if ev.Device != "" && ev.Kind != ShutdownStarted && !slices.ContainsFunc(d.devices, func(dev *device) bool { return dev.ID == ev.Device }) {
			continue
		}
		d.notify(s.now, ev)
	}
}

// progress updates the counters of q. The new values come from memory of the
// process and may be wrong: counters never decrease, and Completed <= Launched <=
// Submitted. It reports whether q became ready or idle, or finished all work that
// it had at ReadySince.
func (s *Scheduler) progress(q *Queue, counters *Counters) bool {
	known := q.Counters.Known
	was := known && q.Ready()
	c := &q.Counters
	c.Known = true
	c.Submitted = max(c.Submitted, counters.Submitted)
	c.Launched = min(max(c.Launched, counters.Launched), c.Submitted)
	c.Completed = min(max(c.Completed, counters.Completed), c.Launched)
	c.Late, c.Idled = max(c.Late, counters.Late), max(c.Idled, counters.Idled)
	q.countReady(s.now)
	switch {
	case !q.Ready():
		return was || !known
	case !was:
		s.becameReady(q)
	case c.Completed >= q.readyMark:
		// All work from ReadySince is finished. The work that q has now is newer.
		q.ReadySince, q.ServedAtReady, q.readyMark = s.now, q.Served, c.Submitted
	default:
		return false
	}
	return true
}

// measure adds the device time that the hardware has measured to Served.
//
// Served never decreases. So an estimate from before the first measurement, or from a
// time in which the measurement was lost, stays, and what is measured from then on is added.
//
// The hardware counts the time in which the context was loaded. That includes time in which
// the queue was stopped and no other queue needed the device, and may include time before q
// was opened. So at most the time in which q could run is added.
func (s *Scheduler) measure(q *Queue, total time.Duration) {
	const slack = 10 * time.Millisecond // a reading may be this much later than the time it is for
	a := &q.act
	if a.runnableSince != Never {
		a.runnableFor += s.now.Sub(a.runnableSince)
		a.runnableSince = s.now
	}
	switch {
	case !q.Measured:
		if !q.wasMeasured {
			q.Served = max(q.Served, min(total, a.runnableFor))
		}
		q.Measured, q.wasMeasured = true, true
		q.lastMeasured = total                             // a new trace may count from zero
		q.floor = floorMark{at: s.now, served: q.useful()} // an estimate is no share
	case total > q.lastMeasured:
		more := min(total-q.lastMeasured, a.runnableFor)
		q.Served += more
		a.runnableFor -= more
		q.lastMeasured = total
	}
	a.runnableFor = min(a.runnableFor, slack)
}

// visited updates the visits of q. Counts never decrease, and no more visits are full, or cut,
// than there are.
func (q *Queue) visited(v *Visits) {
	if !v.Known {
		return
	}
	q.Visits.Known = true
	q.Visits.Count = max(q.Visits.Count, v.Count)
	q.Visits.Full = min(max(q.Visits.Full, v.Full), q.Visits.Count)
	q.Visits.Cut = min(max(q.Visits.Cut, v.Cut), q.Visits.Count)
	q.Visits.Alone = max(q.Visits.Alone, v.Alone)
	q.Visits.Arrived = max(q.Visits.Arrived, v.Arrived)
	q.Visits.Left = max(q.Visits.Left, v.Left)
}

func (s *Scheduler) becameReady(q *Queue) {
	q.ReadySince, q.ServedAtReady, q.readyMark = s.now, q.Served, q.Counters.Submitted
	q.floor = floorMark{at: s.now, served: q.useful()}
}

func (s *Scheduler) openQueue(ev *Event) {
	d := s.device(ev.Device)
	i, _ := d.index(ev.Queue)
	d.queues = slices.Insert(d.queues, i, Queue{
		ID: ev.Queue, Process: ev.Process, Device: ev.Device, Can: ev.Can, Attr: ev.Attr, heldSince: Never, act: actionState{runnableSince: Never},
		watched: watched{readySince: Never, runSince: s.now},
	})
	s.deviceOf[ev.Queue] = d
	q := &d.queues[i]
	d.service.advance(s.now, d.Serial)
	s.becameReady(q)
	d.afterChange(q)
	d.domain.notify(s.now, ev)
}

func (s *Scheduler) closeQueue(d *device, ev *Event) {
	i, _ := d.index(ev.Queue)
	d.service.users[d.queues[i].act.use]--
	d.queues = slices.Delete(d.queues, i, i+1)
	delete(s.deviceOf, ev.Queue)
	d.domain.notify(s.now, ev)
}

// device returns the device with this ID, and opens it if it is unknown.
func (s *Scheduler) device(id DeviceID) *device {
	i, ok := slices.BinarySearchFunc(s.devices, id, func(d *device, id DeviceID) int { return cmp.Compare(d.ID, id) })
	if ok {
		return s.devices[i]
	}
	d := &device{Device: Device{ID: id}, service: service{clocked: s.now}, wake: Never, drainWake: Never, inversion: inversionWatch{from: Never, shown: Never}}
	s.devices = slices.Insert(s.devices, i, d)
	s.assignDomains()
	return d
}

func (s *Scheduler) closeDevice(ev *Event) {
	i := slices.IndexFunc(s.devices, func(d *device) bool { return d.ID == ev.Device })
	if i < 0 {
		return
	}
	d := s.devices[i]
	for j := range d.queues {
		gone := Event{Kind: QueueClosed, Queue: d.queues[j].ID, Device: d.ID}
		delete(s.deviceOf, gone.Queue)
		d.domain.notify(s.now, &gone)
	}
	d.domain.notify(s.now, ev) // the domain may have other devices
	s.devices = slices.Delete(s.devices, i, i+1)
	s.assignDomains()
}

// choosePolicy puts a policy in force on one device, or on all. The attributes of
// queues belong to the scheduler and stay.
func (s *Scheduler) choosePolicy(ev *Event) {
	if ev.Choice.Make == nil {
		return
	}
	own := ev.Device != ""
	if !own {
		s.choice = ev.Choice
	}
	for _, d := range s.devices {
		switch {
		case own && d.ID != ev.Device, d.domain.update(ev.Choice, own):
			continue
		case own:
			d.domain = newDomain(ev.Choice, true)
		default:
			d.domain = nil
		}
		for i := range d.queues {
			d.queues[i].heldSince = Never // the new policy has held no queue yet
		}
	}
	s.assignDomains()
}

func newDomain(c PolicyChoice, own bool) *domain {
	d := &domain{choice: c, own: own, policy: c.Make(), wake: Never, guard: newGuard()}
	d.observer, _ = d.policy.(Observer)
	return d
}

// update gives the policy of d the parameters of c and reports whether it could:
// the policy must be the same one, chosen for one device or for all as before.
func (d *domain) update(c PolicyChoice, own bool) bool {
	if d.choice.Name != c.Name || d.own != own || c.Update == nil {
		return false
	}
	c.Update(d.policy)
	return true
}

// assignDomains rebuilds the list of domains. A device that has a domain keeps
// it; one without gets a domain with the policy for all devices.
func (s *Scheduler) assignDomains() {
	var spanning *domain
	for _, d := range s.devices {
		if d.domain != nil && !d.domain.own && d.domain.choice.AllDevices {
			spanning = d.domain
		}
	}
	s.domains = s.domains[:0]
	for _, d := range s.devices {
		if d.domain == nil && s.choice.AllDevices && spanning == nil {
			spanning = newDomain(s.choice, false)
		}
		if d.domain == nil && s.choice.AllDevices {
			d.domain = spanning
		}
		if d.domain == nil {
			d.domain = newDomain(s.choice, false)
		}
		if !slices.Contains(s.domains, d.domain) {
			d.domain.devices, d.domain.view.Devices = d.domain.devices[:0], d.domain.view.Devices[:0]
			d.domain.dirty = true
			s.domains = append(s.domains, d.domain)
		}
		d.domain.devices = append(d.domain.devices, d)
		d.domain.view.Devices = append(d.domain.view.Devices, d.Device)
	}
}
