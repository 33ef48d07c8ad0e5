package policy_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// toWait are the reasons for which a queue waits; all others let it run.
var toWait = map[sched.Reason]bool{
	sched.OtherTurn: true, sched.OnlineWork: true, sched.RequestExpected: true, sched.InBurst: true,
	sched.OtherWork: true, sched.NotFirst: true, sched.UserPaused: true,
}

// TestEveryDecisionHasAReason drives every policy with random events, and checks that each
// change has a reason that fits, and that the changes add up to what the scheduler shows.
func TestEveryDecisionHasAReason(t *testing.T) {
	for _, info := range policy.List() {
		for _, slice := range []time.Duration{0, 2048 * time.Microsecond} {
			t.Run(info.Name+" "+slice.String(), func(t *testing.T) { checkReasons(t, info.Name, slice) })
		}
	}
}

func checkReasons(t *testing.T, name string, slice time.Duration) {
	choice, err := policy.Choose(name, nil)
	if err != nil {
		t.Skipf("policy %s: %v", name, err)
	}
	const seed = 7
	r := rand.New(rand.NewPCG(seed, seed))
	s := sched.New(sched.Config{}, choice)
	can := sched.CanInterrupt
	if slice > 0 {
		can |= sched.CanSlice
	}
	events := []sched.Event{{Kind: sched.DeviceOpened, Device: "d", About: sched.Device{Slice: slice, MinSharedSlice: slice / 10}}}
	const queues = 6
	for id := sched.QueueID(1); id <= queues; id++ {
		ev := sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "d", Can: can}
		ev.Attr.Class, ev.Attr.SLO = sched.Class(id%4), 5*time.Millisecond
		events = append(events, ev)
	}
	var counters [queues + 1]sched.Counters
	runs := map[sched.QueueID]sched.Decided{}
	seen := map[sched.Reason]bool{}
	now := sched.Time(0)
	for range 4000 {
		actions, _ := s.Step(now, events)
		for _, d := range s.Decisions() {
			if d.Reason == sched.NoReason || d.Run == toWait[d.Reason] {
				t.Fatalf("seed %d, at %v: queue %d may run: %v, because of %q", seed, time.Duration(now), d.Queue, d.Run, d.Reason)
			}
			if runs[d.Queue] == d.Decided {
				t.Fatalf("queue %d: decision %+v is no change", d.Queue, d)
			}
			runs[d.Queue], seen[d.Reason] = d.Decided, true
		}
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
		id := sched.QueueID(1 + r.IntN(queues))
		c := &counters[id]
		if c.Known = true; r.IntN(2) == 0 {
			c.Submitted, c.Launched = c.Submitted+1, c.Launched+1
		} else {
			c.Completed = c.Launched
		}
		events = append(events, sched.Event{Kind: sched.Progressed, Queue: id, Counters: *c})
		if r.IntN(50) == 0 {
			attr := sched.Attr{Class: sched.Class(id % 4), SLO: 5 * time.Millisecond, Paused: r.IntN(4) == 0}
			events = append(events, sched.Event{Kind: sched.AttrsChanged, Queue: id, Attr: attr})
		}
		now = now.Add(time.Duration(r.IntN(20)) * time.Millisecond)
	}
	for _, q := range s.Queues(nil) {
		if runs[q.ID] != q.Decided {
			t.Errorf("queue %d: the changes lead to %+v, and the scheduler shows %+v", q.ID, runs[q.ID], q.Decided)
		}
	}
	if !seen[sched.UserPaused] || len(seen) < 2 {
		t.Errorf("only the reasons %v were given", seen)
	}
}

// TestReasonNames checks that each reason has a name of its own.
func TestReasonNames(t *testing.T) {
	names := map[string]sched.Reason{}
	for _, r := range sched.Reasons() {
		if other, ok := names[r.String()]; ok || r.String() == "" {
			t.Errorf("reason %d has the name %q, as %d", r, r, other)
		}
		names[r.String()] = r
	}
}
