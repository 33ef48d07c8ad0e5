package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// rr lets the queues with work take turns of equal length, in order of ID. A
// turn ends early when its queue runs out of work.
type rr struct {
	knobs
	planner
	quantum time.Duration

	holder sched.QueueID // whose turn it is
	since  sched.Time    // when it began
}

func newRR() sched.Policy {
	p := &rr{quantum: 10 * time.Millisecond}
	p.knobs = knobs{quantumKnob("quantum", &p.quantum, "how long a turn is")}
	return p
}

// Plan implements sched.Policy.
func (p *rr) Plan(v *sched.View) sched.Plan {
	rivals, mine, first, next := 0, -1, -1, -1
	for i := range v.Queues {
		q := &v.Queues[i]
		if !contends(q) {
			continue
		}
		rivals++
		switch {
		case q.ID == p.holder:
			mine = i
		case q.ID > p.holder && next < 0:
			next = i
		}
		if first < 0 {
			first = i
		}
	}
	if mine < 0 || v.Now >= p.since.Add(p.quantum) {
		if mine = next; mine < 0 {
			mine = first
		}
		p.since = v.Now
	}
	p.holder = 0
	if mine >= 0 {
		p.holder = v.Queues[mine].ID
	}
	p.only(v, func(i int) bool { return i == mine })
	if rivals < 2 {
		return p.plan(0)
	}
	return p.plan(p.since.Add(p.quantum))
}
