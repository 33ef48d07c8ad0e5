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
	d        *device
	m        *SlotsModel
	known    []*queue     // every queue that ever launched, in that order
	in       []*queue     // in slots, each running its head
	offset   int          // in known, from which slots are filled
	stalled  sched.Time   // the whole device is taken up until then
	saving   []sched.Time // slots taken up by queues that are being taken off, and until when
	mark     sched.Time   // progress is accounted up to here
	quiet    sched.Time   // when the last change was over, or will be
	batching bool
	dirty    bool // a change waits for the end of the batch
	mapped   int  // queues that the device knows and may run
	use      Occupancy

	cmdEnd, quantum, unstall timer
	finished                 []*queue
}

func newSlots(d *device) *slots {
	s := &slots{d: d, m: d.model.Slots}
	s.cmdEnd.do = s.endCommands
	s.quantum.do = s.rotate
	s.unstall.do = s.refill
	return s
}

func (s *slots) now() sched.Time { return s.d.world.now }

// eligible reports whether the device may run q's head.
func (s *slots) eligible(q *queue) bool {
	return q.active() && q.back <= s.now() && (q.inactive == 0 || q.head().begun != 0)
}

func (s *slots) arrived(q *queue) {
	if !slices.Contains(s.known, q) {
		s.known = append(s.known, q)
	}
	if !q.seat {
		s.refill()
	}
}

// settle credits the running commands with their progress so far, and the slots
// with their use.
func (s *slots) settle() {
	now := s.now()
	gone := now.Sub(s.mark)
	if gone <= 0 {
		return
	}
	since := max(s.mark, min(s.stalled, now))
	s.mark = now
	moving := now.Sub(since)
	s.use.add(len(s.in), min(s.mapped, s.m.Slots), gone, moving)
	if len(s.in) == 0 {
		return
	}
	part := moving / time.Duration(len(s.in))
	for _, q := range s.in {
		q.seated += gone
		q.ran += part
		q.resident += part
		if c := q.head(); !c.parked {
			c.left -= part
		}
	}
}

// refill gives free slots to queues that want them, and sets the next end.
func (s *slots) refill() {
	s.settle()
	for _, q := range s.in {
		if !s.eligible(q) {
			s.evict(q)
		}
	}
	s.in = slices.DeleteFunc(s.in, func(q *queue) bool { return !s.eligible(q) })
	s.saving = slices.DeleteFunc(s.saving, func(t sched.Time) bool { return t <= s.now() })
	for len(s.in)+len(s.saving) < s.m.Slots {
		q := s.pick()
		if q == nil {
			break
		}
		s.in = append(s.in, q)
		q.seat = true
		if c := q.head(); c.begun == 0 {
			c.begun = max(s.now(), 1)
		}
		q.noticed = s.now()
	}
	s.arm()
}

// evict is told of a queue that leaves its slot.
func (s *slots) evict(q *queue) {
	q.seat = false
	s.d.world.segment(s.d, q, q.noticed, s.now())
}

// pick returns the queue that gets the next free slot.
func (s *slots) pick() *queue {
	var best *queue
	for i := range s.known {
		q := s.known[(s.offset+i)%len(s.known)]
		if q.seat || !s.eligible(q) {
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
func (s *slots) arm() {
	t := &s.d.world.timeline
	now := s.now()
	if now < s.stalled {
		t.cancel(&s.cmdEnd)
		t.set(&s.unstall, s.stalled)
		return
	}
	if len(s.saving) > 0 {
		t.set(&s.unstall, slices.Min(s.saving))
	}
	least := time.Duration(-1)
	for _, q := range s.in {
		if c := q.head(); !c.parked && (least < 0 || c.left < least) {
			least = max(c.left, 0)
		}
	}
	if least < 0 {
		t.cancel(&s.cmdEnd)
	} else {
		t.set(&s.cmdEnd, now.Add(least*time.Duration(len(s.in))))
	}
	switch crowded := s.m.Quantum > 0 && s.crowd() > s.m.Slots; {
	case !crowded:
		t.cancel(&s.quantum)
	case s.quantum.slot == 0:
		t.set(&s.quantum, now.Add(s.m.Quantum))
	}
}

func (s *slots) crowd() int {
	n := 0
	for _, q := range s.known {
		if s.eligible(q) {
			n++
		}
	}
	return n
}

// endCommands completes every command that has nothing left to do.
func (s *slots) endCommands() {
	s.settle()
	s.finished = s.finished[:0]
	for _, q := range s.in {
		// The share of a part of a nanosecond is nobody's.
		if c := q.head(); c.left < time.Duration(len(s.in)) && !c.parked {
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
		s.evict(q)
		s.in = slices.DeleteFunc(s.in, func(c *queue) bool { return c == q })
	}
	s.refill()
	for _, q := range slices.Clone(s.finished) {
		q.finished()
	}
}

// rotate gives the slots to the next set of queues.
func (s *slots) rotate() {
	s.settle()
	for _, q := range s.in {
		s.evict(q)
	}
	s.in = s.in[:0]
	s.offset = (s.offset + s.m.Slots) % len(s.known)
	s.stall(s.m.Context.Save() + s.m.Context.Restore())
	s.refill()
}

// stall takes the whole device up for a while.
func (s *slots) stall(d time.Duration) {
	s.settle()
	began := max(s.now(), s.stalled)
	s.stalled = began.Add(d)
	s.quiet = max(s.quiet, s.stalled)
	s.d.world.segment(s.d, nil, began, s.stalled)
}

// opened has the device learn of a queue. With a runlist that is an update of it
// like any other.
func (s *slots) opened(q *queue) {
	s.settle()
	q.mapped = true
	s.mapped++
	if s.m.Everyone {
		s.remap()
		s.refill()
	}
}

func (s *slots) changed(q *queue) {
	s.settle()
	if q.dead {
		s.known = slices.DeleteFunc(s.known, func(c *queue) bool { return c == q })
		if len(s.known) > 0 {
			s.offset %= len(s.known)
		}
	}
	// A queue with nothing to do is taken off and put back like any other.
	want := !q.off && !q.dead
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
	case s.m.Everyone && s.batching:
		s.dirty = true
		return
	case s.m.Everyone:
		s.remap()
	case want:
		s.putBack(q)
	case q.seat:
		off := s.now().Add(s.m.Context.among(len(s.in)).Save())
		s.saving = append(s.saving, off)
		s.quiet = max(s.quiet, off)
		s.use.Updates++
	default:
		s.quiet = max(s.quiet, s.now())
		s.use.Updates++
	}
	s.refill()
}

// putBack restores one queue while the others go on.
func (s *slots) putBack(q *queue) {
	c := s.m.Context.empty()
	if q.launched > q.completed && q.head().begun != 0 {
		c = s.m.Context.among(len(s.in) + 1)
	}
	q.back = s.now().Add(c.Restore())
	s.quiet = max(s.quiet, q.back)
	s.use.Updates++
	q.notice.do = s.refill
	s.d.world.timeline.set(&q.notice, q.back)
}

// remap is one update of the runlist: everyone is taken off, and those that may
// run are put back. There is something to save if anybody is in a slot, and to
// restore if anybody has been.
func (s *slots) remap() {
	off, on := s.m.Context.empty(), s.m.Context.empty()
	if len(s.in) > 0 {
		off = s.m.Context
	}
	if slices.ContainsFunc(s.known, func(q *queue) bool { return s.eligible(q) && q.head().begun != 0 }) {
		on = s.m.Context
	}
	s.stall(off.Save() + on.Restore())
	s.use.Updates++
}

func (s *slots) endBatch() {
	s.batching = false
	if s.dirty && s.m.Everyone {
		s.remap()
	}
	s.dirty = false
	s.refill()
}

func (s *slots) close() {
	s.settle()
	for _, q := range s.in {
		s.d.world.segment(s.d, q, q.noticed, s.now())
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
	case GuardianDeactivate:
		// Each begins, sees the flag, and ends with nothing done.
		s.stall(time.Duration(queued) * s.m.Guard)
	case FlushDeactivate:
		q.launched -= queued
		q.flushed = true
		s.stall(s.m.Flush)
	}
	s.refill()
}

// reactivated lets it begin again; what was flushed is launched again, in order.
func (s *slots) reactivated(q *queue) {
	if s.m.Deactivate == FlushDeactivate {
		q.flushed = false
		s.stall(s.m.Flush)
		q.pump()
	}
	s.refill()
}
