package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// grantUpTo is a policy that grants the queues with the lowest IDs.
type grantUpTo sched.QueueID

func (p grantUpTo) Plan(v *sched.View) (plan sched.Plan) {
	for i := range v.Queues {
		if v.Queues[i].ID <= sched.QueueID(p) {
			plan.Grants = append(plan.Grants, sched.Grant{Queue: v.Queues[i].ID})
		}
	}
	return plan
}

// floorTurns runs granted and starving queues, and returns when each floor turn of a
// starving queue began and ended. Actions take no time.
func floorTurns(granted, starving int, length time.Duration) (turns [][2]sched.Time) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return grantUpTo(granted) }})
	var events []sched.Event
	for id := range granted + starving {
		events = append(events, sched.Event{Kind: sched.QueueOpened, Queue: sched.QueueID(id + 1), Device: "gpu0", Can: sched.CanInterrupt})
	}
	for now := sched.Time(0); now < sched.Time(length); {
		actions, wake := s.Step(now, events)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			switch {
			case a.Verb == sched.Start:
				turns = append(turns, [2]sched.Time{now, sched.Never})
			case len(turns) > 0:
				turns[len(turns)-1][1] = now
			}
		}
		if len(actions) == 0 {
			now = wake
		}
	}
	return turns
}

// TestFloorRestsBetweenTurns checks that each floor turn is followed by a rest as long:
// the queues that the policy granted have the device to themselves for at least half of
// the time, however many others starve and however long a turn takes on a crowded device.
func TestFloorRestsBetweenTurns(t *testing.T) {
	for _, granted := range []int{1, 3, 20} {
		turns := floorTurns(granted, 6, time.Minute)
		if len(turns) < 50 {
			t.Fatalf("%d granted queues: got %d floor turns in a minute, want at least 50", granted, len(turns))
		}
		for i := 1; i < len(turns)-1; i++ {
			took, rest := turns[i-1][1].Sub(turns[i-1][0]), turns[i][0].Sub(turns[i-1][1])
			if rest < took {
				t.Errorf("%d granted queues: a turn of %v from %v is followed by a rest of %v, want as long", granted, took, turns[i-1][0], rest)
			}
			if most := 8 * 50 * time.Millisecond; took > most {
				t.Errorf("%d granted queues: got a turn of %v, want at most %v", granted, took, most)
			}
		}
	}
}

// TestNoFloorTurnForAQueueThatHasItsShare checks that a queue that the policy grants a short
// slice, and that has the device to itself, gets no floor turn: those would lengthen its
// slice.
func TestNoFloorTurnForAQueueThatHasItsShare(t *testing.T) {
	p := plans{"": {Grants: []sched.Grant{{Queue: 1, Slice: time.Millisecond}}}}
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
	events := []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * time.Millisecond}},
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanSlice},
	}
	var all []sched.Action
	for now := sched.Time(0); now < sched.Time(time.Minute); {
		actions, wake := s.Step(now, events)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: 1, Action: a.ID})
		}
		all = append(all, actions...)
		if len(actions) == 0 {
			now = wake
		}
	}
	if len(all) != 1 {
		t.Errorf("got %d actions in a minute, want the slice alone: %v", len(all), all)
	}
}
