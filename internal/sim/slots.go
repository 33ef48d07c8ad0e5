package sim

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// slots shares a device as hardware does that takes commands from several
// queues side by side. The queues in slots share its speed equally.
//
// With a quantum (AMD) a queue keeps its slot while it has work, and when there
// are more queues than slots the set changes every quantum. Without one a slot
// takes the command that was launched first, whoever's it is, and keeps it to
// its end.
type slots struct {
	d            *device
	m            *SlotsModel
	members      []*queue     // every queue that ever launched, in that order
	running      []*queue     // in slots, each running its head
	offset       int          // in known, from which slots are filled
	stalledUntil sched.Time   // the whole device is taken up until then
	saving       []sched.Time // slots taken up by queues that are being taken off, and until when
	accountedTo  sched.Time   // progress is accounted up to here
	updatesDone  sched.Time   // when the last change was over, or will be
	batching     bool
	remapPending bool // a change waits for the end of the batch
	mapped       int  // queues that the device knows and may run
	occupancy    Occupancy

	commandEnd, quantum, resume timer
	finished                    []*queue
}

func newSlots(d *device) *slots {
	s := &slots{d: d, m: d.model.Slots}
	s.commandEnd.fire = s.onCommandEnd
	s.quantum.fire = s.rotate
	s.resume.fire = s.refill
	return s
}

func (s *slots) now() sched.Time { return s.d.world.now }

// eligible reports whether the device may run q's head.
func (s *slots) eligible(q *queue) bool {
	return q.active() && q.restoredAt <= s.now() && (q.deactivatedAt == 0 || q.head().begun != 0)
}

func (s *slots) arrived(q *queue) {
	if !slices.Contains(s.members, q) {
		s.members = append(s.members, q)
	}
	if !q.inSlot {
		s.refill()
	}
}

// settle credits the running commands with their progress so far, and the slots
// with their use.
func (s *slots) settle() {
	now := s.now()
	gone := now.Sub(s.accountedTo)
	if gone <= 0 {
		return
	}
	since := max(s.accountedTo, min(s.stalledUntil, now))
	s.accountedTo = now
	moving := now.Sub(since)
	s.occupancy.add(len(s.running), min(s.mapped, s.m.Slots), gone, moving)
	if len(s.running) == 0 {
		return
	}
	part := moving / time.Duration(len(s.running))
	for _, q := range s.running {
		q.slotTime += gone
		q.deviceTime += part
		q.resident += part
		if c := q.head(); !c.parked {
			c.left -= part
		}
	}
}

// refill gives free slots to queues that want them, and sets the next end.
func (s *slots) refill() {
	s.settle()
	for _, q := range s.running {
		if !s.eligible(q) {
			s.leaveSlot(q)
		}
	}
	s.running = slices.DeleteFunc(s.running, func(q *queue) bool { return !s.eligible(q) })
	s.saving = slices.DeleteFunc(s.saving, func(t sched.Time) bool { return t <= s.now() })
	for len(s.running)+len(s.saving) < s.m.Slots {
		q := s.pick()
		if q == nil {
			break
		}
		s.running = append(s.running, q)
		q.inSlot = true
		if c := q.head(); c.begun == 0 {
			c.begun = max(s.now(), 1)
		}
		q.noticedAt = s.now()
	}
	s.scheduleTimers()
}

// evict is told of a queue that leaves its slot.
func (s *slots) leaveSlot(q *queue) {
	q.inSlot = false
	s.d.world.addSegment(s.d, q, q.noticedAt, s.now())
}

// pick returns the queue that gets the next free slot.
func (s *slots) pick() *queue {
	var best *queue
	for i := range s.members {
		q := s.members[(s.offset+i)%len(s.members)]
		if q.inSlot || !s.eligible(q) {
			continue
		}
		if s.m.Quantum > 0 {
			return q
		}
		if best == nil || q.head().order < best.head().order {
			best = q
		}
	}
	return best
}

// arm sets the timers for the next command to end and the next change of set.
func (s *slots) scheduleTimers() {
	t := &s.d.world.timeline
	now := s.now()
	if now < s.stalledUntil {
		t.cancel(&s.commandEnd)
		t.set(&s.resume, s.stalledUntil)
		return
	}
	if len(s.saving) > 0 {
		t.set(&s.resume, slices.Min(s.saving))
	}
	least := time.Duration(-1)
	for _, q := range s.running {
		if c := q.head(); !c.parked && (least < 0 || c.left < least) {
			least = max(c.left, 0)
		}
	}
	if least < 0 {
		t.cancel(&s.commandEnd)
	} else {
		t.set(&s.commandEnd, now.Add(least*time.Duration(len(s.running))))
	}
	switch crowded := s.m.Quantum > 0 && s.countEligible() > s.m.Slots; {
	case !crowded:
		t.cancel(&s.quantum)
	case s.quantum.heapIndex == 0:
		t.set(&s.quantum, now.Add(s.m.Quantum))
	}
}

func (s *slots) countEligible() int {
	n := 0
	for _, q := range s.members {
		if s.eligible(q) {
			n++
		}
	}
	return n
}

// endCommands completes every command that has nothing left to do.
func (s *slots) onCommandEnd() {
	s.settle()
	s.finished = s.finished[:0]
	for _, q := range s.running {
		// The share of a part of a nanosecond is nobody's.
		if c := q.head(); c.left < time.Duration(len(s.running)) && !c.parked {
			c.left = 0
			q.complete()
			s.finished = append(s.finished, q)
		}
	}
	for _, q := range s.finished {
		if s.m.Quantum > 0 && s.eligible(q) {
			q.head().begun = max(s.now(), 1)
			continue // keeps its slot
		}
		s.leaveSlot(q)
		s.running = slices.DeleteFunc(s.running, func(c *queue) bool { return c == q })
	}
	s.refill()
	for _, q := range slices.Clone(s.finished) {
		q.finished()
	}
}

// rotate gives the slots to the next set of queues.
func (s *slots) rotate() {
	s.settle()
	for _, q := range s.running {
		s.leaveSlot(q)
	}
	s.running = s.running[:0]
	s.offset = (s.offset + s.m.Slots) % len(s.members)
	s.stall(s.m.Context.Save() + s.m.Context.Restore())
	s.refill()
}

// stall takes the whole device up for a while.
func (s *slots) stall(d time.Duration) {
	s.settle()
	began := max(s.now(), s.stalledUntil)
	s.stalledUntil = began.Add(d)
	s.updatesDone = max(s.updatesDone, s.stalledUntil)
	s.d.world.addSegment(s.d, nil, began, s.stalledUntil)
}

// opened has the device learn of a queue. With a runlist that is an update of it
// like any other.
func (s *slots) opened(q *queue) {
	s.settle()
	q.mapped = true
	s.mapped++
	if s.m.RemapAll {
		s.remap()
		s.refill()
	}
}

func (s *slots) changed(q *queue) {
	s.settle()
	if q.dead {
		s.members = slices.DeleteFunc(s.members, func(c *queue) bool { return c == q })
		if len(s.members) > 0 {
			s.offset %= len(s.members)
		}
	}
	// A queue with nothing to do is taken off and put back like any other.
	want := !q.interrupted && !q.dead
	flipped := want != q.mapped
	q.mapped = want
	switch {
	case !flipped:
	case want:
		s.mapped++
	default:
		s.mapped--
	}
	switch {
	case !s.m.Interrupt || !flipped:
	case s.m.RemapAll && s.batching:
		s.remapPending = true
		return
	case s.m.RemapAll:
		s.remap()
	case want:
		s.restoreQueue(q)
	case q.inSlot:
		off := s.now().Add(s.m.Context.among(len(s.running)).Save())
		s.saving = append(s.saving, off)
		s.updatesDone = max(s.updatesDone, off)
		s.occupancy.Updates++
	default:
		s.updatesDone = max(s.updatesDone, s.now())
		s.occupancy.Updates++
	}
	s.refill()
}

// putBack restores one queue while the others go on.
func (s *slots) restoreQueue(q *queue) {
	c := s.m.Context.empty()
	if q.launched > q.completed && q.head().begun != 0 {
		c = s.m.Context.among(len(s.running) + 1)
	}
	q.restoredAt = s.now().Add(c.Restore())
	s.updatesDone = max(s.updatesDone, q.restoredAt)
	s.occupancy.Updates++
	q.noticeTimer.fire = s.refill
	s.d.world.timeline.set(&q.noticeTimer, q.restoredAt)
}

// remap is one update of the runlist: everyone is taken off, and those that may
// run are put back. There is something to save if anybody is in a slot, and to
// restore if anybody has been.
func (s *slots) remap() {
	off, on := s.m.Context.empty(), s.m.Context.empty()
	if len(s.running) > 0 {
		off = s.m.Context
	}
	if slices.ContainsFunc(s.members, func(q *queue) bool { return s.eligible(q) && q.head().begun != 0 }) {
		on = s.m.Context
	}
	s.stall(off.Save() + on.Restore())
	s.occupancy.Updates++
}

func (s *slots) endBatch() {
	s.batching = false
	if s.remapPending && s.m.RemapAll {
		s.remap()
	}
	s.remapPending = false
	s.refill()
}

func (s *slots) close() {
	s.settle()
	for _, q := range s.running {
		s.d.world.addSegment(s.d, q, q.noticedAt, s.now())
	}
}

// deactivated keeps what has not begun from beginning.
func (s *slots) deactivated(q *queue) {
	s.settle()
	queued := q.launched - q.completed
	if queued > 0 && q.head().begun != 0 {
		queued--
	}
	switch s.m.Deactivate {
	case FlagDeactivate:
		// Each begins, sees the flag, and ends with nothing done.
		s.stall(time.Duration(queued) * s.m.FlagCost)
	case FlushDeactivate:
		q.launched -= queued
		q.flushed = true
		s.stall(s.m.FlushCost)
	}
	s.refill()
}

// reactivated lets it begin again; what was flushed is launched again, in order.
func (s *slots) reactivated(q *queue) {
	if s.m.Deactivate == FlushDeactivate {
		q.flushed = false
		s.stall(s.m.FlushCost)
		q.pump()
	}
	s.refill()
}
