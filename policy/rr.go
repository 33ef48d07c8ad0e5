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
	turnStart turnStart
	atTurn    time.Duration // Queue.Served of that queue when its turn began
}

func newRR() sched.Policy {
	p := &rr{quantum: 10 * time.Millisecond}
	p.params = params{quantumParam("quantum", &p.quantum, "length of a turn")}
	return p
}

// Plan implements sched.Policy.
func (p *rr) Plan(v *sched.View) sched.Plan {
	ready, current := 0, -1
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Runnable() {
			ready++
			if q.ID == p.turnOf {
				current = i
			}
		}
	}
	if current >= 0 {
		p.turnStart.postpone(v, v.Queues[current].Served-p.atTurn, p.quantum)
	}
	if current < 0 || v.Now >= p.turnStart.Add(p.quantum) {
		current = first(v, func(i, j int) bool { return v.Queues[i].ID > p.turnOf && v.Queues[j].ID <= p.turnOf })
		p.turnStart.Time = v.Now
		if current >= 0 {
			p.atTurn = v.Queues[current].Served
		}
	}
	p.turnOf = p.grantOne(v, current)
	if ready < 2 {
		return p.plan(0)
	}
	return p.plan(p.turnStart.Add(p.quantum))
}
