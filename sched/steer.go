package sched

import "time"

// Back-off after an action that failed for the time being.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
)

// acting is what is being done to a queue.
type acting struct {
	want  Grant  // what the plan of the epoch grants
	epoch uint64 // in which want was written

	id    ActionID // under way; zero if none is
	doing Action   // what is under way
	level Level    // at which it is stopped

	// What failed is tried again after a pause, each thing by itself: a slice
	// that cannot be set keeps no queue from being stopped or started.
	barred      Ability // ways of stopping that failed lately
	barredUntil Time
	retryStart  Time
	retrySet    Time
	pause       time.Duration

	// A slice or window whose setting failed may be the old or the new one.
	unsureSlice, unsureWindow bool
	short                     bool // the slice is, or may be, below MinTurn

	busy  bool          // counted in device.busy
	clock time.Duration // device.clock when last settled

	since Time          // since when it can run; Never if it cannot
	could time.Duration // how long it could before that, and since it was last measured
}

func (a *acting) untouched(q *Queue) bool {
	return a.id == 0 && q.State == Running && q.Slice == 0 && q.Bound == 0 && !a.unsureSlice && !a.unsureWindow
}

// mark notes each grant of the plan on its queue.
func (s *Scheduler) mark(d *domain, p *Plan) Mistake {
	d.granted = false
	if p.Invalid {
		return NoPlan
	}
	for _, dev := range d.devices {
		dev.shortGrants = 0
	}
	mistake := NoMistake
	dev, next := d.devices[0], 0
	for i := range p.Grants {
		g := &p.Grants[i]
		// Grants mostly come in order of ID: walk on before searching.
		for next < len(dev.queues) && dev.queues[next].ID < g.Queue {
			next++
		}
		if next == len(dev.queues) || dev.queues[next].ID != g.Queue {
			on := s.where[g.Queue]
			if on == nil || on.domain != d {
				mistake = NoSuchQueue
				continue
			}
			dev = on
			next, _ = dev.index(g.Queue)
		}
		q := &dev.queues[next]
		next++
		if q.act.epoch == s.epoch {
			continue // named twice: the first counts
		}
		q.act.want, q.act.epoch = *g, s.epoch
		q.act.want.Slice = max(g.Slice, 0)
		d.granted = d.granted || q.mayRun()
		if dev.tooShort(g.Slice) && q.Can&CanSlice != 0 && !q.Attr.Paused {
			dev.shortGrants++
		}
		if dev.shortGrants > 1 && mistake == NoMistake {
			mistake = TwoShortSlices
		}
	}
	return mistake
}

// tooShort reports whether two ready queues with this slice would livelock.
func (d *device) tooShort(slice time.Duration) bool { return slice > 0 && slice < d.MinSharedSlice }

// steer issues the actions that bring one device closer to the plan: the
// policy's, or everybody's freedom.
func (s *Scheduler) steer(d *device, free bool) {
	d.wake = Never
	poor := QueueID(0)
	if free {
		d.floor = charity{} // all have what it was for
	} else {
		poor = s.giveFloor(d)
	}
	for i := range d.queues {
		q := &d.queues[i]
		want, run := &q.act.want, q.act.epoch == s.epoch
		switch {
		case free || q.ID == poor:
			want, run = &asTheVendorHasIt, true
		case poor != 0 && want.Slice > d.Slice:
			// Beside rivals with long slices a turn would be next to nothing.
			usual := Grant{Queue: want.Queue, Bound: want.Bound}
			want = &usual
		}
		if q.Attr.Paused && !s.lettingGo {
			run = false
		}
		switch {
		case q.act.id != 0: // until its outcome is in
		case !run && q.State == Stopped && (q.off() || !q.act.short):
		default:
			s.steerQueue(d, q, run, want)
		}
	}
}

var asTheVendorHasIt Grant

// steerQueue takes the next step for one queue, if there is one to take now.
func (s *Scheduler) steerQueue(d *device, q *Queue, run bool, want *Grant) {
	a := &q.act
	if !run {
		if q.State != Stopped {
			if level := s.bestLevel(d, q); level != LevelNone {
				s.issue(d, q, Action{Verb: Stop, Level: level})
				return
			}
		}
		// It cannot be stopped, or may still be at work on what it has begun.
		// Then it must at least not bar the way for a queue that is to have a
		// short slice.
		want = &asTheVendorHasIt
	}
	if set := q.setting(want); set.Verb != 0 {
		switch {
		case a.retrySet > s.now:
			d.wake = min(d.wake, a.retrySet)
		case d.tooShort(set.Slice) && !q.off() && d.othersShort(q):
			return // until the other's outcome is in
		default:
			s.issue(d, q, set)
			return
		}
	}
	switch {
	case q.State != Stopped || !run:
	case a.retryStart > s.now:
		d.wake = min(d.wake, a.retryStart)
	case a.short && d.othersShort(q):
	default:
		s.issue(d, q, Action{Verb: Start, Level: a.level})
	}
}

// setting is what must be set next for q to have what it is granted, slice
// before window. What can no longer be set is at least put back.
func (q *Queue) setting(want *Grant) Action {
	slice, window := want.Slice, want.Bound
	if q.Can&CanSlice == 0 {
		slice = 0
	}
	if q.Can&CanBound == 0 {
		window = 0
	}
	switch {
	case slice != q.Slice || q.act.unsureSlice:
		return Action{Verb: SetSlice, Slice: slice}
	case window != q.Bound || q.act.unsureWindow:
		return Action{Verb: SetBound, Bound: window}
	}
	return Action{}
}

// othersShort reports whether a queue other than q that may be on the device
// has, or may have, a slice below MinTurn.
func (d *device) othersShort(q *Queue) bool {
	n := d.short
	if q.act.short && !q.off() {
		n--
	}
	return n > 0
}

// bestLevel is the best way to stop q that has not failed lately.
func (s *Scheduler) bestLevel(d *device, q *Queue) Level {
	a := &q.act
	if a.barredUntil <= s.now {
		a.barred = 0
	}
	level := (q.Can & canStop &^ a.barred).Level()
	if level == LevelNone && a.barred != 0 {
		d.wake = min(d.wake, a.barredUntil)
	}
	return level
}

// issue sends an action on its way.
func (s *Scheduler) issue(d *device, q *Queue, act Action) {
	s.lastID++
	act.ID, act.Queue = s.lastID, q.ID
	wasShort := q.act.short && !q.off()
	d.touch(q, s.now)
	q.act.id, q.act.doing = act.ID, act
	switch act.Verb {
	case Stop:
		q.State = Stopping
	case Start:
		q.State = Starting
	case SetSlice:
		// Until the outcome is in, either slice may hold.
		q.act.short = q.act.short || d.tooShort(act.Slice)
	}
	d.touched(q)
	if !wasShort && q.act.short && !q.off() {
		d.short++
	}
	s.actions = append(s.actions, act)
}

// settleAction moves q on from the action it was waiting for.
func (s *Scheduler) settleAction(q *Queue, ev *Event) {
	a := &q.act
	if a.id == 0 || a.id != ev.Action {
		return
	}
	a.id = 0
	if ev.Outcome == Done {
		s.succeeded(q)
	} else {
		s.failed(q, ev.Outcome == Unsupported)
	}
}

func (s *Scheduler) succeeded(q *Queue) {
	a := &q.act
	a.pause = 0
	switch a.doing.Verb {
	case Stop:
		q.State, a.level = Stopped, a.doing.Level
	case Start:
		q.State, a.level = Running, LevelNone
	case SetSlice:
		q.Slice, a.unsureSlice = a.doing.Slice, false
		a.short = s.where[q.ID].tooShort(q.Slice)
	case SetBound:
		q.Bound, a.unsureWindow = a.doing.Bound, false
	}
}

func (s *Scheduler) failed(q *Queue, forGood bool) {
	a := &q.act
	a.pause = min(max(2*a.pause, firstRetry), lastRetry)
	switch a.doing.Verb {
	case Stop:
		// It runs on, and is stopped in the next lower way it has.
		q.State = Running
		if forGood {
			q.Can &^= a.doing.Level.ability()
			return
		}
		a.barred |= a.doing.Level.ability()
		a.barredUntil = s.now.Add(a.pause)
	case Start:
		// Nothing may stay stopped for want of trying.
		q.State = Stopped
		a.retryStart = s.now.Add(a.pause)
	case SetSlice:
		if forGood {
			q.Can &^= CanSlice
			a.short = a.short && a.unsureSlice || s.where[q.ID].tooShort(q.Slice)
		}
		a.unsureSlice = a.unsureSlice || !forGood
		if a.unsureSlice || q.Slice != 0 {
			a.retrySet = s.now.Add(a.pause)
		}
	case SetBound:
		if forGood {
			q.Can &^= CanBound
		}
		a.unsureWindow = a.unsureWindow || !forGood
		if a.unsureWindow || q.Bound != 0 {
			a.retrySet = s.now.Add(a.pause)
		}
	}
}
