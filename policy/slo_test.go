package policy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

var h200 = sched.Device{ID: "gpu", Slice: 2048 * time.Microsecond, MinSharedSlice: 200 * time.Microsecond, SwitchTime: 165 * time.Microsecond, StopTime: 700 * time.Microsecond}

// sloRun runs slo with one online and one batch queue. There is no device: how long
// a request takes is a function of the batch queue's setting, and all actions
// succeed at once.
type sloRun struct {
	t       *testing.T
	s       *sched.Scheduler
	p       *slo
	now     sched.Time
	slice   time.Duration // of the batch queue
	stopped bool
	changes int // changes of the slice
	served  [2]time.Duration
	late    int
	n       int
}

const testSLO = 10 * ms

func newSLORun(t *testing.T, dev sched.Device) *sloRun {
	x := &sloRun{t: t}
	choice, err := Choose("slo", nil)
	if err != nil {
		t.Fatal(err)
	}
	build := choice.Make
	choice.Make = func() sched.Policy { p := build(); x.p = p.(*slo); return p }
	x.s = sched.New(sched.Config{}, choice)
	x.step(
		sched.Event{Kind: sched.DeviceOpened, Device: dev.ID, About: dev},
		sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: dev.ID, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: testSLO}},
		sched.Event{Kind: sched.QueueOpened, Queue: 2, Device: dev.ID, Can: canAll, Attr: sched.Attr{Class: sched.Batch}},
	)
	return x
}

// step passes events to the scheduler and lets all actions succeed.
func (x *sloRun) step(events ...sched.Event) (wake sched.Time) {
	x.t.Helper()
	for {
		var actions []sched.Action
		actions, wake = x.s.Step(x.now, events)
		if m, _, bad := x.s.Overruled(h200.ID); bad {
			x.t.Fatalf("at %v: overruled: %v", time.Duration(x.now), m)
		}
		events = events[:0]
		for _, a := range actions {
			if a.Queue == 2 {
				switch a.Verb {
				case sched.Stop:
					x.stopped = true
				case sched.Start:
					x.stopped = false
				case sched.SetSlice:
					x.slice = a.Slice
					x.changes++
				}
			}
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
		if len(events) == 0 {
			return wake
		}
	}
}

// runUntil advances the clock, with a step at each time that the scheduler asks for.
func (x *sloRun) runUntil(t sched.Time) {
	x.t.Helper()
	for wake := x.step(); wake < t; wake = x.step() {
		x.now = wake
	}
	x.now = t
}

// request makes one request, 20 ms after the last. Takes returns how long it takes
// with the current setting, and what batch work gets meanwhile.
func (x *sloRun) request(takes func(slice time.Duration, stopped bool) (took, batch time.Duration)) {
	begin := x.now
	x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
	took, batch := takes(x.slice, x.stopped)
	x.runUntil(begin.Add(took))
	x.step(sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: took})
	x.n++
	if took > testSLO {
		x.late++
	}
	x.runUntil(max(x.now, begin.Add(20*ms)))
	x.served[0] += took / 8
	x.served[1] += batch
	x.step(
		sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: x.served[0]},
		sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 2, Duration: x.served[1]},
	)
}

// whileStopped returns requests that take took while batch work is stopped and
// otherwise tookBeside; batch work gets batch or batchBeside meanwhile.
func whileStopped(took, batch, tookBeside, batchBeside time.Duration) func(time.Duration, bool) (time.Duration, time.Duration) {
	return func(_ time.Duration, stopped bool) (time.Duration, time.Duration) {
		if stopped {
			return took, batch
		}
		return tookBeside, batchBeside
	}
}

// stretch returns requests that take base plus the slice, and beside which batch
// work gets more with longer slices.
func stretch(base time.Duration) func(time.Duration, bool) (time.Duration, time.Duration) {
	return func(slice time.Duration, stopped bool) (time.Duration, time.Duration) {
		switch slice {
		case 0:
			slice = h200.Slice
		case sched.MinSlice:
			slice = 0
		}
		if stopped {
			return base, 8 * ms
		}
		return base + slice, 10*ms + 2*slice
	}
}

// TestSLOFindsTheLongestSlice checks that slo finds the longest slice with which
// requests are in time, and that few are late meanwhile.
func TestSLOFindsTheLongestSlice(t *testing.T) {
	for _, test := range []struct{ base, want time.Duration }{
		{9800 * time.Microsecond, sched.MinSlice},
		{9700 * time.Microsecond, h200.Slice / 8},
		{9300 * time.Microsecond, h200.Slice / 4},
		{8500 * time.Microsecond, h200.Slice / 2},
		{5 * ms, 0},
	} {
		x := newSLORun(t, h200)
		for range 3000 {
			x.request(stretch(test.base))
		}
		if x.slice != test.want || x.late*200 > x.n || x.changes > 20 {
			t.Errorf("%v: got slice %v, want %v; %d late, %d changes", test.base, x.slice, test.want, x.late, x.changes)
		}
	}
}

// TestSLOFollowsTheLoad checks that the slice becomes shorter within a few requests
// when they take longer, and longer again within a minute when they take less.
func TestSLOFollowsTheLoad(t *testing.T) {
	x := newSLORun(t, h200)
	run := func(n int, base time.Duration) (late int) {
		before := x.late
		for range n {
			x.request(stretch(base))
		}
		return x.late - before
	}
	run(500, 5*ms)
	if x.slice != 0 {
		t.Fatalf("short requests: got slice %v, want the default", x.slice)
	}
	if late := run(500, 9700*time.Microsecond); late > 8 || x.slice == 0 || x.slice > h200.Slice/8 {
		t.Errorf("long requests: got %d late, slice %v, want at most 8 late and a short slice", late, x.slice)
	}
	if late := run(3000, 5*ms); late > 0 || x.slice != 0 {
		t.Errorf("short requests again: got %d late, slice %v, want 0 late and the default", late, x.slice)
	}
}

// TestSLOThatCannotBeMetKeepsMinSlice checks that batch work has the minimum slice if
// requests are late with every setting, and that the setting does not keep changing.
func TestSLOThatCannotBeMetKeepsMinSlice(t *testing.T) {
	x := newSLORun(t, h200)
	for range 3000 {
		x.request(stretch(15 * ms))
	}
	if x.slice != sched.MinSlice || x.changes > 4 {
		t.Errorf("got slice %v, %d changes, want the minimum, at most 4", x.slice, x.changes)
	}
}

// TestSLOBearsABusyHost checks that stalls of the host, which make one request or a
// few in a row late with any setting, do not make batch work give way further.
func TestSLOBearsABusyHost(t *testing.T) {
	const seeds = 20
	sum := 0.0
	for seed := range uint64(seeds) {
		x, random, stall := newSLORun(t, h200), rand.New(rand.NewPCG(seed, 0)), 0
		steps := stretch(5 * ms)
		got, possible := time.Duration(0), time.Duration(0)
		for n := range 4000 {
			if stall > 0 {
				stall--
			} else if random.IntN(300) == 0 {
				stall = 1 + random.IntN(4)
			}
			before := x.served[1]
			x.request(func(slice time.Duration, stopped bool) (time.Duration, time.Duration) {
				took, batch := steps(slice, stopped)
				if stall > 0 {
					took += 12 * ms
				}
				return took, batch
			})
			if n >= 500 {
				_, withDefaults := steps(0, false)
				got, possible = got+x.served[1]-before, possible+withDefaults
			}
		}
		kept := float64(got) / float64(possible)
		sum += kept
		if inTime := x.late*100 <= x.n; inTime && kept < 0.8 { // otherwise the stalls alone exceed 1 %
			t.Errorf("seed %d: batch work keeps %.3f, want at least 0.8; %d of %d late", seed, kept, x.late, x.n)
		}
	}
	t.Logf("batch work keeps %.4f", sum/seeds)
	if sum/seeds < 0.95 {
		t.Errorf("batch work keeps %.3f, want at least 0.95", sum/seeds)
	}
}

// TestSLOForeseesLateRequests has requests with normally distributed durations. slo
// must see from those in time that others will be late, and not take late ones for
// stalls.
func TestSLOForeseesLateRequests(t *testing.T) {
	const seeds, n = 40, 400
	for _, test := range []struct{ base, spread time.Duration }{{7 * ms, ms}, {6 * ms, 3 * ms / 2}} {
		steps := stretch(test.base)
		late, native, got, possible := 0, 0, time.Duration(0), time.Duration(0)
		for seed := range uint64(seeds) {
			x, random := newSLORun(t, h200), rand.New(rand.NewPCG(seed, 7))
			takes := func(slice time.Duration, stopped bool) (time.Duration, time.Duration) {
				took, batch := steps(slice, stopped)
				return max(took+time.Duration(random.NormFloat64()*float64(test.spread)), ms), batch
			}
			for range n {
				took, batch := takes(0, false)
				if possible += batch; took > testSLO {
					native++
				}
				x.request(takes)
			}
			late += x.late
			got += x.served[1]
		}
		kept := float64(got) / float64(possible)
		t.Logf("%v: late %.2f %%, with the default slice %.2f %%; batch work gets %.3f of what it gets there",
			test, 100*float64(late)/seeds/n, 100*float64(native)/seeds/n, kept)
		if late*100 > seeds*n || kept < 0.7 {
			t.Errorf("%v: got %d of %d late, batch work %.3f, want at most 1 %% and at least 0.7", test, late, seeds*n, kept)
		}
	}
}

// TestSLOTwoKindsOfRequests checks that short and long requests of one queue do not
// look like durations with a long tail.
func TestSLOTwoKindsOfRequests(t *testing.T) {
	for every := 2; every <= 12; every++ {
		x, random := newSLORun(t, h200), rand.New(rand.NewPCG(1, uint64(every)))
		long := 0
		for range 2000 {
			base := 2 * ms
			if random.IntN(every) == 0 {
				base = 6 * ms
			}
			if x.request(stretch(base)); x.slice == 0 {
				long++
			}
		}
		if long < 1800 || x.late > 0 {
			t.Errorf("one in %d takes longer: got the default slice for %d of 2000, %d late, want at least 1800, 0", every, long, x.late)
		}
	}
}

// TestSLOTwoOnlineQueues has one queue with few requests and little time to spare,
// and one with many requests and much time to spare.
func TestSLOTwoOnlineQueues(t *testing.T) {
	for every := 2; every <= 12; every++ {
		x := newSLORun(t, h200)
		x.step(sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: h200.ID, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: 100 * ms}})
		long := 0
		for range few(1000) {
			for range every - 1 {
				x.step(sched.Event{Kind: sched.RequestStarted, Queue: 3})
				x.now = x.now.Add(12 * ms)
				x.served[1] += 10 * ms
				x.step(sched.Event{Kind: sched.RequestFinished, Queue: 3, Duration: 12 * ms})
			}
			if x.request(stretch(4 * ms)); x.slice == 0 {
				long++
			}
		}
		if long < int(few(1000))-100 || x.late > 0 {
			t.Errorf("one in %d: got the default slice for %d of %d, %d late, want all but 100, and 0", every, long, few(1000), x.late)
		}
	}
}

// TestSLORequestInTimeKeepsTheSetting checks that a setting with a high score is left
// only after a late request.
func TestSLORequestInTimeKeepsTheSetting(t *testing.T) {
	x := newSLORun(t, h200)
	for range 500 {
		x.request(stretch(2 * ms))
	}
	for i := range x.p.requests.values {
		x.p.requests.values[i].lateScore = lateLimit + 1
	}
	x.p.ladder.setCurrent(x.p.ladder.chosen, x.now)
	for range 5 {
		x.request(stretch(2 * ms))
	}
	if x.slice != 0 || x.late != 0 {
		t.Errorf("got slice %v, %d late, want the default, 0", x.slice, x.late)
	}
}

// TestSLOTwoLateRequestsKeepTheSetting checks that two late requests do not end a
// setting with which the others had much time to spare.
func TestSLOTwoLateRequestsKeepTheSetting(t *testing.T) {
	x := newSLORun(t, h200)
	for range 500 {
		x.request(stretch(2 * ms))
	}
	late := func(time.Duration, bool) (time.Duration, time.Duration) { return 10500 * time.Microsecond, 10 * ms }
	for range 2 {
		x.p.ladder.setCurrent(x.p.ladder.current, x.now) // as after a trial
		for range 3 {
			x.request(stretch(2 * ms))
		}
		x.request(late)
	}
	if x.late != 2 || x.slice != 0 {
		t.Errorf("got %d late, slice %v, want 2, the default", x.late, x.slice)
	}
}

// TestSLOThirdLateRequestEndsTheFirstSetting checks that the first setting, like any other,
// is left after three late requests and not before.
func TestSLOThirdLateRequestEndsTheFirstSetting(t *testing.T) {
	x := newSLORun(t, h200)
	late := func(time.Duration, bool) (time.Duration, time.Duration) { return 10500 * time.Microsecond, 10 * ms }
	for n := 1; n <= 3; n++ {
		x.request(late)
		if left := x.p.ladder.chosen != x.p.ladder.start; left != (n == 3) {
			t.Errorf("after %d late requests: left the setting %v, want %v", n, left, n == 3)
		}
	}
}

// TestSLOTrialsCostLittle checks that if requests are in time only while batch work
// is stopped, a trial of another setting ends after one or two late requests, although
// these take as much longer as with a stall of the host.
func TestSLOTrialsCostLittle(t *testing.T) {
	x := newSLORun(t, h200)
	waits := whileStopped(7*ms, 12*ms, 11*ms, 10*ms)
	for range 40 {
		x.request(waits)
	}
	if x.late > 5 {
		t.Errorf("got %d of the first 40 late, want at most 5", x.late)
	}
	x.late = 0
	for range 4000 {
		x.request(waits)
	}
	if x.late > 10 {
		t.Errorf("got %d of 4000 late, want at most 10", x.late)
	}
}

// TestSLOStopsBatchForALimitedTime checks that a request whose end is never reported
// does not stop batch work for ever.
func TestSLOStopsBatchForALimitedTime(t *testing.T) {
	x := newSLORun(t, h200)
	waits := whileStopped(8*ms, 10*ms, 14*ms, 5*ms)
	for range 200 {
		x.request(waits)
	}
	if x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1}); !x.stopped {
		t.Fatal("got batch work running during a request, want stopped")
	}
	began := x.now
	for x.stopped && x.now < began.Add(time.Second) {
		wake := x.step()
		if x.stopped {
			x.now = wake
		}
	}
	if got := x.now.Sub(began); x.stopped || got > 4*testSLO {
		t.Errorf("got batch work stopped for %v, want at most %v", got, 4*testSLO)
	}
}

// TestSLORestoresTheSliceWhenQuiet checks that batch work has the default slice after
// 2 s without requests, and the minimum slice when requests come again.
func TestSLORestoresTheSliceWhenQuiet(t *testing.T) {
	x := newSLORun(t, h200)
	for range 100 {
		x.request(stretch(9800 * time.Microsecond))
	}
	x.now = x.now.Add(2 * time.Second)
	if x.step(); x.slice != 0 {
		t.Errorf("when quiet: got slice %v, want the default", x.slice)
	}
	if x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1}); x.slice != sched.MinSlice {
		t.Errorf("with a request: got slice %v, want the minimum", x.slice)
	}
}

// TestSLOAdaptsBesideAnIdleQueueWithoutSLO checks that an online queue without an SLO
// keeps batch work at the minimum slice, but not while it launches nothing.
func TestSLOAdaptsBesideAnIdleQueueWithoutSLO(t *testing.T) {
	x := newSLORun(t, h200)
	x.step(sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: h200.ID, Can: canAll, Attr: sched.Attr{Class: sched.Online}})
	launched := uint64(0)
	work := func(n uint64) {
		launched += n
		x.step(sched.Event{Kind: sched.Progressed, Queue: 3, Counters: sched.Counters{
			Submitted: launched, Launched: launched, Completed: launched, Known: true,
		}})
	}
	for range 1000 {
		work(1) // finished between two plans: never seen ready
		x.request(stretch(5 * ms))
	}
	if x.slice != sched.MinSlice {
		t.Errorf("beside a working queue without an SLO: got slice %v, want the minimum", x.slice)
	}
	for range 1000 {
		work(0)
		x.request(stretch(5 * ms))
	}
	if x.slice != 0 {
		t.Errorf("while it launches nothing: got slice %v, want the default", x.slice)
	}
	work(1)
	x.request(stretch(5 * ms))
	if x.slice != sched.MinSlice {
		t.Errorf("when it works again: got slice %v, want the minimum", x.slice)
	}
}

// TestSLOOpenRequestEndsATrial checks that a trial ends while its first request is still
// open: with some settings no request finishes.
func TestSLOOpenRequestEndsATrial(t *testing.T) {
	x := newSLORun(t, h200)
	for range 500 {
		x.request(stretch(5 * ms))
	}
	x.p.ladder.setCurrent(x.p.ladder.chosen+1, x.now) // a trial
	x.request(stretch(5 * ms))
	if x.p.ladder.current == x.p.ladder.chosen {
		t.Fatal("got no trial under way")
	}
	x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
	x.runUntil(x.now.Add(4*testSLO + 1))
	if x.step(); x.p.ladder.current != x.p.ladder.chosen {
		t.Error("got the trial going on beside a request open for 4 times its SLO, want it ended")
	}
}

// TestSLOOpenRequestsEndASetting checks that the chosen setting is left while a request
// stays open, even if no request finishes.
func TestSLOOpenRequestsEndASetting(t *testing.T) {
	x := newSLORun(t, h200)
	for range 500 {
		x.request(stretch(5 * ms))
	}
	if x.slice != 0 {
		t.Fatalf("got slice %v, want the default", x.slice)
	}
	x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
	if x.runUntil(x.now.Add(2 * maxLatePeriods * testSLO)); x.slice == 0 {
		t.Error("got the default slice beside a request that is open for 32 times its SLO, want a shorter one")
	}
}

// TestSLORequestThatNeverEnds checks that a request whose end is never reported counts a
// limited number of times.
func TestSLORequestThatNeverEnds(t *testing.T) {
	x := newSLORun(t, h200)
	x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
	x.runUntil(x.now.Add(time.Second))
	for range 4000 {
		x.request(stretch(5 * ms))
	}
	if x.slice != 0 {
		t.Errorf("got slice %v beside a request that never ends, want the default", x.slice)
	}
}

// TestSLOLateRequestCountsOnce checks that a request that counted while it was open does
// not count again when it finishes.
func TestSLOLateRequestCountsOnce(t *testing.T) {
	x := newSLORun(t, h200)
	for range 500 {
		x.request(stretch(5 * ms))
	}
	count := func() float64 { return x.p.ladder.recentLate + x.p.ladder.recentStalls }
	before := count()
	x.request(func(time.Duration, bool) (time.Duration, time.Duration) { return 25 * ms, 10 * ms })
	if got := count() - before; got < 0.9 || got > 1.1 {
		t.Errorf("got one late request counted %.1f times", got)
	}
}

// TestSLORequestWithoutWork checks that a request of a process that has no work for the
// device, and may not exist, changes no setting: a process can report any request.
func TestSLORequestWithoutWork(t *testing.T) {
	x := newSLORun(t, h200)
	for range 500 {
		x.request(stretch(5 * ms))
	}
	if x.slice != 0 {
		t.Fatalf("got slice %v, want the default", x.slice)
	}
	x.step(sched.Event{Kind: sched.Progressed, Queue: 1, Counters: sched.Counters{Submitted: 9, Launched: 9, Completed: 9, Known: true}})
	x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
	for end := x.now.Add(2 * maxLatePeriods * testSLO); x.now < end; x.runUntil(x.now.Add(testSLO)) {
		if x.slice != 0 || x.stopped {
			t.Fatalf("got slice %v and stopped %v beside a request without work, want the default", x.slice, x.stopped)
		}
	}
}
