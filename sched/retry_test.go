package sched_test

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestFailedSettingIsTriedAgainAfterAPause checks that a slice or bound that cannot be set is
// tried again after 10 ms, twice as long each time, up to 1 s: not at once, which would keep
// the daemon busy. The same holds for setting back what a queue no longer supports.
func TestFailedSettingIsTriedAgainAfterAPause(t *testing.T) {
	for name, grant := range map[string]sched.Grant{
		"slice": {Queue: 1, Slice: 5 * ms}, "minimum slice": {Queue: 1, Slice: sched.MinSlice}, "bound": {Queue: 1, Bound: 4}, "bound of 1": {Queue: 1, Bound: 1},
	} {
		for _, c := range []struct {
			outcome sched.Outcome
			set     bool // one value was set before
		}{{sched.Refused, false}, {sched.Refused, true}, {sched.Unsupported, true}} {
			p := plans{"": {Grants: []sched.Grant{grant}}}
			s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
			events := []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanSlice | sched.CanBound}}
			if c.set {
				actions, _ := s.Step(0, events)
				s.Step(0, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: actions[0].ID}})
				p[""] = sched.Plan{Grants: []sched.Grant{{Queue: 1, Slice: 2 * grant.Slice, Bound: 2 * grant.Bound}}}
				events = []sched.Event{{Kind: sched.PlanOffered}}
			}
			var tries []sched.Time
			for now := sched.Time(0); now < sched.Time(5*time.Second) && len(tries) < 100; {
				actions, wake := s.Step(now, events)
				events = events[:0]
				for _, a := range actions {
					tries = append(tries, now)
					events = append(events, sched.Event{Kind: sched.ActionDone, Queue: 1, Action: a.ID, Outcome: c.outcome})
				}
				if len(actions) == 0 {
					now = wake
				}
			}
			for i, pause := 1, 10*ms; i < len(tries); i, pause = i+1, min(2*pause, time.Second) {
				if got := tries[i].Sub(tries[i-1]); got != pause {
					t.Errorf("%s, %v, set before %v: pause %d is %v, want %v", name, c.outcome, c.set, i, got, pause)
					break
				}
			}
			if len(tries) < 5 {
				t.Errorf("%s, %v, set before %v: tried %d times in 5 s, want more", name, c.outcome, c.set, len(tries))
			}
		}
	}
}

// TestFailedStartIsTriedAgainAfterAPause checks the same for a start: no queue stays stopped.
func TestFailedStartIsTriedAgainAfterAPause(t *testing.T) {
	for _, outcome := range []sched.Outcome{sched.Refused, sched.Unsupported} {
		p := plans{}
		s := sched.New(sched.Config{Floor: -1, StallLimit: time.Hour}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
		actions, _ := s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt}})
		s.Step(0, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: actions[0].ID}})
		p[""] = grants(1)
		events := []sched.Event{{Kind: sched.PlanOffered}}
		now := sched.Time(0)
		for i, pause := 0, 10*ms; i < 10; i, pause = i+1, min(2*pause, time.Second) {
			actions, _ := s.Step(now, events)
			if len(actions) != 1 || actions[0].Verb != sched.Start {
				t.Fatalf("%v: at %v got %v, want start %d", outcome, time.Duration(now), actions, i+1)
			}
			more, wake := s.Step(now, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: actions[0].ID, Outcome: outcome}})
			if len(more) != 0 || wake != now.Add(pause) {
				t.Fatalf("%v: got %v and the next look after %v, want none for %v", outcome, more, wake.Sub(now), pause)
			}
			now, events = wake, nil
		}
	}
}

// TestUnsupportedShortSliceBlocksNoOther checks that a queue which turns out not to support slices
// keeps the slice that it has, so that another queue may have a short one. That stays so when the
// device is opened again, for example because its limits have changed.
func TestUnsupportedShortSliceBlocksNoOther(t *testing.T) {
	short := func(id sched.QueueID) sched.Plan {
		return sched.Plan{Grants: []sched.Grant{{Queue: id, Slice: sched.MinSlice}, {Queue: 3 - id}}}
	}
	p := plans{"": short(1)}
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
	opened := sched.Event{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms, MinSharedSlice: 200 * time.Microsecond}}
	actions, _ := s.Step(0, []sched.Event{
		opened,
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanSlice},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanSlice},
	})
	if len(actions) != 1 || actions[0].Queue != 1 || actions[0].Slice != sched.MinSlice {
		t.Fatalf("got %v, want the minimum slice for queue 1", actions)
	}
	p[""] = short(2)
	actions, _ = s.Step(1, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: actions[0].ID, Outcome: sched.Unsupported}})
	if len(actions) != 1 || actions[0].Queue != 2 || actions[0].Slice != sched.MinSlice {
		t.Errorf("got %v, want the minimum slice for queue 2", actions)
	}
	p[""] = grants(1, 2)
	actions, _ = s.Step(2, []sched.Event{{Kind: sched.ActionDone, Queue: 2, Action: actions[0].ID}})
	p[""] = short(2)
	actions, _ = s.Step(3, []sched.Event{opened, {Kind: sched.ActionDone, Queue: 2, Action: actions[0].ID}})
	if len(actions) != 1 || actions[0].Queue != 2 || actions[0].Slice != sched.MinSlice {
		t.Errorf("the device was opened again: got %v, want the minimum slice for queue 2", actions)
	}
}

// TestQueueWithAShortSliceStaysOffBesideAnother checks that an interrupted queue whose slice is too
// short to share the device, and could not be set back, is not started in the step in which
// another queue gets such a slice: the two would keep each other from making progress.
func TestQueueWithAShortSliceStaysOffBesideAnother(t *testing.T) {
	const can = sched.CanInterrupt | sched.CanSlice
	p := plans{"": {Grants: []sched.Grant{{Queue: 2, Slice: sched.MinSlice}}}}
	s := sched.New(sched.Config{Floor: -1, StallLimit: time.Hour}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
	step := func(now sched.Time, plan sched.Plan, events ...sched.Event) []sched.Action {
		p[""] = plan
		actions, _ := s.Step(now, append(events, sched.Event{Kind: sched.PlanOffered}))
		return slices.Clone(actions)
	}
	done := func(actions []sched.Action, outcome sched.Outcome) (events []sched.Event) {
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Outcome: outcome})
		}
		return events
	}
	actions := step(0, grants(1), // queue 2 is stopped with the minimum slice
		done(step(0, sched.Plan{Grants: []sched.Grant{{Queue: 1}, {Queue: 2, Slice: sched.MinSlice}}},
			sched.Event{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms, MinSharedSlice: 200 * time.Microsecond}},
			sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: can},
			sched.Event{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: can},
		), sched.Done)...)
	actions = step(0, grants(1, 2), done(actions, sched.Done)...)
	if len(actions) != 1 || actions[0].Queue != 2 || actions[0].Verb != sched.SetSlice || queueOf(s, 2).State != sched.Stopped {
		t.Fatalf("got %v, want the slice of queue 2 to be set back before it starts", actions)
	}
	both := sched.Plan{Grants: []sched.Grant{{Queue: 1, Slice: sched.MinSlice}, {Queue: 2}}}
	actions = step(0, both, done(actions, sched.Refused)...)
	if len(actions) != 1 || actions[0].Queue != 1 || actions[0].Slice != sched.MinSlice {
		t.Errorf("got %v, want the minimum slice for queue 1 alone", actions)
	}
	actions = step(sched.Time(10*ms), both, done(actions, sched.Done)...)
	actions = step(sched.Time(10*ms), both, done(actions, sched.Done)...)
	if len(actions) != 1 || actions[0].Queue != 2 || actions[0].Verb != sched.Start {
		t.Errorf("got %v, want queue 2 to start when its slice is set back", actions)
	}
}
