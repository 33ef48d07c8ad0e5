package sched

import "time"

// The floor gives every ready queue a small part of its device whatever the
// policy says, so that strict policies are safe to use: a queue that has had
// less than its part for a while gets a turn beside those the policy chose, with
// the device's own slice. Queues of class Idle have asked to be starved.

// lowWater is where a queue stood when the floor last found it served.
type lowWater struct {
	at     Time
	served time.Duration
}

// charity is the floor's turn on one device: one queue at a time.
type charity struct {
	queue  QueueID
	began  Time
	target time.Duration // Served at which the turn is over
	rest   Time          // no turn before this, so that the floor never takes most of the device

	// No queue can be found starving before due, so nobody looks, unless the
	// crowd has shrunk a good deal since and with it the time until each is.
	due   Time
	crowd int
}

const (
	charityStretch = 8   // a turn beside saturating rivals may take so many times its length
	charityYield   = 0.9 // of a turn that is work done: the rest goes in starting and stopping
	charityRest    = 1   // and is followed by so many times the time it took without one

	// charityMost is the part of a device that the floor gives away at most. With
	// a rest as long as each turn, and half of each turn a rival's, it is all
	// that the floor could.
	charityMost = 0.25
)

// giveFloor returns the queue that the floor grants the device to now, or 0.
func (s *Scheduler) giveFloor(d *device) QueueID {
	if s.cfg.Floor == 0 || len(d.queues) == 0 {
		return 0
	}
	c := &d.floor
	if c.queue != 0 && s.charityOver(d) {
		c.queue = 0
	}
	if c.queue == 0 && (s.now >= c.due || 4*d.crowd < 3*c.crowd || c.due == Never && d.crowd > 0) {
		if worst := s.starving(d); worst != nil && s.now < c.rest {
			c.due = c.rest
		} else if worst != nil {
			c.queue, c.began, c.target = worst.ID, s.now, worst.Served+s.cfg.FloorTurn
		}
	}
	if c.queue == 0 {
		d.wake = min(d.wake, c.due)
		return 0
	}
	i, _ := d.index(c.queue)
	left := max(c.target-d.queues[i].Served, time.Millisecond)
	d.wake = min(d.wake, s.now.Add(left), c.began.Add(charityStretch*s.cfg.FloorTurn))
	return c.queue
}

// charityOver ends the turn under way when its queue has had it, or cannot.
func (s *Scheduler) charityOver(d *device) bool {
	c := &d.floor
	took := s.now.Sub(c.began)
	i, ok := d.index(c.queue)
	if ok {
		q := &d.queues[i]
		limit := charityStretch * s.cfg.FloorTurn
		if !q.Ready() {
			limit = s.cfg.FloorTurn // it may only be between two requests
		}
		if !modest(q) && q.Served < c.target && took < limit {
			return false
		}
		q.floor = lowWater{c.began, q.Served} // so that turns begin a window apart
	}
	c.rest, c.due = s.now.Add(charityRest*took), s.now
	return true
}

// starving returns the queue that has waited longest for its part, or nil, and
// sets the time to look again.
func (s *Scheduler) starving(d *device) (worst *Queue) {
	// Where many are ready even a fair share is small.
	part := min(s.cfg.Floor, charityMost/float64(max(d.crowd, 1)))
	window := time.Duration(charityYield * float64(s.cfg.FloorTurn) / part)
	c := &d.floor
	c.crowd, c.due = d.crowd, Never
	for i := range d.queues {
		q := &d.queues[i]
		if !begging(q) {
			continue
		}
		if s.favoured(d, q) {
			// It has all that the floor could give. If that is little, it
			// wants little: nobody may be able to tell that it is idle.
			q.floor = lowWater{s.now, q.Served}
			c.due = min(c.due, s.now.Add(window))
			continue
		}
		elapsed := s.now.Sub(q.floor.at)
		if elapsed >= window && float64(q.Served-q.floor.served) >= part*float64(elapsed) {
			q.floor, elapsed = lowWater{s.now, q.Served}, 0
		}
		if elapsed < window {
			c.due = min(c.due, q.floor.at.Add(window))
		} else if worst == nil || q.floor.at < worst.floor.at {
			worst = q
		}
	}
	return worst
}

// favoured reports whether the plan grants q the device with a turn no shorter
// than the device's own.
func (s *Scheduler) favoured(d *device, q *Queue) bool {
	if q.act.epoch != s.epoch {
		return false
	}
	slice := q.act.want.Slice
	return slice == 0 || slice >= d.Slice || q.Can&CanSlice == 0
}

// begging reports whether the floor is for q. When that becomes so, its
// lowWater is where it stands then: what it had before is not held against it.
func begging(q *Queue) bool { return q.Ready() && !modest(q) }

// modest reports whether q has asked to be starved.
func modest(q *Queue) bool { return q.Attr.Paused || q.Attr.Class == Idle }
