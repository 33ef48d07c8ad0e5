package policy

import (
	"math"
	"time"

	"github.com/giveway/giveway/sched"
)

// wfq shares a device in proportion to weight.
//
// If the device has slices and the slices of all queues can be set, all queues
// run with slices in proportion to weight: the queue with the lowest weight has
// base. No slice is longer than longest, so a round of n busy queues takes at most
// n times longest; weights further apart than longest/base are not kept. Slices
// depend on which queues are open, not on which are ready, so that a request
// needs no call.
//
// Otherwise one queue runs at a time: see fair.
type wfq struct {
	fair
	base    time.Duration
	longest time.Duration
	quantum time.Duration
}

func newWFQ() sched.Policy {
	p := &wfq{base: 2 * time.Millisecond, longest: 50 * time.Millisecond, quantum: 10 * time.Millisecond}
	p.fair = fair{
		entityOf: byQueue,
		weightOf: func(q *sched.Queue) int64 { return q.Weight() * unit },
		turn:     func(_, _ int64) time.Duration { return p.quantum },
	}
	p.params = params{
		quantumParam("base", &p.base, "slice of the queue with the lowest weight, on devices with slices; at least the shortest that two queues can share the device with"),
		quantumParam("longest", &p.longest, "longest slice, on devices with slices"),
		quantumParam("quantum", &p.quantum, "length of a turn, on devices without slices"),
	}
	return p
}

// Plan implements sched.Policy.
func (p *wfq) Plan(v *sched.View) sched.Plan {
	dev := &v.Devices[0]
	if !dev.Sliced() {
		return p.fair.Plan(v)
	}
	lowest := int64(math.MaxInt64)
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Can&sched.CanSlice == 0 {
			return p.fair.Plan(v)
		}
		lowest = min(lowest, q.Weight())
	}
	p.turnOf = 0 // there are no turns
	p.update(v)  // in case a queue without slices is opened
	p.begin()
	base := max(p.base, dev.MinSharedSlice)
	longest := max(p.longest, base)
	for i := range v.Queues {
		q := &v.Queues[i]
		slice := float64(base) * float64(q.Weight()) / float64(lowest) // cannot overflow
		p.grants = append(p.grants, sched.Grant{Queue: q.ID, Slice: time.Duration(min(slice, float64(longest))), Reason: sched.Shared})
	}
	return p.plan(0)
}
