package sched

import "time"

// Device time that the hardware does not measure is estimated. The time that passes is
// divided among the queues that use the device. On a serial device only one of them
// runs at a time: when a command is completed, the time since the last completion is
// credited to the queue of that command.
//
// A stopped queue uses the device until the commands that it has begun are finished:
// it drains. At LevelHold those are all that were launched; at LevelDeactivate it is
// the one that runs. Only the counters tell when they are finished, and a process may
// report that late, or never: the shim learns of completed commands only when the
// process calls it. So a drain has a limit, which each completed command renews. A
// process is not charged for what it does not report in time.

// use says how a queue uses its device.
type use uint8

const (
	usesNot use = iota
	runs        // may run: it is not stopped, and ready
	drains      // is stopped, and commands that it has begun are not finished

	uses = 4 // a power of two, so that indexing needs no check
)

// service estimates device time. It has a clock for the queues that run and one for
// those that drain. A clock advances by the time that each of its queues gets. Clocks
// for all queues cost less than updating each queue at each event.
type service struct {
	clocks  [uses]time.Duration
	clocked Time      // the time up to which the clocks have advanced
	users   [uses]int // how many queues run and how many drain; that of usesNot is not kept
	busy    int       // at the last plan, queues that run and have work by their counters

	// On a serial device:
	pending   time.Duration // time that several queues may have used, since the last command was completed
	completed bool          // commands were completed, and pending is still to be divided
}

// advance advances the clocks to now.
func (s *service) advance(now Time, serial bool) {
	n := time.Duration(s.users[runs] + s.users[drains])
	switch elapsed := now.Sub(s.clocked); {
	case n == 0:
		s.clocked = now
	case n > 1 && serial:
		s.pending += elapsed
		s.clocked = now
	default:
		each := elapsed / n
		s.clocks[runs] += each
		s.clocks[drains] += each
		s.clocked = s.clocked.Add(each * n) // the remainder counts next time
	}
}

// credit adds to Served the estimated device time of q since the last credit.
func (s *service) credit(q *Queue) {
	if q.act.use == usesNot {
		return
	}
	clock := s.clocks[q.act.use%uses]
	if more := clock - q.act.clockAtCredit; !q.Measured {
		q.Served += more
		if q.act.short && s.busyBeside(q) { // beside those it makes no progress
			q.wasted += more
		}
	}
	q.act.clockAtCredit = clock
}

// isBusy reports whether q runs and has work by its counters. Without counters a queue counts as
// ready even when it is idle.
func isBusy(q *Queue) bool { return q.act.use == runs && q.Counters.Known }

// busyBeside reports whether a queue other than q was busy at the last plan.
func (s *service) busyBeside(q *Queue) bool { return s.busy > 1 || s.busy == 1 && !isBusy(q) }

// setUse changes how q uses the device. q has been credited.
func (s *service) setUse(q *Queue, to use) {
	s.users[q.act.use]--
	s.users[to]++
	q.act.use, q.act.clockAtCredit = to, s.clocks[to]
}

// beforeChange credits q. It must be called before a change that may put q on
// the device or take it off, and afterChange after the change.
func (d *device) beforeChange(q *Queue, now Time) {
	d.service.advance(now, d.Serial)
	d.service.credit(q)
}

func (d *device) afterChange(q *Queue) {
	use, now := q.usage(), d.service.clocked
	switch can := use != usesNot || q.State != Stopped; {
	case can && q.act.runnableSince == Never:
		q.act.runnableSince = now
	case !can && q.act.runnableSince != Never:
		q.act.runnableFor += now.Sub(q.act.runnableSince)
		q.act.runnableSince = Never
	}
	if use != q.act.use {
		d.service.setUse(q, use)
	}
}

// usage returns how q uses the device.
func (q *Queue) usage() use {
	switch {
	case q.State == Running || q.State == Stopping:
		if q.Ready() {
			return runs
		}
	case q.act.drain.until != 0:
		return drains
	}
	return usesNot
}

// drain is what a stopped queue still has on the device, and what is known about the
// device time of its commands.
type drain struct {
	to    uint64 // the drain is over when Counters.Completed reaches this
	since Time   // when it began
	until Time   // it is over then in any case; zero: it is over

	perCommand      time.Duration // device time of a command, averaged over the last ones; zero: none is completed
	servedAtCommand time.Duration // Served when the last command was completed
	completed       uint64        // commands completed since then
}

// The limit of a drain is drainFactor times the time that its commands are expected
// to take, and not less than minDrain nor more than maxDrain. It is unknownDrain if
// the queue has not completed a command yet.
const (
	drainFactor  = 4
	minDrain     = 2 * time.Millisecond
	maxDrain     = 2 * time.Second
	unknownDrain = 100 * time.Millisecond
)

// startDrain begins the drain of q, which was just stopped.
func (s *Scheduler) startDrain(d *device, q *Queue) {
	c, dr := &q.Counters, &q.act.drain
	dr.since, dr.to = s.now, c.Completed
	switch level := q.act.stoppedAt; {
	case level == LevelHold:
		dr.to = c.Launched
	case level == LevelDeactivate && q.mayHaveBegun(d):
		dr.to = min(c.Completed+1, c.Launched)
	}
	s.limitDrain(d, q)
}

// mayHaveBegun reports whether the oldest command of q may be running: q has used device
// time since its last command.
func (q *Queue) mayHaveBegun(d *device) bool {
	return q.Served > q.act.drain.servedAtCommand || d.service.pending > 0
}

// committed returns the device time that q will still use if it is stopped now.
func (q *Queue) committed(d *device) time.Duration {
	left := q.Counters.Launched - q.Counters.Completed
	switch level := q.Level(); {
	case level == LevelDeactivate && q.mayHaveBegun(d):
		left = min(left, 1)
	case level != LevelHold:
		left = 0
	}
	if left == 0 {
		return 0
	}
	dr := &q.act.drain
	each := min(dr.perCommand, maxDrain)
	return time.Duration(min(left, 1<<16))*each - min(q.Served-dr.servedAtCommand, each) // less what the first one has had
}

// countCommands updates the drain of q after a change of its counters.
func (s *Scheduler) countCommands(d *device, q *Queue, before Counters) {
	c, dr := &q.Counters, &q.act.drain
	if done := c.Completed - before.Completed; done > 0 {
		if dr.completed += done; d.Serial {
			d.service.completed = true
		} else {
			q.learnPerCommand()
		}
	}
	if q.act.stoppedAt == LevelNone || c.Launched == before.Launched && c.Completed == before.Completed {
		return
	}
	if q.act.stoppedAt == LevelHold {
		dr.to = c.Launched // a thread that had passed the gate launches after the stop
	}
	s.limitDrain(d, q)
}

// learnPerCommand updates the device time of a command after commands were completed
// and credited.
func (q *Queue) learnPerCommand() {
	dr := &q.act.drain
	each := (q.Served - dr.servedAtCommand) / time.Duration(min(dr.completed, 1<<32))
	if dr.perCommand == 0 {
		dr.perCommand = each
	}
	dr.perCommand += (each - dr.perCommand) / 4
	dr.servedAtCommand, dr.completed = q.Served, 0
}

// dividePending credits the pending time of a serial device to the queues that have
// completed commands, in proportion to what these usually take. It ends the drains of
// deactivated queues that have not: their command would have run before these. The events of
// this step have advanced the clocks and credited the queues that completed commands.
func (s *Scheduler) dividePending(d *device) {
	total, known := 0.0, true
	for i := range d.queues {
		if dr := &d.queues[i].act.drain; dr.completed > 0 {
			known = known && dr.perCommand > 0
		}
	}
	for i := range d.queues {
		total += d.queues[i].act.drain.usualTime(known)
	}
	for i := range d.queues {
		q := &d.queues[i]
		dr := &q.act.drain
		switch {
		case dr.completed > 0:
			if !q.Measured {
				q.Served += time.Duration(float64(d.service.pending) * (dr.usualTime(known) / total))
			}
			q.learnPerCommand()
		case q.act.use == drains && q.act.stoppedAt == LevelDeactivate && dr.since < s.now:
			dr.until = 0 // checkDrain ends it in the plan that follows
			d.domain.dirty = true
		}
	}
	d.service.pending, d.service.completed = 0, false
}

// usualTime returns what the completed commands usually take, or their number if that is
// not known of all queues.
func (dr *drain) usualTime(known bool) float64 {
	if known {
		return float64(dr.completed) * float64(dr.perCommand)
	}
	return float64(dr.completed)
}

// limitDrain sets the limit of q's drain for the commands that are left.
func (s *Scheduler) limitDrain(d *device, q *Queue) {
	c, dr := &q.Counters, &q.act.drain
	if dr.until = 0; !c.Known || c.Completed >= dr.to {
		return
	}
	limit := unknownDrain
	if dr.perCommand > 0 {
		// Each factor is bounded, so the product does not overflow.
		left, each := time.Duration(min(dr.to-c.Completed, 1<<16)), min(dr.perCommand, maxDrain)
		sharers := time.Duration(min(max(d.service.users[runs]+d.service.users[drains], 1), 64))
		limit = min(max(drainFactor*left*each*sharers, minDrain), maxDrain)
	}
	dr.until = s.now.Add(limit)
}

// checkDrain ends the drain of q if its limit is reached, and otherwise makes sure
// that Step is called then.
func (s *Scheduler) checkDrain(d *device, q *Queue) {
	if dr := &q.act.drain; dr.until > s.now {
		d.drainWake = min(d.drainWake, dr.until)
		return
	}
	q.act.drain.until = 0
	d.afterChange(q)
}
