package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// inversionRun has a device with queue 1, which the plan lets run and which always has work,
// and queue 2, which the plan stops. What the device does is up to the test.
type inversionRun struct {
	t        *testing.T
	s        *sched.Scheduler
	plans    plans
	now      sched.Time
	counters [4]sched.Counters // by queue; of queue 3 if a test opens it
	measured [4]time.Duration
	found    []sched.Inversion
	actions  []sched.Action // that were not about slices
	outcome  sched.Outcome  // of stops
	starts   sched.Outcome  // outcome of starts
	hang     bool           // stops have no outcome
	late     bool           // outcomes come with the next report
	outcomes []sched.Event  // that are late
}

func newInversionRun(t *testing.T, cfg sched.Config, can sched.Ability) *inversionRun {
	x := &inversionRun{t: t, plans: plans{"": grants(1)}}
	cfg.Floor = -1
	cfg.StallLimit = time.Hour
	x.s = sched.New(cfg, sched.PolicyChoice{Name: "script", Make: func() sched.Policy { return x.plans }})
	x.step(0,
		sched.Event{Kind: sched.DeviceOpened, Device: "gpu0"},
		sched.Event{Kind: sched.QueueOpened, Queue: 1, Process: 11, Device: "gpu0", Can: sched.CanInterrupt},
		sched.Event{Kind: sched.QueueOpened, Queue: 2, Process: 12, Device: "gpu0", Can: can},
	)
	x.counters[1] = sched.Counters{Submitted: 1 << 20, Launched: 10, Known: true}
	x.counters[2] = x.counters[1]
	x.report(0)
	return x
}

// step lets time pass and carries out actions at once.
func (x *inversionRun) step(after time.Duration, events ...sched.Event) {
	x.now = x.now.Add(after)
	for n := 0; ; n++ {
		actions, _ := x.s.Step(x.now, events)
		x.found = append(x.found, x.s.Inversions()...)
		events = nil
		for _, a := range actions {
			x.actions = append(x.actions, a)
			done := sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID}
			if a.Verb == sched.Start {
				done.Outcome = x.starts
			} else if done.Outcome = x.outcome; x.hang {
				continue
			}
			events = append(events, done)
		}
		if x.late {
			x.outcomes, events = append(x.outcomes, events...), nil
		}
		if len(events) == 0 {
			return
		}
		if n > 20 {
			x.t.Fatalf("at %v: the scheduler does not come to rest: %v", time.Duration(x.now), actions)
		}
	}
}

// report lets time pass and reports the counters, and the device time if there is some.
func (x *inversionRun) report(after time.Duration) {
	events := x.outcomes
	x.outcomes = nil
	for id := sched.QueueID(1); id <= 3; id++ {
		if !x.counters[id].Known {
			continue
		}
		events = append(events, sched.Event{Kind: sched.Progressed, Queue: id, Counters: x.counters[id]})
		if x.measured[id] > 0 {
			events = append(events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: id, Duration: x.measured[id]})
		}
	}
	x.step(after, events...)
}

// run lets a number of steps of 10 ms pass. In each, queues 1 and 2 launch and complete so
// many commands and are on the device for so long.
func (x *inversionRun) run(steps int, commands [3]uint64, times [3]time.Duration) {
	for range steps {
		for id := range commands {
			x.counters[id].Launched += commands[id]
			x.counters[id].Completed += commands[id]
			x.measured[id] += times[id]
		}
		x.report(10 * ms)
	}
}

// replan changes the plan. The event is one that changes nothing else.
func (x *inversionRun) replan(p sched.Plan) {
	x.plans[""] = p
	x.step(0, sched.Event{Kind: sched.PlanOffered})
}

func (x *inversionRun) expect(what string, began, over int, remedies ...sched.Remedy) {
	x.t.Helper()
	var b, o int
	var did []sched.Remedy
	for _, v := range x.found {
		if v.Began {
			b++
		}
		if v.Over {
			o++
		}
		if v.Remedy != sched.NoRemedy {
			did = append(did, v.Remedy)
		}
		if v.Victim != 1 || v.Holder != 2 || v.VictimProcess != 11 || v.HolderProcess != 12 || v.Device != "gpu0" {
			x.t.Errorf("%s: got %+v, want queue 1 behind queue 2", what, v)
		}
	}
	same := len(did) == len(remedies)
	for i := range remedies {
		same = same && did[i] == remedies[i]
	}
	if b != began || o != over || !same {
		x.t.Errorf("%s: got %d begun, %d over, remedies %v; want %d, %d, %v", what, b, o, did, began, over, remedies)
	}
	x.found = nil
}

var (
	both   = [3]uint64{0, 1, 1}
	first  = [3]uint64{0, 1, 0}
	untold [3]time.Duration
)

// TestInversionByCounters checks each level: a queue that is stopped and goes on is an
// inversion after InversionLimit, and what it finishes is none.
func TestInversionByCounters(t *testing.T) {
	for _, c := range []struct {
		can       sched.Ability
		launched  uint64 // by queue 2 in each step
		completed uint64
		found     bool
	}{
		{sched.CanInterrupt, 0, 0, false},
		{sched.CanInterrupt, 1, 1, true},
		{sched.CanInterrupt, 0, 1, true},
		{sched.CanDeactivate, 0, 0, false},
		{sched.CanDeactivate, 1, 1, true},
		{sched.CanHold, 0, 1, false}, // it drains
		{sched.CanHold, 1, 1, true},
	} {
		x := newInversionRun(t, sched.Config{}, c.can)
		x.counters[2].Launched = 1000
		x.report(10 * ms)
		for range 30 {
			x.counters[1].Completed++
			x.counters[1].Launched++
			x.counters[2].Launched += c.launched
			x.counters[2].Completed += c.completed
			x.report(10 * ms)
		}
		if got := len(x.found) > 0; got != c.found {
			t.Errorf("stopped by %v, %d launched and %d completed: got %v, want found %v", c.can, c.launched, c.completed, x.found, c.found)
		}
		if c.found && (x.found[0].More < 100*ms || x.found[0].More > 150*ms || !x.found[0].Began) {
			t.Errorf("stopped by %v: got %+v, want an inversion of 100 to 150 ms", c.can, x.found[0])
		}
	}
}

// TestInversionWhileTheDecisionChanges checks that an inversion is found although the plan gives
// another reason, or another slice, each time that the queues are looked at. Only a queue that the
// plan has let run meanwhile is no holder, and one that it has stopped no victim.
func TestInversionWhileTheDecisionChanges(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(p *sched.Plan, odd bool)
		found  bool
	}{
		{"the reason to wait", func(p *sched.Plan, odd bool) {
			if p.Waiting[sched.Standard] = sched.OtherTurn; odd {
				p.Waiting[sched.Standard] = sched.OnlineWork
			}
		}, true},
		{"the slice and the reason to run", func(p *sched.Plan, odd bool) {
			if p.Grants[0] = (sched.Grant{Queue: 1, Reason: sched.ItsTurn}); odd {
				p.Grants[0] = sched.Grant{Queue: 1, Slice: 5 * ms, Reason: sched.Beside}
			}
		}, true},
		{"whether the holder may run", func(p *sched.Plan, odd bool) {
			if p.Grants = p.Grants[:1]; odd {
				p.Grants = append(p.Grants, sched.Grant{Queue: 2})
			}
		}, false},
		{"whether the victim may run", func(p *sched.Plan, odd bool) {
			if p.Grants = []sched.Grant{{Queue: 1}}; odd {
				p.Grants = nil
			}
		}, false},
	} {
		x := newInversionRun(t, sched.Config{}, sched.CanHold)
		for i := range 30 {
			p := grants(1)
			c.change(&p, i%2 == 1)
			x.replan(p)
			x.run(2, both, untold)
		}
		if got := len(x.found) > 0; got != c.found {
			t.Errorf("%s changes: got %v, want found %v", c.what, x.found, c.found)
		}
	}
}

// TestInversionByDeviceTime checks that the hardware's measurement goes before the counters,
// which processes report late, and that a queue that stays loaded because no other needs the
// device is no inversion.
func TestInversionByDeviceTime(t *testing.T) {
	for _, c := range []struct {
		what     string
		commands [3]uint64
		times    [3]time.Duration
		found    bool
	}{
		{"it has half of the device", both, [3]time.Duration{0, 5 * ms, 5 * ms}, true},
		{"and does not report it", first, [3]time.Duration{0, 5 * ms, 5 * ms}, true},
		{"it has a quarter", both, [3]time.Duration{0, 7500 * time.Microsecond, 2500 * time.Microsecond}, true},
		{"it has a fifth", both, [3]time.Duration{0, 8 * ms, 2 * ms}, false},
		{"it reports late", both, [3]time.Duration{0, 10 * ms, 0}, false},
		{"it is loaded while the first has no work", [3]uint64{}, [3]time.Duration{0, 0, 10 * ms}, false},
	} {
		x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
		x.measured[1], x.measured[2] = ms, ms
		x.report(10 * ms)
		x.run(30, c.commands, c.times)
		if got := len(x.found) > 0; got != c.found {
			t.Errorf("%s: got %v, want found %v", c.what, x.found, c.found)
		}
	}
}

// TestInversionNeedsAVictim checks that a queue that ranWhileStopped is no inversion while no other
// queue waits: none has work, or none is let run.
func TestInversionNeedsAVictim(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.counters[1].Launched, x.counters[1].Completed = 1<<20, 1<<20
	x.report(10 * ms)
	x.run(30, [3]uint64{0, 0, 1}, untold)
	x.expect("no work", 0, 0)

	x = newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.replan(sched.Plan{})
	x.run(30, both, untold)
	x.expect("not let run", 0, 0)

	x = newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.replan(grants(1, 2))
	x.run(30, both, untold)
	x.expect("both are let run", 0, 0)

	x = newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.step(0, sched.Event{Kind: sched.QueueClosed, Queue: 1})
	x.run(30, both, untold)
	x.expect("closed", 0, 0)
}

// TestInversionEnds checks that the victim shows the holder as long as the inversion lasts,
// and how long that was.
func TestInversionEnds(t *testing.T) {
	x := newInversionRun(t, sched.Config{InversionLimit: 40 * ms}, sched.CanInterrupt)
	x.run(20, both, untold)
	if q := queueOf(x.s, 1); q.WaitsBehind != 2 {
		t.Errorf("got %d, want the victim to wait behind queue 2", q.WaitsBehind)
	}
	x.run(20, first, untold)
	if q := queueOf(x.s, 1); q.WaitsBehind != 0 {
		t.Errorf("got %d, want none after the end", q.WaitsBehind)
	}
	total := time.Duration(0)
	for _, v := range x.found {
		total += v.More
	}
	if total < 160*ms || total > 220*ms {
		t.Errorf("got %v in all, want about 200 ms", total)
	}
	x.expect("after the end", 1, 1, sched.StopAgain)
	x = newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.run(10, both, untold)
	x.expect("at first", 1, 0, sched.StopAgain)
	x.run(5, first, untold)
	x.expect("at the next look after a stop that works", 0, 1)
	for _, end := range []sched.Event{{Kind: sched.QueueClosed, Queue: 1}, {Kind: sched.QueueClosed, Queue: 2}} {
		x := newInversionRun(t, sched.Config{InversionLimit: 40 * ms}, sched.CanInterrupt)
		x.run(20, both, untold)
		x.found = nil
		x.step(0, end)
		x.run(10, both, untold)
		if len(x.found) != 1 || !x.found[0].Over {
			t.Errorf("queue %d closed: got %v, want the end", end.Queue, x.found)
		}
	}
}

// TestInversionOutlastsItsRemedy checks that an inversion is not over when its holder is stopped
// again, but when that has an effect.
func TestInversionOutlastsItsRemedy(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.late = true
	x.run(80, both, untold)
	if q := queueOf(x.s, 1); q.WaitsBehind != 2 {
		t.Errorf("got %d, want the victim to wait behind queue 2", q.WaitsBehind)
	}
	x.expect("without effect", 1, 0, sched.StopAgain)
	x.run(40, both, untold) // the next remedy, after a second, works
	x.run(20, first, untold)
	x.expect("with effect", 0, 1, sched.StopAgain)
}

// TestRemedies checks what is done about an inversion: the stop is undone and another level is
// used, for longer each time; a level that is the only one is used again; stops that failed
// are tried again; and while a call is under way nothing is done.
func TestRemedies(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt|sched.CanHold)
	x.run(20, both, untold)
	want := []sched.Action{
		{Verb: sched.Stop, Level: sched.LevelInterrupt}, {Verb: sched.Start, Level: sched.LevelInterrupt}, {Verb: sched.Stop, Level: sched.LevelHold},
	}
	x.expectActions("two levels", want)
	x.run(40, first, untold)
	x.replan(grants(1, 2))
	x.run(1, both, untold) // started at the level at which it is stopped
	x.replan(grants(1))
	x.run(1, both, untold)
	x.expectActions("again within the pause", []sched.Action{{Verb: sched.Start, Level: sched.LevelHold}, {Verb: sched.Stop, Level: sched.LevelHold}})
	x.run(200, first, untold)
	x.replan(grants(1, 2))
	x.run(1, both, untold)
	x.replan(grants(1))
	x.run(1, both, untold)
	x.expectActions("after the pause", []sched.Action{{Verb: sched.Start, Level: sched.LevelHold}, {Verb: sched.Stop, Level: sched.LevelInterrupt}})

	x = newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.run(1000, both, untold)
	x.expect("one level, 10 s", 1, 0, sched.StopAgain, sched.StopAgain, sched.StopAgain, sched.StopAgain) // after 0.1, 1.1, 3.1 and 7.1 s
	if q := queueOf(x.s, 2); q.State != sched.Stopped {
		t.Errorf("one level: got state %v, want stopped", q.State)
	}
	x.run(20000, both, untold)
	if n := len(x.actions); n > 1+2*12 {
		t.Errorf("one level, 210 s: got %d actions, want at most a remedy a minute in the end", n)
	}

	x = newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.hang = true
	x.replan(grants(1, 2))
	x.run(1, both, untold)
	x.replan(grants(1))
	x.run(30, both, untold)
	x.expect("a call that hangs", 1, 0)
}

// TestFailedStopIsRetriedForAVictim checks that stops that failed are tried again at once.
func TestFailedStopIsRetriedForAVictim(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.replan(grants(1, 2))
	x.outcome = sched.Refused
	x.run(1, both, untold)
	x.replan(grants(1))
	x.run(13, both, untold)
	x.actions = nil
	x.run(1, both, untold) // 140 ms after the plan: by itself the stop would be tried again after 150 ms
	x.expect("stops that fail", 1, 0, sched.RetryStops)
	x.expectActions("stops that fail", []sched.Action{{Verb: sched.Stop, Level: sched.LevelInterrupt}})
	x.run(36, both, untold)
	x.expect("soon after", 0, 0)
	x.outcome = sched.Unsupported
	x.run(100, both, untold)
	x.found = nil
	x.run(500, both, untold)
	x.expect("a queue that cannot be stopped", 0, 0)
}

func (x *inversionRun) expectActions(what string, want []sched.Action) {
	x.t.Helper()
	for i := range x.actions {
		x.actions[i].ID, x.actions[i].Queue = 0, x.actions[i].Queue-2 // all are of queue 2
	}
	same := len(x.actions) == len(want)
	for i := range want {
		same = same && x.actions[i] == want[i]
	}
	if !same {
		x.t.Errorf("%s: got %v, want %v", what, x.actions, want)
	}
	x.actions = nil
}

// TestInversionCountsTimeWithWork checks that what the second queue has while the first one
// has no work does not count: only the time in which both could have been on the device.
func TestInversionCountsTimeWithWork(t *testing.T) {
	for _, c := range []struct {
		work  time.Duration // of queue 1, in each 10 ms
		times [3]time.Duration
		found bool
	}{
		{9 * ms, [3]time.Duration{0, 5 * ms, 5 * ms}, true},
		{6 * ms, [3]time.Duration{0, 4 * ms, 6 * ms}, false},
		{4 * ms, [3]time.Duration{0, 4 * ms, 6 * ms}, false},
	} {
		x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
		x.measured[1], x.measured[2] = ms, ms
		x.report(0)
		for range 40 {
			x.counters[1].Completed = x.counters[1].Submitted
			x.counters[1].Launched = x.counters[1].Submitted
			x.report(c.work)
			x.counters[1].Submitted++
			x.measured[1] += c.times[1]
			x.measured[2] += c.times[2]
			x.report(10*ms - c.work)
		}
		if got := len(x.found) > 0; got != c.found {
			t.Errorf("%v of work: got %v, want found %v", c.work, x.found, c.found)
		}
	}
}

// TestLittleEvidence checks how much a queue may do in each look, every 50 ms: a deactivated
// queue finishes the command that runs, and at other levels one command is too many. A queue
// whose device time is measured while that of the victim is not is judged by its commands.
func TestLittleEvidence(t *testing.T) {
	for _, c := range []struct {
		can                 sched.Ability
		launched, completed uint64 // by queue 2 in each 50 ms
		measured            bool
		found               bool
	}{
		{sched.CanHold, 1, 0, false, true},
		{sched.CanDeactivate, 0, 1, false, false},
		{sched.CanDeactivate, 0, 2, false, true},
		{sched.CanInterrupt, 0, 1, false, true},
		{sched.CanInterrupt, 0, 1, true, true},
	} {
		x := newInversionRun(t, sched.Config{}, c.can)
		x.counters[2].Launched = 1000
		if x.report(10 * ms); c.measured {
			x.measured[2] = ms
		}
		for i := range 60 {
			if i%5 == 0 {
				x.counters[2].Launched += c.launched
				x.counters[2].Completed += c.completed
			}
			x.report(10 * ms)
		}
		if got := len(x.found) > 0; got != c.found {
			t.Errorf("%+v: got %v", c, x.found)
		}
	}
}

// TestNewStopIsNoInversion checks that a queue that is stopped anew all the time is no
// inversion: what it reports may be from before.
func TestNewStopIsNoInversion(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	for range 20 {
		x.replan(grants(1, 2))
		x.run(1, both, untold)
		x.replan(grants(1))
		x.run(5, both, untold)
	}
	x.expect("stopped for 50 ms at a time", 0, 0)
}

// TestInversionIsReportedAtTheLimit checks when an inversion that lasts from the first plan on is
// reported: after InversionLimit, and then each time that the queues are looked at.
func TestInversionIsReportedAtTheLimit(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.run(9, both, untold)
	x.expect("before 100 ms", 0, 0)
	for at := 100 * ms; at <= 300*ms; at += 50 * ms {
		more := 50 * ms
		if at == 100*ms {
			more = 100 * ms
			x.run(1, both, untold)
		} else {
			x.run(5, both, untold)
		}
		if len(x.found) != 1 || x.found[0].Since != 0 || x.found[0].More != more || x.found[0].Began != (at == 100*ms) {
			t.Errorf("after %v: got %+v, want one report of another %v", at, x.found, more)
		}
		x.found = nil
	}
}

// TestInversionOfTheFirstQueue checks that the order of the queues makes no difference.
func TestInversionOfTheFirstQueue(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.run(20, first, untold) // the second queue obeys
	x.replan(grants(2))
	x.run(9, both, untold)
	x.expect("for less than 100 ms", 0, 0)
	x.run(1, both, untold)
	want := sched.Inversion{
		Device: "gpu0", Victim: 2, Holder: 1, VictimProcess: 12, HolderProcess: 11, Since: sched.Time(200 * ms), Began: true, More: 100 * ms, Remedy: sched.StopAgain,
	}
	if len(x.found) != 1 || x.found[0] != want {
		t.Errorf("got %+v, want %+v", x.found, want)
	}
}

// TestInversionHasTheVictimThatWaitsMost checks which queue is the victim if several are let run:
// the one that had work for longest since the last look, the first of several. If it becomes
// another one, the inversion of the first is over.
func TestInversionHasTheVictimThatWaitsMost(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.step(0, sched.Event{Kind: sched.QueueOpened, Queue: 3, Process: 13, Device: "gpu0", Can: sched.CanInterrupt})
	x.replan(grants(1, 3))
	x.run(20, both, untold) // without counters queue 3 has no work as far as is known
	x.expect("one that is known to wait", 1, 0, sched.StopAgain)

	x.counters[3] = x.counters[1]
	x.report(0)
	x.run(20, both, untold)
	x.expect("two that wait as long", 0, 0)

	// From now on queue 1, which has had work for longer in all, rests from time to time.
	for range 4 {
		done := x.counters[1]
		x.counters[1].Launched, x.counters[1].Completed = done.Submitted, done.Submitted
		x.run(1, [3]uint64{0, 0, 1}, untold)
		x.counters[1].Submitted += 1 << 20
		x.run(4, both, untold)
	}
	if len(x.found) != 4 || !x.found[0].Over || x.found[0].Victim != 1 || x.found[0].VictimProcess != 11 {
		t.Fatalf("got %+v, want the end of the inversion of queue 1 and three reports of another", x.found)
	}
	for i, next := range x.found[1:] {
		if next.Began != (i == 0) || next.Over || next.Victim != 3 || next.VictimProcess != 13 || next.Holder != 2 {
			t.Errorf("got %+v, want an inversion of queue 3", next)
		}
	}
	if one, three := queueOf(x.s, 1).WaitsBehind, queueOf(x.s, 3).WaitsBehind; one != 0 || three != 2 {
		t.Errorf("queue 1 waits behind %d and queue 3 behind %d, want none and 2", one, three)
	}
}

// TestRemediesBeginAnew checks that the pause between remedies is short again after a minute in
// which none was needed.
func TestRemediesBeginAnew(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.run(110, both, untold)
	x.expect("after 0.1 and 1.1 s", 1, 0, sched.StopAgain, sched.StopAgain)
	x.run(199, both, untold)
	x.expect("within 2 s of the last", 0, 0)
	x.run(1, both, untold)
	x.expect("after 2 s", 0, 0, sched.StopAgain)
	x.run(7000, first, untold)
	x.expect("70 s without", 0, 1)
	x.run(110, both, untold)
	x.expect("after 0.1 and 1.1 s again", 1, 0, sched.StopAgain, sched.StopAgain)
}

// TestSlowStopIsNoInversion checks that what a queue does until its stop is done, 60 ms after the
// plan, is no inversion.
func TestSlowStopIsNoInversion(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.replan(grants(1, 2))
	x.run(10, both, untold)
	x.late = true
	x.replan(grants(1))
	done := x.outcomes
	x.outcomes, x.late = nil, false
	x.run(6, both, untold)
	x.outcomes = done
	x.run(1, both, untold)
	x.run(20, first, untold)
	x.expect("a stop that takes 60 ms", 0, 0)
}

// TestStopThatCannotBeUndone checks that a start which is to undo a stop without effect, and fails, is
// tried again after 10 ms.
func TestStopThatCannotBeUndone(t *testing.T) {
	x := newInversionRun(t, sched.Config{}, sched.CanInterrupt)
	x.starts = sched.Refused
	x.run(9, both, untold)
	start := sched.Action{Verb: sched.Start, Level: sched.LevelInterrupt}
	x.actions = nil
	x.run(1, both, untold)
	x.expectActions("after 100 ms", []sched.Action{start})
	x.run(1, both, untold)
	x.expectActions("10 ms later", []sched.Action{start})
	x.run(1, both, untold)
	x.expectActions("within the next 20 ms", nil)
	x.run(1, both, untold)
	x.expectActions("20 ms later", []sched.Action{start})
}

// TestUndoneStopWaitsForAShortSlice checks that a queue whose stop had no effect is not started, to
// be stopped again, with a slice too short to share the device while another queue has one.
func TestUndoneStopWaitsForAShortSlice(t *testing.T) {
	const can = sched.CanInterrupt | sched.CanSlice
	for _, c := range []struct {
		victim, holder time.Duration // slices
		starts         bool
	}{{sched.MinSlice, sched.MinSlice, false}, {sched.MinSlice, 0, true}, {0, sched.MinSlice, true}} {
		x := newInversionRun(t, sched.Config{}, can)
		x.step(0,
			sched.Event{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * ms, MinSharedSlice: 200 * time.Microsecond}},
			sched.Event{Kind: sched.QueueOpened, Queue: 1, Process: 11, Device: "gpu0", Can: can})
		x.replan(sched.Plan{Grants: []sched.Grant{{Queue: 1}, {Queue: 2, Slice: c.holder}}})
		x.replan(sched.Plan{Grants: []sched.Grant{{Queue: 1, Slice: c.victim}}})
		started := func() (yes bool) {
			for _, a := range x.actions {
				yes = yes || a.Queue == 2 && a.Verb == sched.Start
			}
			return yes
		}
		x.actions = nil
		if x.run(30, both, untold); started() != c.starts {
			t.Errorf("%+v: got %v, want queue 2 to start %v", c, x.actions, c.starts)
		}
		if x.replan(grants(1)); !started() {
			t.Errorf("%+v: got %v, want queue 2 to start when the other has a longer slice", c, x.actions)
		}
	}
}
