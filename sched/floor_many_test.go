package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestManyStarvingQueuesShareTheWindow checks that on a device with slices each of 200 queues
// that the policy does not grant has a floor turn every five seconds: the turns of many queues
// are shorter. Queues that were opened together have their first turns in the order of IDs.
func TestManyStarvingQueuesShareTheWindow(t *testing.T) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return only(1) }})
	events := []sched.Event{{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms}}}
	for id := range sched.QueueID(201) {
		events = append(events, sched.Event{Kind: sched.QueueOpened, Queue: id + 1, Device: "gpu0", Can: sched.CanInterrupt | sched.CanSlice})
	}
	last, longest := map[sched.QueueID]sched.Time{}, time.Duration(0)
	for now := sched.Time(0); now < sched.Time(30*time.Second); {
		actions, wake := s.Step(now, events)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			if a.Verb == sched.Start {
				if was, ok := last[a.Queue]; ok {
					longest = max(longest, now.Sub(was))
				} else if int(a.Queue) != len(last)+2 {
					t.Errorf("queue %d has its first turn after %d others", a.Queue, len(last))
				}
				last[a.Queue] = now
			}
		}
		if len(actions) == 0 {
			now = wake
		}
	}
	if len(last) != 200 || longest > 5*time.Second {
		t.Errorf("%d queues had floor turns, one after %v; want 200, each within 5 s", len(last), longest)
	}
}

// TestFloorCountsWhatAStopLeavesOnTheDevice checks that a queue with long commands, three of
// them in flight, gets its share by its floor turns and not much more. When it is held, the
// three still run; when it is deactivated, the one that runs.
func TestFloorCountsWhatAStopLeavesOnTheDevice(t *testing.T) {
	const each, length = 20 * ms, 5 * time.Minute
	for _, can := range []sched.Ability{sched.CanHold, sched.CanDeactivate} {
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return only(1) }})
		events := []sched.Event{
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: can},
			{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: can},
		}
		c := sched.Counters{Submitted: 1 << 40}
		stopped, had, ran := false, time.Duration(0), time.Duration(0)
		for now := sched.Time(0); now < sched.Time(length); now = now.Add(ms) {
			if !stopped {
				c.Launched = c.Completed + 3
			}
			if !stopped || c.Launched > c.Completed && (can == sched.CanHold || ran > 0) {
				had += ms / 2 // the other half is queue 1's
				ran += ms / 2
			}
			if ran == each {
				ran = 0
				c.Completed++
			}
			events = append(events, sched.Event{Kind: sched.Progressed, Queue: 2, Counters: c})
			for len(events) > 0 {
				actions, _ := s.Step(now, events)
				events = events[:0]
				for _, a := range actions {
					events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
					stopped = a.Verb == sched.Stop
				}
			}
		}
		if got := had.Seconds() / length.Seconds(); got < 0.02 || got > 0.03 {
			t.Errorf("can %v: got %.4f of the device, want 0.02 to 0.03", can, got)
		}
	}
}
