package policy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

var h200 = sched.Device{ID: "gpu", Slice: 2048 * time.Microsecond, MinSharedSlice: 200 * time.Microsecond, StopTime: 700 * time.Microsecond}

// service is a device on which requests take what the setting of the batch queue
// makes them take, without a device: it answers the policy's plans at once.
type service struct {
	t       *testing.T
	s       *sched.Scheduler
	p       *slo
	now     sched.Time
	slice   time.Duration // of the batch queue
	stopped bool
	changes int // of the slice
	served  [2]time.Duration
	late    int
	n       int
}

const sloOfService = 10 * ms

func newService(t *testing.T, dev sched.Device) *service {
	x := &service{t: t}
	choice, err := Choose("slo", nil)
	if err != nil {
		t.Fatal(err)
	}
	build := choice.Make
	choice.Make = func() sched.Policy { p := build(); x.p = p.(*slo); return p }
	x.s = sched.New(sched.Config{}, choice)
	x.step(
		sched.Event{Kind: sched.DeviceOpened, Device: dev.ID, About: dev},
		sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: dev.ID, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: sloOfService}},
		sched.Event{Kind: sched.QueueOpened, Queue: 2, Device: dev.ID, Can: canAll, Attr: sched.Attr{Class: sched.Batch}},
	)
	return x
}

// step tells of events, and has all that is ordered done at once.
func (x *service) step(events ...sched.Event) (wake sched.Time) {
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

// request is one every 20 ms, that takes as long as it takes at the setting in
// force, and batch work as much as it gets meanwhile.
func (x *service) request(takes func(slice time.Duration, held bool) (took, batch time.Duration)) {
	begin := x.now
	x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1})
	took, batch := takes(x.slice, x.stopped)
	x.now = begin.Add(took)
	x.step(sched.Event{Kind: sched.RequestFinished, Queue: 1, Duration: took})
	x.n++
	if took > sloOfService {
		x.late++
	}
	x.now = max(x.now, begin.Add(20*ms))
	x.served[0] += took / 8
	x.served[1] += batch
	x.step(
		sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: x.served[0]},
		sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 2, Duration: x.served[1]},
	)
}

// stretch is a program whose requests take longer by as much as the slice is longer,
// and beside which batch work gets more with longer slices.
func stretch(base time.Duration) func(time.Duration, bool) (time.Duration, time.Duration) {
	return func(slice time.Duration, held bool) (time.Duration, time.Duration) {
		switch slice {
		case 0:
			slice = h200.Slice
		case sched.MinSlice:
			slice = 0
		}
		if held {
			return base, 8 * ms
		}
		return base + slice, 10*ms + 2*slice
	}
}

// TestSLOFindsTheLongestSlice: not longer than it may be, and not shorter, and the
// requests that are late meanwhile are few.
func TestSLOFindsTheLongestSlice(t *testing.T) {
	for _, test := range []struct{ base, want time.Duration }{
		{9800 * time.Microsecond, sched.MinSlice},
		{9700 * time.Microsecond, h200.Slice / 8},
		{9300 * time.Microsecond, h200.Slice / 4},
		{8500 * time.Microsecond, h200.Slice / 2},
		{5 * ms, 0},
	} {
		x := newService(t, h200)
		for range 3000 {
			x.request(stretch(test.base))
		}
		if x.slice != test.want || x.late*200 > x.n || x.changes > 20 {
			t.Errorf("%v: slice %v, want %v; %d late, %d changes", test.base, x.slice, test.want, x.late, x.changes)
		}
	}
}

// TestSLOFollowsTheLoad: when requests come to need more, the slice is shortened
// within a few of them; when they need less again it is found within a minute.
func TestSLOFollowsTheLoad(t *testing.T) {
	x := newService(t, h200)
	run := func(n int, base time.Duration) (late int) {
		before := x.late
		for range n {
			x.request(stretch(base))
		}
		return x.late - before
	}
	run(500, 5*ms)
	if x.slice != 0 {
		t.Fatalf("slice %v though there is room", x.slice)
	}
	if late := run(500, 9700*time.Microsecond); late > 8 || x.slice == 0 || x.slice > h200.Slice/8 {
		t.Errorf("%d late, slice %v though there is no room", late, x.slice)
	}
	if late := run(3000, 5*ms); late > 0 || x.slice != 0 {
		t.Errorf("%d late, slice %v though there is room again", late, x.slice)
	}
}

// TestSLOHopelessStaysFast: where no setting helps, batch work gives way as far as
// it can, and the loop does not thrash.
func TestSLOHopelessStaysFast(t *testing.T) {
	x := newService(t, h200)
	for range 3000 {
		x.request(stretch(15 * ms))
	}
	if x.slice != sched.MinSlice || x.changes > 4 {
		t.Errorf("slice %v, %d changes", x.slice, x.changes)
	}
}

// TestSLOBearsABusyHost: requests that are late whatever is done, some by themselves and
// some in a row, do not have batch work give way for nothing.
func TestSLOBearsABusyHost(t *testing.T) {
	const seeds = 20
	sum := 0.0
	for seed := range uint64(seeds) {
		x, random, stall := newService(t, h200), rand.New(rand.NewPCG(seed, 0)), 0
		steps := stretch(5 * ms)
		got, most := time.Duration(0), time.Duration(0)
		for n := range 4000 {
			if stall > 0 {
				stall--
			} else if random.IntN(300) == 0 {
				stall = 1 + random.IntN(4)
			}
			before := x.served[1]
			x.request(func(slice time.Duration, held bool) (time.Duration, time.Duration) {
				took, batch := steps(slice, held)
				if stall > 0 {
					took += 12 * ms
				}
				return took, batch
			})
			if n >= 500 {
				_, unhindered := steps(0, false)
				got, most = got+x.served[1]-before, most+unhindered
			}
		}
		kept := float64(got) / float64(most)
		sum += kept
		if inTime := x.late*100 <= x.n; inTime && kept < 0.8 { // otherwise there is nothing to bear
			t.Errorf("seed %d: batch work keeps %.3f of what it may have; %d of %d late", seed, kept, x.late, x.n)
		}
	}
	t.Logf("batch work keeps %.4f", sum/seeds)
	if sum/seeds < 0.95 {
		t.Errorf("batch work keeps %.3f of what it may have", sum/seeds)
	}
}

// TestSLOSeesTheTail: requests that differ by themselves as chance has it. The tail is
// where those that were in time point, so that it need not be found by too many that
// were not; and it is no stall of the host.
func TestSLOSeesTheTail(t *testing.T) {
	const seeds, n = 40, 400
	for _, test := range []struct{ base, spread time.Duration }{{7 * ms, ms}, {6 * ms, 3 * ms / 2}} {
		steps := stretch(test.base)
		late, native, got, most := 0, 0, time.Duration(0), time.Duration(0)
		for seed := range uint64(seeds) {
			x, random := newService(t, h200), rand.New(rand.NewPCG(seed, 7))
			takes := func(slice time.Duration, held bool) (time.Duration, time.Duration) {
				took, batch := steps(slice, held)
				return max(took+time.Duration(random.NormFloat64()*float64(test.spread)), ms), batch
			}
			for range n {
				took, batch := takes(0, false)
				if most += batch; took > sloOfService {
					native++
				}
				x.request(takes)
			}
			late += x.late
			got += x.served[1]
		}
		t.Logf("%v: late %.2f %%, at the device's own slice %.2f %%; batch work gets %.3f of what it has there",
			test, 100*float64(late)/seeds/n, 100*float64(native)/seeds/n, float64(got)/float64(most))
		if late*100 > seeds*n || float64(got) < 0.7*float64(most) {
			t.Errorf("%v: %d of %d late; batch work gets %.3f", test, late, seeds*n, float64(got)/float64(most))
		}
	}
}

// TestSLOKindsOfRequests: requests of two kinds lie apart, and are no tail.
func TestSLOKindsOfRequests(t *testing.T) {
	for every := 2; every <= 12; every++ {
		x, random := newService(t, h200), rand.New(rand.NewPCG(1, uint64(every)))
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
			t.Errorf("one in %d takes longer: the longest slice for %d of 2000, %d late", every, long, x.late)
		}
	}
}

// TestSLOTwoPrograms: one has little to spare and asks seldom, the other has much.
func TestSLOTwoPrograms(t *testing.T) {
	for every := 2; every <= 12; every++ {
		x := newService(t, h200)
		x.step(sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: h200.ID, Can: canAll, Attr: sched.Attr{Class: sched.Online, SLO: 100 * ms}})
		long := 0
		for range 1000 {
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
		if long < 900 || x.late > 0 {
			t.Errorf("one in %d: the longest slice for %d of 1000, %d late", every, long, x.late)
		}
	}
}

// TestSLOQuietAfterALateOne: a setting that was about to be left when all fell quiet is
// not left, when requests come again, for one that is in time.
func TestSLOQuietAfterALateOne(t *testing.T) {
	x := newService(t, h200)
	for range 500 {
		x.request(stretch(2 * ms))
	}
	for i := range x.p.queues.values {
		x.p.queues.values[i].score = lateLimit + 1
	}
	x.p.ladder.put(x.p.ladder.chosen, x.now)
	for range 5 {
		x.request(stretch(2 * ms))
	}
	if x.slice != 0 || x.late != 0 {
		t.Errorf("slice %v, %d late", x.slice, x.late)
	}
}

// TestSLOTwoLateAreFew: where the others had much to spare.
func TestSLOTwoLateAreFew(t *testing.T) {
	x := newService(t, h200)
	for range 500 {
		x.request(stretch(2 * ms))
	}
	late := func(time.Duration, bool) (time.Duration, time.Duration) { return 10500 * time.Microsecond, 10 * ms }
	for range 2 {
		x.p.ladder.put(x.p.ladder.current, x.now) // as after a trial
		for range 3 {
			x.request(stretch(2 * ms))
		}
		x.request(late)
	}
	if x.late != 2 || x.slice != 0 {
		t.Errorf("%d late, slice %v", x.late, x.slice)
	}
}

// TestSLOTrialsCostLittle: where only keeping batch work off will do, a trial of anything
// else is over after a request or two, though these take longer by as much as they do
// when the host stands still.
func TestSLOTrialsCostLittle(t *testing.T) {
	x := newService(t, h200)
	waits := func(_ time.Duration, held bool) (time.Duration, time.Duration) {
		if held {
			return 7 * ms, 12 * ms
		}
		return 11 * ms, 10 * ms
	}
	for range 40 {
		x.request(waits)
	}
	if x.late > 5 {
		t.Errorf("%d of the first 40 late", x.late)
	}
	x.late = 0
	for range 4000 {
		x.request(waits)
	}
	if x.late > 10 {
		t.Errorf("%d of 4000 late", x.late)
	}
}

// TestSLOKeepsBatchOffOnlyWhileItMay: a request of which the end is never told does
// not keep batch work off for ever, whatever the setting.
func TestSLOKeepsBatchOffOnlyWhileItMay(t *testing.T) {
	x := newService(t, h200)
	needsQuiet := func(_ time.Duration, held bool) (time.Duration, time.Duration) {
		if held {
			return 8 * ms, 10 * ms
		}
		return 14 * ms, 5 * ms
	}
	for range 200 {
		x.request(needsQuiet)
	}
	if x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1}); !x.stopped {
		t.Fatal("batch work is not kept off")
	}
	began := x.now
	for x.stopped && x.now < began.Add(time.Second) {
		wake := x.step()
		if x.stopped {
			x.now = wake
		}
	}
	if got := x.now.Sub(began); x.stopped || got > 4*sloOfService {
		t.Errorf("kept off for %v", got)
	}
}

// TestSLOGivesBackWhenQuiet, and is soon at work again.
func TestSLOGivesBackWhenQuiet(t *testing.T) {
	x := newService(t, h200)
	for range 100 {
		x.request(stretch(9800 * time.Microsecond))
	}
	x.now = x.now.Add(2 * time.Second)
	if x.step(); x.slice != 0 {
		t.Errorf("slice %v when all is quiet", x.slice)
	}
	if x.step(sched.Event{Kind: sched.RequestStarted, Queue: 1}); x.slice != sched.MinSlice {
		t.Errorf("slice %v when it is not any more", x.slice)
	}
}

// TestSLOSleeperIsNoHindrance: an online program without an SLO is to be served as
// fast as can be, but not while it launches nothing.
func TestSLOSleeperIsNoHindrance(t *testing.T) {
	x := newService(t, h200)
	x.step(sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: h200.ID, Can: canAll, Attr: sched.Attr{Class: sched.Online}})
	launched := uint64(0)
	work := func(n uint64) {
		launched += n
		x.step(sched.Event{Kind: sched.Progressed, Queue: 3, Counters: sched.Counters{
			Submitted: launched, Launched: launched, Completed: launched, Known: true,
		}})
	}
	for range 1000 {
		work(1) // between two looks: it is never seen to be ready
		x.request(stretch(5 * ms))
	}
	if x.slice != sched.MinSlice {
		t.Errorf("beside a program that works and has no SLO: slice %v", x.slice)
	}
	for range 1000 {
		work(0)
		x.request(stretch(5 * ms))
	}
	if x.slice != 0 {
		t.Errorf("beside one that sleeps: slice %v", x.slice)
	}
	work(1)
	x.request(stretch(5 * ms))
	if x.slice != sched.MinSlice {
		t.Errorf("when it works again: slice %v", x.slice)
	}
}
