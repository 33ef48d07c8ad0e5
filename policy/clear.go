package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// clearing is what is known about clearing the device. A request that is expected finds only
// one batch queue on the device, the one whose turn it is, with the minimum slice. The others
// are stopped shortly before, and started again when the request is over. How long before
// depends on how long the stops take.
type clearing struct {
	wanted bool       // the device was to be clear at the last plan
	since  sched.Time // when the stops began; zero: they are over, or clearing is not wanted
	took   meanTime   // from the first stop until all are over
}

// measureClear learns how long it takes until only one batch queue is on the device.
func (p *giveway) measureClear(v *sched.View, states []queueState, sum *summary) {
	if !sum.wantClear || !p.mayShare {
		p.clearing.since, p.clearing.wanted = 0, false
		return
	}
	if !p.clearing.wanted {
		p.clearing.wanted, p.clearing.since = true, v.Now
		return
	}
	if p.clearing.since == 0 {
		return
	}
	for i := range v.Queues {
		if q := &v.Queues[i]; states[i].sideBySide && q.ID != p.current && q.State != sched.Stopped && q.Level() != sched.LevelNone || q.ID == p.current && q.Slice == 0 {
			return // it still has to be stopped, or has the turn and not yet its short slice
		}
	}
	p.clearing.took.add(v.Now.Sub(p.clearing.since))
	p.clearing.since = 0
}

// clearLead returns how long before a request the light queues must be stopped: what it
// has taken so far, with a reserve that all but a few exceptions fit into. The driver makes
// one call after the other, so its time varies.
func (p *giveway) clearLead(v *sched.View, lead time.Duration) time.Duration {
	if p.clearing.took.n == 0 {
		busy := 0 // batch queues that have work, as far as is known
		for i := range v.Queues {
			if q := &v.Queues[i]; q.Attr.Class == sched.Batch && runnable(q) {
				busy++
			}
		}
		return lead + time.Duration(max(min(busy, p.group.limit)-1, 0))*v.Devices[0].StopTime/2
	}
	mean := p.clearing.took.mean
	return max(lead, mean+min(max(mean/8, 3*p.clearing.took.off), mean))
}
