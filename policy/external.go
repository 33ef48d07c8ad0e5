package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// ExternalName is the name of the policy that another process computes. It is not in the
// table: it needs a connection, which internal/extpolicy makes.
const ExternalName = "external"

// External is a policy that another process computes. It asks with a Question and is
// answered with an Answer, both in wire.go. A connection carries them: after every Step it
// sends what Ask returns. It passes an answer to the next Step as a PlanOffered event, with
// a nil Plan if the process has exited or its answer cannot be parsed.
//
// One question is open at a time. Until it is answered the last answer stays in force,
// and queues that the last answered question did not name are granted. If the answer is later
// than the deadline, wrong, or the process is gone, the fallback policy decides until a
// valid answer arrives. It is made anew each time: an old one would charge queues, all at once, for
// the service that they had while the other process decided.
type External struct {
	planner
	deadline     time.Duration
	makeFallback func() sched.Policy
	fallback     sched.Policy  // decides as of the last plan; nil: the other process does
	next         func() uint64 // numbers of questions, unique among the devices of a node

	question Question // the last one
	askedAt  sched.Time
	open     bool // it is not answered
	unsent   bool // Ask has not returned it yet
	stale    bool // an event has arrived since it was asked

	answer   sched.Plan      // the last one
	answered []sched.QueueID // queues of the question that it answers, in order
	failed   bool            // it was wrong, or the process is gone
	begun    bool            // the process has answered, or is gone: it is no longer starting
}

// NewExternal returns a policy that asks another process, and lets a policy of makeFallback
// decide while there is no valid answer. next returns the number of the next question.
func NewExternal(deadline time.Duration, makeFallback func() sched.Policy, next func() uint64) *External {
	return &External{deadline: deadline, makeFallback: makeFallback, fallback: makeFallback(), next: next, failed: true}
}

// Observe implements sched.Observer.
func (p *External) Observe(now sched.Time, ev *sched.Event) {
	if o, ok := p.fallback.(sched.Observer); ok {
		o.Observe(now, ev)
	}
	if ev.Kind != sched.PlanOffered {
		p.stale = true
		return
	}
	p.begun = true
	switch {
	case ev.Plan == nil:
		p.failed, p.open = true, false // ask again, perhaps a new process
	case !p.open || ev.Number != p.question.Number: // the answer to no question, or to an old one
	default:
		p.open, p.answer, p.answered = false, *ev.Plan, p.answered[:0]
		for i := range p.question.Queues {
			p.answered = append(p.answered, p.question.Queues[i].ID)
		}
		p.failed = !p.valid()
	}
}

// valid reports whether the answer grants only queues that the question named, and at most
// one short slice: with two short slices on a device neither queue makes progress.
func (p *External) valid() bool {
	short := 0
	var limit time.Duration
	for _, d := range p.question.Devices {
		limit = max(limit, d.MinSharedSlice)
	}
	for _, g := range p.answer.Grants {
		if _, named := slices.BinarySearch(p.answered, g.Queue); !named {
			return false
		}
		if g.Slice > 0 && g.Slice < limit {
			short++
		}
	}
	return short <= 1
}

// late reports whether the open question should have been answered by now.
func (p *External) late(now sched.Time) bool { return p.open && now >= p.askedAt.Add(p.deadline) }

// Plan implements sched.Policy.
func (p *External) Plan(v *sched.View) sched.Plan {
	if p.answer.Wake > 0 && v.Now >= p.answer.Wake {
		p.stale, p.answer.Wake = true, 0
	}
	// After a failure the process is asked again, but not more often than once a
	// deadline.
	retry := p.failed && p.askedAt > 0 && v.Now < p.askedAt.Add(p.deadline)
	if !p.open && !retry && (p.stale || p.failed) {
		p.ask(v)
	}
	if p.failed || p.late(v.Now) {
		if p.fallback == nil {
			p.fallback = p.makeFallback()
		}
		plan := p.fallback.Plan(v)
		if next := p.askedAt.Add(p.deadline); next > v.Now {
			plan.Wake = earlier(plan.Wake, next)
		}
		return plan
	}
	p.fallback = nil
	return p.follow(v)
}

// follow returns the last answer as a plan.
func (p *External) follow(v *sched.View) sched.Plan {
	p.begin()
	for i := range v.Queues {
		if _, known := slices.BinarySearch(p.answered, v.Queues[i].ID); !known {
			p.grant(&v.Queues[i], sched.ByDefault)
		}
	}
	for _, g := range p.answer.Grants {
		if _, open := index(v.Queues, g.Queue); open { // else it has closed since the question
			p.grants = append(p.grants, g)
		}
	}
	wake := p.answer.Wake
	if p.open {
		wake = earlier(wake, p.askedAt.Add(p.deadline))
	}
	return p.plan(wake)
}

// Ask returns the question to send, if there is one. It is valid until the next Step.
func (p *External) Ask() (*Question, bool) {
	if !p.unsent {
		return nil, false
	}
	p.unsent = false
	return &p.question, true
}

func (p *External) ask(v *sched.View) {
	p.askedAt, p.open, p.unsent, p.stale = v.Now, true, true, false
	p.question.fill(p.next(), v)
}

// FallingBack reports whether the fallback policy decides, and why.
func (p *External) FallingBack(now sched.Time) (why string, yes bool) {
	switch {
	case p.late(now) && !p.begun:
		return fmt.Sprintf("it has not answered within %v, and may still be starting", p.deadline), true
	case p.late(now):
		return fmt.Sprintf("it has not answered within %v", p.deadline), true
	case !p.begun:
		return "its process is starting", true
	case p.failed:
		return "it has given no valid answer", true
	}
	return "", false
}
