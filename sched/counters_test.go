package sched_test

import (
	"testing"

	"github.com/giveway/giveway/sched"
)

// TestCountersNeverDecrease checks that counters, which come from memory of the process, never
// go back, and that no more commands are completed than launched, nor launched than submitted.
func TestCountersNeverDecrease(t *testing.T) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return only(1) }})
	s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}})
	for i, c := range []struct{ reported, want sched.Counters }{
		{sched.Counters{Submitted: 9, Launched: 7, Completed: 4, Late: 2, Idled: 3}, sched.Counters{Submitted: 9, Launched: 7, Completed: 4, Late: 2, Idled: 3}},
		{sched.Counters{}, sched.Counters{Submitted: 9, Launched: 7, Completed: 4, Late: 2, Idled: 3}},
		{sched.Counters{Submitted: 5, Launched: 50, Completed: 50, Late: 1, Idled: 2}, sched.Counters{Submitted: 9, Launched: 9, Completed: 9, Late: 2, Idled: 3}},
		{sched.Counters{Submitted: 20, Launched: 10, Completed: 15, Late: 3, Idled: 4}, sched.Counters{Submitted: 20, Launched: 10, Completed: 10, Late: 3, Idled: 4}},
	} {
		s.Step(sched.Time(i), []sched.Event{{Kind: sched.Progressed, Queue: 1, Counters: c.reported}})
		c.want.Known = true
		if got := queueOf(s, 1).Counters; got != c.want {
			t.Errorf("report %d, %+v: got %+v, want %+v", i, c.reported, got, c.want)
		}
	}
}
