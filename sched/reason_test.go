package sched_test

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// reasonNode is a scheduler whose policy grants queue 1 a slice and says why, and says why
// batch queues wait. Queue 2 is one.
type reasonNode struct {
	s      *sched.Scheduler
	plan   sched.Plan
	now    sched.Time
	events []sched.Event
}

func newReasonNode() *reasonNode {
	n := &reasonNode{}
	n.plan.Grants = []sched.Grant{{Queue: 1, Slice: 5 * ms, Bound: 3, Reason: sched.IsOnline}}
	n.plan.Waiting[sched.Batch] = sched.OtherTurn
	n.s = sched.New(sched.Config{}, sched.PolicyChoice{Name: "test", Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return n.plan }) }})
	can := sched.CanInterrupt | sched.CanSlice | sched.CanBound
	n.events = []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms}},
		{Kind: sched.QueueOpened, Queue: 1, Process: 11, Device: "gpu0", Can: can, Attr: sched.Attr{Class: sched.Online}},
		{Kind: sched.QueueOpened, Queue: 2, Process: 12, Device: "gpu0", Can: can, Attr: sched.Attr{Class: sched.Batch}},
	}
	return n
}

// step calls the scheduler with events and returns its decisions. Actions take no time.
func (n *reasonNode) step(events ...sched.Event) (all []sched.Decision) {
	n.events = append(n.events, events...)
	for again := true; again; again = len(n.events) > 0 {
		actions, _ := n.s.Step(n.now, n.events)
		all = append(all, n.s.Decisions()...)
		n.events = n.events[:0]
		for _, a := range actions {
			n.events = append(n.events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
	}
	return all
}

// TestDecisionsAreChanges checks what a decision contains, and that what does not change is
// not decided again.
func TestDecisionsAreChanges(t *testing.T) {
	n := newReasonNode()
	n.now = sched.Time(time.Second)
	got := n.step()
	want := []sched.Decision{
		{Queue: 1, Process: 11, Device: "gpu0", Policy: "test", Decided: sched.Decided{Since: n.now, Slice: 5 * ms, Bound: 3, Run: true, Reason: sched.IsOnline}},
		{Queue: 2, Process: 12, Device: "gpu0", Policy: "test", Decided: sched.Decided{Since: n.now, Reason: sched.OtherTurn}},
	}
	number := got[0].Number
	for i := range got {
		if got[i].Number != number {
			t.Errorf("decisions of the same plan have the numbers %d and %d", number, got[i].Number)
		}
		got[i].Number = 0
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	n.now = n.now.Add(ms)
	if got := n.step(sched.Event{Kind: sched.PlanOffered}); len(got) > 0 {
		t.Errorf("the same plan again: got %+v, want no decisions", got)
	}
	for _, change := range []func(*sched.Grant){
		func(g *sched.Grant) { g.Slice = 6 * ms },
		func(g *sched.Grant) { g.Bound = 4 },
		func(g *sched.Grant) { g.Reason = sched.ItsTurn },
	} {
		n.now = n.now.Add(ms)
		change(&n.plan.Grants[0])
		got := n.step(sched.Event{Kind: sched.PlanOffered})
		g := n.plan.Grants[0]
		if want := (sched.Decided{Since: n.now, Slice: g.Slice, Bound: g.Bound, Run: true, Reason: g.Reason}); len(got) != 1 || got[0].Decided != want || got[0].Number <= number {
			t.Errorf("got %+v, want one later decision, %+v", got, want)
		} else {
			number = got[0].Number
		}
	}
	n.now = n.now.Add(ms)
	n.plan.Waiting[sched.Batch] = sched.InBurst
	n.step(sched.Event{Kind: sched.PlanOffered})
	if got, want := queueOf(n.s, 2).Decided, (sched.Decided{Since: n.now, Reason: sched.InBurst}); got != want {
		t.Errorf("queue 2 waits for another reason: got %+v, want %+v", got, want)
	}
}

// TestReasonsOfTheScheduler checks that the scheduler's own reasons replace those of the
// policy: a pause, a floor turn, a policy that is overruled, and the end of the daemon.
func TestReasonsOfTheScheduler(t *testing.T) {
	check := func(n *reasonNode, what string, want ...sched.Reason) {
		t.Helper()
		for i, q := range n.s.Queues(nil) {
			if q.Decided.Reason != want[i] {
				t.Errorf("%s: queue %d has the reason %q, want %q", what, q.ID, q.Decided.Reason, want[i])
			}
		}
	}
	n := newReasonNode()
	n.step()
	check(n, "at first", sched.IsOnline, sched.OtherTurn)
	online := sched.Attr{Class: sched.Online, Paused: true}
	n.step(sched.Event{Kind: sched.AttrsChanged, Queue: 1, Attr: online})
	check(n, "queue 1 is paused", sched.UserPaused, sched.OtherTurn)
	online.Paused = false
	n.step(sched.Event{Kind: sched.AttrsChanged, Queue: 1, Attr: online})
	floor := false
	for ; n.now < sched.Time(1500*ms); n.now = n.now.Add(ms) {
		n.step()
		floor = floor || queueOf(n.s, 2).Decided.Reason == sched.FloorTurn
	}
	if !floor {
		t.Error("queue 2 had no floor turn within 1.5 s")
	}
	check(n, "after a floor turn", sched.IsOnline, sched.OtherTurn)
	n.step(sched.Event{Kind: sched.ShutdownStarted})
	check(n, "at the end", sched.ShuttingDown, sched.ShuttingDown)

	n = newReasonNode()
	n.plan.Grants = nil // no queue may run: a mistake after two seconds
	for ; n.now < sched.Time(2500*ms); n.now = n.now.Add(ms) {
		n.step()
	}
	check(n, "the policy lets no queue run", sched.PolicyOverruled, sched.PolicyOverruled)
}

// TestReasonsHaveNames checks that every reason has a name of its own.
func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{"": true}
	for _, r := range sched.Reasons() {
		if seen[r.String()] {
			t.Errorf("reason %d has no name of its own: %q", r, r)
		}
		seen[r.String()] = true
	}
	if end := sched.Reason(len(seen)); end.String() != "" || (end+1).String() != "" {
		t.Errorf("reasons that do not exist have the names %q and %q", end, end+1)
	}
	if !seen[sched.ByDefault.String()] || !seen[sched.ShuttingDown.String()] {
		t.Error("the first or the last reason is not listed")
	}
}
