package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// SFQ, theorem 1: over any time in which both have work, the service of two
// queues by weight differs by at most one quantum of each by weight.
func TestWFQServiceDiffersByAtMostOneQuantum(t *testing.T) {
	const quantum = 10 * ms
	l := newLab(t, "wfq", nil)
	jobs := []*job{l.open(weight(1), saturating), l.open(weight(3), saturating), l.open(weight(8), saturating)}
	l.run(2*time.Second, func() {
		for i, a := range jobs {
			for _, b := range jobs[:i] {
				wa, wb := time.Duration(a.Weight()), time.Duration(b.Weight())
				if apart := (a.served/wa - b.served/wb).Abs(); apart > quantum/wa+quantum/wb+tick {
					t.Fatalf("at %v weights %d and %d are %v apart", time.Duration(l.now), wa, wb, apart)
				}
			}
		}
	})
}

func TestWFQOnSlicesSetsThemByWeightAndStopsNobody(t *testing.T) {
	l := newLab(t, "wfq", nil, slicedGPU)
	light, heavy, huge := l.open(weight(2), saturating), l.open(weight(6), saturating), l.open(weight(1000), nil)
	l.run(time.Second)
	if light.slice != 2*ms || heavy.slice != 6*ms || huge.slice != 50*ms {
		t.Errorf("slices %v, %v, %v; want the base, three times that, and the longest", light.slice, heavy.slice, huge.slice)
	}
	if !near(heavy.served, 3*light.served, 5*ms) {
		t.Errorf("served %v and %v, want 1:3", light.served, heavy.served)
	}
	if len(l.actions) != 3 {
		t.Errorf("%d actions, want one for each queue: %v", len(l.actions), l.actions)
	}
}

func TestWFQNeverSetsASliceTooShortToUse(t *testing.T) {
	dev := slicedGPU
	dev.MinSharedSlice = 5 * ms
	l := newLab(t, "wfq", nil, dev)
	a, b := l.open(weight(1), saturating), l.open(weight(2), saturating)
	l.run(10 * ms)
	if a.slice != 5*ms || b.slice != 10*ms {
		t.Errorf("slices %v and %v, want the least usable and twice that", a.slice, b.slice)
	}
}

func TestWFQTakesTurnsWhereOneQueueCannotBeSliced(t *testing.T) {
	l := newLab(t, "wfq", nil, slicedGPU)
	a := l.open(sched.Queue{Can: canStop, Attr: sched.Attr{Weight: 3}}, saturating)
	b := l.open(weight(1), saturating)
	l.run(2 * time.Second)
	if !near(a.served, 3*b.served, 40*ms) {
		t.Errorf("served %v and %v, want 3:1", a.served, b.served)
	}
}

func TestAHeavyQueueLookedAtOftenIsNotServedForNothing(t *testing.T) {
	var often, once vtime
	for range 1000 {
		often.charge(700, 1000*unit)
	}
	once.charge(700_000, 1000*unit)
	if often.at != once.at || once.at != 700 {
		t.Errorf("charged in bits %v, at once %v", often.at, once.at)
	}
}

// A queue that cannot run, because its start fails or its kernel waits for
// somebody else's, has used nothing and so would be owed most for ever.
func TestFairTurnsLeftUnusedArePaidFor(t *testing.T) {
	for _, name := range []string{"wfq", "cfs", "share", "share-process", "rr", "mlfq", "giveway"} {
		l := newLab(t, name, nil)
		l.tell = ms
		batch := sched.Queue{Attr: sched.Attr{Class: sched.Batch}}
		stuck, b := l.open(batch, nil), l.open(batch, saturating)
		stuck.blind = true
		l.events = append(l.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: stuck.ID})
		l.run(2 * time.Second)
		if b.served < 900*ms {
			t.Errorf("%s: beside a queue that never runs, one that does got %v of 2 s", name, b.served)
		}
	}
}

// Neither slow orders nor late news of what was used change who gets how much.
func TestFairWhereOrdersAndNewsTakeTime(t *testing.T) {
	asks := []sched.Queue{
		{Attr: sched.Attr{Class: sched.Batch, Weight: 3, Share: 75}},
		{Attr: sched.Attr{Class: sched.Batch, Weight: 1}},
	}
	for _, name := range []string{"wfq", "cfs", "share", "share-process", "giveway"} {
		for _, delay := range []time.Duration{0, 500 * time.Microsecond, 3 * ms} {
			for _, tell := range []time.Duration{0, ms, 25 * ms} {
				l := newLab(t, name, nil)
				l.delay, l.tell = delay, tell
				a, b := l.open(asks[0], saturating), l.open(asks[1], saturating)
				l.run(10 * time.Second)
				if ratio := float64(a.served) / float64(b.served); ratio < 2.7 || ratio > 3.3 {
					t.Errorf("%s, orders take %v, news %v: 3 to 1 is %.2f", name, delay, tell, ratio)
				}
			}
		}
	}
}

func TestFairPolicyPutInChargeForgetsThePast(t *testing.T) {
	for _, name := range []string{"wfq", "cfs", "share", "share-process", "giveway"} {
		l := newLab(t, "hpf", nil)
		a := l.open(sched.Queue{Attr: sched.Attr{Class: sched.Batch, Priority: 1}}, saturating)
		b := l.open(sched.Queue{Attr: sched.Attr{Class: sched.Batch}}, saturating)
		l.run(5 * time.Second)
		choice, err := Choose(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.events = append(l.events, sched.Event{Kind: sched.PolicyChosen, Choice: choice})
		before := a.served
		l.run(2 * time.Second)
		if got := a.served - before; !near(got, time.Second, 60*ms) {
			t.Errorf("%s: of its first 2 s %v and %v", name, got, b.served)
		}
	}
}

func TestCFSNewcomerGetsItsShareAndNoMore(t *testing.T) {
	l := newLab(t, "cfs", nil)
	old := l.open(weight(1), saturating)
	l.run(9 * time.Second)
	young := l.open(weight(1), saturating)
	before := old.served
	l.run(6 * time.Second)
	if got := old.served - before; !near(young.served, 3*time.Second, 20*ms) || !near(got, 3*time.Second, 20*ms) {
		t.Errorf("in 6 s the newcomer got %v, the incumbent %v", young.served, got)
	}
}

func TestCFSSleeperNeitherGainsNorStarves(t *testing.T) {
	for _, alone := range []time.Duration{0, 2 * time.Second} { // until when the sleeper has the device to itself
		l := newLab(t, "cfs", nil)
		sleeper := l.open(weight(1), asleep(2*time.Second, 5*time.Second))
		other := l.open(weight(1), asleep(0, alone))
		l.run(5 * time.Second)
		s, o := sleeper.served, other.served
		l.run(4 * time.Second)
		s, o = sleeper.served-s, other.served-o
		if !near(s, 2*time.Second, 20*ms) || !near(o, 2*time.Second, 20*ms) {
			t.Errorf("other idle until %v: in the 4 s after its sleep the sleeper got %v, the other %v", alone, s, o)
		}
	}
}

func TestCFSSleeperGainsAtMostTheBonus(t *testing.T) {
	l := newLab(t, "cfs", map[string]string{"bonus": "500ms"})
	sleeper := l.open(weight(1), asleep(time.Second, 5*time.Second))
	l.open(weight(1), saturating)
	l.run(5 * time.Second)
	before := sleeper.served
	l.run(2 * time.Second)
	if got := sleeper.served - before; !near(got, 1250*ms, 25*ms) {
		t.Errorf("in the 2 s after its sleep the sleeper got %v, want the bonus and half of the rest", got)
	}
}

func TestCFSNiceCountsAsOnTheCPU(t *testing.T) {
	l := newLab(t, "cfs", nil)
	nicer := l.open(sched.Queue{Attr: sched.Attr{Nice: 5}}, saturating)
	plain := l.open(sched.Queue{}, saturating)
	l.run(5 * time.Second)
	if ratio := float64(plain.served) / float64(nicer.served); ratio < 2.95 || ratio > 3.15 { // 1.25^5
		t.Errorf("nice 0 to nice 5 is %.2f", ratio)
	}
}

func TestCFSRunsEverybodyWithinTheLatencyTarget(t *testing.T) {
	l := newLab(t, "cfs", map[string]string{"latency": "40ms"})
	var jobs []*job
	for range 4 {
		jobs = append(jobs, l.open(weight(1), saturating))
	}
	for range 20 {
		before := [4]time.Duration{}
		for i, j := range jobs {
			before[i] = j.served
		}
		l.run(40 * ms)
		for i, j := range jobs {
			if got := j.served - before[i]; !near(got, 10*ms, tick) {
				t.Fatalf("queue %d got %v of 40 ms", j.ID, got)
			}
		}
	}
}

func TestShareHoldsWithinOnePercent(t *testing.T) {
	type ask struct {
		share   uint8
		process sched.ProcessID
		busy    bool
		want    float64 // percent of the device
	}
	tests := []struct {
		name   string
		policy string
		asks   []ask
	}{
		{"all busy", "share", []ask{{50, 1, true, 50}, {30, 2, true, 30}, {0, 3, true, 10}, {0, 4, true, 10}}},
		{"what an unasking queue leaves goes to those like it", "share", []ask{{50, 1, true, 50}, {0, 2, true, 50}, {0, 3, false, 0}}},
		{"what an asking queue leaves goes to the unasking", "share", []ask{{50, 1, false, 0}, {20, 2, true, 20}, {0, 3, true, 80}}},
		{"nobody takes what is left", "share", []ask{{40, 1, true, 80}, {10, 2, true, 20}, {0, 3, false, 0}}},
		{"asked for too much", "share", []ask{{100, 1, true, 50}, {100, 2, true, 50}}},
		{"asked for all, unasking does not starve", "share", []ask{{100, 1, true, 99}, {0, 2, true, 1}}},
		{"nobody asks", "share", []ask{{0, 1, true, 50}, {0, 2, true, 50}}},
		{"queues count one by one", "share", []ask{{0, 1, true, 25}, {0, 1, true, 25}, {0, 1, true, 25}, {0, 2, true, 25}}},
		{"processes count as one", "share-process", []ask{{0, 1, true, 50. / 3}, {0, 1, true, 50. / 3}, {0, 1, true, 50. / 3}, {0, 2, true, 50}}},
		{"a process asks once", "share-process", []ask{{60, 1, true, 30}, {60, 1, true, 30}, {0, 2, true, 40}}},
		{"the busy queues of a process have its share", "share-process", []ask{{60, 7, true, 60}, {0, 7, false, 0}, {0, 2, true, 40}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, tt.policy, nil)
			for _, a := range tt.asks {
				load := saturating
				if !a.busy {
					load = idle
				}
				l.open(sched.Queue{Process: a.process, Attr: sched.Attr{Share: a.share}}, load)
			}
			l.run(10 * time.Second)
			for i, j := range l.jobs {
				if got := 100 * j.served.Seconds() / 10; got < tt.asks[i].want-1 || got > tt.asks[i].want+1 {
					t.Errorf("queue %d asked for %d %% and has %.2f %%, want %.2f", j.ID, j.Attr.Share, got, tt.asks[i].want)
				}
			}
		})
	}
}

func TestRRGivesEqualTurnsAndSkipsEmptyOnes(t *testing.T) {
	l := newLab(t, "rr", nil)
	a, b, c := l.open(sched.Queue{}, saturating), l.open(sched.Queue{}, idle), l.open(sched.Queue{}, saturating)
	l.run(time.Second)
	if !near(a.served, 500*ms, 10*ms) || !near(c.served, 500*ms, 10*ms) {
		t.Errorf("served %v and %v of 1 s", a.served, c.served)
	}
	if !b.running {
		t.Error("the queue with nothing to do was stopped")
	}
	if n := len(l.actions); n > 2*100+2 {
		t.Errorf("%d actions for 100 turns", n)
	}
}

func TestMLFQShortWorkStaysAheadOfLong(t *testing.T) {
	l := newLab(t, "mlfq", nil)
	l.open(sched.Queue{}, saturating)
	l.run(500 * ms)
	short := l.open(sched.Queue{Attr: sched.Attr{Deadline: 2 * ms}}, periodic(20*ms, ms))
	l.run(150 * ms) // 7 ms used: it has not fallen yet
	for _, c := range short.finished[len(short.finished)-5:] {
		if took := c.done.Sub(c.arrived); took > 2*ms {
			t.Errorf("short work that came at %v took %v", time.Duration(c.arrived), took)
		}
	}
}

func TestMLFQPausingBeforeTheQuantumIsOverGainsNothing(t *testing.T) {
	l := newLab(t, "mlfq", map[string]string{"boost": "1h"})
	gamer := l.open(sched.Queue{}, periodic(10*ms, 9*ms))
	honest := l.open(sched.Queue{}, saturating)
	l.run(4 * time.Second)
	if honest.served < 1500*ms {
		t.Errorf("the queue that pauses got %v, the other %v", gamer.served, honest.served)
	}
}

func TestMLFQNobodyStarvesForLongerThanABoost(t *testing.T) {
	l := newLab(t, "mlfq", map[string]string{"boost": "200ms"})
	long := l.open(sched.Queue{}, saturating)
	for range 5 {
		before := long.served
		for range 40 { // newcomers without end, each of which uses up its turn at the top
			newcomer := l.open(sched.Queue{}, saturating)
			l.run(10 * ms)
			l.close(newcomer)
		}
		if long.served == before {
			t.Errorf("nothing in the 400 ms before %v", time.Duration(l.now))
		}
	}
}

func TestMLFQPriorityIsTheStartingLevel(t *testing.T) {
	l := newLab(t, "mlfq", nil)
	low := l.open(sched.Queue{Attr: sched.Attr{Priority: -2}}, saturating)
	high := l.open(sched.Queue{Attr: sched.Attr{Priority: 7}}, saturating)
	l.run(30 * ms) // two levels: 10 ms and 20 ms
	if low.served != 0 || high.served != 30*ms {
		t.Errorf("in the first two levels: low %v, high %v", low.served, high.served)
	}
	l.run(100 * ms)
	if low.served == 0 {
		t.Error("low never ran")
	}
}
