package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// overlap is how giveway notices that a heavy queue has become light. If there are only heavy
// queues, they take turns, and their visits tell nothing because no other queue runs. So from
// time to time the queue whose turn is over and the next one run beside each other for a moment.
type overlap struct {
	leaving sched.QueueID // the queue whose turn is over, during an overlap; zero: there is none
	since   sched.Time    // when the overlap began
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

// beginOverlap lets the queue whose turn is over run on beside the next, if it is time to and the
// visits of both can tell. If there are light queues, heavy ones run beside them anyway. Newcomers
// need a trial, which is as rare as an overlap beside online work, so the trial goes first. A queue of
// class idle leaves at once.
func (s *sideBySide) beginOverlap(now sched.Time, leaving, entering *sched.Queue, sum *summary, set *setting) {
	if s.lightQueues > 0 || sum.expecting || now < s.overlap.next || leaving.ID == entering.ID || !canOverlap(leaving) || !canOverlap(entering) ||
		sum.activeOnline > 0 && (set.sharedSlice == sched.MinSlice || sum.newcomers > 0) {
		return
	}
	s.overlap.leaving, s.overlap.since = leaving.ID, now
	s.overlap.next = now.Add(overlapPause)
}

// canOverlap reports whether the load of q matters and its visits can tell.
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
