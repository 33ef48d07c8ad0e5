package policy

import "github.com/giveway/giveway/sched"

// native leaves all queues to the device's own scheduling.
type native struct{ planner }

func newNative() sched.Policy { return &native{} }

// Plan grants all queues with the device's defaults.
func (p *native) Plan(v *sched.View) sched.Plan {
	p.begin()
	for i := range v.Queues {
		p.grant(&v.Queues[i], sched.ByDefault)
	}
	return p.plan(0)
}
