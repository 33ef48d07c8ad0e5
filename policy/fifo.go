package policy

import "github.com/giveway/giveway/sched"

// fifo serves work in the order in which it came, one queue at a time, to the
// end. Work that a queue takes on while it is served came later, and waits for
// what other queues had before.
type fifo struct{ planner }

func newFIFO() sched.Policy { return &fifo{} }

// Plan implements sched.Policy.
func (p *fifo) Plan(v *sched.View) sched.Plan {
	first := -1
	for i := range v.Queues {
		if q := &v.Queues[i]; contends(q) && (first < 0 || q.ReadySince < v.Queues[first].ReadySince) {
			first = i
		}
	}
	p.only(v, func(i int) bool { return i == first })
	return p.plan(0)
}
