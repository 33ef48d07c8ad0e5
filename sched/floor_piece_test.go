package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// pieceNode is a device with slices of 2 ms. The policy grants all queues but queue 1, which
// gets floor turns of 20 ms, 900 ms apart. Actions take no time.
type pieceNode struct {
	s      *sched.Scheduler
	now    sched.Time
	wake   sched.Time
	events []sched.Event
	began  []sched.Time // of each floor turn: when queue 1 was started
	ended  []sched.Time
	slices map[sched.QueueID]time.Duration
}

// newPieceNode returns a node with these granted queues, in its first floor turn.
func newPieceNode(granted ...time.Duration) *pieceNode {
	plan := sched.Plan{}
	n := &pieceNode{slices: map[sched.QueueID]time.Duration{}}
	n.events = []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms, MinSharedSlice: 200 * time.Microsecond}},
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanSlice | sched.CanInterrupt},
	}
	for i, slice := range granted {
		id := sched.QueueID(i + 2)
		n.events = append(n.events, sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "gpu0", Can: sched.CanSlice | sched.CanInterrupt})
		plan.Grants = append(plan.Grants, sched.Grant{Queue: id, Slice: slice})
	}
	n.s = sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
	n.runUntil(sched.Never, func() bool { return len(n.began) > 0 })
	return n
}

// step applies the events and those that follow at the same time.
func (n *pieceNode) step() {
	for again := true; again; again = len(n.events) > 0 {
		var actions []sched.Action
		actions, n.wake = n.s.Step(n.now, n.events)
		n.events = n.events[:0]
		for _, a := range actions {
			n.events = append(n.events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			switch {
			case a.Verb == sched.SetSlice:
				n.slices[a.Queue] = a.Slice
			case a.Queue == 1 && a.Verb == sched.Start:
				n.began = append(n.began, n.now)
			case a.Queue == 1 && a.Verb == sched.Stop && len(n.began) > 0:
				n.ended = append(n.ended, n.now)
			}
		}
	}
}

// runUntil calls the scheduler when it asks to be called.
func (n *pieceNode) runUntil(end sched.Time, done func() bool) {
	for n.step(); n.wake < end && !done(); n.step() {
		n.now = n.wake
	}
	if n.wake >= end {
		n.now = end
	}
}

// measure reports how much of the device queue 1 has had in this turn.
func (n *pieceNode) measure(after, served time.Duration) {
	at := n.began[len(n.began)-1].Add(after)
	n.runUntil(at, func() bool { return false })
	n.events = append(n.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: served})
	n.step()
}

// turn returns how long the current floor turn takes.
func (n *pieceNode) turn() time.Duration {
	i := len(n.began) - 1
	n.runUntil(sched.Never, func() bool { return len(n.ended) > i })
	return n.ended[i].Sub(n.began[i])
}

// TestFloorTurnIsOnePiece checks that without measurements a floor turn lasts until its queue
// has had one slice of 20 ms: the other queues let it wait for one slice each. It ends half a
// slice of the device earlier, before a second piece can begin. Longer slices of the other
// queues are shortened, so that they are at most 20 ms together.
func TestFloorTurnIsOnePiece(t *testing.T) {
	for _, tt := range []struct {
		name    string
		granted []time.Duration
		shorter time.Duration // slice of queue 2 in the turn
		want    time.Duration
	}{
		{"beside the device's own slice", []time.Duration{0}, 0, 2*ms + 19*ms},
		{"beside a slice of 5 ms", []time.Duration{5 * ms}, 5 * ms, 5*ms + 19*ms},
		{"beside a slice of 20 ms", []time.Duration{20 * ms}, 20 * ms, 20*ms + 19*ms},
		{"beside a longer one", []time.Duration{50 * ms}, 20 * ms, 20*ms + 19*ms},
		{"beside four long ones", []time.Duration{20 * ms, 20 * ms, 20 * ms, 20 * ms}, 5 * ms, 20*ms + 19*ms},
		{"beside a long one and three of the device's own", []time.Duration{20 * ms, 0, 0, 0}, 5 * ms, 11*ms + 19*ms},
		{"beside a minimum slice, which counts as one", []time.Duration{sched.MinSlice}, sched.MinSlice, 2*ms + 19*ms},
	} {
		n := newPieceNode(tt.granted...)
		if n.slices[1] != 20*ms || n.slices[2] != tt.shorter {
			t.Errorf("%s: got slices of %v and %v, want 20ms and %v", tt.name, n.slices[1], n.slices[2], tt.shorter)
		}
		if got := n.turn(); got != tt.want {
			t.Errorf("%s: got a turn of %v, want %v", tt.name, got, tt.want)
		}
		if n.slices[2] != tt.granted[0] {
			t.Errorf("%s: the slice of queue 2 is %v after the turn, want %v", tt.name, n.slices[2], tt.granted[0])
		}
	}
}

// TestFloorTurnWaitsOnlyForGrantedWork checks that the floor turn of a queue does not get longer by
// its own slice, which the policy grants it, nor by a queue without work or one that is stopped.
func TestFloorTurnWaitsOnlyForGrantedWork(t *testing.T) {
	const can = sched.CanSlice | sched.CanInterrupt
	plan := sched.Plan{Grants: []sched.Grant{{Queue: 1, Slice: sched.MinSlice}, {Queue: 2}, {Queue: 3}}}
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
	events := []sched.Event{{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms, MinSharedSlice: 200 * time.Microsecond}}}
	for id := range sched.QueueID(4) {
		events = append(events, sched.Event{Kind: sched.QueueOpened, Queue: id + 1, Device: "gpu0", Can: can})
	}
	events = append(events,
		sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1},
		sched.Event{Kind: sched.Progressed, Queue: 3, Counters: sched.Counters{Submitted: 1, Launched: 1, Completed: 1}})
	var began, ended sched.Time
	for now := sched.Time(0); ended == 0 && now < sched.Time(5*time.Second); now = now.Add(ms / 4) {
		if began != 0 && now == began.Add(20*ms) {
			events = append(events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: 10 * ms})
		}
		actions, _ := s.Step(now, events)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			switch {
			case a.Queue == 1 && a.Slice == 20*ms:
				began = now
			case a.Queue == 1 && began != 0:
				ended = now
			}
		}
	}
	// One slice of queue 2, and its own piece less half a slice.
	if got := ended.Sub(began); !around(got, 2*ms+19*ms) {
		t.Errorf("got a floor turn of %v from %v, want 21 ms", got, began)
	}
}

// TestFloorTurnWithoutSlices checks that the floor turn of a queue whose slice cannot be set is
// not one piece: it lasts until the queue has had 50 ms, beside the device's default slices.
func TestFloorTurnWithoutSlices(t *testing.T) {
	plan := sched.Plan{Grants: []sched.Grant{{Queue: 2, Slice: 40 * ms}, {Queue: 3, Slice: 2 * ms}}}
	n := &pieceNode{slices: map[sched.QueueID]time.Duration{}}
	n.events = []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms}},
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanInterrupt | sched.CanSlice},
		{Kind: sched.QueueOpened, Queue: 3, Device: "gpu0", Can: sched.CanInterrupt | sched.CanSlice},
	}
	n.s = sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
	n.runUntil(sched.Never, func() bool { return len(n.began) > 0 })
	if got := n.slices[2]; got != 0 {
		t.Errorf("the other queue has a slice of %v, want the default", got)
	}
	if got := n.slices[3]; got != 2*ms {
		t.Errorf("a queue that is granted as long a slice as the default has one of %v, want no call for it", got)
	}
	if got := n.turn(); got < 149*ms || got > 151*ms { // each queue has a third of the device
		t.Errorf("got a turn of %v, want 150 ms", got)
	}
}

// TestMeasuredFloorTurn checks when a floor turn ends whose queue is measured. Its piece is
// expected to end 39 ms after it began.
func TestMeasuredFloorTurn(t *testing.T) {
	for _, tt := range []struct {
		name          string
		after, served time.Duration // of a measurement in the turn
		want          time.Duration
	}{
		{"was seen in its piece, of which 15 ms are left", 10 * ms, 5 * ms, 25 * ms},
		{"has had it", 22 * ms, 20 * ms, 22 * ms},
		{"entered late, and has most of it when the piece must be over", 38 * ms, 10 * ms, 39 * ms},
		{"has had less than half when the piece must be over, and no more is measured", 38 * ms, 9 * ms, 160 * ms},
		{"has had too little to be sure that it is in its piece", 10 * ms, 999 * time.Microsecond, 160 * ms},
		{"has had enough to be sure", 10 * ms, ms, 29 * ms},
		{"has had nothing", 38 * ms, 0, 160 * ms},
	} {
		n := newPieceNode(20 * ms)
		n.measure(0, 0)
		n.measure(tt.after, tt.served)
		if got := n.turn(); !around(got, tt.want) {
			t.Errorf("%s: got a turn of %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestShortFloorTurnIsMadeUpFor checks that the next floor turn begins one period after the
// last, and earlier by what the last one missed.
func TestShortFloorTurnIsMadeUpFor(t *testing.T) {
	for _, tt := range []struct{ served, want time.Duration }{
		{20 * ms, 900 * ms},
		{15 * ms, 675 * ms},
		{10 * ms, 450 * ms},
	} {
		n := newPieceNode(20 * ms)
		n.measure(0, 0)
		n.measure(39*ms-time.Microsecond, tt.served)
		n.turn()
		n.runUntil(sched.Never, func() bool { return len(n.began) > 1 })
		if got := n.began[1].Sub(n.began[0]); !around(got, tt.want) {
			t.Errorf("after a turn with %v of 20 ms: got the next one %v after it, want %v", tt.served, got, tt.want)
		}
	}
}

// around reports whether a time is as expected, but for what rounding and the millisecond
// between two looks at a turn that has no other end make.
func around(got, want time.Duration) bool { return (got - want).Abs() <= time.Millisecond }

// TestEstimateIsNoShare checks that a queue which the hardware measures for the first time, and
// which gets nothing, has its floor turn one period later, whatever was estimated before.
func TestEstimateIsNoShare(t *testing.T) {
	plan := sched.Plan{Grants: []sched.Grant{{Queue: 1}, {Queue: 2, Slice: sched.MinSlice}}}
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
	can := sched.CanInterrupt | sched.CanSlice
	events := []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms, MinSharedSlice: 200 * time.Microsecond}},
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: can},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: can},
	}
	measured, turn := sched.Time(600*ms), sched.Never
	for now := sched.Time(0); now < sched.Time(5*time.Second) && turn == sched.Never; now = now.Add(ms) {
		if now >= measured {
			events = append(events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 2})
		}
		actions, _ := s.Step(now, events)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			if a.Queue == 2 && a.Slice == 20*ms {
				turn = now
			}
		}
	}
	if got := turn.Sub(measured); got < 890*ms || got > 910*ms {
		t.Errorf("got a floor turn %v after the first measurement, want 900 ms", got)
	}
}

// TestFloorPieceFollowsTheRequests checks that the length of a floor turn follows requests that
// become shorter or longer: it is an eighth of what they take now.
func TestFloorPieceFollowsTheRequests(t *testing.T) {
	for _, first := range []time.Duration{160 * ms, 20 * ms} {
		next := sched.Time(0)
		got := firstPiece(sched.Config{}, 2*ms, 0, func(now sched.Time) (events []sched.Event) {
			for ; next <= now; next = next.Add(40 * ms) {
				took := 40 * ms
				if now < sched.Time(200*ms) {
					took = first
				}
				events = append(events, sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: took})
			}
			return events
		})
		if got < 4*ms || got > 6*ms {
			t.Errorf("requests of %v at first, then 40 ms: got a floor turn of %v, want about 5 ms", first, got)
		}
	}
}

// TestFloorPieceIgnoresRequestsWithoutADuration checks that requests of which only the end is
// known do not count as short ones: a floor turn is an eighth of what the others take.
func TestFloorPieceIgnoresRequestsWithoutADuration(t *testing.T) {
	n := 0
	got := firstPiece(sched.Config{}, 2*ms, 0, func(now sched.Time) (events []sched.Event) {
		for ; sched.Time(time.Duration(n)*40*ms) <= now; n++ {
			took := []time.Duration{40 * ms, 0, -ms}[n%3]
			events = append(events,
				sched.Event{Kind: sched.RequestStarted, Queue: 1, Duration: ms}, // a start has none
				sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: took})
		}
		return events
	})
	if got != 5*ms {
		t.Errorf("got a floor turn of %v, want 5 ms", got)
	}
}

// TestFloorPieceAfterFewRequests checks from when on requests are taken to be rare: if the mean
// interval, which begins at zero and follows by an eighth each time, is more than a hundredth of
// the 900 ms from one floor turn to the next.
func TestFloorPieceAfterFewRequests(t *testing.T) {
	const last = 2699 * ms                                                     // shortly before the turn
	for requests, want := range map[int]time.Duration{2: 20 * ms, 3: 5 * ms} { // means of 5 and 9.4 ms
		n := 0
		got := firstPiece(sched.Config{}, 2*ms, 0, func(now sched.Time) (events []sched.Event) {
			for ; n < requests && now >= sched.Time(last-time.Duration(requests-1-n)*40*ms); n++ {
				events = append(events, sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: 40 * ms})
			}
			return events
		})
		if got != want {
			t.Errorf("%d requests, 40 ms apart: got a floor turn of %v, want %v", requests, got, want)
		}
	}
}
