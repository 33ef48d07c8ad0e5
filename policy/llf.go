package policy

import (
	"cmp"
	"math"
	"time"

	"github.com/giveway/giveway/sched"
)

// llf, least laxity first, runs the queue that can least afford to wait. Laxity
// is the time until the deadline less the work still to do; or what the owner
// said it was when the work came, less the time it has waited since. That of the
// queue that runs stands still, that of the others falls, so the order changes
// as time goes by, and Wake is when. By the rule alone two queues that are alike
// would change places without end; here one goes ahead of the other only when
// its laxity is less by hysteresis, which is also how late it can make it.
//
// Work without a deadline comes last, in order of arrival; and work that is
// hopeless, as in edf, after all that may be in time.
type llf struct {
	knobs
	planner
	hysteresis time.Duration
	tardy      time.Duration
	running    sched.QueueID
}

// slack is what llf knows of a queue with work.
type slack struct {
	hope   hope
	laxity time.Duration // for those without a deadline, when they became ready
	work   time.Duration // for how long its laxity stands still if it runs
}

const endless = time.Duration(math.MaxInt64)

func newLLF() sched.Policy {
	p := &llf{hysteresis: time.Millisecond, tardy: 100 * time.Millisecond}
	p.knobs = knobs{
		durationKnob("hysteresis", &p.hysteresis, 10*time.Microsecond, time.Second, "how much less laxity it takes to go ahead of the queue that runs"),
		tardyKnob(&p.tardy),
	}
	return p
}

// Plan implements sched.Policy.
func (p *llf) Plan(v *sched.View) sched.Plan {
	first, mine := -1, -1
	var best, own slack
	for i := range v.Queues {
		q := &v.Queues[i]
		if !contends(q) {
			continue
		}
		s := p.slackOf(q, v.Now)
		if q.ID == p.running {
			mine, own = i, s
		}
		if first < 0 || s.before(best, 0) {
			first, best = i, s
		}
	}
	if mine >= 0 && !best.before(own, p.hysteresis) {
		first, best = mine, own
	}
	p.running = 0
	if first >= 0 {
		p.running = v.Queues[first].ID
	}
	p.only(v, func(i int) bool { return i == first })
	return p.plan(p.wake(v, first, best))
}

// wake is when a queue that waits goes ahead of the one that runs, or the one
// that runs becomes hopeless.
func (p *llf) wake(v *sched.View, first int, own slack) sched.Time {
	wake := sched.Time(0)
	for i := range v.Queues {
		q := &v.Queues[i]
		if i == first || !contends(q) || own.hope == undated {
			continue
		}
		s := p.slackOf(q, v.Now)
		if s.hope == own.hope {
			// Once its work is done, or more than was said, the laxity of the
			// one that runs falls with all others and nobody overtakes it.
			if gap := s.laxity - own.laxity + p.hysteresis; gap <= own.work {
				wake = earlier(wake, v.Now.Add(max(gap, 1)))
			}
		}
		if s.hope != undated && own.hope == timely && own.work != endless {
			wake = earlier(wake, v.Now.Add(own.work).Add(own.laxity).Add(p.tardy).Add(1))
		}
	}
	return wake
}

// before reports whether a goes ahead of b where it takes a lead to do so.
func (a slack) before(b slack, lead time.Duration) bool {
	if c := cmp.Compare(a.hope, b.hope); c != 0 {
		return c < 0
	}
	if lead > 0 {
		return a.laxity <= b.laxity-lead
	}
	return a.laxity < b.laxity
}

func (p *llf) slackOf(q *sched.Queue, now sched.Time) slack {
	had := q.Served - q.ServedAtReady
	waited := now.Sub(q.ReadySince)
	s := slack{work: max(q.Attr.Work-had, 0)}
	switch {
	case q.Attr.Laxity > 0 && q.Attr.Work > 0:
		s.laxity = q.Attr.Laxity - waited + min(had, q.Attr.Work)
	case q.Attr.Laxity > 0:
		s.laxity, s.work = q.Attr.Laxity-waited+had, endless
	case q.Attr.Deadline > 0:
		s.laxity = q.Attr.Deadline - waited - s.work
	default:
		return slack{hope: undated, laxity: time.Duration(q.ReadySince)}
	}
	if s.laxity < -p.tardy {
		s.hope = hopeless
	}
	return s
}
