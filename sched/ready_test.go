package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestReadySinceMovesWhenTheOldestWorkIsFinished checks since when the oldest unfinished work
// has waited, in a queue that always has work: it moves on when the last command that was
// submitted by then is finished, and not before.
func TestReadySinceMovesWhenTheOldestWorkIsFinished(t *testing.T) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return grantAll{} }})
	s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}})
	for _, step := range []struct {
		at                   sched.Time
		submitted, completed uint64
		want                 sched.Time
	}{
		{1, 3, 0, 1},
		{5, 5, 2, 1},
		{10, 6, 3, 10}, // commands 1 to 3 are finished; 4 to 6 were here by now
		{20, 9, 5, 10},
		{30, 9, 6, 30},
		{40, 9, 9, 30}, // idle
		{50, 10, 9, 50},
	} {
		counters := sched.Counters{Submitted: step.submitted, Launched: step.submitted, Completed: step.completed}
		s.Step(step.at, []sched.Event{{Kind: sched.Progressed, Queue: 1, Counters: counters}})
		if got := queueOf(s, 1).ReadySince; got != step.want {
			t.Errorf("at %d, %d of %d commands finished: ready since %d, want %d", step.at, step.completed, step.submitted, got, step.want)
		}
	}
}

// TestPlanAfterProgress checks after which progress of a queue the policy decides again: if the queue
// becomes ready, also while it is stopped, if it becomes idle, and if it has finished all work that
// it had when it became ready.
func TestPlanAfterProgress(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		count, plan := 0, sched.Plan{}
		if !stopped {
			plan = grants(1)
		}
		s := sched.New(sched.Config{Floor: -1, StallLimit: time.Hour, InversionLimit: -1}, sched.PolicyChoice{Make: func() sched.Policy {
			return planner(func(*sched.View) sched.Plan { count++; return plan })
		}})
		actions, _ := s.Step(0, []sched.Event{
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt},
			{Kind: sched.Progressed, Queue: 1},
		})
		for _, a := range actions {
			s.Step(0, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: a.ID}})
		}
		for i, c := range []struct {
			submitted, completed uint64
			plans                bool
		}{{2, 0, true}, {3, 1, false}, {4, 2, true}, {5, 3, false}, {5, 4, true}, {5, 5, true}, {5, 5, false}} {
			before := count
			s.Step(sched.Time(i+1), []sched.Event{{Kind: sched.Progressed, Queue: 1, Counters: sched.Counters{Submitted: c.submitted, Launched: c.submitted, Completed: c.completed}}})
			if got := count > before; got != c.plans {
				t.Errorf("stopped %v, %d submitted and %d completed: the policy decides again %v, want %v", stopped, c.submitted, c.completed, got, c.plans)
			}
		}
	}
}
