package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// usageState records whether a standard queue uses much of the device. Beside such a queue a
// batch queue with the minimum slice gets nothing. A standard process that rests, or does a
// little now and then, is no reason for longer slices, which online work would wait for.
type usageState struct {
	from   sched.Time    // when the window began
	served time.Duration // Queue.Served then
	until  sched.Time    // the queue counts as one that uses much until then
}

const (
	usageWindow = 100 * time.Millisecond
	usagePart   = 8               // a queue uses much if it has one part in usagePart of a window
	usageHold   = 2 * time.Second // for how long that counts
)

// watch updates the state from the device time of q, and reports whether q uses much. Without
// counters and measurements it reports false.
func (u *usageState) watch(q *sched.Queue, now sched.Time) bool {
	at := now
	if q.Measured {
		at = q.MeasuredAt
	} else if !q.Counters.Known {
		return false
	}
	took := at.Sub(u.from)
	if took < usageWindow {
		return now < u.until
	}
	if u.from > 0 && q.Served-u.served >= took/usagePart {
		u.until = now.Add(usageHold)
	}
	u.from, u.served = max(at, 1), q.Served
	return now < u.until
}

// watchStandard updates the usage of a standard queue, and what the plan depends on.
func (p *giveway) watchStandard(now sched.Time, q *sched.Queue, st *queueState, s *summary) {
	if q.State == sched.Running && q.Runnable() {
		s.running++
	}
	if st.usage.watch(q, now) {
		s.busyStandard++
		s.usageChange = earlier(s.usageChange, st.usage.until)
	}
	if next := st.usage.from.Add(usageWindow); q.Runnable() && next > now {
		s.usageChange = earlier(s.usageChange, next)
	}
}
