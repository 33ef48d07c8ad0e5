package sched

import "time"

// The pause before a failed action is tried again doubles from firstRetry to lastRetry.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
)

// actionState is the pending action of a queue and what past actions left behind.
type actionState struct {
	want  Grant  // the last grant
	epoch uint64 // of the plan that want is from

	id        ActionID // of the pending action; zero if none is pending
	pending   Action   // valid if id is not zero
	stoppedAt Level
	use       use // how the queue uses its device: service.go

	// A failed action is tried again after a pause. Stops, starts and settings
	// are tried again at times of their own: a queue whose slice cannot be set can
	// still be stopped and started. The pause is one for all of them. It doubles with
	// every failure and begins anew with every success, of whichever kind.
	failedLevels Ability // levels at which stops failed recently
	failedUntil  Time    // when failedLevels may be tried again
	retryStart   Time
	retrySet     Time
	pause        time.Duration

	// After a failed SetSlice or SetBound either the old or the new value may be
	// in force.
	unsureSlice, unsureBound bool
	short                    bool // the slice is, or may be, below MinSharedSlice

	clockAtCredit time.Duration // reading of the clock of use at the last credit

	// The queue could have run, since it was last measured, for runnableFor and for the
	// time since runnableSince, unless that is Never.
	runnableSince Time
	runnableFor   time.Duration

	drain drain
}

// isDefault reports whether q runs with its device's defaults and no action is
// pending.
func (a *actionState) isDefault(q *Queue) bool {
	return a.id == 0 && q.State == Running && q.Slice == 0 && q.Bound == 0 && !a.unsureSlice && !a.unsureBound
}

// markGrants stores each grant of the plan in its queue and returns the mistake
// in the plan, if any.
func (s *Scheduler) markGrants(d *domain, p *Plan) Mistake {
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
		// Grants are usually in order of ID: try the next queue before searching.
		for next < len(dev.queues) && dev.queues[next].ID < g.Queue {
			next++
		}
		if next == len(dev.queues) || dev.queues[next].ID != g.Queue {
			on := s.deviceOf[g.Queue]
			if on == nil || on.domain != d {
				mistake = NoSuchQueue
				continue
			}
			dev = on
			next, _ = dev.index(g.Queue)
		}
		q := &dev.queues[next]
		if q.act.epoch == s.epoch {
			continue // granted twice: the first grant counts
		}
		q.act.want, q.act.epoch = *g, s.epoch
		q.act.want.Slice, q.SideBySide = max(g.Slice, 0), g.SideBySide
		d.granted = d.granted || q.Runnable()
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

// reconcile issues the actions that bring one device closer to the plan, or to
// the device's defaults.
func (s *Scheduler) reconcile(d *device, useDefaults bool) {
	d.wake = d.drainWake
	onFloor, byDefault := QueueID(0), PolicyOverruled
	if s.shuttingDown {
		byDefault = ShuttingDown
	}
	if useDefaults {
		d.floor = floorTurn{} // every queue runs
	} else {
		onFloor = s.floorGrant(d)
	}
	for i := range d.queues {
		q := &d.queues[i]
		want, run := &q.act.want, q.act.epoch == s.epoch
		reason := want.Reason
		if !run {
			reason = d.domain.waiting[q.Attr.Class%classes]
		}
		switch {
		case useDefaults:
			want, run, reason = &deviceDefaults, true, byDefault
		case q.ID == onFloor:
			onFloorGrant := Grant{Slice: d.floor.slice}
			want, run, reason = &onFloorGrant, true, FloorTurn
		case onFloor != 0 && want.Slice > max(d.floor.others, d.Slice):
			// Behind longer slices the queue would wait too long for its floor turn.
			shorter := Grant{Queue: want.Queue, Slice: d.floor.others, Bound: want.Bound}
			want = &shorter
		}
		if q.Attr.Paused && !s.shuttingDown {
			run, reason = false, UserPaused
		}
		if is := &q.Decided; is.Run != run || is.Reason != reason || run && (is.Slice != want.Slice || is.Bound != want.Bound) {
			s.decided(d, q, run, want, reason)
		}
		switch {
		case q.act.id != 0: // its outcome comes first
		case q.watched.stopAgain && q.State == Stopped && !run:
			s.undoStop(d, q)
		case !run && q.State == Stopped && (q.off() || !q.act.short):
		default:
			s.reconcileQueue(d, q, run, want)
		}
	}
}

var deviceDefaults Grant

// reconcileQueue issues the next action for one queue, if there is one now.
func (s *Scheduler) reconcileQueue(d *device, q *Queue, run bool, want *Grant) {
	a := &q.act
	if !run {
		if q.State != Stopped {
			if level := s.bestLevel(d, q); level != LevelNone {
				s.issue(d, q, Action{Verb: Stop, Level: level})
				return
			}
		}
		// The queue cannot be stopped, or may still run commands that have
		// begun. It must not keep a short slice: another queue may need one.
		want = &deviceDefaults
	}
	if set := q.nextSetting(want); set.Verb != 0 {
		switch {
		case a.retrySet > s.now:
			d.wake = min(d.wake, a.retrySet)
		case d.tooShort(set.Slice) && !q.off() && d.othersShort(q):
			return // the next outcome of the other queue leads here again
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
		s.issue(d, q, Action{Verb: Start, Level: a.stoppedAt})
	}
}

// undoStop starts q, whose stop had no effect, so that it can be stopped another way: what
// each level changes must be undone at that level.
func (s *Scheduler) undoStop(d *device, q *Queue) {
	switch a := &q.act; {
	case a.retryStart > s.now:
		d.wake = min(d.wake, a.retryStart)
	case a.short && d.othersShort(q): // the next outcome of the other queue leads here again
	default:
		s.issue(d, q, Action{Verb: Start, Level: a.stoppedAt})
	}
}

// nextSetting returns the action that sets what q is granted, slice before bound,
// or the zero Action. A value that q no longer supports is set back to the
// device's default.
func (q *Queue) nextSetting(want *Grant) Action {
	slice, bound := want.Slice, want.Bound
	if q.Can&CanSlice == 0 {
		slice = 0
	}
	if q.Can&CanBound == 0 {
		bound = 0
	}
	switch {
	case slice != q.Slice || q.act.unsureSlice:
		return Action{Verb: SetSlice, Slice: slice}
	case bound != q.Bound || q.act.unsureBound:
		return Action{Verb: SetBound, Bound: bound}
	}
	return Action{}
}

// othersShort reports whether a queue other than q may be on the device and may
// have a slice below MinSharedSlice.
func (d *device) othersShort(q *Queue) bool {
	n := d.short
	if q.act.short && !q.off() {
		n--
	}
	return n > 0
}

// bestLevel returns the highest level to stop q at that has not failed recently.
func (s *Scheduler) bestLevel(d *device, q *Queue) Level {
	a := &q.act
	if a.failedUntil <= s.now {
		a.failedLevels = 0
	}
	level := q.watched.levels(q.Can&canStop&^a.failedLevels, s.now).Level()
	if level == LevelNone && a.failedLevels != 0 {
		d.wake = min(d.wake, a.failedUntil)
	}
	return level
}

// issue adds an action to the result of Step and makes it q's pending action. refreshView has
// credited q.
func (s *Scheduler) issue(d *device, q *Queue, act Action) {
	s.lastID++
	act.ID, act.Queue = s.lastID, q.ID
	wasShort := q.act.short && !q.off()
	q.act.id, q.act.pending = act.ID, act
	switch act.Verb {
	case Stop:
		q.State = Stopping
	case Start:
		q.State = Starting
	case SetSlice:
		// Until the outcome arrives, either slice may be in force.
		q.act.short = q.act.short || d.tooShort(act.Slice)
	}
	d.afterChange(q)
	if !wasShort && q.act.short && !q.off() {
		d.short++
	}
	s.actions = append(s.actions, act)
}

// finishAction applies the outcome of q's pending action.
func (s *Scheduler) finishAction(q *Queue, ev *Event) {
	a := &q.act
	if a.id == 0 || a.id != ev.Action {
		return
	}
	a.id = 0
	if ev.Outcome == Done {
		s.succeeded(q)
	} else {
		s.failed(q, ev.Outcome)
	}
}

func (s *Scheduler) succeeded(q *Queue) {
	a := &q.act
	a.pause = 0
	switch a.pending.Verb {
	case Stop:
		q.State, a.stoppedAt = Stopped, a.pending.Level
		s.startDrain(s.deviceOf[q.ID], q)
	case Start:
		q.State, a.stoppedAt, q.watched.stopAgain = Running, LevelNone, false
	case SetSlice:
		q.Slice, a.unsureSlice = a.pending.Slice, false
		a.short = s.deviceOf[q.ID].tooShort(q.Slice)
	case SetBound:
		q.Bound, a.unsureBound = a.pending.Bound, false
	}
}

func (s *Scheduler) failed(q *Queue, outcome Outcome) {
	a, unsupported := &q.act, outcome == Unsupported
	a.pause = min(max(2*a.pause, firstRetry), lastRetry)
	switch a.pending.Verb {
	case Stop:
		// The queue runs on, and is stopped at the next lower level it supports.
		q.State = Running
		if unsupported {
			q.Can &^= a.pending.Level.ability()
			return
		}
		a.failedLevels |= a.pending.Level.ability()
		a.failedUntil = s.now.Add(a.pause)
		if outcome == Partial {
			// It is started first, whatever the plan is, and this level is left out for longer:
			// the start ends the pause.
			q.State, a.stoppedAt, q.watched.stopAgain = Stopped, a.pending.Level, true
			a.failedUntil = s.now.Add(lastRetry)
		}
	case Start:
		// Even an unsupported start is tried again: no queue may stay stopped.
		q.State = Stopped
		a.retryStart = s.now.Add(a.pause)
	case SetSlice:
		if unsupported {
			q.Can &^= CanSlice
			a.short = a.short && a.unsureSlice || s.deviceOf[q.ID].tooShort(q.Slice)
		}
		a.unsureSlice = a.unsureSlice || !unsupported
		if a.unsureSlice || q.Slice != 0 {
			a.retrySet = s.now.Add(a.pause)
		}
	case SetBound:
		if unsupported {
			q.Can &^= CanBound
		}
		a.unsureBound = a.unsureBound || !unsupported
		if a.unsureBound || q.Bound != 0 {
			a.retrySet = s.now.Add(a.pause)
		}
	}
}
