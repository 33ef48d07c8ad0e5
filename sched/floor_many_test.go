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

// TestFloorCountsWhatAStopLeavesOnTheDevice checks that a queue with commands of 20 ms gets its
// share by its floor turns, of 50 ms, and not much more. When it is held, all that are in flight
// still run; when it is deactivated, the one that runs. So it is stopped when that is enough.
func TestFloorCountsWhatAStopLeavesOnTheDevice(t *testing.T) {
	const each, length = 20 * ms, 5 * time.Minute
	for _, c := range []struct {
		can         sched.Ability
		inFlight    uint64
		least, most time.Duration // of what it has had of a turn then
	}{
		{sched.CanHold, 3, 20 * ms, 30 * ms},
		{sched.CanHold, 1, 40 * ms, 45 * ms},
		{sched.CanDeactivate, 3, 40 * ms, 47 * ms},
		{sched.CanDeactivate, 1, 40 * ms, 47 * ms},
		{sched.CanInterrupt, 1, 49 * ms, 51 * ms},
	} {
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return only(1) }})
		events := []sched.Event{
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: c.can},
			{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: c.can},
		}
		counters := sched.Counters{Submitted: 1 << 40}
		stopped, had, ran, turn, atStop := false, time.Duration(0), time.Duration(0), time.Duration(0), time.Duration(0)
		for now := sched.Time(0); now < sched.Time(length); now = now.Add(ms) {
			if !stopped {
				counters.Launched = counters.Completed + c.inFlight
			}
			if !stopped || c.can != sched.CanInterrupt && counters.Launched > counters.Completed && (c.can == sched.CanHold || ran > 0) {
				had += ms / 2 // the other half is queue 1's
				ran += ms / 2
			}
			if ran == each {
				ran = 0
				counters.Completed++
			}
			events = append(events, sched.Event{Kind: sched.Progressed, Queue: 2, Counters: counters})
			for len(events) > 0 {
				actions, _ := s.Step(now, events)
				events = events[:0]
				for _, a := range actions {
					events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
					if stopped = a.Verb == sched.Stop; stopped {
						atStop = had - turn
					} else {
						turn = had
					}
				}
			}
		}
		if got := had.Seconds() / length.Seconds(); got < 0.02 || got > 0.03 {
			t.Errorf("%+v: got %.4f of the device, want 0.02 to 0.03", c, got)
		}
		if atStop < c.least || atStop > c.most {
			t.Errorf("%+v: stopped when it had %v of its last turn", c, atStop)
		}
	}
}

// TestFloorTurnIsSoonerIfQueuesLeave checks that the queues that stay are searched again when fewer
// than three quarters of them are left: each has a larger share then, and starves sooner.
func TestFloorTurnIsSoonerIfQueuesLeave(t *testing.T) {
	const queues = 21
	period := func(n int) time.Duration { return 45 * ms * time.Duration(n) * 4 } // nine tenths of a turn, of 0.25/n of the time
	for _, c := range []struct {
		leave int
		want  time.Duration
	}{{0, period(21)}, {5, period(21)}, {6, period(15)}} {
		s := sched.New(sched.Config{StallLimit: time.Hour}, sched.PolicyChoice{Make: func() sched.Policy { return only(1) }})
		var events []sched.Event
		for id := sched.QueueID(1); id <= queues; id++ {
			events = append(events, sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "gpu0", Can: sched.CanInterrupt})
		}
		turn := sched.Never
		for now := sched.Time(0); turn == sched.Never && now < sched.Time(10*time.Second); now = now.Add(ms) {
			if now == sched.Time(time.Second) {
				for i := range c.leave {
					events = append(events, sched.Event{Kind: sched.QueueClosed, Queue: sched.QueueID(queues - i)})
				}
			}
			actions, _ := s.Step(now, events)
			events = events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
				if a.Verb == sched.Start {
					turn = now
				}
			}
		}
		if got := time.Duration(turn); got < c.want || got > c.want+2*ms {
			t.Errorf("%d of %d queues leave: the first floor turn is after %v, want %v", c.leave, queues, got, c.want)
		}
	}
}
