package sched_test

import (
	"testing"

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
