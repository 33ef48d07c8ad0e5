package policy

import (
	"slices"

	"github.com/giveway/giveway/sched"
)

// window runs the processes whose window has the user's eye, all queues of each,
// and the others when none of those has work. Focus is an attribute of queues,
// so it goes with the process that had it. With no focus anywhere, everybody runs.
type window struct {
	planner
	focused []sched.ProcessID // sorted
}

func newWindow() sched.Policy { return &window{} }

// Plan implements sched.Policy.
func (p *window) Plan(v *sched.View) sched.Plan {
	p.focused = p.focused[:0]
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Attr.Focus {
			p.focused = append(p.focused, q.Process)
		}
	}
	slices.Sort(p.focused)
	busy := false
	for i := range v.Queues {
		q := &v.Queues[i]
		busy = busy || contends(q) && p.hasFocus(q)
	}
	p.only(v, func(i int) bool { return !busy || p.hasFocus(&v.Queues[i]) })
	return p.plan(0)
}

func (p *window) hasFocus(q *sched.Queue) bool {
	_, found := slices.BinarySearch(p.focused, q.Process)
	return found
}
