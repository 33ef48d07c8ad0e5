package policy

import "github.com/giveway/giveway/sched"

// runReason returns why a batch or idle queue that is granted runs.
func (p *giveway) runReason(q *sched.Queue, st *queueState) sched.Reason {
	switch {
	case p.runsBeside(q, st) && (st.sideBySide || !p.sharingNow):
		return sched.Beside
	case q.ID == p.current && p.burst.phase == inGap:
		return sched.InGap
	case q.ID == p.current:
		return sched.ItsTurn
	case !st.takesTurns:
		return sched.NoWork
	}
	return sched.Unstoppable
}

// waitReasons returns why the batch and idle queues that are not granted wait. On a device
// with slices they give way without being stopped, except for a burst and for an expected
// request.
func (p *giveway) waitReasons(now sched.Time, dev *sched.Device, s *summary, set *setting) (why [4]sched.Reason) {
	batch, idle := sched.OtherTurn, sched.OtherTurn
	if s.classIdleWaits || p.classIdleStop > now {
		idle = sched.OtherWork
	}
	switch {
	case p.burst.phase == inBurst:
		batch, idle = sched.InBurst, sched.InBurst
	case !dev.Sliced() && s.busy && set.stopWhenBusy && (p.serving || now < p.lingerUntil):
		batch, idle = sched.OnlineWork, sched.OnlineWork
	case !dev.Sliced() && s.busy && set.stopWhenBusy, dev.Sliced() && s.wantClear && p.mayShare:
		batch, idle = sched.RequestExpected, sched.RequestExpected
	}
	why[sched.Batch], why[sched.Idle] = batch, idle
	return why
}
