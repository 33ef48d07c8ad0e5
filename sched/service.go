package sched

import "time"

// Device time that the hardware does not measure is estimated: the time that passes
// is divided among the queues that use the device.
//
// A stopped queue uses it until the commands that it has begun are finished: it
// drains. At LevelHold those are all that were launched; at LevelDeactivate it is
// the one that runs. Only the counters tell when they are finished, and a process
// may report that late, or never: the shim learns of completed commands only when
// the process calls it. So a drain has a limit, which each completed command
// renews. What a process does not report in time, it is not charged for.

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
	users   [uses]int // how many queues use the device in each way
}

// advance advances the clocks to now. On a serial device, what drains keeps the
// other queues waiting.
func (s *service) advance(now Time, serial bool) {
	running, draining := s.users[runs], s.users[drains]
	if serial && draining > 0 {
		running = 0
	}
	if running+draining == 0 {
		s.clocked = now
		return
	}
	n := time.Duration(running + draining)
	each := now.Sub(s.clocked) / n
	if running > 0 {
		s.clocks[runs] += each
	}
	if draining > 0 {
		s.clocks[drains] += each
	}
	s.clocked = s.clocked.Add(each * n) // the remainder counts next time
}

// credit adds to Served the estimated device time of q since the last credit.
func (s *service) credit(q *Queue) {
	if q.act.use == usesNot {
		return
	}
	clock := s.clocks[q.act.use%uses]
	if !q.Measured {
		q.Served += clock - q.act.clockAtCredit
	}
	q.act.clockAtCredit = clock
}

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
	dr.since = s.now
	switch {
	case q.act.stoppedAt == LevelHold:
		dr.to = c.Launched
	case q.act.stoppedAt == LevelDeactivate && q.Served > dr.servedAtCommand:
		dr.to = min(c.Completed+1, c.Launched)
	default: // interrupted, or not served since its last command: no command is running
		dr.to = 0
	}
	s.limitDrain(d, q)
}

// countCommands updates the drain of q after a change of its counters.
func (s *Scheduler) countCommands(d *device, q *Queue, before Counters) {
	c, dr := &q.Counters, &q.act.drain
	if done := c.Completed - before.Completed; done > 0 {
		each := (q.Served - dr.servedAtCommand) / time.Duration(min(done, 1<<32))
		if dr.perCommand == 0 {
			dr.perCommand = each
		}
		dr.perCommand += (each - dr.perCommand) / 4
		dr.servedAtCommand = q.Served
		if d.Serial && q.act.use == runs && d.service.users[drains] > 0 {
			s.endRefutedDrains(d)
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

// endRefutedDrains ends the drains of deactivated queues on a serial device where
// another queue has just completed a command: that command would not have begun
// while theirs was running. The counters do not tell whether a command was running
// when a queue was deactivated.
func (s *Scheduler) endRefutedDrains(d *device) {
	for i := range d.queues {
		q := &d.queues[i]
		if q.act.use == drains && q.act.stoppedAt == LevelDeactivate && q.act.drain.since < s.now {
			d.service.credit(q)
			q.act.drain.until = 0
			d.afterChange(q)
		}
	}
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
