package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// only is a policy that grants the device to one queue.
type only sched.QueueID

func (p only) Plan(*sched.View) sched.Plan {
	return sched.Plan{Grants: []sched.Grant{{Queue: sched.QueueID(p)}}}
}

// play opens queues 1 to n, all ready, and lets every action succeed after a
// millisecond for as long as told. Queue 1 is the policy's favourite.
func play(t *testing.T, cfg sched.Config, n int, length time.Duration, change func(*sched.Event)) *sched.Scheduler {
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
		t.Fatalf("overruled: it %v", mistake)
	}
	return s
}

func TestFloorGivesTheShareItSays(t *testing.T) {
	const length = 10 * time.Minute
	for _, test := range []struct {
		name     string
		starving int
		floor    float64
		want     float64 // of the device for each that starves
	}{
		{"one", 1, 0, 0.02},
		{"one, a large part", 1, 0.1, 0.1},
		{"eight", 8, 0, 0.02},
		{"crowded", 50, 0, 0.25 / 51}, // all together get a quarter
	} {
		t.Run(test.name, func(t *testing.T) {
			s := play(t, sched.Config{Floor: test.floor}, 1+test.starving, length, nil)
			for _, q := range s.Queues(nil)[1:] {
				if got := q.Served.Seconds() / length.Seconds(); got < test.want || got > 1.2*test.want {
					t.Errorf("queue %d got %.4f of the device, not %.4f or a little more", q.ID, got, test.want)
				}
			}
			if q, _ := s.Queue(1); q.Served < length*7/10 {
				t.Errorf("the favourite was left with %v of %v", q.Served, length)
			}
		})
	}
}

func TestFloorIsNotForThoseWhoAskToBeStarved(t *testing.T) {
	for _, change := range []func(*sched.Event){
		func(ev *sched.Event) { ev.Attr.Class = sched.Idle },
		func(ev *sched.Event) { ev.Attr.Paused = ev.Queue != 1 },
	} {
		s := play(t, sched.Config{}, 3, time.Minute, change)
		for _, q := range s.Queues(nil)[1:] {
			if q.Served > 10*time.Millisecond { // before its first stop
				t.Errorf("queue %d was served %v", q.ID, q.Served)
			}
		}
	}
}

// A queue that is measured late has been served by guess until then. What the
// hardware says from then on is added to it: a high guess is not starvation.
func TestServedGrowsByWhatIsMeasured(t *testing.T) {
	s := play(t, sched.Config{}, 1, time.Minute, nil)
	now := sched.Time(time.Minute)
	for ran := time.Second; ran <= 3*time.Second; ran += time.Second {
		now = now.Add(time.Second)
		s.Step(now, []sched.Event{{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: ran}})
	}
	if q, _ := s.Queue(1); q.Served != 63*time.Second {
		t.Errorf("served %v, not 61s by guess and 2s more by measurement", q.Served)
	}
}

// Every mistake frees the device at once, and a policy that has behaved for the
// limit has it back, not a moment before.
func TestGuard(t *testing.T) {
	const limit = time.Second
	good := sched.Plan{Grants: []sched.Grant{{Queue: 1}}}
	for _, test := range []struct {
		want   sched.Mistake
		bad    sched.Plan
		takes  time.Duration // until it is a mistake
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
				t.Errorf("%v: too soon: %v", test.want, got)
			}
			if got := overruled(test.takes - 1); got != sched.NoMistake {
				t.Errorf("%v: a moment too soon: %v", test.want, got)
			}
			now++
		}
		if got := overruled(0); got != test.want {
			t.Errorf("%v: %v", test.want, got)
		}
		p[""] = good
		overruled(0)
		if got := overruled(limit - 1); got != test.want {
			t.Errorf("%v: trusted again a moment too soon", test.want)
		}
		if got := overruled(1); got != sched.NoMistake {
			t.Errorf("%v: never trusted again: %v", test.want, got)
		}
	}
}

// TestParametersReachDevicesOpenedLater: what was set for all holds for all,
// until another policy is chosen.
func TestParametersReachDevicesOpenedLater(t *testing.T) {
	var made []*tuned
	choice := sched.PolicyChoice{Make: func() sched.Policy {
		made = append(made, &tuned{values: map[string]string{}})
		return made[len(made)-1]
	}}
	s := sched.New(sched.Config{}, choice)
	open := func(d sched.DeviceID) { s.Step(0, []sched.Event{{Kind: sched.DeviceOpened, Device: d}}) }
	open("a")
	s.Step(0, []sched.Event{
		{Kind: sched.ParameterSet, Name: "turn", Value: "1"},
		{Kind: sched.ParameterSet, Name: "turn", Value: "2"},
		{Kind: sched.ParameterSet, Name: "only", Value: "a", Device: "a"},
	})
	open("b")
	if got := made[0].values; got["turn"] != "2" || got["only"] != "a" {
		t.Errorf("the first device has %v", got)
	}
	if got := made[1].values; got["turn"] != "2" || got["only"] != "" {
		t.Errorf("the device that came later has %v", got)
	}
	s.Step(0, []sched.Event{{Kind: sched.PolicyChosen, Choice: choice}})
	if got := made[len(made)-1].values; len(got) != 0 {
		t.Errorf("a policy chosen anew has %v", got)
	}
}

type tuned struct{ values map[string]string }

func (p *tuned) Plan(*sched.View) sched.Plan { return sched.Plan{} }

func (p *tuned) Set(name, value string) error { p.values[name] = value; return nil }

// listener counts how often it is asked and what it hears.
type listener struct{ asked, heard int }

func (l *listener) Plan(v *sched.View) sched.Plan {
	l.asked++
	return sched.Plan{Grants: []sched.Grant{{Queue: 1}}}
}

type observing struct{ listener }

func (o *observing) Observe(_ sched.Time, ev *sched.Event) {
	if ev.Kind == sched.RequestStarted || ev.Kind == sched.RequestFinished {
		o.heard++
	}
}

// TestRequestsAskThePolicyWhenTheyMustOnly: that there are requests, or none any
// more, is news to all policies; an answer among others only to those that listen.
func TestRequestsAskThePolicyWhenTheyMustOnly(t *testing.T) {
	const asked, answered = sched.RequestStarted, sched.RequestFinished
	steps := []struct {
		kind             sched.Kind
		open             uint32
		plain, observing bool // is asked
	}{
		{asked, 1, true, true},
		{asked, 2, false, false},
		{answered, 1, false, true},
		{answered, 0, true, true},
		{answered, 0, false, true}, // it came and went between two looks
		{asked, 1, true, true},
	}
	for _, listens := range []bool{false, true} {
		l := &listener{}
		o := &observing{}
		choice := sched.PolicyChoice{Name: "listener", Make: func() sched.Policy { return l }}
		if listens {
			choice.Make = func() sched.Policy { return o }
			l = &o.listener
		}
		s := sched.New(sched.Config{}, choice)
		s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}})
		for i, step := range steps {
			before := l.asked
			s.Step(sched.Time(i+1), []sched.Event{{Kind: step.kind, Queue: 1, Duration: time.Millisecond}})
			want := step.plain
			if listens {
				want = step.observing
			}
			if q, _ := s.Queue(1); q.OpenRequests != step.open || (l.asked > before) != want {
				t.Errorf("listens %v, step %d, %v: %d open, asked %v", listens, i, step.kind, q.OpenRequests, l.asked > before)
			}
		}
		if listens && o.heard != len(steps) {
			t.Errorf("heard %d of %d", o.heard, len(steps))
		}
	}
}
