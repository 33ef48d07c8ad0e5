package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// edf, earliest deadline first, runs the queue whose work is due first; kedf the
// k first together. Who has no deadline comes last, in order of arrival.
//
// Under overload the rule alone fails everybody: the latest of all is always
// the most urgent, and makes the next one late too (the domino effect). So work
// that is late by tardy is hopeless, and comes after all that may be in time.
type edf struct {
	knobs
	planner
	k     int
	tardy time.Duration
	order []urgency // of those with work
}

// hope is what can be had of a queue by running it, the best first.
type hope uint8

const (
	timely   hope = iota // to be in time, or not much too late
	hopeless             // to end what is much too late
	undated              // to end it some day
)

// urgency is a queue's place in line.
type urgency struct {
	hope  hope
	due   sched.Time
	queue sched.QueueID
}

func newEDF() sched.Policy { return makeEDF(1) }

func newKEDF() sched.Policy {
	p := makeEDF(2)
	p.knobs = append(p.knobs, intKnob("k", &p.k, 1, 1<<16, "how many queues run together"))
	return p
}

func makeEDF(k int) *edf {
	p := &edf{k: k, tardy: 100 * time.Millisecond}
	p.knobs = knobs{tardyKnob(&p.tardy)}
	return p
}

func tardyKnob(v *time.Duration) knob {
	return durationKnob("tardy", v, 0, time.Hour, "how much too late work comes after all that may be in time")
}

// Plan implements sched.Policy.
func (p *edf) Plan(v *sched.View) sched.Plan {
	p.order = p.order[:0]
	for i := range v.Queues {
		if q := &v.Queues[i]; contends(q) {
			p.order = append(p.order, p.urgencyOf(q, v.Now))
		}
	}
	if len(p.order) == 0 {
		p.only(v, func(int) bool { return false })
		return p.plan(0)
	}
	slices.SortFunc(p.order, urgency.compare)
	k := min(p.k, len(p.order))
	chosen, waiting := p.order[:k], p.order[k:]
	p.only(v, func(i int) bool {
		q := &v.Queues[i]
		return contends(q) && p.urgencyOf(q, v.Now).compare(chosen[k-1]) <= 0
	})

	// The order changes by itself when one that runs becomes hopeless and
	// another with a deadline waits.
	wake := sched.Time(0)
	if len(waiting) > 0 && waiting[0].hope != undated {
		for _, u := range chosen {
			if u.hope == timely {
				wake = earlier(wake, u.due.Add(p.tardy).Add(1))
			}
		}
	}
	return p.plan(wake)
}

func (a urgency) compare(b urgency) int {
	switch {
	case a.hope != b.hope:
		return cmp.Compare(a.hope, b.hope)
	case a.due != b.due:
		return cmp.Compare(a.due, b.due)
	}
	return cmp.Compare(a.queue, b.queue)
}

func (p *edf) urgencyOf(q *sched.Queue, now sched.Time) urgency {
	if q.Attr.Deadline <= 0 {
		return urgency{undated, q.ReadySince, q.ID}
	}
	due := q.ReadySince.Add(q.Attr.Deadline)
	if now > due.Add(p.tardy) {
		return urgency{hopeless, due, q.ID}
	}
	return urgency{timely, due, q.ID}
}
