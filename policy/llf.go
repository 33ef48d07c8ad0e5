package policy

import (
	"cmp"
	"math"
	"time"

	"github.com/giveway/giveway/sched"
)

// llf, least laxity first, runs the queue that can least afford to wait. Laxity
// is the time until the deadline minus the remaining work. If the laxity attribute
// is set, it is that value minus the time that the work has waited. The laxity of
// the running queue stands still and that of the others falls, so the order
// changes as time passes; Wake is the time of the next change.
//
// Two queues with the same laxity would change places all the time. So a queue
// goes ahead of the running one only when its laxity is lower by hysteresis, which
// is also how much later its work can be for that.
//
// Work without a deadline comes last, in order of arrival. Work that is too late,
// as in edf, comes after all other work with a deadline.
type llf struct {
	params
	planner
	hysteresis time.Duration
	tardy      time.Duration
	running    sched.QueueID
}

// slack is the position of a queue in the order.
type slack struct {
	group  dueGroup
	laxity time.Duration // for queues without a deadline, when they became ready
	work   time.Duration // remaining work: how long the laxity stands still if the queue runs
}

const unlimited = time.Duration(math.MaxInt64)

func newLLF() sched.Policy {
	p := &llf{hysteresis: time.Millisecond, tardy: 100 * time.Millisecond}
	p.params = params{
		durationParam("hysteresis", &p.hysteresis, 10*time.Microsecond, time.Second, "how much lower the laxity of a queue must be to go ahead of the running one"),
		tardyParam(&p.tardy),
	}
	return p
}

// Plan implements sched.Policy.
func (p *llf) Plan(v *sched.View) sched.Plan {
	slackOf := func(i int) slack { return p.slackOf(&v.Queues[i], v.Now) }
	before := func(i, j int) bool { return slackOf(i).before(slackOf(j), 0) }
	chosen := firstOf(v, knownBusy, before)
	current, ok := index(v.Queues, p.running)
	if ok && knownBusy(&v.Queues[current]) && !slackOf(chosen).before(slackOf(current), p.hysteresis) {
		chosen = current
	}
	p.grantFirst(v, chosen, before)
	p.running = 0
	if chosen < 0 {
		return p.plan(0)
	}
	p.running = v.Queues[chosen].ID
	return p.plan(p.wake(v, chosen, slackOf(chosen)))
}

// wake returns when a waiting queue goes ahead of the running one, or the running
// one becomes too late or has finished its work and has more.
func (p *llf) wake(v *sched.View, running int, own slack) sched.Time {
	var wake sched.Time
	for i := range v.Queues {
		q := &v.Queues[i]
		if i == running || !q.Runnable() {
			continue
		}
		s := p.slackOf(q, v.Now)
		if s.group != noDeadline || own.group == noDeadline {
			wake = earlier(wake, recheck(&v.Queues[running], v.Now))
		}
		if s.group == own.group {
			// When the running queue has done its expected work, its laxity
			// falls like that of the others, and no other goes ahead of it.
			gap := s.laxity - own.laxity + p.hysteresis
			if uncounted(q) { // runs beside the other as soon as it is not after it
				gap -= p.hysteresis
			}
			if gap <= own.work && (gap > 0 || !uncounted(q)) {
				wake = earlier(wake, v.Now.Add(max(gap, 1)))
			}
		}
		if s.group != noDeadline && own.group == mayBeInTime && own.work != unlimited {
			wake = earlier(wake, v.Now.Add(own.work).Add(own.laxity).Add(p.tardy).Add(1))
		}
	}
	return wake
}

// before reports whether a goes ahead of b, with a laxity lower by at least lead.
func (a slack) before(b slack, lead time.Duration) bool {
	if c := cmp.Compare(a.group, b.group); c != 0 {
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
		s.laxity, s.work = q.Attr.Laxity-waited+had, unlimited
	case q.Attr.Deadline > 0:
		s.laxity = q.Attr.Deadline - waited - s.work
	default:
		return slack{group: noDeadline, laxity: time.Duration(q.ReadySince)}
	}
	if s.laxity < -p.tardy {
		s.group = tooLate
	}
	return s
}
