package policy

import (
	"math"

	"github.com/giveway/giveway/sched"
)

// hpf, highest priority first, runs the queues of the highest priority that
// have work, all of them together, and stops those below. Work that is expected
// any moment counts as there. Whoever starves by it is the scheduler's affair:
// its floor.
type hpf struct {
	knobs
	planner
	foresight
	rank func(*sched.Queue) int32
}

func newHPF() sched.Policy {
	p := &hpf{}
	p.setUp(func(q *sched.Queue) int32 { return q.Attr.Priority })
	return p
}

func (p *hpf) setUp(rank func(*sched.Queue) int32) {
	p.rank = rank
	p.knobs = p.foresight.knobs()
}

// Plan implements sched.Policy.
func (p *hpf) Plan(v *sched.View) sched.Plan {
	ahead := p.ahead(v.Devices)
	top, low := int32(math.MinInt32), int32(math.MaxInt32)
	for i := range v.Queues {
		q := &v.Queues[i]
		ready := contends(q)
		if ready {
			low = min(low, p.rank(q))
		}
		if due, _ := p.due(q, v.Now, ahead); ready || due {
			top = max(top, p.rank(q))
		}
	}
	p.only(v, func(i int) bool { return p.rank(&v.Queues[i]) >= top })

	// An arrival matters only to those who would give way to it.
	wake := sched.Time(0)
	for i := range v.Queues {
		if q := &v.Queues[i]; !q.Ready() && p.rank(q) > low {
			_, change := p.due(q, v.Now, ahead)
			wake = earlier(wake, change)
		}
	}
	return p.plan(wake)
}
