package policy

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/sched"
)

// ExternalName is the name of the policy that another process computes. It is not in the
// table: it needs a connection, which internal/extpolicy makes.
const ExternalName = "external"

// External is a policy that another process computes. It asks with a Question and is
// answered with an Answer, both in wire.go. A connection carries them:
//
//	after every Step:              External.Ask -> question to the process
//	when an answer arrives:        Event{Kind: PlanOffered, Device, Number, Plan} -> next Step
//	when the process exits, or its
//	answer cannot be parsed:       the same event with a nil Plan
//
// One question is open at a time. Until it is answered the last answer stays in force,
// and queues that the last question did not name are granted. If the answer is later
// than the deadline, wrong, or the process is gone, the fallback policy decides until a
// valid answer arrives.
type External struct {
	planner
	deadline time.Duration
	fallback sched.Policy
	next     func() uint64 // numbers of questions, unique among the devices of a node

	open     bool // the last question is not answered
	unsent   bool // and Ask has not returned it yet
	stale    bool // an event has arrived since it was asked
	failed   bool // the process is gone or its last answer was wrong
	number   uint64
	askedAt  sched.Time
	asked    []sched.QueueID // queues of the last question, in order
	answered []sched.QueueID // queues of the last answered question, in order
	grants   []sched.Grant   // of the last valid answer
	wake     sched.Time
	question Question
}

// NewExternal returns a policy that asks another process and lets fallback decide while
// there is no valid answer. next returns the number of the next question.
func NewExternal(deadline time.Duration, fallback sched.Policy, next func() uint64) *External {
	return &External{deadline: deadline, fallback: fallback, next: next, failed: true}
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
	switch {
	case ev.Plan == nil:
		p.failed, p.open, p.stale = true, false, true // ask again, perhaps a new process
	case !p.open || ev.Number != p.number: // the answer to no question, or to an old one
	default:
		p.open, p.failed = false, !p.valid(ev.Plan)
		p.grants = append(p.grants[:0], ev.Plan.Grants...)
		p.wake = ev.Plan.Wake
		p.answered = append(p.answered[:0], p.asked...)
	}
}

// valid reports whether a plan grants only queues that the question named, and at most
// one short slice: two short slices on a device would let neither queue make progress.
func (p *External) valid(plan *sched.Plan) bool {
	short, limit := 0, time.Duration(0)
	for _, d := range p.question.Devices {
		limit = max(limit, d.MinSharedSlice)
	}
	for _, g := range plan.Grants {
		if _, named := find(p.asked, g.Queue); !named {
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
	if p.wake > 0 && v.Now >= p.wake {
		p.stale, p.wake = true, 0
	}
	// After a failure the process is asked again, but not more often than once a
	// deadline.
	retry := p.failed && p.askedAt > 0 && v.Now < p.askedAt.Add(p.deadline)
	if !p.open && !retry && (p.stale || p.failed) {
		p.ask(v)
	}
	if p.failed || p.late(v.Now) {
		plan := p.fallback.Plan(v)
		if next := p.askedAt.Add(p.deadline); next > v.Now {
			plan.Wake = earlier(plan.Wake, next)
		}
		return plan
	}
	return p.follow(v)
}

// follow returns the last answer as a plan.
func (p *External) follow(v *sched.View) sched.Plan {
	p.begin()
	for i := range v.Queues {
		if _, known := find(p.answered, v.Queues[i].ID); !known {
			p.grant(&v.Queues[i])
		}
	}
	for _, g := range p.grants {
		if has(v.Queues, g.Queue) { // else it has closed since the question
			p.planner.grants = append(p.planner.grants, g)
		}
	}
	wake := p.wake
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
	p.number = p.next()
	p.askedAt, p.open, p.unsent, p.stale = v.Now, true, true, false
	p.asked = p.asked[:0]
	for i := range v.Queues {
		p.asked = append(p.asked, v.Queues[i].ID)
	}
	p.question.fill(p.number, v)
}

// FallingBack reports whether the fallback policy decides, and why.
func (p *External) FallingBack(now sched.Time) (why string, yes bool) {
	switch {
	case p.late(now):
		return fmt.Sprintf("it has not answered within %v", p.deadline), true
	case p.failed:
		return "it has given no valid answer", true
	}
	return "", false
}
