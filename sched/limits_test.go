package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// only is a policy that grants one queue.
type only sched.QueueID

func (p only) Plan(*sched.View) sched.Plan {
	return sched.Plan{Grants: []sched.Grant{{Queue: sched.QueueID(p)}}}
}

// queueOf returns a copy of one queue, or the zero Queue.
func queueOf(s *sched.Scheduler, id sched.QueueID) sched.Queue {
	for _, q := range s.Queues(nil) {
		if q.ID == id {
			return q
		}
	}
	return sched.Queue{}
}

// run opens queues 1 to n, all ready, and lets every action succeed after a
// millisecond, for the given time. The policy grants queue 1 alone.
func run(t *testing.T, cfg sched.Config, n int, length time.Duration, change func(*sched.Event)) *sched.Scheduler {
	t.Helper()
	s := sched.New(cfg, sched.PolicyChoice{Make: func() sched.Policy { return only(1) }})
	var events []sched.Event
	for id := range n {
		ev := sched.Event{Kind: sched.QueueOpened, Queue: sched.QueueID(id + 1), Device: "gpu0", Can: sched.CanInterrupt}
		if change != nil {
			change(&ev)
		}
		events = append(events, ev)
	}
	for now := sched.Time(0); now < sched.Time(length); {
		actions, wake := s.Step(now, events)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			wake = now.Add(time.Millisecond)
		}
		now = min(wake, sched.Time(length))
	}
	if mistake, _, yes := s.Overruled("gpu0"); yes {
		t.Fatalf("overruled: %v", mistake)
	}
	return s
}

func TestFloorGivesTheConfiguredShare(t *testing.T) {
	const length = 10 * time.Minute
	for _, test := range []struct {
		name     string
		starving int
		floor    float64
		want     float64 // share of the device for each starving queue
	}{
		{"one", 1, 0, 0.02},
		{"one, a large floor", 1, 0.1, 0.1},
		{"eight", 8, 0, 0.02},
		{"fifty", 50, 0, 0.25 / 51}, // all together get at most a quarter
	} {
		t.Run(test.name, func(t *testing.T) {
			s := run(t, sched.Config{Floor: test.floor}, 1+test.starving, length, nil)
			for _, q := range s.Queues(nil)[1:] {
				if got := q.Served.Seconds() / length.Seconds(); got < test.want || got > 1.2*test.want {
					t.Errorf("queue %d: got %.4f of the device, want %.4f to %.4f", q.ID, got, test.want, 1.2*test.want)
				}
			}
			if q := queueOf(s, 1); q.Served < length*7/10 {
				t.Errorf("the granted queue got %v of %v, want at least 70 %%", q.Served, length)
			}
		})
	}
}

func TestIdleAndPausedQueuesHaveNoFloor(t *testing.T) {
	for _, change := range []func(*sched.Event){
		func(ev *sched.Event) { ev.Attr.Class = sched.Idle },
		func(ev *sched.Event) { ev.Attr.Paused = ev.Queue != 1 },
	} {
		s := run(t, sched.Config{}, 3, time.Minute, change)
		for _, q := range s.Queues(nil)[1:] {
			if q.Served > 10*time.Millisecond { // until its first stop
				t.Errorf("queue %d got %v, want at most 10ms", q.ID, q.Served)
			}
		}
	}
}

// TestServedGrowsByMeasuredTime checks a queue whose first measurement comes late.
// Served is an estimate until then, and grows by the measured time from then on,
// even if the estimate was high.
func TestServedGrowsByMeasuredTime(t *testing.T) {
	s := run(t, sched.Config{}, 1, time.Minute, nil)
	now := sched.Time(time.Minute)
	for total := time.Second; total <= 3*time.Second; total += time.Second {
		now = now.Add(time.Second)
		s.Step(now, []sched.Event{{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: total}})
	}
	if q := queueOf(s, 1); q.Served != 63*time.Second {
		t.Errorf("got %v served, want 61s estimated and 2s measured", q.Served)
	}
}

// TestGuardOverrulesPolicyUntilItBehaves checks that every mistake makes the
// scheduler overrule the policy at once, and that the policy decides again
// when it has made no mistake for exactly the limit.
func TestGuardOverrulesPolicyUntilItBehaves(t *testing.T) {
	const limit = time.Second
	good := sched.Plan{Grants: []sched.Grant{{Queue: 1}}}
	for _, test := range []struct {
		want   sched.Mistake
		bad    sched.Plan
		takes  time.Duration // until the plan is a mistake
		config sched.Config
	}{
		{sched.NoPlan, sched.Plan{Invalid: true}, 0, sched.Config{}},
		{sched.NoSuchQueue, sched.Plan{Grants: []sched.Grant{{Queue: 1}, {Queue: 3}}}, 0, sched.Config{}},
		{sched.TwoShortSlices, sched.Plan{Grants: []sched.Grant{{Queue: 1, Slice: 1}, {Queue: 2, Slice: 1}}}, 0, sched.Config{}},
		{sched.Stalled, sched.Plan{}, limit, sched.Config{}},
		{sched.Stalled, sched.Plan{}, limit, sched.Config{Floor: -1}},
		{sched.HeldTooLong, sched.Plan{Grants: []sched.Grant{{Queue: 2}}}, limit, sched.Config{Floor: -1}},
		{sched.NoMistake, sched.Plan{Grants: []sched.Grant{{Queue: 2}}}, limit, sched.Config{}},
	} {
		test.config.StallLimit = limit
		p := plans{"": good}
		s := sched.New(test.config, sched.PolicyChoice{Make: func() sched.Policy { return p }})
		now := sched.Time(0)
		overruled := func(after time.Duration) sched.Mistake {
			now = now.Add(after)
			s.Step(now, []sched.Event{{Kind: sched.PlanOffered}})
			mistake, _, _ := s.Overruled("gpu0")
			return mistake
		}
		can := sched.CanInterrupt | sched.CanSlice
		s.Step(now, []sched.Event{
			{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{MinSharedSlice: time.Millisecond}},
			{Kind: sched.QueueOpened, Device: "gpu0", Queue: 1, Can: can},
			{Kind: sched.QueueOpened, Device: "gpu0", Queue: 2, Can: can, Attr: sched.Attr{Class: sched.Idle}},
		})
		p[""] = test.bad
		if test.takes > 0 {
			if got := overruled(0); got != sched.NoMistake {
				t.Errorf("%v: at once: got %v, want none", test.want, got)
			}
			if got := overruled(test.takes - 1); got != sched.NoMistake {
				t.Errorf("%v: 1 ns before the limit: got %v, want none", test.want, got)
			}
			now++
		}
		if got := overruled(0); got != test.want {
			t.Errorf("at the limit: got %v, want %v", got, test.want)
		}
		p[""] = good
		overruled(0)
		if got := overruled(limit - 1); got != test.want {
			t.Errorf("1 ns before the limit of good behaviour: got %v, want %v", got, test.want)
		}
		if got := overruled(1); got != sched.NoMistake {
			t.Errorf("%v: after good behaviour: got %v, want none", test.want, got)
		}
	}
}

// TestSamePolicyChangesItsParametersAndKeepsItsState checks that choosing the
// policy in force again updates the running instance, on all devices or on one,
// and that a device opened later has the new parameters.
func TestSamePolicyChangesItsParametersAndKeepsItsState(t *testing.T) {
	made := 0
	choice := func(name, parameter string) sched.PolicyChoice {
		return sched.PolicyChoice{
			Name:   name,
			Make:   func() sched.Policy { made++; return &tuned{parameter: parameter} },
			Update: func(p sched.Policy) { p.(*tuned).parameter = parameter },
		}
	}
	s, now := sched.New(sched.Config{}, choice("a", "1")), sched.Time(0)
	var planned map[sched.DeviceID]tuned
	check := func(what string, wantMade int, want map[sched.DeviceID]tuned, ev sched.Event) {
		t.Helper()
		now++
		planned = map[sched.DeviceID]tuned{}
		report = func(id sched.DeviceID, p tuned) { planned[id] = p }
		s.Step(now, []sched.Event{ev})
		for id, w := range want {
			if planned[id] != w {
				t.Errorf("%s: %s got %+v, want %+v", what, id, planned[id], w)
			}
		}
		if made != wantMade {
			t.Errorf("%s: got %d instances, want %d", what, made, wantMade)
		}
	}
	opened := func(id sched.DeviceID) sched.Event { return sched.Event{Kind: sched.DeviceOpened, Device: id} }
	chosen := func(id sched.DeviceID, c sched.PolicyChoice) sched.Event {
		return sched.Event{Kind: sched.PolicyChosen, Device: id, Choice: c}
	}
	check("opened", 1, map[sched.DeviceID]tuned{"x": {1, "1"}}, opened("x"))
	check("changed for all", 1, map[sched.DeviceID]tuned{"x": {2, "2"}}, chosen("", choice("a", "2")))
	check("opened later", 2, map[sched.DeviceID]tuned{"y": {1, "2"}}, opened("y"))
	check("own policy", 3, map[sched.DeviceID]tuned{"y": {1, "3"}}, chosen("y", choice("a", "3")))
	check("changed for one", 3, map[sched.DeviceID]tuned{"y": {2, "4"}}, chosen("y", choice("a", "4")))
	check("for all again", 4, map[sched.DeviceID]tuned{"x": {6, "5"}, "y": {1, "5"}}, chosen("", choice("a", "5")))
	check("another policy", 6, map[sched.DeviceID]tuned{"x": {1, "6"}, "y": {1, "6"}}, chosen("", choice("b", "6")))
	fixed := choice("b", "7")
	fixed.Update = nil
	check("without Update", 8, map[sched.DeviceID]tuned{"x": {1, "7"}, "y": {1, "7"}}, chosen("", fixed))
	check("no policy", 8, map[sched.DeviceID]tuned{"x": {2, "7"}, "y": {2, "7"}}, chosen("", sched.PolicyChoice{Name: "b"}))
	if mistake, _, yes := s.Overruled("z"); yes || mistake != sched.NoMistake {
		t.Errorf("a device that does not exist is overruled: %v", mistake)
	}
}

// tuned is a policy with a parameter whose state is how often it has planned.
type tuned struct {
	plans     int
	parameter string
}

var report func(sched.DeviceID, tuned)

func (p *tuned) Plan(v *sched.View) sched.Plan {
	p.plans++
	report(v.Devices[0].ID, *p)
	return sched.Plan{}
}

// counting is a policy that counts its calls.
type counting struct{ plans, requests int }

func (c *counting) Plan(*sched.View) sched.Plan {
	c.plans++
	return sched.Plan{Grants: []sched.Grant{{Queue: 1}}}
}

type observing struct{ counting }

func (o *observing) Observe(_ sched.Time, ev *sched.Event) {
	if ev.Kind == sched.RequestStarted || ev.Kind == sched.RequestFinished {
		o.requests++
	}
}

// TestRequestsCallThePolicyOnlyWhenNeeded checks that every policy is called when
// the first request starts, when the oldest finishes and when the last one does, and a
// policy with Observe also when any other request finishes.
func TestRequestsCallThePolicyOnlyWhenNeeded(t *testing.T) {
	const started, finished = sched.RequestStarted, sched.RequestFinished
	steps := []struct {
		kind             sched.Kind
		open             uint32
		took             time.Duration
		plain, observing bool // Plan is called
	}{
		{started, 1, 0, true, true},
		{started, 2, 0, false, true},
		{started, 3, 0, false, true},
		{finished, 2, 1, false, true}, // not the oldest
		{finished, 1, 4, true, true},  // the oldest
		{finished, 0, 4, true, true},
		{finished, 0, 4, false, true}, // its start was not reported
		{started, 1, 0, true, true},
	}
	for _, observes := range []bool{false, true} {
		o := &observing{}
		choice := sched.PolicyChoice{Name: "counting", Make: func() sched.Policy { return &o.counting }}
		if observes {
			choice.Make = func() sched.Policy { return o }
		}
		s := sched.New(sched.Config{}, choice)
		s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}})
		for i, step := range steps {
			before := o.plans
			s.Step(sched.Time(i+1), []sched.Event{{Kind: step.kind, Queue: 1, Duration: step.took}})
			want := step.plain
			if observes {
				want = step.observing
			}
			if q := queueOf(s, 1); q.OpenRequests != step.open || (o.plans > before) != want {
				t.Errorf("observes %v, step %d, %v: got %d open requests, planned %v; want %d, %v",
					observes, i, step.kind, q.OpenRequests, o.plans > before, step.open, want)
			}
		}
		if observes && o.requests != len(steps) {
			t.Errorf("observed %d requests, want %d", o.requests, len(steps))
		}
	}
}

// TestStartsOfTheOldestAndTheNewestRequest checks RequestSince and NewestRequest while requests
// finish in any order.
func TestStartsOfTheOldestAndTheNewestRequest(t *testing.T) {
	choice := sched.PolicyChoice{Name: "counting", Make: func() sched.Policy { return &counting{} }}
	s := sched.New(sched.Config{}, choice)
	s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}})
	check := func(at sched.Time, kind sched.Kind, took time.Duration, oldest, newest sched.Time) {
		t.Helper()
		s.Step(at, []sched.Event{{Kind: kind, Queue: 1, Duration: took}})
		if q := queueOf(s, 1); q.RequestSince != oldest || q.NewestRequest != newest {
			t.Errorf("at %d: got the oldest from %d, the newest from %d, want %d, %d", at, q.RequestSince, q.NewestRequest, oldest, newest)
		}
	}
	const started, finished = sched.RequestStarted, sched.RequestFinished
	check(100, started, 0, 100, 100)
	check(200, started, 0, 100, 200)
	check(300, started, 0, 100, 300)
	check(400, finished, 190, 100, 300) // the one from 200
	check(500, finished, 410, 300, 300) // the one from 100, measured in the process
	check(600, started, 0, 300, 600)
	check(700, finished, 0, 600, 600) // not measured: counts as the oldest
	check(800, finished, 200, 0, 0)
	for i := range sched.Time(100) {
		check(1000+i, started, 0, 1000, 1000+i)
	}
	check(2000, finished, 901, 1000, 1062) // the newest, after which the starts of some are not kept
	check(2001, started, 0, 1000, 2001)
	check(2002, finished, 1, 1000, 1062)
}

// TestRequestSinceWithManyOpenRequests checks that of more open requests than times are kept,
// the oldest ones and the newest are known.
func TestRequestSinceWithManyOpenRequests(t *testing.T) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return plans{"": grants(1)} }})
	s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}})
	now := sched.Time(0)
	for range 70 {
		now = now.Add(ms)
		s.Step(now, []sched.Event{{Kind: sched.RequestStarted, Queue: 1}})
	}
	newest := now
	for i := range 69 {
		now = now.Add(ms)
		s.Step(now, []sched.Event{{Kind: sched.RequestFinished, Queue: 1}})
		want, last := now, now // more were open than times are kept
		switch {
		case i < 62:
			want, last = sched.Time(time.Duration(i+2)*ms), newest
		case i == 62:
			want, last = newest, newest
		}
		if q := queueOf(s, 1); q.RequestSince != want || q.NewestRequest != last || q.OpenRequests != uint32(69-i) {
			t.Fatalf("%d finished: %d open since %v, the newest since %v, want %d since %v, %v", i+1,
				q.OpenRequests, time.Duration(q.RequestSince), time.Duration(q.NewestRequest), 69-i, time.Duration(want), time.Duration(last))
		}
	}
}
