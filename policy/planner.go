package policy

import (
	"cmp"
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

// grantOne is grantOnly for queue i, or for none if i is -1. It returns the ID of
// the queue, or 0.
func (p *planner) grantOne(v *sched.View, i int) sched.QueueID {
	p.grantOnly(v, func(j int) bool { return j == i })
	if i < 0 {
		return 0
	}
	return v.Queues[i].ID
}

// runnable reports whether q is ready and not paused.
func runnable(q *sched.Queue) bool { return q.Ready() && !q.Attr.Paused }

// turnStart is when the current turn began.
type turnStart struct {
	sched.Time
	occupied bool // at the last plan: see postpone
}

// postpone begins the turn anew if its queue could not run yet, because stopped queues
// still have commands on a device that runs one command at a time. used is the
// queue's service in the turn. It may be a little if the queue was started before the
// others were stopped.
func (t *turnStart) postpone(v *sched.View, used, length time.Duration) {
	if !v.Devices[0].Serial {
		return
	}
	was := t.occupied
	t.occupied = false
	for i := range v.Queues {
		t.occupied = t.occupied || v.Queues[i].Draining()
	}
	if (was || t.occupied) && used < length/8 {
		t.Time = v.Now
	}
}

// index returns the index of a queue in a view.
func index(queues []sched.Queue, id sched.QueueID) (int, bool) {
	return slices.BinarySearchFunc(queues, id, func(q sched.Queue, id sched.QueueID) int { return cmp.Compare(q.ID, id) })
}

// first returns the index of the runnable queue that goes before all others, or -1.
// Of equal ones it is the one with the lowest ID.
func first(v *sched.View, before func(i, j int) bool) int {
	best := -1
	for i := range v.Queues {
		if runnable(&v.Queues[i]) && (best < 0 || before(i, best)) {
			best = i
		}
	}
	return best
}

// recheck returns when to look again whether q, for which others wait, has finished
// the work that it had at ReadySince. The end of that work is an event only if q then
// becomes idle: the shim does not report every command. Each wait is an eighth of the
// device time that the work has had, so its end is noticed at most an eighth late, and
// long work is looked at seldom. Without counters there is nothing to look at.
func recheck(q *sched.Queue, now sched.Time) sched.Time {
	const shortest = 500 * time.Microsecond // about what a stop takes
	if !q.Counters.Known {
		return 0
	}
	had := min(q.Served-q.ServedAtReady, now.Sub(q.ReadySince)) // measured service may be of earlier work
	return now.Add(max(had/8, shortest))
}

// earlier returns the earlier of two wake times, of which zero is none.
func earlier(a, b sched.Time) sched.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
