package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

func priority(p int32) sched.Queue { return sched.Queue{Attr: sched.Attr{Priority: p}} }

func TestFIFOServesInOrderOfArrivalToTheEnd(t *testing.T) {
	l := newNode(t, "fifo", nil)
	submitAt := func(at time.Duration) func(*job, sched.Time) {
		return func(j *job, now sched.Time) {
			if now == sched.Time(at) {
				j.submit(now, 10*ms)
			}
		}
	}
	third, first, second := l.open(sched.Queue{}, submitAt(2*ms)), l.open(sched.Queue{}, submitAt(0)), l.open(sched.Queue{}, submitAt(ms))
	l.run(40 * ms)
	for i, j := range []*job{first, second, third} {
		if got, want := j.finished[0].done, sched.Time(i+1)*sched.Time(10*ms); got != want {
			t.Errorf("job %d: got done at %v, want %v", i+1, time.Duration(got), time.Duration(want))
		}
	}
}

// TestLaterWorkWaits checks that a queue that never becomes idle gives way when it has
// finished the work that arrived first. No event tells the policy.
func TestLaterWorkWaits(t *testing.T) {
	for _, name := range []string{"fifo", "edf", "llf"} {
		for _, deadline := range []time.Duration{0, time.Second} {
			for _, n := range []int{2, 16} {
				l := newNode(t, name, nil)
				for range n {
					l.open(sched.Queue{Attr: sched.Attr{Deadline: deadline}}, saturating)
				}
				l.run(2 * time.Second)
				for _, j := range l.jobs {
					if want := 2 * time.Second / time.Duration(n); !near(j.served, want, want/10) {
						t.Errorf("%s, deadline %v, %d saturating queues: queue %d got %v, want %v", name, deadline, n, j.ID, j.served, want)
					}
				}
			}
		}
	}
}

// TestEndOfWorkIsNoticedAtMostAnEighthLate has a queue that always has two long commands. Work
// that arrives after the first two waits for those, and not much longer.
func TestEndOfWorkIsNoticedAtMostAnEighthLate(t *testing.T) {
	for _, name := range []string{"fifo", "edf", "llf"} {
		l := newNode(t, name, nil)
		l.open(sched.Queue{}, func(j *job, now sched.Time) {
			for len(j.todo) < 2 {
				j.submit(now, 100*ms)
			}
		})
		second := l.open(sched.Queue{}, func(j *job, now sched.Time) {
			if now == sched.Time(ms) {
				j.submit(now, ms)
			}
		})
		l.run(500 * ms)
		if len(second.finished) == 0 || second.finished[0].done < sched.Time(200*ms) || second.finished[0].done > sched.Time(227*ms) {
			t.Errorf("%s: the later work is finished %+v, want 1 ms after 200 to 225 ms", name, second.finished)
		}
	}
}

func TestHPFRunsAllOfTheHighestPriorityAndNoneBelow(t *testing.T) {
	l := newNode(t, "hpf", nil)
	low, high, same, asleep := l.open(priority(-1), saturating), l.open(priority(5), saturating), l.open(priority(5), saturating), l.open(priority(-9), idle)
	l.run(100 * ms)
	if low.served != 0 || high.served != 50*ms || same.served != 50*ms {
		t.Errorf("got low %v, high %v and %v, want 0, 50ms and 50ms", low.served, high.served, same.served)
	}
	if !asleep.running {
		t.Error("got an idle queue stopped, want running")
	}
}

func TestHPFClearsTheDeviceForAnExpectedRequest(t *testing.T) {
	for _, name := range []string{"hpf", "hpf-global"} {
		l := newNode(t, name, nil)
		low, high := l.open(priority(0), saturating), l.open(priority(1), idle)
		runs := func(at time.Duration, want bool) {
			t.Helper()
			l.run(at - time.Duration(l.now))
			if low.running != want {
				t.Errorf("%s: at %v: got low running %v, want %v", name, at, low.running, want)
			}
		}
		l.setAttr(high, func(a *sched.Attr) { a.Expect = sched.Time(10 * ms) })
		runs(9400*time.Microsecond, true)
		runs(9600*time.Microsecond, false) // the stop time is 500 us
		runs(11900*time.Microsecond, false)
		runs(12100*time.Microsecond, true) // the request has not come
		before := l.steps
		runs(13*ms, true)
		if l.steps > before+3 {
			t.Errorf("%s: got %d steps after patience is over, want at most 3", name, l.steps-before)
		}

		l.setAttr(high, func(a *sched.Attr) { a.Expect = sched.Time(20 * ms) })
		runs(19900*time.Microsecond, false)
		high.submit(l.now, 200*time.Microsecond)
		runs(20200*time.Microsecond, true) // the request is finished
	}
}

func TestHPFDoesNotWakeForARequestThatChangesNothing(t *testing.T) {
	l := newNode(t, "hpf", nil)
	l.open(priority(3), saturating)
	for range 5 {
		l.open(sched.Queue{Attr: sched.Attr{Priority: 2, Expect: sched.Time(10 * ms)}}, idle)
	}
	l.run(0)
	if l.wake != sched.Never {
		t.Errorf("got wake %v, want never", time.Duration(l.wake))
	}
}

func TestHPFGlobalIsForAllDevicesAndHPFForEach(t *testing.T) {
	for name, stopped := range map[string]bool{"hpf": false, "hpf-global": true} {
		other := plainGPU
		other.ID = "other"
		l := newNode(t, name, nil, plainGPU, other)
		l.open(sched.Queue{Device: "plain", Attr: sched.Attr{Priority: 1}}, saturating)
		low := l.open(sched.Queue{Device: "other"}, saturating)
		l.run(ms)
		if low.running == stopped {
			t.Errorf("%s: lower priority on another device: got running %v, want %v", name, low.running, !stopped)
		}
	}
}

func TestNiceOrdersAsTheKernelDoes(t *testing.T) {
	// In the order in which they run.
	order := []sched.Attr{
		{RealTime: 99, Nice: 19},
		{RealTime: 50},
		{RealTime: 1, Nice: 19},
		{Nice: -20},
		{Nice: -1},
		{},
		{Nice: 1},
		{Nice: 19},
	}
	for i := 1; i < len(order); i++ {
		a, b := &sched.Queue{Attr: order[i-1]}, &sched.Queue{Attr: order[i]}
		if cpuRank(a) <= cpuRank(b) {
			t.Errorf("got %+v after %+v, want before", a.Attr, b.Attr)
		}
	}
}

func TestWindowRunsAllQueuesOfTheFocusedProcess(t *testing.T) {
	l := newNode(t, "window", nil)
	other := l.open(sched.Queue{Process: 1}, saturating)
	game := l.open(sched.Queue{Process: 2, Attr: sched.Attr{Focus: true}}, idle)
	sound := l.open(sched.Queue{Process: 2}, saturating)
	runs := func(when string, want bool) {
		t.Helper()
		l.run(tick)
		if other.running != want || !game.running || !sound.running {
			t.Errorf("%s: running: other %v, focused process %v and %v", when, other.running, game.running, sound.running)
		}
	}
	runs("focus", false)
	l.setAttr(game, func(a *sched.Attr) { a.Focus = false })
	runs("no focus", true)
	l.setAttr(game, func(a *sched.Attr) { a.Focus = true })
	runs("focus again", false)
	l.close(game)
	l.close(sound)
	runs("closed", true)
}

// TestNoQueueIsStoppedForAnUncountedOne checks which queues are granted beside queues without
// counters, and with which slices.
func TestNoQueueIsStoppedForAnUncountedOne(t *testing.T) {
	const minimum, shared, long = sched.MinSlice, ms, 20 * ms
	type queue struct {
		rank         int32
		uncounted    bool
		runs         bool
		plain, slice time.Duration // on a device without and with slices
	}
	for _, test := range []struct {
		name   string
		queues []queue
	}{
		{"one below", []queue{{2, true, true, 0, long}, {1, false, true, 0, minimum}}},
		{"two below", []queue{{2, true, true, 0, long}, {1, false, true, 0, shared}, {1, true, true, 0, shared}}},
		{"one known above others", []queue{{2, false, true, 0, 0}, {1, true, false, 0, 0}, {1, false, false, 0, 0}}},
		{"a known one between", []queue{{3, true, true, 0, long}, {2, false, true, 0, minimum}, {1, true, false, 0, 0}}},
		{"all uncounted and equal", []queue{{1, true, true, 0, 0}, {1, true, true, 0, 0}}},
	} {
		for _, name := range []string{"hpf", "hpf-global", "nice", "window"} {
			for _, dev := range []sched.Device{plainGPU, slicedGPU} {
				if name == "window" && (test.queues[0].rank > 2 || test.name == "all uncounted and equal") {
					continue // has two ranks, and all queues of the lower one are equal
				}
				l := newNode(t, name, nil, dev)
				for _, q := range test.queues {
					j := l.open(sched.Queue{Attr: sched.Attr{Priority: q.rank, Nice: int8(-q.rank), Focus: q.rank == 2}}, nil)
					j.noCounters, j.load = q.uncounted, saturating
				}
				l.run(20 * ms)
				for i, q := range test.queues {
					want := q.plain
					if dev.Sliced() {
						want = q.slice
					}
					if j := l.jobs[i]; j.running != q.runs || j.running && j.slice != want {
						t.Errorf("%s, %s, %s: queue %d runs %v with slice %v, want %v, %v", test.name, name, dev.ID, i, j.running, j.slice, q.runs, want)
					}
				}
			}
		}
	}
}

// TestUncountedQueueGoesAheadOnItsOwnDevice checks that an uncounted queue that goes ahead by slices
// changes no slice on another device, and none that cannot be set.
func TestUncountedQueueGoesAheadOnItsOwnDevice(t *testing.T) {
	p := fresh(t, "hpf-global")
	v := &sched.View{Now: 1, Devices: []sched.Device{slicedGPU, {ID: "other", Slice: 2 * ms, MinSharedSlice: ms}}, Queues: []sched.Queue{
		{ID: 1, Device: slicedGPU.ID, Can: canAll, Attr: sched.Attr{Priority: 1}}, // uncounted
		{ID: 2, Device: slicedGPU.ID, Can: canAll},
		{ID: 3, Device: slicedGPU.ID, Can: canStop},
		{ID: 4, Device: "other", Can: canAll},
		{ID: 5, Device: "other", Can: canStop, Attr: sched.Attr{Priority: 1}}, // uncounted, without slices
	}}
	want := map[sched.QueueID]time.Duration{1: 20 * ms, 2: sched.MinSlice, 3: 0, 4: 0, 5: 0}
	plan := p.Plan(v)
	if len(plan.Grants) != len(want) {
		t.Fatalf("got grants %+v, want one for each queue", plan.Grants)
	}
	for _, g := range plan.Grants {
		if g.Slice != want[g.Queue] {
			t.Errorf("queue %d has a slice of %v, want %v", g.Queue, g.Slice, want[g.Queue])
		}
	}
}

// TestHPFWakesOnlyForRequestsThatStopAQueue checks that hpf asks to be called for an expected
// request only if a queue of lower priority must then stop.
func TestHPFWakesOnlyForRequestsThatStopAQueue(t *testing.T) {
	now := sched.Time(time.Second)
	for priority, want := range map[int32]sched.Time{-1: 0, 0: 0, 1: now.Add(10*ms - plainGPU.StopTime)} {
		v := &sched.View{Now: now, Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{
			{ID: 1, Can: canAll, Attr: sched.Attr{Priority: priority, Expect: now.Add(10 * ms)}, Counters: sched.Counters{Known: true}},
			{ID: 2, Can: canAll, Counters: sched.Counters{Known: true, Submitted: 1}},
		}}
		if got := fresh(t, "hpf").Plan(v).Wake; got != want {
			t.Errorf("a request of priority %d beside work of priority 0: got wake %v, want %v", priority, got, want)
		}
	}
}

// TestDue checks from when until when a request is expected, and when that changes: from the
// lead before it until the patience after it, unless it has come, its queue is paused, or
// none was announced.
func TestDue(t *testing.T) {
	const lead, patience = 3 * ms, 2 * ms
	at := sched.Time(time.Hour)
	a := arrivals{patience: patience}
	for _, c := range []struct {
		name   string
		expect sched.Time
		ready  sched.Time // since when the queue was last ready
		paused bool
		after  time.Duration // from the expected time
		want   bool
		change sched.Time
	}{
		{"early", at, 0, false, -lead - 1, false, at.Add(-lead)},
		{"within the lead", at, 0, false, -lead, true, at.Add(patience)},
		{"within the patience", at, at.Add(-lead - 1), false, patience - 1, true, at.Add(patience)},
		{"late", at, 0, false, patience, false, 0},
		{"come and gone", at, at.Add(-ms), false, 0, false, 0},
		{"paused", at, 0, true, 0, false, 0},
		{"paused, early", at, 0, true, -lead - 1, false, 0},
		{"not announced", 0, 0, false, 0, false, 0},
	} {
		q := sched.Queue{ReadySince: c.ready, Attr: sched.Attr{Expect: c.expect, Paused: c.paused}}
		if got, change := a.due(&q, at.Add(c.after), lead); got != c.want || change != c.change {
			t.Errorf("%s: due %v, until %v; want %v, %v", c.name, got, change, c.want, c.change)
		}
	}
}
