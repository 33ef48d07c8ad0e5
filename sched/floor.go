package sched

import "time"

// The floor gives every ready queue a small share of its device, whatever the
// policy decides, so that strict policies are safe to use. A queue that has had
// less than its share for a while gets a floor turn: it runs beside the queues
// that the policy granted, with the device's default slice. Paused queues and
// queues of class Idle have no floor.

// floorMark is the time and the service of a queue when the floor last found
// that it had its share.
type floorMark struct {
	at     Time
	served time.Duration
}

// floorTurn is the floor turn of one device: one queue at a time.
type floorTurn struct {
	queue  QueueID // zero if there is no turn
	began  Time
	target time.Duration // the turn ends when the queue's Served will reach this
	rest   Time          // no turn begins before this, so that the floor never takes most of the device

	// No queue can be starving before due, so the queues are not searched until
	// then, unless withFloor has fallen below three quarters: with fewer queues
	// each has a larger share and is found starving sooner.
	due       Time
	withFloor int // device.withFloor at the last search
}

const (
	floorStretch = 8   // a turn ends after this many times FloorTurn, even if other queues took most of it
	floorYield   = 0.9 // part of a turn that is service: starting and stopping the queue takes the rest
	floorRest    = 1   // a turn is followed by a rest of this many times its length

	// floorMax is the largest part of a device that the floor gives away. The
	// floor cannot give more: the rest is as long as the turn, and the queues
	// that the policy granted use half of the turn.
	floorMax = 0.25
)

// floorGrant returns the queue whose floor turn it is now, or 0.
func (s *Scheduler) floorGrant(d *device) QueueID {
	if s.cfg.Floor == 0 || len(d.queues) == 0 {
		return 0
	}
	turn := &d.floor
	if turn.queue != 0 && s.floorTurnOver(d) {
		turn.queue = 0
	}
	if turn.queue == 0 && (s.now >= turn.due || 4*d.withFloor < 3*turn.withFloor || turn.due == Never && d.withFloor > 0) {
		if worst := s.starving(d); worst != nil && s.now < turn.rest {
			turn.due = turn.rest
		} else if worst != nil {
			turn.queue, turn.began, turn.target = worst.ID, s.now, worst.Served+s.cfg.FloorTurn
		}
	}
	if turn.queue == 0 {
		d.wake = min(d.wake, turn.due)
		return 0
	}
	i, _ := d.index(turn.queue)
	left := max(turn.target-d.queues[i].Served-d.queues[i].committed(d), time.Millisecond)
	d.wake = min(d.wake, s.now.Add(left), turn.began.Add(floorStretch*s.cfg.FloorTurn))
	return turn.queue
}

// floorTurnOver reports whether the current turn is over, and starts the rest.
func (s *Scheduler) floorTurnOver(d *device) bool {
	turn := &d.floor
	took := s.now.Sub(turn.began)
	i, ok := d.index(turn.queue)
	if ok {
		q := &d.queues[i]
		limit := floorStretch * s.cfg.FloorTurn
		if !q.Ready() {
			limit = s.cfg.FloorTurn // the queue may be between two requests
		}
		if !exemptFromFloor(q) && q.Served+q.committed(d) < turn.target && took < limit {
			return false
		}
		q.floor = floorMark{turn.began, q.Served} // counting from began, turns start one period apart
	}
	turn.rest, turn.due = s.now.Add(floorRest*took), s.now
	return true
}

// starving returns the queue that has waited longest for its share, or nil, and
// sets the time of the next search.
func (s *Scheduler) starving(d *device) (worst *Queue) {
	// With many ready queues even a fair share is smaller than cfg.Floor.
	share := min(s.cfg.Floor, floorMax/float64(max(d.withFloor, 1)))
	period := time.Duration(floorYield * float64(s.cfg.FloorTurn) / share)
	turn := &d.floor
	turn.withFloor, turn.due = d.withFloor, Never
	for i := range d.queues {
		q := &d.queues[i]
		if !hasFloor(q) {
			continue
		}
		if s.fullyGranted(d, q) {
			// The plan grants q all that the floor could. If q has used
			// little, it needed little: without counters q counts as ready
			// even when it is idle.
			q.floor = floorMark{s.now, q.Served}
			turn.due = min(turn.due, s.now.Add(period))
			continue
		}
		elapsed := s.now.Sub(q.floor.at)
		if elapsed >= period && float64(q.Served-q.floor.served) >= share*float64(elapsed) {
			q.floor, elapsed = floorMark{s.now, q.Served}, 0
		}
		if elapsed < period {
			turn.due = min(turn.due, q.floor.at.Add(period))
		} else if worst == nil || q.floor.at < worst.floor.at {
			worst = q
		}
	}
	return worst
}

// fullyGranted reports whether the plan grants q a slice no shorter than the
// device's default.
func (s *Scheduler) fullyGranted(d *device, q *Queue) bool {
	if q.act.epoch != s.epoch {
		return false
	}
	slice := q.act.want.Slice
	return slice == 0 || slice >= d.Slice || q.Can&CanSlice == 0
}

// hasFloor reports whether q has a floor now. Its floorMark is reset when this
// becomes true, so service from before does not count.
func hasFloor(q *Queue) bool { return q.Ready() && !exemptFromFloor(q) }

// exemptFromFloor reports whether q is paused or of class Idle.
func exemptFromFloor(q *Queue) bool { return q.Attr.Paused || q.Attr.Class == Idle }
