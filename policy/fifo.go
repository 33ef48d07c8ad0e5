package policy

import "github.com/giveway/giveway/sched"

// fifo runs one queue at a time, the one whose work arrived first, until that
// work is finished. Work that the queue gets meanwhile counts as arrived then.
type fifo struct{ planner }

func newFIFO() sched.Policy { return &fifo{} }

// Plan implements sched.Policy.
func (p *fifo) Plan(v *sched.View) sched.Plan {
	before := func(i, j int) bool { return v.Queues[i].ReadySince < v.Queues[j].ReadySince }
	chosen := firstOf(v, knownBusy, before)
	if waits := p.grantFirst(v, chosen, before); waits {
		return p.plan(recheck(&v.Queues[chosen], v.Now))
	}
	return p.plan(0)
}
