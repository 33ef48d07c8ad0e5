package sched

import "time"

// The scheduler watches whether the devices follow its plans. In a priority inversion a queue
// that the plan stops (the holder) has the device, while a queue that the plan lets run (the
// victim) has work. Causes: a stop had no effect although it was reported as done, or it
// failed, or its call is still under way, or the holder cannot be stopped.
//
// The plan says which queue goes first, so the definition fits every policy. Under a policy
// that stops no queue, such as native, there are no inversions. Under one that ignores classes,
// such as fifo, a queue of class online that waits for its turn is no inversion.
//
// watchDevice compares the queues of a device twice in each Config.InversionLimit, if Step is
// called then. The evidence is what each queue has done since the last time. Nothing is concluded
// about a queue whose device time is not measured and whose commands are not counted.

// Inversion reports that an inversion began, goes on or is over.
type Inversion struct {
	Device        DeviceID
	Victim        QueueID // the plan lets it run, and it has work
	Holder        QueueID // the plan stops it, and it has the device
	VictimProcess ProcessID
	HolderProcess ProcessID
	Since         Time
	Began, Over   bool
	More          time.Duration // how much longer it has lasted than at the last report
	Remedy        Remedy        // what is done now
}

// Remedy says what the scheduler does about an inversion.
type Remedy uint8

const (
	NoRemedy   Remedy = iota // none is due, or the holder cannot be stopped, or a call is under way
	StopAgain                // the stop had no effect: it is undone, and the holder stopped at another level if it has one
	RetryStops               // stops failed: they are tried again now
)

// The pause between two remedies for one holder doubles from firstRemedy to lastRemedy. A level
// that had no effect is avoided for as long.
const (
	firstRemedy = time.Second
	lastRemedy  = time.Minute
)

// inversionWatch is what is known about an inversion on one device.
type inversionWatch struct {
	from   Time // the last call of watchDevice; Never: there was none
	holder QueueID
	victim QueueID
	since  Time
	shown  Time // the end of the time that was reported; Never: nothing was reported
}

// watched is what a queue had done at the last call of watchDevice, and the remedies for it.
type watched struct {
	ready               time.Duration // how long its counters have shown work in all, up to readySince
	readySince          Time          // when they began to show the present work; Never if there is none
	markReady, markTime time.Duration
	launched, completed uint64
	runSince            Time // when Decided.Run last changed; the reason and the slice may be newer

	stopAgain    bool    // its stop had no effect
	ignored      Ability // levels at which stops had no effect
	ignoredUntil Time
	nextRemedy   Time
	pause        time.Duration
}

// Inversions returns what the last Step found. It is valid until the next Step.
func (s *Scheduler) Inversions() []Inversion { return s.inversions }

// countReady updates the time in which q has work, after its counters have changed.
func (q *Queue) countReady(now Time) {
	switch w := &q.watched; {
	case q.Ready() && w.readySince == Never:
		w.readySince = now
	case !q.Ready() && w.readySince != Never:
		w.ready += now.Sub(w.readySince)
		w.readySince = Never
	}
}

func (w *watched) readyFor(now Time) time.Duration {
	if w.readySince == Never {
		return w.ready
	}
	return w.ready + now.Sub(w.readySince)
}

// watchDevice looks for an inversion on d, if that is due.
func (s *Scheduler) watchDevice(d *device) {
	w := &d.inversion
	if w.from != Never && s.now.Sub(w.from) < s.cfg.InversionLimit/2 || s.cfg.InversionLimit < 0 {
		return
	}
	var victim, holder *Queue
	if w.from != Never {
		if victim = s.waiting(d); victim != nil {
			holder = s.holderOf(d, victim)
		}
	}
	s.updateInversion(d, victim, holder)
	w.from = s.now
	for i := range d.queues {
		q := &d.queues[i]
		m := &q.watched
		m.markReady, m.markTime = m.readyFor(s.now), q.lastMeasured
		m.launched, m.completed = q.Counters.Launched, q.Counters.Completed
	}
}

// waiting returns the possible victim: of the queues that the plan has let run since the last
// call of watchDevice, and that have work, the one that had work for longest. It returns nil if there
// is none.
func (s *Scheduler) waiting(d *device) (victim *Queue) {
	longest := time.Duration(0)
	for i := range d.queues {
		q := &d.queues[i]
		if !q.Ready() || !q.Decided.Run || q.watched.runSince > d.inversion.from {
			continue
		}
		if had := q.watched.readyFor(s.now) - q.watched.markReady; had > longest {
			victim, longest = q, had
		}
	}
	return victim
}

// holderOf returns a queue that the plan has stopped since the last call of watchDevice and that
// had the device nevertheless, or nil.
func (s *Scheduler) holderOf(d *device, victim *Queue) *Queue {
	for i := range d.queues {
		q := &d.queues[i]
		if q != victim && !q.Decided.Run && q.watched.runSince <= d.inversion.from && s.ranWhileStopped(d, victim, q) {
			return q
		}
	}
	return nil
}

// ranWhileStopped reports whether q, which the plan stops, has had the device while victim had
// work. A queue that is held or deactivated finishes what it has begun, for however long:
// only what it begins counts.
func (s *Scheduler) ranWhileStopped(d *device, victim, q *Queue) bool {
	w := &q.watched
	launched, completed := q.Counters.Launched-w.launched, q.Counters.Completed-w.completed
	if q.State == Stopped {
		switch {
		case q.act.drain.since > d.inversion.from:
			return false // it was stopped after the last call
		case q.act.stoppedAt == LevelHold:
			return launched > 0
		case q.act.stoppedAt == LevelDeactivate:
			return completed > 1
		}
	}
	if !q.Measured || !victim.Measured {
		return q.Counters.Known && completed > 0
	}
	// A stopped queue stays loaded while no other queue needs the device, and the counters
	// may show work that is done. So the victim must have had the device as well.
	had := s.now.Sub(d.inversion.from)
	both := victim.watched.readyFor(s.now) - victim.watched.markReady + q.lastMeasured - w.markTime - had
	return both >= had/4 && victim.lastMeasured > victim.watched.markTime
}

// updateInversion compares what was found with what was found before. A holder that is found twice
// in succession, and for InversionLimit, makes an inversion.
func (s *Scheduler) updateInversion(d *device, victim, holder *Queue) {
	w := &d.inversion
	if holder == nil && victim != nil && d.stoppedAgain() {
		return // the next call shows whether that has an effect
	}
	if holder == nil || holder.ID != w.holder {
		s.endInversion(d)
		*w = inversionWatch{from: w.from, shown: Never}
		if holder != nil {
			w.holder, w.victim, w.since = holder.ID, victim.ID, w.from
		}
		return
	}
	found := Inversion{
		Device: d.ID, Victim: victim.ID, Holder: holder.ID, VictimProcess: victim.Process, HolderProcess: holder.Process, Since: w.since,
	}
	if victim.ID != w.victim {
		s.endInversion(d)
		w.victim = victim.ID
	}
	if found.More = s.now.Sub(w.since); found.More < s.cfg.InversionLimit {
		return
	}
	if found.Began = w.shown == Never; !found.Began {
		found.More = s.now.Sub(w.shown)
	}
	w.shown, victim.WaitsBehind = s.now, holder.ID
	found.Remedy = s.remedy(d, holder)
	s.inversions = append(s.inversions, found)
}

// stoppedAgain reports whether the holder of an inversion that was reported was stopped since the
// last call of watchDevice.
func (d *device) stoppedAgain() bool {
	i, ok := d.index(d.inversion.holder)
	return ok && d.inversion.shown != Never && d.queues[i].State == Stopped && d.queues[i].act.drain.since > d.inversion.from
}

// endInversion reports that the inversion of d, if there is one, is over.
func (s *Scheduler) endInversion(d *device) {
	w := &d.inversion
	if w.shown == Never {
		return
	}
	over := Inversion{Device: d.ID, Victim: w.victim, Holder: w.holder, Since: w.since, Over: true}
	if i, ok := d.index(w.victim); ok {
		d.queues[i].WaitsBehind, over.VictimProcess = 0, d.queues[i].Process
	}
	if i, ok := d.index(w.holder); ok {
		over.HolderProcess = d.queues[i].Process
	}
	s.inversions = append(s.inversions, over)
	w.since, w.shown = w.from, Never
}

// remedy makes the holder of an inversion stop, if a remedy is due. The next is due after a
// pause, so a device on which stops have no effect costs two calls a minute.
func (s *Scheduler) remedy(d *device, q *Queue) Remedy {
	w, a := &q.watched, &q.act
	if a.id != 0 || s.now < w.nextRemedy {
		return NoRemedy
	}
	did := NoRemedy
	switch {
	case q.State == Stopped:
		did = StopAgain
		w.stopAgain, w.ignored = true, w.ignored|a.stoppedAt.ability()
	case q.State == Running && a.failedLevels != 0:
		did = RetryStops
		a.failedUntil = s.now
	default:
		return NoRemedy
	}
	if s.now.Sub(w.nextRemedy) > lastRemedy {
		w.pause = 0
	}
	w.pause = min(max(2*w.pause, firstRemedy), lastRemedy)
	w.nextRemedy = s.now.Add(w.pause)
	w.ignoredUntil = w.nextRemedy
	d.domain.dirty = true
	return did
}

// levels returns can without the levels at which stops had no effect, unless there is no other.
func (w *watched) levels(can Ability, now Time) Ability {
	if now >= w.ignoredUntil {
		w.ignored = 0
	}
	if others := can &^ w.ignored; others != 0 {
		return others
	}
	return can
}
