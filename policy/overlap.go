package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// overlap is a short period in which the queue whose turn is over and the next one run beside each
// other. By overlaps giveway notices that a heavy queue has become light, or rests between its steps. If
// there are only heavy queues, they take turns, and their visits show nothing because no other queue
// runs. Without online work there are overlaps beside light queues too, which may have no work then.
type overlap struct {
	leaving sched.QueueID // the queue whose turn is over, during an overlap; zero: there is none
	since   sched.Time    // when the overlap began
	served  time.Duration // Queue.Served of the leaving queue then
	next    sched.Time    // no overlap begins before this
}

const (
	// An overlap takes 5 to 20 ms: two readings of the trace. Beside online work it is at
	// most one part in overlapRarity of the time, so that the P99 of requests is not one
	// of those that meet it.
	maxOverlap       = 40 * time.Millisecond
	maxOnlineOverlap = 25 * time.Millisecond
	overlapPause     = time.Second
	overlapRarity    = 150
	overlapStep      = 2 * time.Millisecond // how often the daemon looks during one
)

// beginOverlap lets the queue whose turn is over run on beside the next, if an overlap is due and the
// visits of both can show their loads. Beside online work there is none while light queues run: heavy
// ones are judged beside those. Newcomers need a trial, which is as rare as an overlap beside
// online work, so the trial goes first. A queue of class idle leaves at once.
func (s *sideBySide) beginOverlap(now sched.Time, leaving, entering *sched.Queue, sum *summary, set *setting) {
	if s.newcomersTried || s.lightQueues > 0 && sum.activeOnline > 0 || sum.expecting || now < s.overlap.next || leaving.ID == entering.ID || !canOverlap(leaving) || !canOverlap(entering) ||
		sum.activeOnline > 0 && (set.sharedSlice == sched.MinSlice || sum.newcomers > 0) {
		return
	}
	s.overlap.leaving, s.overlap.since, s.overlap.served = leaving.ID, now, leaving.Served
	s.overlap.next = now.Add(overlapPause)
}

// canOverlap reports whether the load of q matters and can be found by its visits.
func canOverlap(q *sched.Queue) bool { return q.Attr.Class == sched.Batch && q.Visits.Known }

// updateOverlap ends the overlap when both queues are judged, when a request is expected, or
// when it takes too long.
func (p *giveway) updateOverlap(v *sched.View, states []queueState, sum *summary) {
	if p.overlap.leaving == 0 {
		return
	}
	limit, rarity := maxOverlap, time.Duration(1)
	if sum.activeOnline > 0 {
		limit, rarity = maxOnlineOverlap, overlapRarity
	}
	took := v.Now.Sub(p.overlap.since)
	if p.judgedInOverlap(v, states, p.overlap.leaving) && p.judgedInOverlap(v, states, p.current) || took >= limit || sum.wantClear {
		if sum.activeOnline == 0 && p.restedAtTurnEnd(v, states, sum.running) { // beside online work every queue may wait
			p.overlap.next = v.Now // others may rest too
		}
		p.overlap.leaving = 0
		p.overlap.next = max(p.overlap.next, v.Now.Add(rarity*took))
		return
	}
	sum.wake = earlier(earlier(sum.wake, sum.onlineChange), min(v.Now.Add(overlapStep), p.overlap.since.Add(limit)))
}

// judgedInOverlap reports whether a queue was judged since the overlap began, or is gone.
func (p *giveway) judgedInOverlap(v *sched.View, states []queueState, id sched.QueueID) bool {
	i, ok := index(v.Queues, id)
	return !ok || states[i].load.judgedAt >= p.overlap.since
}

// restedAtTurnEnd reports whether the queue that leaves had no work at the end of its turn: it was served
// for less than half of its part, although the overlap took long enough for each queue to have its slice.
// A queue that did so twice in a row is light. Only an overlap shows this: the context of a queue that
// rests stays on the device if no other comes.
func (p *giveway) restedAtTurnEnd(v *sched.View, states []queueState, running int) bool {
	i, ok := index(v.Queues, p.overlap.leaving)
	if !ok {
		return false
	}
	q, load := &v.Queues[i], &states[i].load
	took, n := q.MeasuredAt.Sub(p.overlap.since), time.Duration(running)
	if took < n*v.Devices[0].Slice*5/4 { // with the switches
		return false
	}
	if 2*n*(q.Served-p.overlap.served) > took {
		load.restedAtTurnEnd = 0
		return false
	}
	if load.restedAtTurnEnd++; load.restedAtTurnEnd >= 2 {
		load.restedAtTurnEnd = 0
		load.foundLight(v.Now)
	}
	return true
}
