package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestShortFloorTurnsAddUpToTheShare checks that a batch queue has its share of 2 % in any 5 s although
// its floor turns are short while requests are open, and long in the moments in which none is: beside
// requests of 16 ms every 20 ms.
func TestShortFloorTurnsAddUpToTheShare(t *testing.T) {
	const every, took, slice = 20 * ms, 16 * ms, 2 * ms
	plan := sched.Plan{Grants: []sched.Grant{{Queue: 1, Slice: 20 * ms}, {Queue: 2, Slice: sched.MinSlice}}}
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
	can := sched.CanInterrupt | sched.CanSlice
	events := []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: slice, MinSharedSlice: 200 * time.Microsecond}},
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: can, Attr: sched.Attr{Class: sched.Online}},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: can, Attr: sched.Attr{Class: sched.Batch}},
		{Kind: sched.DeviceTimeMeasured, Queue: 2},
	}
	var commands uint64
	var piece, served time.Duration
	var turns []sched.Time
	var pieces []time.Duration
	due := sched.Never // the queue has had its piece
	for now := sched.Time(0); now < sched.Time(30*time.Second); now = now.Add(ms / 2) {
		switch at := time.Duration(now) % every; {
		case at == 0:
			commands++
			events = append(events, sched.Event{Kind: sched.Progressed, Queue: 1, Counters: sched.Counters{Submitted: commands, Launched: commands, Completed: commands - 1}})
		case at == took:
			events = append(events,
				sched.Event{Kind: sched.Progressed, Queue: 1, Counters: sched.Counters{Submitted: commands, Launched: commands, Completed: commands}},
				sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: took})
		}
		if now >= due {
			served, due = served+piece, sched.Never
			events = append(events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 2, Duration: served})
		}
		for again := true; again; again = len(events) > 0 {
			actions, _ := s.Step(now, events)
			events = events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
				if a.Queue == 2 && a.Verb == sched.SetSlice && a.Slice != sched.MinSlice {
					piece = max(a.Slice, slice)
					turns, pieces, due = append(turns, now), append(pieces, piece), now.Add(piece)
				}
			}
		}
	}
	for i := 1; i < len(turns) && turns[i] < sched.Time(25*time.Second); i++ {
		var got time.Duration
		for n := i; n < len(turns) && turns[n].Sub(turns[i]) < 5*time.Second; n++ {
			got += pieces[n]
		}
		if got < 90*ms {
			t.Fatalf("from %v on the queue had %v in 5 s, want about 100 ms", time.Duration(turns[i]), got)
		}
	}
	if served < 600*ms || served > 720*ms {
		t.Errorf("the queue had %v in 30 s, want 600 to 720 ms", served)
	}
}
