package sched

import (
	"math"
	"time"
)

// The floor gives every ready queue a small share of its device, whatever the
// policy decides, so that strict policies are safe to use. A queue that has had
// less than its share for a while gets a floor turn: it runs beside the queues
// that the policy granted. Paused queues and queues of class Idle have no floor.
//
// On a device with slices a floor turn is one long slice. The queue then makes more
// progress than in many short slices, and a busy online process has only one delayed
// request in a floor turn.

// floorMark is the time and the useful service of a queue when the floor last found
// that it had its share.
type floorMark struct {
	at     Time
	served time.Duration
	// period is from a floor turn that began at that time to the next one. It belongs to the length
	// of that turn: another moment may allow another length. Zero: no floor turn began then.
	period time.Duration
}

// countWasted adds to q.wasted the service since the last measurement in which q made no progress:
// visits with a slice that is too short beside others. On an H200 such a visit is measured as about
// 100 us, half of MinSharedSlice: parts of two context switches, and the time until the queue
// continues. before and served are Visits and Served before this measurement. Where visits are not
// known, service.credit counts wasted service.
func (d *device) countWasted(q *Queue, before *Visits, served time.Duration) {
	if !q.act.short || !before.Known {
		return
	}
	visits := time.Duration(min(q.Visits.Count-before.Count, 1<<20))
	q.wasted += min(visits*d.MinSharedSlice/2, q.Served-served)
}

// useful returns the part of q's service in which it could make progress.
func (q *Queue) useful() time.Duration { return q.Served - q.wasted }

// floorTurn is the floor turn of one device: one queue at a time.
type floorTurn struct {
	queue    QueueID // zero if there is no turn
	began    Time
	length   time.Duration // device time that the turn gives
	period   time.Duration // from one turn of the queue to the next
	target   time.Duration // the turn ends when the queue's Served will reach this
	launched uint64        // Counters.Launched when the turn began
	late     time.Duration // how much more than a period has passed since the last one
	rest     Time          // no turn begins before this, so that the floor never takes most of the device

	// On a device with slices:
	slice  time.Duration // of the queue; zero: the device's default
	others time.Duration // longest slice of the other queues during the turn; zero: the turn is not one slice
	entry  time.Duration // how long the slices of the others let the queue wait
	runs   Time          // when the queue began to run with this slice; zero: not yet

	// No queue can be starving before due, so the queues are not searched until
	// then, unless withFloor has fallen below three quarters: with fewer queues
	// each has a larger share and is found starving sooner.
	due       Time
	withFloor int // device.withFloor at the last search
}

const (
	floorTurnShared = 50 * time.Millisecond // default length of a turn on a device without slices
	floorTurnSliced = 20 * time.Millisecond // the same with slices: one slice
	floorLongest    = 50 * time.Millisecond // longest slice, for a queue whose commands are long
	floorEntry      = 20 * time.Millisecond // how long the slices of the other queues may be together

	// floorWindow is the time within which every queue gets its share. Turns are
	// at most four fifths of it apart.
	floorWindow = 5 * time.Second

	// floorPatience is how long a queue waits at least for its first floor turn. A queue
	// that waits for its turn in a rotation of many does not starve, however short and
	// frequent its floor turns would be.
	floorPatience = 800 * time.Millisecond

	floorStretch = 8   // a turn ends after this many times its length, even if other queues took most of it
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
			s.beginFloorTurn(d, worst)
		}
	}
	if turn.queue == 0 {
		d.wake = min(d.wake, turn.due)
		return 0
	}
	i, _ := d.index(turn.queue)
	q := &d.queues[i]
	if turn.runs == 0 && q.State == Running && q.act.id == 0 && q.Slice == turn.slice {
		turn.runs = s.now
	}
	missing := turn.target - q.Served - q.committed(d)
	d.wake = min(d.wake, s.now.Add(max(missing, time.Millisecond)), turn.began.Add(floorStretch*turn.length))
	if end, _ := turn.sliceEnd(d, q, missing); end > s.now {
		d.wake = min(d.wake, end)
	}
	return turn.queue
}

// beginFloorTurn begins the turn of q.
func (s *Scheduler) beginFloorTurn(d *device, q *Queue) {
	share := s.floorShare(d)
	length := s.floorLength(d, q, share, &lengthLimit{})
	d.floor = floorTurn{
		queue: q.ID, began: s.now, length: length, period: floorPeriod(length, share), target: q.Served + length, launched: q.Counters.Launched,
		rest: d.floor.rest, due: d.floor.due, withFloor: d.floor.withFloor,
	}
	// The turn may be shorter than the one for which the queue waited, because online work has
	// changed since. What the queue is owed is not forgotten: its next turns are earlier.
	d.floor.late = min(max(s.now.Sub(q.floor.at)-d.floor.period, 0), floorWindow)
	q.OnFloor = true
	if !d.Sliced() || q.Can&CanSlice == 0 {
		return
	}
	turn := &d.floor
	if length > d.Slice {
		turn.slice = length
	}
	turn.others = max(floorEntry/time.Duration(max(d.ready-1, 1)), d.Slice)
	for i := range d.queues {
		if o := &d.queues[i]; o != q && o.Runnable() && o.act.epoch == s.epoch {
			turn.entry += min(max(o.act.want.Slice, d.Slice), turn.others)
		}
	}
}

// floorShare returns the share of each queue. With many ready queues even a fair
// share is smaller than cfg.Floor. Without any, floorMax/0 is infinite.
func (s *Scheduler) floorShare(d *device) float64 {
	return min(s.cfg.Floor, floorMax/float64(d.withFloor))
}

// floorPeriod returns how long after the begin of a turn the next one is due.
func floorPeriod(length time.Duration, share float64) time.Duration {
	return time.Duration(floorYield * float64(length) / share)
}

// floorLength returns the length of a floor turn of q. On a device with slices it is
// longer if the commands of q are long, so that q finishes one, and shorter if an
// online process would be delayed too much. limit keeps the last result of limitLength.
func (s *Scheduler) floorLength(d *device, q *Queue, share float64, limit *lengthLimit) time.Duration {
	onePiece := d.Sliced() && q.Can&CanSlice != 0
	length := s.cfg.FloorTurn
	switch {
	case length > 0:
	case onePiece:
		step := d.Slice // few lengths, so that limitLength is seldom computed
		needed := (q.act.drain.perCommand + d.Slice + step - 1) / step * step
		length = min(max(floorTurnSliced, needed), floorLongest)
	default:
		length = floorTurnShared
	}
	if !onePiece {
		return length
	}
	length = min(length, time.Duration(share*float64(floorWindow)*4/5))
	if limit.wanted != length {
		limit.wanted, limit.length = length, s.limitLength(d, length, share)
	}
	return limit.length
}

// lengthLimit is a result of limitLength, which is the same for all queues of a device: the
// wanted length of a floor turn, and the length that it may have.
type lengthLimit struct{ wanted, length time.Duration }

// limitLength returns the longest floor turn, up to length, that delays no online queue of d by
// more than its maxDelay, but at least a slice.
func (s *Scheduler) limitLength(d *device, length time.Duration, share float64) time.Duration {
	for i := range d.queues {
		if o := &d.queues[i]; o.Attr.Class == Online && o.Runnable() {
			length = min(length, o.maxDelay(floorPeriod(length, share), d.Slice, s.now))
		}
	}
	return max(length, d.Slice)
}

// maxDelay returns how long requests of an online queue may be delayed once in a period.
//
//   - A request may be delayed by what its SLO leaves. If that is less than the shortest slice,
//     some requests miss the SLO in any case, and they are fewest with long slices.
//   - One request is delayed in each period. If that is more than one in a hundred, because requests
//     are rare, the delay is at most an eighth of a request's usual duration, so that the P99 hardly
//     changes.
func (q *Queue) maxDelay(period, shortest time.Duration, now Time) time.Duration {
	most, p := time.Duration(math.MaxInt64), &q.pace
	left := q.Attr.SLO / 2 // without an SLO less than shortest
	if p.took > 0 {
		left = (q.Attr.SLO - p.took) * 3 / 4
	}
	if left >= shortest {
		most = left
	}
	if p.took > 0 && max(p.every, now.Sub(p.last)) > period/100 {
		most = min(most, p.took/8)
	}
	return most
}

// requestPace is how often requests of a queue finish and how long they take, averaged
// over the last ones; took is zero if none was reported.
type requestPace struct {
	last        Time
	every, took time.Duration
}

func (p *requestPace) finished(now Time, took time.Duration) {
	if p.took == 0 {
		p.last, p.took = now, took
		return
	}
	p.every += (now.Sub(p.last) - p.every) / 8
	p.took = max(p.took+(took-p.took)/8, 1)
	p.last = now
}

// sliceEnd returns when the single slice of the floor turn is over, or Never if the turn is not one
// slice. After that the queue might begin a second one. It is certain if a measurement during the
// slice showed how much of it was left (missing).
func (t *floorTurn) sliceEnd(d *device, q *Queue, missing time.Duration) (end Time, certain bool) {
	if t.others == 0 || t.runs == 0 {
		return Never, false
	}
	end = t.runs.Add(t.entry + t.length - d.Slice/2)
	if q.Measured && q.MeasuredAt > t.runs && t.length-missing >= time.Millisecond {
		if seen := q.MeasuredAt.Add(missing); seen <= end {
			return seen, true
		}
	}
	return end, false
}

// floorTurnOver reports whether the current turn is over, and starts the rest.
func (s *Scheduler) floorTurnOver(d *device) bool {
	turn := &d.floor
	took, longest := s.now.Sub(turn.began), floorStretch*turn.length
	i, ok := d.index(turn.queue)
	if ok {
		q, limit := &d.queues[i], longest
		if !q.Ready() {
			limit = turn.length // the queue may be between two requests
		}
		missing := turn.target - q.Served - q.committed(d)
		end, certain := turn.sliceEnd(d, q, missing)
		enough := missing <= 0 || s.now >= end && (certain || missing <= turn.length/2 || !q.Measured)
		// The process may need a while until it launches the command that waited at its
		// gate. A turn that ends before would be of no use, however often it comes.
		unused := q.Counters.Known && q.Counters.Submitted > q.Counters.Launched && q.Counters.Launched == turn.launched
		if !exemptFromFloor(q) && (!enough || unused) && took < limit {
			return false
		}
		q.floor = floorMark{turn.began - Time(turn.late), q.useful(), turn.period} // counting from there, turns are due one period apart
		if enough && missing > 0 && !certain && q.Measured {
			// The next turn is earlier by as much as this one was too short.
			q.floor.at -= Time(float64(turn.period) * float64(missing) / float64(turn.length))
		}
	}
	// A machine that stood still during the turn must not make the rest as long.
	turn.rest, turn.due = s.now.Add(floorRest*min(took, longest)), s.now
	return true
}

// starving returns the queue that has waited longest for its share, or nil, and
// sets the time of the next search.
func (s *Scheduler) starving(d *device) (worst *Queue) {
	share := s.floorShare(d)
	turn := &d.floor
	turn.withFloor, turn.due = d.withFloor, Never
	var limit lengthLimit
	for i := range d.queues {
		q := &d.queues[i]
		if !hasFloor(q) {
			q.OnFloor = false
			continue
		}
		period := floorPeriod(s.floorLength(d, q, share, &limit), share)
		if s.fullyGranted(d, q) {
			// The plan grants q all that the floor could. If q has used
			// little, it needed little: without counters q counts as ready
			// even when it is idle.
			q.floor, q.OnFloor = floorMark{at: s.now, served: q.useful()}, false
			turn.due = min(turn.due, s.now.Add(period))
		} else if due := s.floorDue(q, period, share); due > s.now {
			turn.due = min(turn.due, due)
		} else if worst == nil || q.floor.at < worst.floor.at {
			worst = q
		}
	}
	return worst
}

// floorDue returns the time at which q is starving if it does not get its share before. The plan
// grants q less than the floor could.
func (s *Scheduler) floorDue(q *Queue, period time.Duration, share float64) Time {
	switch {
	case !q.OnFloor:
		period = max(period, floorPatience)
	case q.floor.period > 0:
		period = min(period, q.floor.period)
	}
	elapsed := s.now.Sub(q.floor.at)
	if had := q.useful() - q.floor.served; elapsed >= period && float64(had) >= share*float64(elapsed) {
		// It has had its share, and as much more as lasts for a while.
		lasts := min(time.Duration(float64(had)/share)-elapsed, period)
		elapsed = period - lasts
		q.floor, q.OnFloor = floorMark{at: s.now.Add(-elapsed), served: q.useful() - time.Duration(share*float64(elapsed))}, false
	}
	return q.floor.at.Add(period)
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
