package sim

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// slots shares a device as hardware does that serves several queues side by side. The
// queues in slots share its speed equally.
//
// With a quantum (AMD), a queue keeps its slot while it has work, and if there are more
// queues than slots, the set of queues in slots changes every quantum. Without one, a free
// slot takes the command that was launched first, of any queue, and runs it to its end.
type slots struct {
	d            *device
	m            *SlotsModel
	members      []*queue     // every queue that has launched a command, in order of the first
	running      []*queue     // in slots, each running its oldest command
	offset       int          // in members, from which slots are filled
	stalledUntil sched.Time   // no queue makes progress until then
	saving       []sched.Time // slots occupied by queues that are being saved, and until when
	accountedTo  sched.Time   // progress is credited up to here
	updatesDone  sched.Time   // when the last update ends or ended
	batching     bool         // changes are collected into one update
	remapPending bool         // an update waits for the end of the batch
	mapped       int          // queues that the device may run, with work or without
	occupancy    Occupancy

	commandEnd, quantum, resume timer
}

func newSlots(d *device) *slots {
	s := &slots{d: d, m: d.model.Slots}
	s.commandEnd.fire = s.onCommandEnd
	s.quantum.fire = s.rotate
	s.resume.fire = s.refill
	return s
}

func (s *slots) now() sched.Time { return s.d.world.now }

// eligible reports whether the device may run the oldest command of q.
func (s *slots) eligible(q *queue) bool {
	return q.active() && q.restoredAt <= s.now() && (q.deactivatedAt == 0 || q.head().begun != 0)
}

func (s *slots) launched(q *queue) {
	if !slices.Contains(s.members, q) {
		s.members = append(s.members, q)
	}
	if !q.inSlot {
		s.refill()
	}
}

// advance credits the running commands with their progress so far, and the slots with
// their use.
func (s *slots) advance() {
	now := s.now()
	elapsed := now.Sub(s.accountedTo)
	if elapsed <= 0 {
		return
	}
	since := max(s.accountedTo, min(s.stalledUntil, now))
	s.accountedTo = now
	progress := now.Sub(since)
	s.occupancy.add(len(s.running), min(s.mapped, s.m.Slots), elapsed, progress)
	if len(s.running) == 0 {
		return
	}
	part := progress / time.Duration(len(s.running))
	for _, q := range s.running {
		q.slotTime += elapsed
		q.deviceTime += part
		q.resident += part
		if c := q.head(); !c.parked {
			c.left -= part
		}
	}
}

// refill gives free slots to eligible queues and sets the timers.
func (s *slots) refill() {
	s.advance()
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
		q.slotSince = s.now()
	}
	s.scheduleTimers()
}

// leaveSlot records that a queue leaves its slot.
func (s *slots) leaveSlot(q *queue) {
	q.inSlot = false
	s.d.world.addSegment(s.d, q, q.slotSince, s.now())
}

// pick returns the queue that gets the next free slot, or nil.
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

// scheduleTimers sets the timers for the next end of a command and of a quantum.
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
	shortest := time.Duration(-1)
	for _, q := range s.running {
		if c := q.head(); !c.parked && (shortest < 0 || c.left < shortest) {
			shortest = max(c.left, 0)
		}
	}
	if shortest < 0 {
		t.cancel(&s.commandEnd)
	} else {
		t.set(&s.commandEnd, now.Add(shortest*time.Duration(len(s.running))))
	}
	switch crowded := s.m.Quantum > 0 && s.countEligible() > s.m.Slots; {
	case !crowded:
		t.cancel(&s.quantum)
	case !s.quantum.isSet():
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

// onCommandEnd completes every command that has no work left.
func (s *slots) onCommandEnd() {
	s.advance()
	var finished []*queue
	for _, q := range s.running {
		// advance divides whole nanoseconds: up to len-1 of them may be left.
		if c := q.head(); c.left < time.Duration(len(s.running)) && !c.parked {
			c.left = 0
			q.complete()
			finished = append(finished, q)
		}
	}
	for _, q := range finished {
		if s.m.Quantum > 0 && s.eligible(q) {
			q.head().begun = max(s.now(), 1)
			continue // it keeps its slot
		}
		s.leaveSlot(q)
		s.running = slices.DeleteFunc(s.running, func(c *queue) bool { return c == q })
	}
	s.refill()
	for _, q := range finished {
		q.afterComplete()
	}
}

// rotate gives the slots to the next set of queues, at the end of a quantum.
func (s *slots) rotate() {
	s.advance()
	for _, q := range s.running {
		s.leaveSlot(q)
	}
	s.running = s.running[:0]
	s.offset = (s.offset + s.m.Slots) % len(s.members)
	s.stall(s.m.Context.Save() + s.m.Context.Restore())
	s.refill()
}

// stall lets no queue make progress for a time.
func (s *slots) stall(d time.Duration) {
	s.advance()
	began := max(s.now(), s.stalledUntil)
	s.stalledUntil = began.Add(d)
	s.updatesDone = max(s.updatesDone, s.stalledUntil)
	s.d.world.addSegment(s.d, nil, began, s.stalledUntil)
}

// opened adds a queue to those that the device may run. With RemapAll that is an update.
func (s *slots) opened(q *queue) {
	s.advance()
	q.mapped = true
	s.mapped++
	if s.m.RemapAll {
		s.remap()
		s.refill()
	}
}

func (s *slots) interrupting(*queue) {}

func (s *slots) changed(q *queue) {
	s.advance()
	if q.dead {
		s.members = slices.DeleteFunc(s.members, func(c *queue) bool { return c == q })
		if len(s.members) > 0 {
			s.offset %= len(s.members)
		}
	}
	// A queue without work is unmapped and mapped like any other.
	mapped := !q.interrupted && !q.dead
	switch {
	case mapped == q.mapped:
		s.refill()
		return
	case mapped:
		s.mapped++
	default:
		s.mapped--
	}
	q.mapped = mapped
	switch {
	case !s.m.Interrupt:
	case s.m.RemapAll && s.batching:
		s.remapPending = true
		return
	case s.m.RemapAll:
		s.remap()
	case mapped:
		s.restoreQueue(q)
	default:
		s.saveQueue(q)
	}
	s.refill()
}

// restoreQueue maps one queue while the others go on.
func (s *slots) restoreQueue(q *queue) {
	c := s.m.Context.empty()
	if q.launched > q.completed && q.head().begun != 0 {
		c = s.m.Context.among(len(s.running) + 1)
	}
	q.restoredAt = s.now().Add(c.Restore())
	s.countUpdate(q.restoredAt)
	q.restoreTimer.fire = s.refill
	s.d.world.timeline.set(&q.restoreTimer, q.restoredAt)
}

// saveQueue unmaps one queue while the others go on.
func (s *slots) saveQueue(q *queue) {
	saved := s.now()
	if q.inSlot {
		saved = saved.Add(s.m.Context.among(len(s.running)).Save())
		s.saving = append(s.saving, saved)
	}
	s.countUpdate(saved)
}

func (s *slots) countUpdate(end sched.Time) {
	s.updatesDone = max(s.updatesDone, end)
	s.occupancy.Updates++
}

// remap is one update of AMD's runlist: all queues are unmapped, and those that may run
// are mapped again. There is a context to save if a queue is in a slot, and to restore if
// a command had begun.
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

// endBatch makes the update for all changes since batching was set.
func (s *slots) endBatch() {
	s.batching = false
	if s.remapPending {
		s.remapPending = false
		s.remap()
		s.refill()
	}
}

func (s *slots) close() {
	s.advance()
	for _, q := range s.running {
		s.d.world.addSegment(s.d, q, q.slotSince, s.now())
	}
}

// deactivated keeps commands that have not begun from beginning.
func (s *slots) deactivated(q *queue) {
	s.advance()
	queued := q.launched - q.completed
	if queued > 0 && q.head().begun != 0 {
		queued--
	}
	switch s.m.Deactivate {
	case FlagDeactivate:
		// Each command begins, sees the flag, and ends with nothing done.
		s.stall(time.Duration(queued) * s.m.FlagCost)
	case FlushDeactivate:
		q.launched -= queued
		q.flushed = true
		s.stall(s.m.FlushCost)
	}
	s.refill()
}

// reactivated lets commands begin again; those that were flushed are launched again, in order.
func (s *slots) reactivated(q *queue) {
	if s.m.Deactivate == FlushDeactivate {
		q.flushed = false
		s.stall(s.m.FlushCost)
		q.launch()
	}
	s.refill()
}
