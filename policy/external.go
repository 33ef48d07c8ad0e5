package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// External is a policy that lives in another process. It is asked with a
// Question and answers with an Answer, both in wire.go; whoever has the
// connection carries them:
//
//	after every Step:     External.Ask   -> question out
//	when an answer comes: Event{Kind: PlanOffered, Number, Plan} -> next Step
//	when the process dies or says nonsense: the same with a nil Plan
//
// One question is out at a time, however much happens meanwhile. Until it is
// answered the last answer holds, for at most the patience; queues that the
// last question did not name run freely. A policy that has died, or is silent
// for longer, has no plan, and then the scheduler's guard overrules it.
type External struct {
	knobs
	planner
	patience time.Duration

	asked    uint64 // number of the last question
	askedAt  sched.Time
	open     bool            // it is not answered yet
	unsent   bool            // and has not been fetched by Ask
	stale    bool            // something has happened since
	dead     bool            // nobody is there to answer
	named    []sched.QueueID // by the last answered question, in order
	naming   []sched.QueueID // by the last question
	answer   []sched.Grant
	wake     sched.Time
	question Question
}

// NewExternal returns a policy that nobody has answered for yet.
func NewExternal() *External {
	p := &External{patience: 100 * time.Millisecond}
	p.knobs = knobs{
		durationKnob("patience", &p.patience, time.Millisecond, 10*time.Second, "how long an answer may take before the policy is overruled"),
	}
	return p
}

// Observe implements sched.Observer: it takes in answers.
func (p *External) Observe(_ sched.Time, ev *sched.Event) {
	if ev.Kind != sched.PlanOffered {
		p.stale = true
		return
	}
	switch {
	case ev.Plan == nil:
		p.dead, p.open, p.stale = true, false, true // whoever is there next is asked
	case !p.open || ev.Number != p.asked: // late, or made up: no answer
	default:
		p.dead, p.open = false, false
		p.answer = append(p.answer[:0], ev.Plan.Grants...)
		p.wake = ev.Plan.Wake
		p.named = append(p.named[:0], p.naming...)
	}
}

// Plan implements sched.Policy.
func (p *External) Plan(v *sched.View) sched.Plan {
	if p.wake > 0 && v.Now >= p.wake {
		p.stale, p.wake = true, 0
	}
	// Whoever talked nonsense, or took the place of one that died, is asked again
	// after a while.
	soon := p.dead && v.Now < p.askedAt.Add(p.patience)
	if !p.open && !soon && (p.stale || p.asked == 0) {
		p.ask(v)
	}
	if p.dead || p.open && v.Now >= p.askedAt.Add(p.patience) { // until an answer comes
		return sched.Plan{Invalid: true, Wake: max(p.askedAt.Add(p.patience), v.Now.Add(p.patience))}
	}
	p.begin()
	i := 0 // in named
	for j := range v.Queues {
		id := v.Queues[j].ID
		for i < len(p.named) && p.named[i] < id {
			i++
		}
		if i == len(p.named) || p.named[i] != id {
			p.grant(&v.Queues[j])
		}
	}
	for _, g := range p.answer {
		if p.answerable(v, g.Queue) {
			p.grants = append(p.grants, g)
		}
	}
	wake := p.wake
	if p.open {
		wake = earlier(wake, p.askedAt.Add(p.patience))
	}
	return p.plan(wake)
}

// answerable reports whether a grant is still worth passing on: one for a queue
// that has closed since the question is no mistake. One for a queue that never
// was is, and the guard is to see it.
func (p *External) answerable(v *sched.View, id sched.QueueID) bool {
	_, asked := find(p.named, id)
	return !asked || has(v.Queues, id)
}

// Ask returns the question to send, if there is one. It is valid until the next
// Step.
func (p *External) Ask() (*Question, bool) {
	if !p.unsent {
		return nil, false
	}
	p.unsent = false
	return &p.question, true
}

func (p *External) ask(v *sched.View) {
	p.asked++
	p.askedAt, p.open, p.unsent, p.stale = v.Now, true, true, false
	p.naming = p.naming[:0]
	for i := range v.Queues {
		p.naming = append(p.naming, v.Queues[i].ID)
	}
	p.question.fill(p.asked, v)
}
