package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// rr, round robin, lets the runnable queues take turns of equal length, in order
// of ID. A turn ends early when its queue becomes idle.
type rr struct {
	params
	planner
	quantum time.Duration

	turnOf    sched.QueueID // the queue whose turn it is; zero if none
	turnStart sched.Time    // of the current turn
}

func newRR() sched.Policy {
	p := &rr{quantum: 10 * time.Millisecond}
	p.params = params{quantumParam("quantum", &p.quantum, "length of a turn")}
	return p
}

// Plan implements sched.Policy.
func (p *rr) Plan(v *sched.View) sched.Plan {
	ready, current, first, next := 0, -1, -1, -1
	for i := range v.Queues {
		q := &v.Queues[i]
		if !runnable(q) {
			continue
		}
		ready++
		switch {
		case q.ID == p.turnOf:
			current = i
		case q.ID > p.turnOf && next < 0:
			next = i
		}
		if first < 0 {
			first = i
		}
	}
	if current < 0 || v.Now >= p.turnStart.Add(p.quantum) {
		if current = next; current < 0 {
			current = first
		}
		p.turnStart = v.Now
	}
	p.turnOf = 0
	if current >= 0 {
		p.turnOf = v.Queues[current].ID
	}
	p.grantOnly(v, func(i int) bool { return i == current })
	if ready < 2 {
		return p.plan(0)
	}
	return p.plan(p.turnStart.Add(p.quantum))
}
