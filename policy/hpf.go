package policy

import (
	"math"

	"github.com/giveway/giveway/sched"
)

// hpf, highest priority first, runs the runnable queues of the highest priority
// together and stops the others. A queue whose request is expected now counts as
// runnable. The scheduler's floor keeps the others from starving.
type hpf struct {
	params
	planner
	arrivals
	rank func(*sched.Queue) int32
}

func newHPF() sched.Policy {
	p := &hpf{}
	p.setUp(func(q *sched.Queue) int32 { return q.Attr.Priority })
	return p
}

func (p *hpf) setUp(rank func(*sched.Queue) int32) {
	p.rank = rank
	p.params = p.arrivals.arrivalParams()
}

// Plan implements sched.Policy.
func (p *hpf) Plan(v *sched.View) sched.Plan {
	lead := p.leadTime(v.Devices)
	top, low := int32(math.MinInt32), int32(math.MaxInt32)
	for i := range v.Queues {
		q := &v.Queues[i]
		ready := runnable(q)
		if ready {
			low = min(low, p.rank(q))
		}
		if due, _ := p.due(q, v.Now, lead); ready || due {
			top = max(top, p.rank(q))
		}
	}
	p.grantOnly(v, func(i int) bool { return p.rank(&v.Queues[i]) >= top })

	// An expected request matters only if a runnable queue must stop for it.
	wake := sched.Time(0)
	for i := range v.Queues {
		if q := &v.Queues[i]; !q.Ready() && p.rank(q) > low {
			_, change := p.due(q, v.Now, lead)
			wake = earlier(wake, change)
		}
	}
	return p.plan(wake)
}
