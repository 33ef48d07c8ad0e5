package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// edf, earliest deadline first, runs the queue with the earliest deadline; kedf
// runs the k earliest together. Queues without a deadline come last, in order of
// arrival.
//
// A deadline is the time from when the work became ready to when it is done. Where
// requests are reported it counts from the start of the oldest open request, so that
// it does not move while the commands of the request come and go. Otherwise, and once
// the deadline of the request has passed, it counts from ReadySince. That moves on with
// each group of commands that is finished, in a process that always has commands submitted:
// such a process has one request that never ends, unless it marks its requests.
//
// Under overload the rule alone makes all work late: the work that is latest has
// the earliest deadline and makes the next work late too (the domino effect). So
// work that is late by more than tardy comes after all other work with a deadline.
type edf struct {
	params
	planner
	k         int
	tardy     time.Duration
	urgencies []urgency // of each queue of the view; only those of runnable ones are set
	order     []urgency // of the runnable queues, sorted
}

// dueGroup is the first key of the order in which queues run.
type dueGroup uint8

const (
	mayBeInTime dueGroup = iota // in time, or late by at most tardy
	tooLate                     // late by more than tardy
	noDeadline
)

// urgency is the position of a queue in the order.
type urgency struct {
	group     dueGroup
	due       sched.Time
	queue     sched.QueueID
	uncounted bool
}

func newEDF() sched.Policy { return makeEDF(1) }

func newKEDF() sched.Policy {
	p := makeEDF(2)
	p.params = append(p.params, intParam("k", &p.k, 1, 1<<16, "number of queues that run together"))
	return p
}

func makeEDF(k int) *edf {
	p := &edf{k: k, tardy: 100 * time.Millisecond}
	p.params = params{tardyParam(&p.tardy)}
	return p
}

func tardyParam(v *time.Duration) param {
	return durationParam("tardy", v, 0, time.Hour, "work that is late by more than this comes after all other work with a deadline")
}

// Plan implements sched.Policy.
func (p *edf) Plan(v *sched.View) sched.Plan {
	p.urgencies, p.order = p.urgencies[:0], p.order[:0]
	for i := range v.Queues {
		var u urgency
		if q := &v.Queues[i]; q.Runnable() {
			u = p.urgencyOf(q, v.Now)
			u.uncounted = uncounted(q)
			p.order = append(p.order, u)
		}
		p.urgencies = append(p.urgencies, u)
	}
	slices.SortFunc(p.order, urgency.compare)
	k := 0 // of the order, with the uncounted ones in between
	for known := 0; k < len(p.order) && known < p.k; k++ {
		if !p.order[k].uncounted {
			known++
		}
	}
	chosen, waiting := p.order[:k], p.order[k:]
	p.grantOnly(v, func(i int) bool {
		return v.Queues[i].Runnable() && p.urgencies[i].compare(chosen[k-1]) <= 0
	})

	if len(waiting) == 0 {
		return p.plan(0)
	}
	return p.plan(p.wake(v, chosen, waiting[0].group != noDeadline))
}

// wake returns when the order may change without an event: when a running queue has
// finished its work and has more, or becomes too late and another with a deadline
// waits. New work of a queue with a deadline goes ahead of work without one.
func (p *edf) wake(v *sched.View, running []urgency, deadlineWaits bool) sched.Time {
	var wake sched.Time
	for _, u := range running {
		if deadlineWaits && u.group == mayBeInTime {
			wake = earlier(wake, u.due.Add(p.tardy).Add(1))
		}
		if i, _ := index(v.Queues, u.queue); deadlineWaits || u.group == noDeadline {
			wake = earlier(wake, recheck(&v.Queues[i], v.Now))
		}
	}
	return wake
}

func (a urgency) compare(b urgency) int {
	switch { // cmp.Or would make a plan 60 % slower
	case a.group != b.group:
		return cmp.Compare(a.group, b.group)
	case a.due != b.due:
		return cmp.Compare(a.due, b.due)
	}
	return cmp.Compare(a.queue, b.queue)
}

func (p *edf) urgencyOf(q *sched.Queue, now sched.Time) urgency {
	if q.Attr.Deadline <= 0 {
		return urgency{group: noDeadline, due: q.ReadySince, queue: q.ID}
	}
	due := q.ReadySince.Add(q.Attr.Deadline)
	if requestDue := q.RequestSince.Add(q.Attr.Deadline); q.RequestSince > 0 && now <= requestDue {
		due = min(due, requestDue)
	}
	if now > due.Add(p.tardy) {
		return urgency{group: tooLate, due: due, queue: q.ID}
	}
	return urgency{group: mayBeInTime, due: due, queue: q.ID}
}
