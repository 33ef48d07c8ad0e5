package policy

import "github.com/giveway/giveway/sched"

// native leaves every queue to the vendor's own scheduling.
type native struct{ planner }

func newNative() sched.Policy { return &native{} }

// Plan grants every queue what the device gives it.
func (p *native) Plan(v *sched.View) sched.Plan {
	p.begin()
	for i := range v.Queues {
		p.grant(&v.Queues[i])
	}
	return p.plan(0)
}
