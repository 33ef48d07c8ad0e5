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

// TestFloorAfterAStall checks that a queue which starves gets its next floor turn within the floor's window of 5 s,
// although the machine stood still for a minute, during its floor turn or between two.
func TestFloorAfterAStall(t *testing.T) {
	for _, in := range []string{"a turn", "a rest"} {
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return grantUpTo(1) }})
		var events []sched.Event
		for id := range 3 {
			events = append(events, sched.Event{Kind: sched.QueueOpened, Queue: sched.QueueID(id + 1), Device: "gpu0", Can: sched.CanInterrupt})
		}
		runs, starts := map[sched.QueueID]bool{}, 0
		var stalled sched.Time
		began := map[sched.QueueID]sched.Time{} // of the first turn after the stall
		for now := sched.Time(0); len(began) < 2 && (stalled == 0 || now < stalled.Add(time.Minute)); now = now.Add(ms) {
			actions, _ := s.Step(now, events)
			events = events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
				if runs[a.Queue] = a.Verb == sched.Start; !runs[a.Queue] {
					continue
				}
				if starts++; stalled > 0 && began[a.Queue] == 0 {
					began[a.Queue] = now
				}
			}
			if inTurn := runs[2] || runs[3]; stalled == 0 && starts >= 5 && inTurn == (in == "a turn") {
				now = now.Add(time.Minute)
				stalled = now
			}
		}
		for id := sched.QueueID(2); id <= 3; id++ {
			if began[id] == 0 || began[id].Sub(stalled) > 5*time.Second {
				t.Errorf("a stall in %s: queue %d has its next floor turn %v later, want 5s at most", in, id, began[id].Sub(stalled))
			}
		}
	}
}

// TestFirstFloorTurnIsPatient checks that a queue waits at least 800 ms for its first floor turn,
// also if its floor turns are short and frequent: a queue that waits for its turn in a rotation
// does not starve. The next ones follow after a period.
func TestFirstFloorTurnIsPatient(t *testing.T) {
	s := sched.New(sched.Config{Floor: 0.1, FloorTurn: 20 * ms}, sched.PolicyChoice{Make: func() sched.Policy { return grantUpTo(1) }})
	events := []sched.Event{
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanInterrupt},
	}
	var began []sched.Time
	for now := sched.Time(0); len(began) < 3 && now < sched.Time(5*time.Second); now = now.Add(ms) {
		actions, _ := s.Step(now, events)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			if a.Verb == sched.Start {
				began = append(began, now)
			}
		}
	}
	if len(began) < 3 || began[0] != sched.Time(800*ms) || began[2].Sub(began[1]) > 190*ms {
		t.Errorf("floor turns begin at %v, want the first after 800 ms and the next 180 ms apart", began)
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

// TestNoFloorTurnForAQueueWithTheDefaultSlice checks that a queue which the policy grants as much
// as the device's default slice gets no floor turn, even if it uses none of its time: without
// counters it counts as ready when it is idle.
func TestNoFloorTurnForAQueueWithTheDefaultSlice(t *testing.T) {
	for slice, turns := range map[time.Duration]bool{0: false, 2*ms - 1: true, 2 * ms: false, 3 * ms: false} {
		plan := sched.Plan{Grants: []sched.Grant{{Queue: 1, Slice: slice}, {Queue: 2}}}
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
		events := []sched.Event{
			{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms}},
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanSlice},
			{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanSlice},
		}
		got := false
		for now := sched.Time(0); now < sched.Time(5*time.Second); now = now.Add(10 * ms) {
			actions, _ := s.Step(now, append(events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1}))
			events = events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			}
			got = got || queueOf(s, 1).OnFloor
		}
		if got != turns {
			t.Errorf("a slice of %v where the default is 2 ms: floor turns %v, want %v", slice, got, turns)
		}
	}
}

// TestFloorPiece checks how long a floor turn is on a device with slices: one piece that is
// long enough for the commands of the queue, and that the online process can bear.
func TestFloorPiece(t *testing.T) {
	const slice = 2 * ms
	finished := func(every, took time.Duration) func(sched.Time) []sched.Event {
		next := sched.Time(0)
		return func(now sched.Time) (events []sched.Event) {
			for ; next <= now; next = next.Add(every) {
				events = append(events, sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: took})
			}
			return events
		}
	}
	completed := func(each time.Duration) func(sched.Time) []sched.Event {
		return func(now sched.Time) []sched.Event {
			n := uint64(min(now, sched.Time(time.Second)) / sched.Time(each))
			return []sched.Event{
				{Kind: sched.DeviceTimeMeasured, Queue: 2, Duration: min(time.Duration(now), time.Second)},
				{Kind: sched.Progressed, Queue: 2, Counters: sched.Counters{Submitted: n + 9, Launched: n + 9, Completed: n}},
			}
		}
	}
	nothing := func(sched.Time) []sched.Event { return nil }
	for _, tt := range []struct {
		name   string
		slo    time.Duration
		cfg    sched.Config
		events func(sched.Time) []sched.Event
		want   time.Duration
	}{
		{"of the default length", 0, sched.Config{}, nothing, 20 * ms},
		{"of the configured length", 0, sched.Config{FloorTurn: 35 * ms}, nothing, 35 * ms},
		{"of the default length, if the configured one is negative", 0, sched.Config{FloorTurn: -ms}, nothing, 20 * ms},
		{"within an SLO", 16 * ms, sched.Config{}, nothing, 8 * ms},
		{"a slice, which is the device's own, if an SLO leaves no more", 4 * ms, sched.Config{}, nothing, 0},
		{"within what the requests leave of an SLO", 16 * ms, sched.Config{}, finished(9*ms, 8*ms), 6 * ms},
		{"long, if no piece keeps the SLO", 3 * ms, sched.Config{}, finished(2*ms, 2*ms), 20 * ms},
		{"long, if one of hundreds of requests is late", 0, sched.Config{}, finished(2*ms, 2*ms), 20 * ms},
		{"long, if the duration of requests is not known", 0, sched.Config{}, finished(40*ms, 0), 20 * ms},
		{"short, if requests are rare", 0, sched.Config{}, finished(40*ms, 40*ms), 5 * ms},
		{"not shorter than a slice, which is the device's own", 0, sched.Config{}, finished(12*ms, 12*ms), 0},
		{"long enough for a command", 0, sched.Config{}, completed(30 * ms), 32 * ms},
		{"not too long for a command", 0, sched.Config{}, completed(200 * ms), 50 * ms},
		{"short enough to reach a small share in time", 0, sched.Config{Floor: 0.002}, nothing, 8 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := firstPiece(tt.cfg, slice, tt.slo, tt.events); got != tt.want {
				t.Errorf("got a slice of %v, want %v", got, tt.want)
			}
		})
	}
}

// grantOneAfterASecond is a policy that grants all queues, and after a second queue 1 alone.
type grantOneAfterASecond struct{}

func (grantOneAfterASecond) Plan(v *sched.View) sched.Plan {
	if v.Now < sched.Time(time.Second) {
		return grants(1, 2)
	}
	return grants(1)
}

// firstPiece returns the slice of queue 2 in its first floor turn, beside the online queue 1.
// Actions take no time.
func firstPiece(cfg sched.Config, slice, slo time.Duration, facts func(sched.Time) []sched.Event) time.Duration {
	s := sched.New(cfg, sched.PolicyChoice{Make: func() sched.Policy { return grantOneAfterASecond{} }})
	can := sched.CanInterrupt | sched.CanSlice
	events := []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: slice, MinSharedSlice: 200 * time.Microsecond}},
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: can, Attr: sched.Attr{Class: sched.Online, SLO: slo}},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: can, Attr: sched.Attr{Class: sched.Batch}},
	}
	for now := sched.Time(0); now < sched.Time(20*time.Second); {
		actions, _ := s.Step(now, append(events, facts(now)...))
		events = nil
		for _, a := range actions {
			if a.Queue == 2 && a.Verb == sched.SetSlice {
				return a.Slice
			}
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
		if len(actions) == 0 {
			now = now.Add(ms)
		}
	}
	return 0
}

// TestOnFloor checks that a queue is reported to live on the floor from its first floor turn
// until the policy gives it its share.
func TestOnFloor(t *testing.T) {
	p := plans{"": grants(1)}
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
	events := []sched.Event{
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanInterrupt},
	}
	now := sched.Time(0)
	run := func(d time.Duration) bool {
		for end := now.Add(d); now < end; now = now.Add(ms) {
			actions, _ := s.Step(now, events)
			events = events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			}
		}
		if queueOf(s, 1).OnFloor {
			t.Errorf("at %v: the granted queue is on the floor", time.Duration(now))
		}
		return queueOf(s, 2).OnFloor
	}
	if run(2 * time.Second) {
		t.Error("on the floor before the first floor turn")
	}
	if !run(time.Second) || !run(10*time.Second) {
		t.Error("not on the floor, although the policy never grants the queue")
	}
	work := sched.Counters{Submitted: 1, Launched: 1, Completed: 1}
	events = append(events, sched.Event{Kind: sched.Progressed, Queue: 2, Counters: work})
	if run(5 * time.Second) {
		t.Error("on the floor, although the queue has no work")
	}
	work.Submitted, work.Launched = 1<<20, 9
	events = append(events, sched.Event{Kind: sched.Progressed, Queue: 2, Counters: work})
	if !run(5 * time.Second) {
		t.Error("not on the floor, although the queue has work again")
	}
	p[""] = grants(1, 2)
	events = append(events, sched.Event{Kind: sched.PlanOffered})
	if run(5 * time.Second) {
		t.Error("on the floor, although the policy grants the queue")
	}
}

// TestQueueWithoutSlicesThatIsGrantedIsNotOnTheFloor checks that a queue which is granted, and
// whose slice cannot be set, is not taken to starve if it is idle: the policy gives it all that
// the floor could, whatever slice it asked for.
func TestQueueWithoutSlicesThatIsGrantedIsNotOnTheFloor(t *testing.T) {
	for _, can := range []sched.Ability{sched.CanInterrupt, sched.CanInterrupt | sched.CanSlice} {
		plan := sched.Plan{Grants: []sched.Grant{{Queue: 1}, {Queue: 2, Slice: sched.MinSlice}}}
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
		events := []sched.Event{
			{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms, MinSharedSlice: ms}},
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: can},
			{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: can},
			{Kind: sched.DeviceTimeMeasured, Queue: 2},
		}
		onFloor := false
		for now := sched.Time(0); now < sched.Time(3*time.Second); now = now.Add(ms) {
			actions, _ := s.Step(now, events)
			events = events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			}
			onFloor = onFloor || queueOf(s, 2).OnFloor
		}
		if want := can&sched.CanSlice != 0; onFloor != want {
			t.Errorf("slices can be set %v: on the floor %v, want %v", want, onFloor, want)
		}
	}
}

// TestFloorTurnWaitsForALaunch checks that a floor turn does not end before the process, which
// may wait for a CPU, has launched the command that waited at its gate; up to a limit.
func TestFloorTurnWaitsForALaunch(t *testing.T) {
	for _, tt := range []struct{ launchAfter, least, most time.Duration }{
		{0, 90 * ms, 110 * ms}, // beside another queue it takes twice its length
		{200 * ms, 199 * ms, 210 * ms},
		{time.Hour, 390 * ms, 410 * ms},
	} {
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return grantUpTo(1) }})
		events := []sched.Event{
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanHold},
			{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanHold},
			{Kind: sched.Progressed, Queue: 2, Counters: sched.Counters{Submitted: 1}},
		}
		began, took := sched.Never, time.Duration(0)
		for now := sched.Time(0); now < sched.Time(time.Minute) && took == 0; now = now.Add(ms) {
			if began != sched.Never && now >= began.Add(tt.launchAfter) {
				events = append(events, sched.Event{Kind: sched.Progressed, Queue: 2, Counters: sched.Counters{Submitted: 2, Launched: 1}})
			}
			actions, _ := s.Step(now, events)
			events = events[:0]
			for _, a := range actions {
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
				switch {
				case a.Queue == 2 && a.Verb == sched.Start:
					began = now
				case a.Queue == 2 && began != sched.Never:
					took = now.Sub(began)
				}
			}
		}
		if took < tt.least || took > tt.most {
			t.Errorf("launch after %v: got a turn of %v, want %v to %v", tt.launchAfter, took, tt.least, tt.most)
		}
	}
}

// TestFirstMeasurementCountsNoHistory checks that a queue is not charged what its process used
// before the queue was opened.
func TestFirstMeasurementCountsNoHistory(t *testing.T) {
	served := time.Duration(-1)
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy {
		return planner(func(v *sched.View) sched.Plan {
			if len(v.Queues) > 0 {
				served = v.Queues[0].Served
			}
			return grants(1)
		})
	}})
	s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt}})
	s.Step(sched.Time(10*ms), []sched.Event{{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: time.Hour}})
	s.Step(sched.Time(20*ms), []sched.Event{
		{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: time.Hour + 5*ms},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanInterrupt},
	})
	if served < 5*ms || served > 20*ms {
		t.Errorf("got %v of service in 20 ms", served)
	}
}

// planner is a policy that is a function.
type planner func(*sched.View) sched.Plan

func (p planner) Plan(v *sched.View) sched.Plan { return p(v) }

// batchBesideOnline returns a scheduler, and the events that open an online queue with a long slice, and a batch
// queue with this one. Neither can be stopped.
func batchBesideOnline(slice time.Duration) (*sched.Scheduler, []sched.Event) {
	p := plans{"": {Grants: []sched.Grant{{Queue: 1, Slice: 20 * time.Millisecond}, {Queue: 2, Slice: slice}}}}
	return sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return p }}), []sched.Event{
		{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2048 * time.Microsecond, MinSharedSlice: 200 * time.Microsecond}},
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Online}},
		{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Batch}},
	}
}

// TestFloorSeesServiceWithoutProgress checks that a queue that cannot be stopped, and that is on
// the device for a fifth of the time in visits that are cut off at once, gets floor turns in one
// piece, and that one whose visits are longer gets none. Of each visit 100 us are no progress.
func TestFloorSeesServiceWithoutProgress(t *testing.T) {
	for _, c := range []struct {
		name   string
		slice  time.Duration
		visits uint64 // in 10 ms, in which the queue is served for 2 ms
		turns  bool
	}{
		{"cut off at once", sched.MinSlice, 20, true},
		{"cut off soon after", sched.MinSlice, 17, false},
		{"long visits", sched.MinSlice, 2, false},
		{"a longer slice, with which each visit is progress", 500 * time.Microsecond, 20, false},
	} {
		s, events := batchBesideOnline(c.slice)
		served, visits, long, slice := time.Duration(0), uint64(0), 0, time.Duration(0)
		for now := sched.Time(0); now < sched.Time(5*time.Second); now = now.Add(10 * time.Millisecond) {
			for range 10 {
				actions, _ := s.Step(now, events)
				events = events[:0]
				for _, a := range actions {
					if a.Queue == 2 {
						slice = a.Slice
					}
					if a.Queue == 2 && slice >= 20*time.Millisecond {
						long++
					}
					events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
				}
			}
			if served += 2 * time.Millisecond; slice == c.slice {
				visits += c.visits
			} else {
				served += 8 * time.Millisecond
			}
			events = append(events, sched.Event{
				Kind: sched.DeviceTimeMeasured, Queue: 2, Duration: served, Visits: sched.Visits{Count: visits, Known: true},
			})
		}
		if c.turns && (long < 3 || long > 6) || !c.turns && long > 0 {
			t.Errorf("%s: got %d floor turns in 5 s, want turns: %v", c.name, long, c.turns)
		}
	}
}

// TestFloorSeesServiceWithoutProgressByTheClock checks the same where device time is not measured: beside a
// queue that has work, by its counters, a queue with a slice that is too short makes no progress, though it counts as
// served for half of the time.
func TestFloorSeesServiceWithoutProgressByTheClock(t *testing.T) {
	for _, c := range []struct {
		name  string
		other sched.Counters
		turns bool
	}{
		{"beside a queue with work", sched.Counters{Submitted: 2, Launched: 2, Known: true}, true},
		{"beside one that may have none", sched.Counters{}, false},
	} {
		s, events := batchBesideOnline(sched.MinSlice)
		events = append(events,
			sched.Event{Kind: sched.Progressed, Queue: 1, Counters: c.other},
			sched.Event{Kind: sched.Progressed, Queue: 2, Counters: sched.Counters{Submitted: 2, Launched: 2, Known: true}})
		long := 0
		for now := sched.Time(0); now < sched.Time(5*time.Second); now = now.Add(time.Millisecond) {
			actions, _ := s.Step(now, events)
			events = events[:0]
			for _, a := range actions {
				if a.Queue == 2 && a.Slice >= 20*time.Millisecond {
					long++
				}
				events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			}
		}
		if long > 0 != c.turns {
			t.Errorf("%s: got %d floor turns in 5 s, want turns: %v", c.name, long, c.turns)
		}
	}
}
