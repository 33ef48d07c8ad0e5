package policy

import (
	"slices"

	"github.com/giveway/giveway/sched"
)

// window runs all queues of the processes that have the focus, and the other
// queues when none of those is runnable. If no process has the focus, all queues
// run. No queue is stopped for an uncounted one: that goes ahead by its slice, where the
// device has slices.
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
		busy = busy || knownBusy(q) && p.hasFocus(q)
	}
	p.grantOnly(v, func(i int) bool { return !busy || p.hasFocus(&v.Queues[i]) })
	if !busy {
		p.goAheadBySlice(v, func(i int) bool { return p.hasFocus(&v.Queues[i]) })
	}
	return p.plan(0)
}

func (p *window) hasFocus(q *sched.Queue) bool {
	_, found := slices.BinarySearch(p.focused, q.Process)
	return found
}
