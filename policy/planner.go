package policy

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// planner builds plans. It reuses its buffer of grants.
type planner struct{ grants []sched.Grant }

func (p *planner) begin() { p.grants = p.grants[:0] }

func (p *planner) grant(q *sched.Queue) { p.grants = append(p.grants, sched.Grant{Queue: q.ID}) }

func (p *planner) plan(wake sched.Time) sched.Plan { return sched.Plan{Grants: p.grants, Wake: wake} }

// grantOnly grants the ready queues for which chosen returns true, and all idle
// queues: an idle queue costs nothing, and its next command then starts at once.
func (p *planner) grantOnly(v *sched.View, chosen func(i int) bool) {
	p.begin()
	for i := range v.Queues {
		if q := &v.Queues[i]; !q.Ready() || chosen(i) {
			p.grant(q)
		}
	}
}

// runnable reports whether q is ready and not paused.
func runnable(q *sched.Queue) bool { return q.Ready() && !q.Attr.Paused }

// earlier returns the earlier of two wake times, of which zero is none.
func earlier(a, b sched.Time) sched.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// quantile returns the value below which num/den of the values are, or 0 if there
// are none. It sorts the values.
func quantile(values []time.Duration, num, den int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)*num/den]
}
