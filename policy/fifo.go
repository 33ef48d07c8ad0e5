package policy

import "github.com/giveway/giveway/sched"

// fifo runs one queue at a time, the one whose work arrived first, until that
// work is finished. Work that the queue gets meanwhile counts as arrived then.
type fifo struct{ planner }

func newFIFO() sched.Policy { return &fifo{} }

// Plan implements sched.Policy.
func (p *fifo) Plan(v *sched.View) sched.Plan {
	first := -1
	for i := range v.Queues {
		if q := &v.Queues[i]; runnable(q) && (first < 0 || q.ReadySince < v.Queues[first].ReadySince) {
			first = i
		}
	}
	p.grantOnly(v, func(i int) bool { return i == first })
	return p.plan(0)
}
