package sched

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// apply folds one event into the state and marks the domain it touched.
// Events about things that are gone are stale, not wrong, and are dropped.
func (s *Scheduler) apply(ev *Event) {
	switch ev.Kind {
	case DeviceOpened, DeviceClosed, PolicyChosen, ParameterSet, PlanOffered, ShutdownStarted:
		s.applyToDevices(ev)
		return
	case QueueOpened:
		if s.where[ev.Queue] == nil && ev.Queue != 0 {
			s.openQueue(ev)
			return
		}
	}
	d, q := s.find(ev.Queue)
	if q == nil {
		return
	}
	d.touch(q, s.now)
	switch ev.Kind {
	case QueueOpened:
		q.Can = ev.Can
	case QueueClosed:
		s.closeQueue(d, ev)
		return
	case Progressed:
		if !s.progress(q, &ev.Counters) {
			d.touched(q)
			return // nothing that a policy goes by
		}
	case Dozed:
		q.Idle = true
	case Woke:
		was := q.Ready()
		q.Idle = false
		if !was && q.Ready() {
			s.becameReady(q)
		}
	case DeviceTimeMeasured:
		q.MeasuredAt = s.now
		s.measure(q, ev.Duration)
	case RequestStarted, RequestFinished:
		s.request(d, q, ev)
		return
	case AttrsChanged:
		was := begging(q)
		q.Attr = ev.Attr
		if !was {
			q.floor = lowWater{s.now, q.Served}
		}
	case ActionDone:
		if ev.Outcome == Gone && q.act.id != 0 && q.act.id == ev.Action {
			d.domain.note(s.now, ev)
			s.closeQueue(d, &Event{Kind: QueueClosed, Queue: ev.Queue})
			return
		}
		s.settleAction(q, ev)
	}
	d.touched(q)
	d.domain.note(s.now, ev)
}

// request counts the open requests of q. A policy that does not observe goes by
// whether there are any; one that does may go by every answer.
func (s *Scheduler) request(d *device, q *Queue, ev *Event) {
	was := q.OpenRequests
	switch {
	case ev.Kind == RequestStarted && q.OpenRequests < math.MaxUint32:
		q.OpenRequests++
	case ev.Kind == RequestFinished && q.OpenRequests > 0:
		q.OpenRequests--
	}
	if o := d.domain.observer; o != nil {
		o.Observe(s.now, ev)
		d.domain.dirty = d.domain.dirty || ev.Kind == RequestFinished
	}
	d.domain.dirty = d.domain.dirty || (was == 0) != (q.OpenRequests == 0)
}

// note tells the policy of an event and has it asked again.
func (d *domain) note(now Time, ev *Event) {
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
			a := &q.act // with another MinTurn other slices are short
			a.short = d.tooShort(q.Slice) || a.unsureSlice || a.id != 0 && d.tooShort(a.doing.Slice)
		}
		s.regroup()
	case DeviceClosed:
		s.closeDevice(ev)
	case PolicyChosen:
		s.choose(ev)
	case ShutdownStarted:
		s.lettingGo = true
	case ParameterSet:
		if ev.Device == "" {
			s.settings = append(s.settings, setting{ev.Name, ev.Value})
		}
	}
	for _, d := range s.domains {
		if ev.Device != "" && ev.Kind != ShutdownStarted && !slices.ContainsFunc(d.devices, func(dev *device) bool { return dev.ID == ev.Device }) {
			continue
		}
		if ev.Kind == ParameterSet {
			d.set(ev.Name, ev.Value)
		}
		d.note(s.now, ev)
	}
}

// progress takes in counters, which come from other people's memory: they
// never go back, and nothing is completed that was not launched. It reports
// whether q has become ready or idle, or has come to work that is newer.
func (s *Scheduler) progress(q *Queue, seen *Counters) bool {
	known := q.Counters.Known
	was := known && q.Ready()
	c := &q.Counters
	c.Known = true
	c.Submitted = max(c.Submitted, seen.Submitted)
	c.Launched = min(max(c.Launched, seen.Launched), c.Submitted)
	c.Completed = min(max(c.Completed, seen.Completed), c.Launched)
	switch {
	case !q.Ready():
		return was || !known
	case !was:
		s.becameReady(q)
	case c.Completed >= q.mark:
		// All that it had when last looked at is done: what it has now came later.
		q.ReadySince, q.ServedAtReady, q.mark = s.now, q.Served, c.Submitted
	default:
		return false
	}
	return true
}

// measure takes in how long the hardware says that q was on it. What was guessed
// before stays, so that Served never goes back. A queue stays loaded when it is
// stopped and nobody else wants the device: no more counts than it could have run.
func (s *Scheduler) measure(q *Queue, ran time.Duration) {
	const slack = 10 * time.Millisecond // readings are not taken on the dot
	a := &q.act
	if a.since != Never {
		a.could += s.now.Sub(a.since)
		a.since = s.now
	}
	if !q.Measured {
		q.Measured, q.Served = true, max(q.Served, ran)
	} else if ran > q.ran {
		more := min(ran-q.ran, a.could)
		q.Served += more
		a.could -= more
	}
	q.ran = max(q.ran, ran)
	a.could = min(a.could, slack)
}

func (s *Scheduler) becameReady(q *Queue) {
	q.ReadySince, q.ServedAtReady, q.mark = s.now, q.Served, q.Counters.Submitted
	q.floor = lowWater{s.now, q.Served}
}

func (s *Scheduler) openQueue(ev *Event) {
	d := s.device(ev.Device)
	i, _ := d.index(ev.Queue)
	d.queues = slices.Insert(d.queues, i, Queue{
		ID: ev.Queue, Process: ev.Process, Device: ev.Device, Can: ev.Can, Attr: ev.Attr, held: Never, act: acting{since: Never},
	})
	s.where[ev.Queue] = d
	q := &d.queues[i]
	d.tick(s.now)
	s.becameReady(q)
	d.touched(q)
	d.domain.note(s.now, ev)
}

func (s *Scheduler) closeQueue(d *device, ev *Event) {
	i, _ := d.index(ev.Queue)
	if d.queues[i].act.busy {
		d.busy--
	}
	d.queues = slices.Delete(d.queues, i, i+1)
	delete(s.where, ev.Queue)
	d.domain.note(s.now, ev)
}

// device returns the named device, opening it if nobody has announced it.
func (s *Scheduler) device(id DeviceID) *device {
	i, ok := slices.BinarySearchFunc(s.devices, id, func(d *device, id DeviceID) int { return cmp.Compare(d.ID, id) })
	if ok {
		return s.devices[i]
	}
	d := &device{Device: Device{ID: id}, clocked: s.now, wake: Never}
	s.devices = slices.Insert(s.devices, i, d)
	s.regroup()
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
		delete(s.where, gone.Queue)
		d.domain.note(s.now, &gone)
	}
	d.domain.note(s.now, ev) // it may have other devices
	s.devices = slices.Delete(s.devices, i, i+1)
	s.regroup()
}

// choose puts a policy in charge of one device, or of all. The attributes of
// queues are the scheduler's, so no hint is lost by it.
func (s *Scheduler) choose(ev *Event) {
	if ev.Choice.Make == nil {
		return
	}
	if ev.Device == "" {
		s.choice, s.settings = ev.Choice, nil
	}
	for _, d := range s.devices {
		switch ev.Device {
		case "":
			d.domain = nil
		case d.ID:
			d.domain = newDomain(ev.Choice, true)
		default:
			continue
		}
		for i := range d.queues {
			d.queues[i].held = Never // not by this one
		}
	}
	s.regroup()
}

func newDomain(c PolicyChoice, own bool) *domain {
	d := &domain{choice: c, own: own, policy: c.Make(), wake: Never, guard: newGuard()}
	d.observer, _ = d.policy.(Observer)
	return d
}

// common returns a domain for devices without a policy of their own, with the
// parameters that were set for all.
func (s *Scheduler) common() *domain {
	d := newDomain(s.choice, false)
	for _, set := range s.settings {
		d.set(set.name, set.value)
	}
	return d
}

// set changes a parameter. Whoever took the order has checked it; a bad one
// changes nothing.
func (d *domain) set(name, value string) {
	if t, ok := d.policy.(Tunable); ok {
		_ = t.Set(name, value)
	}
}

// regroup deals the devices out to domains again, keeping the policies in
// charge where they are.
func (s *Scheduler) regroup() {
	var spanning *domain
	for _, d := range s.devices {
		if d.domain != nil && !d.domain.own && d.domain.choice.AllDevices {
			spanning = d.domain
		}
	}
	s.domains = s.domains[:0]
	for _, d := range s.devices {
		if d.domain == nil && s.choice.AllDevices && spanning == nil {
			spanning = s.common()
		}
		if d.domain == nil && s.choice.AllDevices {
			d.domain = spanning
		}
		if d.domain == nil {
			d.domain = s.common()
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
