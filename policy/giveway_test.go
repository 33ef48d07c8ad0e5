package policy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

func class(c sched.Class) sched.Queue { return sched.Queue{Attr: sched.Attr{Class: c}} }

func batch(w uint32) sched.Queue { return sched.Queue{Attr: sched.Attr{Class: sched.Batch, Weight: w}} }

func TestGivewayPlansRandomViewsByItsRules(t *testing.T) {
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 3))
		dev := []sched.Device{plainGPU, slicedGPU}[r.IntN(2)]
		v := randomView(r, dev)
		p := fresh(t, "giveway")
		for range 3 {
			plan := p.Plan(v)
			grants := map[sched.QueueID]sched.Grant{}
			short := 0
			for _, g := range plan.Grants {
				grants[g.Queue] = g
				if g.Slice > 0 && g.Slice < dev.MinSharedSlice {
					short++
				}
			}
			if short > 1 {
				t.Fatalf("seed %d: got %d slices below MinSharedSlice, want at most 1: %+v", seed, short, plan.Grants)
			}
			for _, q := range v.Queues {
				g, ok := grants[q.ID]
				if c := q.Attr.Class; c == sched.Online && (!ok || g.Slice != 0 && g.Slice < dev.Slice || g.Bound != 0) ||
					c == sched.Standard && (!ok || g != sched.Grant{Queue: q.ID, Reason: sched.ByDefault}) {
					t.Fatalf("seed %d: %v queue %d has %+v, %v", seed, c, q.ID, g, ok)
				}
			}
			v.Now = v.Now.Add(time.Duration(r.IntN(60)) * ms)
		}
	}
}

func TestGivewayBatchTakesTurnsAtMinSliceBesideAnOnlineQueue(t *testing.T) {
	l := newNode(t, "giveway", nil, slicedGPU)
	a, b := l.open(batch(1), saturating), l.open(batch(1), saturating)
	l.run(10 * ms)
	if a.slice != 0 || b.slice != 0 {
		t.Errorf("without an online queue: got slices %v and %v, want the default", a.slice, b.slice)
	}
	online := l.open(class(sched.Online), periodic(10*ms, ms))
	l.run(2 * tick)
	l.run(time.Second, func() {
		current := a
		if b.running {
			current = b
		}
		if a.running == b.running || current.slice != sched.MinSlice || !online.running || online.slice < slicedGPU.Slice {
			t.Fatalf("at %v: a %v %v, b %v %v, online %v %v", time.Duration(l.now), a.running, a.slice, b.running, b.slice, online.running, online.slice)
		}
	})
	for _, c := range online.finished {
		if took := c.done.Sub(c.arrived); took > ms+tick {
			t.Errorf("online request: got %v, want at most %v", took, ms+tick)
		}
	}
	// 20 turns, each with at most a stop, a slice and a start. The 100 requests need no action.
	if n := len(l.actions); n > 90 {
		t.Errorf("got %d actions, want at most 90", n)
	}
}

func TestGivewayBatchSharesByWeight(t *testing.T) {
	for _, dev := range []sched.Device{plainGPU, slicedGPU} {
		for _, w := range []uint32{3, 8} {
			l := newNode(t, "giveway", nil, dev)
			l.measureEvery = 10 * ms
			heavy, light := l.open(batch(w), saturating), l.open(batch(1), saturating)
			l.open(class(sched.Online), periodic(20*ms, 4*ms))
			l.run(20 * time.Second)
			if ratio := float64(heavy.served) / float64(light.served); ratio < 0.9*float64(w) || ratio > 1.1*float64(w) {
				t.Errorf("%s: weight %d to 1 is %.2f", dev.ID, w, ratio)
			}
		}
	}
}

func TestGivewayNewAndIdleQueuesStartAtTheClock(t *testing.T) {
	for _, c := range []sched.Class{sched.Batch, sched.Idle} {
		l := newNode(t, "giveway", nil)
		if c == sched.Batch {
			// A queue of class idle that never runs must not set the clock.
			l.open(class(sched.Idle), saturating)
		}
		old := l.open(class(c), saturating)
		sleeper := l.open(class(c), idleFrom(time.Second, 6*time.Second))
		l.run(6 * time.Second)
		young := l.open(class(c), saturating)
		o, s := old.served, sleeper.served
		l.run(3 * time.Second)
		o, s = old.served-o, sleeper.served-s
		if !near(o, time.Second, 60*ms) || !near(s, time.Second, 60*ms) || !near(young.served, time.Second, 60*ms) {
			t.Errorf("%v, of 3 s: got old queue %v, idle before %v, new %v, want 1s each", c, o, s, young.served)
		}
	}
}

func TestGivewayWithoutSlicesStopsBatchDuringOnlineWork(t *testing.T) {
	l := newNode(t, "giveway", nil)
	worker, bystander := l.open(batch(1), saturating), l.open(batch(1), idle)
	online := l.open(class(sched.Online), func(j *job, now sched.Time) {
		if now == sched.Time(10*ms) {
			j.submit(now, 5*ms)
		}
	})
	at := func(at time.Duration, want bool) {
		t.Helper()
		l.run(at - time.Duration(l.now))
		if worker.running != want || !online.running || !bystander.running {
			t.Errorf("at %v running: batch %v, online %v, bystander %v", at, worker.running, online.running, bystander.running)
		}
	}
	at(9900*time.Microsecond, true)
	at(10*ms, false)
	at(15*ms, false)
	at(15100*time.Microsecond, false) // linger, from the end of the request
	at(15300*time.Microsecond, true)
}

func TestGivewayWithoutSlicesClearsTheDeviceForAnExpectedRequest(t *testing.T) {
	for _, dev := range []sched.Device{plainGPU, slicedGPU} {
		for lead, from := range map[string]time.Duration{"0s": 9500, "3ms": 7000} { // in us; zero is the stop time
			l := newNode(t, "giveway", map[string]string{"lead": lead}, dev)
			low, online := l.open(batch(1), saturating), l.open(class(sched.Online), idle)
			l.setAttr(online, func(a *sched.Attr) { a.Expect = sched.Time(10 * ms) })
			for _, want := range []struct {
				at   time.Duration
				runs bool
			}{{from - 100, true}, {from + 100, false}, {11900, false}, {12100, true}} {
				l.run(want.at*time.Microsecond - time.Duration(l.now))
				if low.running != (want.runs || dev.Sliced()) {
					t.Errorf("%s, lead %s: at %d us: got batch running %v", dev.ID, lead, want.at, low.running)
				}
			}
		}
	}
}

func TestGivewayStopsAQueueThatCannotBeSliced(t *testing.T) {
	l := newNode(t, "giveway", nil, slicedGPU)
	stubborn := l.open(sched.Queue{Can: canStop, Attr: sched.Attr{Class: sched.Batch}}, saturating)
	l.open(class(sched.Online), saturating)
	l.run(ms)
	if stubborn.running {
		t.Error("got it running beside online work with the default slice, want stopped")
	}
}

// TestGivewayLimitsTheSliceOfAQueueThatCannotBeStopped checks the slices of a batch queue that
// runs while it is not its turn, and of the one whose turn it is. The first is as short as two
// queues may have, but not shorter than the slice parameter, and the device's default if that
// is the parameter. The second is longer, so that it is not half lost in switches.
func TestGivewayLimitsTheSliceOfAQueueThatCannotBeStopped(t *testing.T) {
	const shortest = 200 * time.Microsecond
	for _, c := range []struct {
		slice, shared string
		pool, current time.Duration
	}{
		{"min", "500us", shortest, ownShared},
		{"min", "min", shortest, shortest},
		{"min", "default", shortest, 0},
		{"3ms", "500us", 3 * ms, 3 * ms},
		{"default", "500us", 0, 0},
	} {
		l := newNode(t, "giveway", map[string]string{"slice": c.slice, "shared": c.shared}, sharedGPU)
		a, b := l.open(batch(1), saturating), l.open(batch(1), saturating)
		pool := l.open(sched.Queue{Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Batch}}, saturating)
		l.open(class(sched.Online), periodic(20*ms, ms))
		l.run(10 * ms)
		l.run(2*time.Second, func() {
			short := 0
			for _, j := range l.jobs {
				if j.running && j.slice > 0 && j.slice < shortest {
					short++
				}
			}
			if !pool.running || short > 1 || a.running && b.running {
				t.Fatalf("at %v: the pool runs: %v; the others %v and %v; slices %v, %v, %v", time.Duration(l.now), pool.running, a.running, b.running, pool.slice, a.slice, b.slice)
			}
			if !a.running && !b.running { // the turn of the pool
				return
			}
			current := a
			if b.running {
				current = b
			}
			if pool.slice != c.pool || current.slice != c.current {
				t.Fatalf("slice=%s, shared=%s at %v: got slices %v of the pool and %v of the other, want %v and %v",
					c.slice, c.shared, time.Duration(l.now), pool.slice, current.slice, c.pool, c.current)
			}
		})
	}
}

// TestGivewayLimitsAQueueThatCannotBeStoppedToItsShare checks that without online work a batch
// queue that runs while it is not its turn has the device's slice or, while it is ahead of its
// share, the shortest that two queues may have, whatever the slice beside online work is.
func TestGivewayLimitsAQueueThatCannotBeStoppedToItsShare(t *testing.T) {
	const shortest = 200 * time.Microsecond
	for _, slice := range []string{"min", "3ms", "default"} {
		l := newNode(t, "giveway", map[string]string{"slice": slice}, sharedGPU)
		a, b := l.open(batch(1), saturating), l.open(batch(1), saturating)
		pool := l.open(sched.Queue{Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Batch}}, saturating)
		l.run(time.Second) // all are known to be heavy
		short := false
		l.run(3*time.Second, func() {
			if short = short || pool.slice == shortest; pool.slice != 0 && pool.slice != shortest || a.slice != 0 || b.slice != 0 {
				t.Fatalf("slice=%s at %v: got slices %v of the pool, %v and %v of the others", slice, time.Duration(l.now), pool.slice, a.slice, b.slice)
			}
		})
		if short == (slice == "default") {
			t.Errorf("slice=%s: the pool had the shortest slice: %v", slice, short)
		}
	}
}

// TestGivewayWithTheDefaultSlice checks that with slice=default no batch or idle queue has
// another slice than the device's own, whether it can be stopped or not.
func TestGivewayWithTheDefaultSlice(t *testing.T) {
	l := newNode(t, "giveway", map[string]string{"slice": "default"}, slicedGPU)
	for _, can := range []sched.Ability{canAll, sched.CanSlice} {
		for _, c := range []sched.Class{sched.Online, sched.Standard, sched.Batch, sched.Idle} {
			l.open(sched.Queue{Can: can, Attr: sched.Attr{Class: c}}, saturating)
		}
	}
	l.run(time.Second, func() {
		for _, j := range l.jobs {
			if givesWay(&j.Queue) && j.slice != 0 {
				t.Fatalf("at %v queue %d of class %v has a slice of %v", time.Duration(l.now), j.ID, j.Attr.Class, j.slice)
			}
		}
	})
}

// TestGivewayIdleClassThatCannotBeStopped checks that an idle queue which cannot be stopped takes
// as little as possible from batch work, and that batch work makes progress beside it.
func TestGivewayIdleClassThatCannotBeStopped(t *testing.T) {
	for _, online := range []bool{false, true} {
		l := newNode(t, "giveway", nil, sharedGPU)
		worker := l.open(batch(1), saturating)
		pool := sched.Queue{Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Idle}}
		first, second := l.open(pool, saturating), l.open(pool, saturating)
		want := time.Duration(0)
		if online {
			l.open(class(sched.Online), periodic(50*ms, ms))
			want = ownShared
		}
		l.run(time.Second)
		if first.slice != sched.MinSlice || second.slice != sharedGPU.MinSharedSlice || worker.slice != want || worker.served < 600*ms {
			t.Errorf("online %v: got slices %v and %v of the idle queues, %v of the batch queue, which had %v of 1 s; want %v, %v and %v, and 600 ms",
				online, first.slice, second.slice, worker.slice, worker.served, sched.MinSlice, sharedGPU.MinSharedSlice, want)
		}
	}
}

func TestGivewayIdleClassRunsOnlyWhenNoOtherQueueIsReady(t *testing.T) {
	for _, dev := range []sched.Device{plainGPU, slicedGPU} {
		for _, c := range []sched.Class{sched.Standard, sched.Online, sched.Batch} {
			l := newNode(t, "giveway", nil, dev)
			last := l.open(class(sched.Idle), saturating)
			l.open(class(c), func(j *job, now sched.Time) {
				if now == sched.Time(10*ms) {
					j.submit(now, 10*ms)
				}
			})
			l.run(10 * ms)
			before := last.served
			if before < 9*ms {
				t.Errorf("%s, before %v work: idle got %v of 10 ms, want at least 9 ms", dev.ID, c, before)
			}
			l.run(9 * ms)
			// Beside online work it keeps the minimum slice, so that a request needs no call.
			minimum := dev.Sliced() && c == sched.Online
			if last.served > before+tick || last.running && !minimum || minimum && last.slice != sched.MinSlice {
				t.Errorf("%s: beside %v work idle got %v, runs: %v with %v", dev.ID, c, last.served-before, last.running, last.slice)
			}
			l.run(11 * ms)
			if last.served < before+9*ms {
				t.Errorf("%s: after %v work idle got %v of 10 ms", dev.ID, c, last.served-before)
			}
		}
	}
}

// TestGivewayIdleClassLeavesABusyDeviceAlone checks that a queue of class idle that gets less
// than a tenth of its turn is stopped for 20 turns, and then tried again without an event.
func TestGivewayIdleClassLeavesABusyDeviceAlone(t *testing.T) {
	p := fresh(t, "giveway")
	begin := sched.Time(time.Hour)
	v := sched.View{Devices: []sched.Device{slicedGPU}, Queues: []sched.Queue{
		{ID: 1, Can: canAll}, // without counters: whether it is busy is not known
		{ID: 2, Can: canAll, Attr: sched.Attr{Class: sched.Idle}, Measured: true, Counters: sched.Counters{Submitted: 9, Known: true}},
	}}
	for _, step := range []struct {
		at, served time.Duration
		runs       bool
	}{
		{0, 0, true},
		{50 * ms, ms, false},
		{1050*ms - 1, ms, false},
		{1050 * ms, ms, true},
		{1100 * ms, 6 * ms, true}, // a tenth of the turn
		{1150 * ms, 10 * ms, false},
	} {
		v.Now, v.Queues[1].Served = begin.Add(step.at), step.served
		plan := p.Plan(&v)
		if runs := len(plan.Grants) == 2; runs != step.runs {
			t.Errorf("at %v, after %v of service: it runs %v, want %v", step.at, step.served, runs, step.runs)
		}
		if again := begin.Add(1050 * ms); !step.runs && step.at < 1050*ms && plan.Wake != again {
			t.Errorf("at %v: got wake %v, want %v, when it is tried again", step.at, plan.Wake.Sub(begin), again.Sub(begin))
		}
	}
}

// TestGivewayIdleClassRunsAgainWhenTheDeviceIsFree checks that a queue of class idle that was
// stopped, because it got nothing of a busy device, gets the device when that is free. The
// busy queue has no counters, so only an attempt tells.
func TestGivewayIdleClassRunsAgainWhenTheDeviceIsFree(t *testing.T) {
	l := newNode(t, "giveway", nil, slicedGPU)
	l.measureEvery = 10 * ms
	busy := l.open(sched.Queue{}, nil)
	busy.noCounters = true
	busy.load = func(j *job, now sched.Time) {
		if now < sched.Time(3*time.Second) {
			saturating(j, now)
		}
	}
	last := l.open(class(sched.Idle), saturating)
	running := 0
	l.run(3*time.Second, func() {
		if last.running {
			running++
		}
	})
	if got := time.Duration(running) * tick; got > 500*ms {
		t.Errorf("beside the busy queue: it is on the device for %v of 3 s, want a turn of 50 ms each second", got)
	}
	before := last.served
	l.run(3 * time.Second)
	if got := last.served - before; got < 1900*ms {
		t.Errorf("on the free device: it got %v of 3 s, want all but the second until it is tried again", got)
	}
}

// TestGivewayIdleClassLeavesTheDeviceToABatchQueue checks that a queue of class idle, whose turn it is,
// is stopped at once when a batch queue gets work: it does not overlap with it.
func TestGivewayIdleClassLeavesTheDeviceToABatchQueue(t *testing.T) {
	l := newNode(t, "giveway", nil, h200)
	l.measureEvery, l.visits = 5*ms, true
	last := l.open(class(sched.Idle), saturating)
	l.run(2 * time.Second)
	worker := l.open(batch(1), saturating)
	before := last.served
	if l.run(100 * ms); last.served-before > ms || worker.served < 99*ms {
		t.Errorf("of 100 ms the queue of class idle had %v, the batch queue %v, want all for the batch queue", last.served-before, worker.served)
	}
}

// TestGivewayIdleClassRunsAsSoonAsStandardWorkIsDone checks that an idle queue that was stopped for
// standard work, for less than a turn or for many, runs when that is done: it did not find the device
// busy in a turn in which it was not let run.
func TestGivewayIdleClassRunsAsSoonAsStandardWorkIsDone(t *testing.T) {
	for _, work := range []time.Duration{10 * ms, 50 * ms, 500 * ms, 3 * time.Second} {
		l := newNode(t, "giveway", nil, slicedGPU)
		l.measureEvery = 5 * ms
		last := l.open(class(sched.Idle), saturating)
		l.open(class(sched.Standard), func(j *job, now sched.Time) {
			if now == sched.Time(200*ms) {
				j.submit(now, work)
			}
		})
		l.run(200*ms + work)
		before := last.served
		if l.run(100 * ms); last.served-before < 95*ms {
			t.Errorf("after standard work of %v: it got %v of 100 ms", work, last.served-before)
		}
	}
}

// TestGivewayIdleQueueWithoutCountersLeavesTheRotationAndComesBack checks that a batch
// queue without counters that uses nothing of a turn takes no turns until it is served,
// and takes turns again then.
func TestGivewayIdleQueueWithoutCountersLeavesTheRotationAndComesBack(t *testing.T) {
	l := newNode(t, "giveway", nil, slicedGPU)
	l.measureEvery = ms
	work := false
	sometimes := func(j *job, now sched.Time) {
		if work {
			saturating(j, now)
		}
	}
	open := func(q sched.Queue, load func(*job, sched.Time)) *job {
		j := l.open(q, nil)
		j.load, j.noCounters = load, true
		l.events = append(l.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: j.ID})
		return j
	}
	idleQueue, busy := open(batch(1), sometimes), open(batch(1), saturating)
	open(class(sched.Online), idle)
	l.run(200 * ms)
	before := busy.served
	l.run(time.Second)
	if got := busy.served - before; got < 990*ms || !idleQueue.running || idleQueue.slice != slicedGPU.MinSharedSlice {
		t.Errorf("got %v of 1 s beside an idle queue, which runs: %v with slice %v; want 990 ms, true and MinSharedSlice", got, idleQueue.running, idleQueue.slice)
	}
	work = true
	l.run(200 * ms)
	a, b, together := idleQueue.served, busy.served, 0
	l.run(2*time.Second, func() {
		if idleQueue.running && busy.running {
			together++
		}
	})
	if a, b = idleQueue.served-a, busy.served-b; !near(a, b, 100*ms) {
		t.Errorf("when both work: got %v and %v of 2 s, want equal parts", a, b)
	}
	// Beside each other, each with more than the minimum slice, both would keep online
	// work waiting.
	if together > 0 {
		t.Errorf("when both work: they ran side by side for %v, want turns", time.Duration(together)*tick)
	}
}

func TestGivewayBatchQueueThatIsIdleForAMomentCostsNoCalls(t *testing.T) {
	l := newNode(t, "giveway", nil, slicedGPU)
	l.open(batch(1), periodic(10*ms, 5*ms))
	l.open(class(sched.Online), periodic(7*ms, ms))
	l.run(time.Second)
	if n := len(l.actions); n > 2 { // a slice for each
		t.Errorf("got %d actions, want 2: %v ...", n, l.actions[:min(n, 6)])
	}
	if l.wake != sched.Never {
		t.Errorf("got wake %v though no queue waits, want never", time.Duration(l.wake))
	}
}

// TestGivewayBatchBesideABusyStandardQueue checks that a batch queue makes progress beside a
// standard queue that saturates, although there is an online queue, and that it keeps the
// minimum slice beside a standard queue that rests.
func TestGivewayBatchBesideABusyStandardQueue(t *testing.T) {
	for _, c := range []struct {
		name  string
		load  func(*job, sched.Time)
		slice time.Duration
		least float64
	}{
		{"saturating", saturating, ownShared, 0.1},
		{"one part in 20", periodic(20*ms, ms), sched.MinSlice, 0.8},
		{"idle", idle, sched.MinSlice, 0.9},
		{"saturating at first", func(j *job, now sched.Time) {
			if now < sched.Time(time.Second) {
				saturating(j, now)
			}
		}, sched.MinSlice, 0.9},
	} {
		for _, counters := range []bool{false, true} {
			l, jobs := newShared(t, nil, 0)
			standard := l.openJob(class(sched.Standard), c.load, 0)
			standard.noCounters = !counters
			l.openJob(class(sched.Online), periodic(50*ms, ms), 0)
			l.run(4 * time.Second)
			before := jobs[0].served
			l.run(2 * time.Second)
			got := (jobs[0].served - before).Seconds() / 2
			if jobs[0].slice != c.slice || got < c.least || standard.slice != 0 || !standard.running {
				t.Errorf("%s, counters %v: it has a slice of %v and %.3f of the device, want %v and %.2f; the standard queue has %v",
					c.name, counters, jobs[0].slice, got, c.slice, c.least, standard.slice)
			}
		}
	}
}

// TestGivewayBoundsBatchQueuesOnlyBesideOnlineOnes checks that on a device without slices batch
// and idle queues have a bound on commands in flight while there is an online queue, also one
// without work, and none otherwise: a bound costs them some of their rate.
func TestGivewayBoundsBatchQueuesOnlyBesideOnlineOnes(t *testing.T) {
	for _, online := range []bool{false, true} {
		v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{
			{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Batch}},
			{ID: 2, Can: canAll, Attr: sched.Attr{Class: sched.Idle}, Counters: sched.Counters{Known: true}},
		}}
		want := uint32(0)
		if online {
			want = 3
			v.Queues = append(v.Queues, sched.Queue{ID: 3, Can: canAll, Attr: sched.Attr{Class: sched.Online}, Counters: sched.Counters{Known: true}})
		}
		choice, err := Choose("giveway", map[string]string{"bound": "3"})
		if err != nil {
			t.Fatal(err)
		}
		grants := choice.Make().Plan(v).Grants
		if len(grants) != len(v.Queues) {
			t.Errorf("online queue %v: got grants %+v, want one for each queue", online, grants)
		}
		for _, g := range grants {
			if g.Queue < 3 && g.Bound != want || g.Queue == 3 && g.Bound != 0 {
				t.Errorf("online queue %v: queue %d has a bound of %d, want %d", online, g.Queue, g.Bound, want)
			}
		}
	}
}

// TestSliceOfTheQueueWhoseTurnItIs checks its slice: the device's own without online work, unless
// the queue is of class idle, and otherwise the one that is set. Beside a batch queue that cannot
// be stopped, or for a batch queue beside a busy standard queue, it is one with which both make
// progress.
func TestSliceOfTheQueueWhoseTurnItIs(t *testing.T) {
	dev := h200Device
	batch := sched.Queue{Can: canAll, Attr: sched.Attr{Class: sched.Batch}}
	idle := sched.Queue{Can: canAll, Attr: sched.Attr{Class: sched.Idle}}
	fixed := sched.Queue{Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Batch}}
	for _, c := range []struct {
		name          string
		q             sched.Queue
		takesTurns    bool
		sum           summary
		slice, shared time.Duration
		want          time.Duration
	}{
		{"no online work", batch, true, summary{}, 1, 500 * us, 0},
		{"no online work, class idle", idle, true, summary{}, 1, 500 * us, 1},
		{"online work", batch, true, summary{hasOnline: true}, 1, 500 * us, 1},
		{"online work, the default slice is set", batch, true, summary{hasOnline: true}, 0, 500 * us, 0},
		{"beside one that cannot be stopped", batch, true, summary{hasOnline: true, unstoppable: 1}, 1, 500 * us, 500 * us},
		{"it is the one that cannot be stopped", fixed, true, summary{hasOnline: true, unstoppable: 1}, 1, 500 * us, 1},
		{"that is idle now, and there is another", fixed, false, summary{hasOnline: true, unstoppable: 1}, 1, 500 * us, 500 * us},
		{"one of two", fixed, true, summary{hasOnline: true, unstoppable: 2}, 1, 500 * us, 500 * us},
		{"beside a busy standard queue", batch, true, summary{hasOnline: true, busyStandard: 1}, 1, 500 * us, 500 * us},
		{"beside a busy standard queue, class idle", idle, true, summary{hasOnline: true, busyStandard: 1}, 1, 500 * us, 1},
		{"shared is the default", batch, true, summary{hasOnline: true, busyStandard: 1}, 1, 0, 0},
		{"shared is short", batch, true, summary{hasOnline: true, busyStandard: 1}, 1, 1, dev.MinSharedSlice},
		{"the slice is longer", batch, true, summary{hasOnline: true, busyStandard: 1}, 900 * us, 500 * us, 900 * us},
	} {
		set := setting{slice: c.slice, sharedSlice: c.shared}
		if got := sliceOfTurn(&dev, &c.q, &queueState{takesTurns: c.takesTurns}, &c.sum, &set); got != c.want {
			t.Errorf("%s: got a slice of %v, want %v", c.name, got, c.want)
		}
	}
}

// TestUnusedTurn checks what is known of a turn in which a queue was not served: it was idle, if
// the hardware measured it for half of the turn, it ran, and it has no counters to tell.
func TestUnusedTurn(t *testing.T) {
	p := makeGiveway()
	p.turnStart.Time = sched.Time(time.Hour)
	half := p.turnStart.Add(p.turn / 2)
	queue := sched.Queue{Measured: true, State: sched.Running, MeasuredAt: half, Served: ms}
	for _, c := range []struct {
		name   string
		change func(q *sched.Queue, st *queueState)
		want   bool
	}{
		{"not served", func(*sched.Queue, *queueState) {}, true},
		{"served", func(_ *sched.Queue, st *queueState) { st.servedAtTurn-- }, false},
		{"measured for less", func(q *sched.Queue, _ *queueState) { q.MeasuredAt-- }, false},
		{"not measured", func(q *sched.Queue, _ *queueState) { q.Measured = false }, false},
		{"with counters", func(q *sched.Queue, _ *queueState) { q.Counters.Known = true }, false},
		{"not started", func(q *sched.Queue, _ *queueState) { q.State = sched.Starting }, false},
	} {
		q, a := queue, queueState{vtime: vtime{weight: unit}, served: ms, servedAtTurn: ms, takesTurns: true, class: sched.Batch}
		c.change(&q, &a)
		p.endTurn(half, &h200Device, &q, &a)
		if a.unusedTurn != c.want || a.takesTurns == c.want {
			t.Errorf("%s: unused %v, takes turns %v; want %v, %v", c.name, a.unusedTurn, a.takesTurns, c.want, !c.want)
		}
		// A turn without service that was not idle is charged.
		if charged := a.at > 0; charged != (!c.want && c.name != "served") {
			t.Errorf("%s: charged for %v", c.name, a.at)
		}
	}
}

// TestQueueThatLeavesItsTurnUnusedHasNoTurn checks that a queue which used nothing of its turn
// is shown as one without work, and has the slice of one: with the minimum slice its next work
// would get nothing beside online work until it is noticed.
func TestQueueThatLeavesItsTurnUnusedHasNoTurn(t *testing.T) {
	p := makeGiveway()
	v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
		{ID: 1, Can: canAll, Measured: true, MeasuredAt: sched.Time(time.Hour), Attr: sched.Attr{Class: sched.Batch}},
		{ID: 2, Can: canAll, Counters: sched.Counters{Known: true}, Attr: sched.Attr{Class: sched.Online}},
	}}
	if g := p.Plan(v).Grants[0]; g.Queue != 1 || g.Reason != sched.ItsTurn || g.Slice != sched.MinSlice {
		t.Errorf("at first: got %+v, want its turn with the minimum slice", g)
	}
	v.Now = v.Now.Add(p.turn)
	v.Queues[0].MeasuredAt = v.Now
	if g := p.Plan(v).Grants[0]; g.Queue != 1 || g.Reason != sched.NoWork || g.Slice != h200Device.MinSharedSlice {
		t.Errorf("after its turn: got %+v, want a queue without work, with a slice of %v", g, h200Device.MinSharedSlice)
	}
}

// TestSliceOutOfTurn checks the slice of a batch queue that runs although it is not its turn,
// because it has no work or cannot be stopped. It is short only beside online work, and only if
// the policy sets slices.
func TestSliceOutOfTurn(t *testing.T) {
	busy, none := sched.Counters{Known: true, Submitted: 1}, sched.Counters{Known: true}
	for _, online := range []bool{false, true} {
		for slice, short := range map[time.Duration]time.Duration{0: 0, sched.MinSlice: h200Device.MinSharedSlice, ms: ms} {
			for _, q := range []sched.Queue{{Can: canAll, Counters: none}, {Can: sched.CanSlice, Counters: busy}} {
				p := makeGiveway()
				p.slice = slice
				q.ID, q.Attr.Class = 2, sched.Batch
				v := &sched.View{Now: sched.Time(time.Hour), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
					{ID: 1, Can: canAll, Counters: busy, Attr: sched.Attr{Class: sched.Batch}}, q,
				}}
				want := time.Duration(0)
				if online {
					want = short
					v.Queues = append(v.Queues, sched.Queue{ID: 3, Can: canAll, Counters: none, Attr: sched.Attr{Class: sched.Online}})
				}
				grants := p.Plan(v).Grants
				if len(grants) != len(v.Queues) || grants[1].Queue != 2 || grants[1].Slice != want {
					t.Errorf("slice %v, online %v, work %v: got %+v, want all queues to run, queue 2 with a slice of %v",
						slice, online, q.Ready(), grants, want)
				}
			}
		}
	}
}

// TestIdleClassRestsAfterATurnWithLittleService checks that queues of class idle are stopped for
// 20 turns if one had less than a tenth of its turn, by measurement.
func TestIdleClassRestsAfterATurnWithLittleService(t *testing.T) {
	now := sched.Time(time.Hour)
	for _, c := range []struct {
		name     string
		class    sched.Class
		measured bool
		can      sched.Ability
		served   time.Duration
		withheld bool
		want     bool
	}{
		{"little", sched.Idle, true, canAll, 5*ms - 1, false, true},
		{"a tenth", sched.Idle, true, canAll, 5 * ms, false, false},
		{"little, and stopped for others", sched.Idle, true, canAll, ms, true, false},
		{"class batch", sched.Batch, true, canAll, ms, false, false},
		{"not measured", sched.Idle, false, canAll, ms, false, false},
		{"without slices", sched.Idle, true, sched.CanInterrupt, ms, false, false},
	} {
		p := makeGiveway()
		q := sched.Queue{Measured: c.measured, Can: c.can, Attr: sched.Attr{Class: c.class}, Counters: sched.Counters{Known: true}}
		p.endTurn(now, &h200Device, &q, &queueState{class: c.class, served: c.served + ms, servedAtTurn: ms, withheld: c.withheld})
		if want := now.Add(20 * 50 * ms); (p.classIdleStop == want) != c.want || !c.want && p.classIdleStop != 0 {
			t.Errorf("%s: idle queues are stopped until %v, want %v", c.name, p.classIdleStop, c.want)
		}
	}
}

// TestGivewayWatchesStandardQueues checks that the policy looks at the service of a standard queue
// every 100 ms while its slices depend on that: beside online and batch queues.
func TestGivewayWatchesStandardQueues(t *testing.T) {
	ready := sched.Counters{Known: true, Submitted: 1}
	queues := map[sched.Class]sched.Queue{
		sched.Standard: {ID: 1, Can: canAll, Counters: ready},
		sched.Online:   {ID: 2, Can: canAll, Counters: sched.Counters{Known: true}, Attr: sched.Attr{Class: sched.Online}},
		sched.Batch:    {ID: 3, Can: canAll, Counters: ready, Attr: sched.Attr{Class: sched.Batch}},
	}
	now := sched.Time(time.Minute)
	for _, c := range []struct {
		classes []sched.Class
		want    sched.Time
	}{
		{[]sched.Class{sched.Standard, sched.Online, sched.Batch}, now.Add(100 * ms)},
		{[]sched.Class{sched.Standard, sched.Batch}, 0},
		{[]sched.Class{sched.Standard, sched.Online}, 0},
		{[]sched.Class{sched.Online, sched.Batch}, 0},
	} {
		v := &sched.View{Now: now, Devices: []sched.Device{h200Device}}
		for _, class := range c.classes {
			v.Queues = append(v.Queues, queues[class])
		}
		if got := makeGiveway().Plan(v).Wake; got != c.want {
			t.Errorf("queues of classes %v: the policy looks again at %v, want %v", c.classes, got, c.want)
		}
	}
}

// TestGivewayWakesForTheEndOfATurn checks when the end of a turn needs a plan: if other queues wait
// for theirs, or if only then it is seen that the queue is idle.
func TestGivewayWakesForTheEndOfATurn(t *testing.T) {
	known := sched.Counters{Known: true, Submitted: 1}
	for _, c := range []struct {
		name  string
		queue sched.Queue
		other bool
		want  bool
	}{
		{"two queues", sched.Queue{Counters: known}, true, true},
		{"one with counters", sched.Queue{Counters: known}, false, false},
		{"one with counters that is measured", sched.Queue{Counters: known, Measured: true}, false, false},
		{"one about which nothing is known", sched.Queue{}, false, false},
		{"one that is only measured", sched.Queue{Measured: true}, false, true},
	} {
		p, now := makeGiveway(), sched.Time(time.Hour)
		c.queue.ID, c.queue.Attr.Class = 1, sched.Batch
		v := &sched.View{Now: now, Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{c.queue}}
		if c.other {
			second := c.queue
			second.ID = 2
			v.Queues = append(v.Queues, second)
		}
		want := sched.Time(0)
		if c.want {
			want = now.Add(p.turn)
		}
		if got := p.Plan(v).Wake; got != want {
			t.Errorf("%s: the next plan is at %d, want %d", c.name, got, want)
		}
	}
}
