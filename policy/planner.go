package policy

import "github.com/giveway/giveway/sched"

// planner is a buffer for grants that a policy uses again and again.
type planner struct{ grants []sched.Grant }

func (p *planner) begin() { p.grants = p.grants[:0] }

func (p *planner) grant(q *sched.Queue) { p.grants = append(p.grants, sched.Grant{Queue: q.ID}) }

func (p *planner) plan(wake sched.Time) sched.Plan { return sched.Plan{Grants: p.grants, Wake: wake} }

// only grants the queues that chosen picks, and those with nothing to do: an
// idle queue costs nothing, and its next command then starts at once.
func (p *planner) only(v *sched.View, chosen func(i int) bool) {
	p.begin()
	for i := range v.Queues {
		if q := &v.Queues[i]; !q.Ready() || chosen(i) {
			p.grant(q)
		}
	}
}

// contends reports whether q would use the device if it were granted.
func contends(q *sched.Queue) bool { return q.Ready() && !q.Attr.Paused }
