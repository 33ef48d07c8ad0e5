package policy

import (
	"math"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestWFQServiceDiffersByAtMostOneQuantum is theorem 1 of start-time fair queueing:
// while two queues are ready, their service divided by weight differs by at most one
// quantum of each, divided by weight.
func TestWFQServiceDiffersByAtMostOneQuantum(t *testing.T) {
	const quantum = 10 * ms
	l := newNode(t, "wfq", nil)
	jobs := []*job{l.open(weight(1), saturating), l.open(weight(3), saturating), l.open(weight(8), saturating)}
	l.run(2*time.Second, func() {
		for i, a := range jobs {
			for _, b := range jobs[:i] {
				wa, wb := time.Duration(a.Weight()), time.Duration(b.Weight())
				if apart := (a.served/wa - b.served/wb).Abs(); apart > quantum/wa+quantum/wb+tick {
					t.Fatalf("at %v: weights %d and %d differ by %v", time.Duration(l.now), wa, wb, apart)
				}
			}
		}
	})
}

func TestWFQSetsSlicesByWeightAndStopsNoQueue(t *testing.T) {
	l := newNode(t, "wfq", nil, slicedGPU)
	light, heavy, huge := l.open(weight(2), saturating), l.open(weight(6), saturating), l.open(weight(math.MaxUint32), nil)
	l.run(time.Second)
	if light.slice != 2*ms || heavy.slice != 6*ms || huge.slice != 50*ms {
		t.Errorf("got slices %v, %v, %v, want 2ms, 6ms and 50ms", light.slice, heavy.slice, huge.slice)
	}
	if !near(heavy.served, 3*light.served, 5*ms) {
		t.Errorf("got %v and %v served, want 1:3", light.served, heavy.served)
	}
	if len(l.actions) != 3 {
		t.Errorf("got %d actions, want one for each queue: %v", len(l.actions), l.actions)
	}
	if v := (&sched.View{Now: 9, Devices: []sched.Device{slicedGPU}, Queues: []sched.Queue{{ID: 1, Can: canAll}}}); newWFQ().Plan(v).Wake != 0 {
		t.Error("the policy wakes although its slices change only with the queues")
	}
}

func TestWFQSetsNoSliceBelowMinSharedSlice(t *testing.T) {
	dev := slicedGPU
	dev.MinSharedSlice = 5 * ms
	l := newNode(t, "wfq", nil, dev)
	a, b := l.open(weight(1), saturating), l.open(weight(2), saturating)
	l.run(10 * ms)
	if a.slice != 5*ms || b.slice != 10*ms {
		t.Errorf("got slices %v and %v, want 5ms and 10ms", a.slice, b.slice)
	}
}

func TestWFQTakesTurnsIfOneQueueCannotBeSliced(t *testing.T) {
	l := newNode(t, "wfq", nil, slicedGPU)
	a := l.open(sched.Queue{Can: canStop, Attr: sched.Attr{Weight: 3}}, saturating)
	b := l.open(weight(1), saturating)
	l.run(2 * time.Second)
	if !near(a.served, 3*b.served, 40*ms) {
		t.Errorf("got %v and %v served, want 3:1", a.served, b.served)
	}
}

// TestWFQKnowsServiceBySlices checks that service by slices counts when a queue without slices is
// opened, and turns begin: the queue that had more waits.
func TestWFQKnowsServiceBySlices(t *testing.T) {
	p := newWFQ()
	busy := sched.Counters{Known: true, Submitted: 1, Launched: 1}
	v := &sched.View{Now: sched.Time(ms), Devices: []sched.Device{h200Device}}
	for id := range sched.QueueID(2) {
		v.Queues = append(v.Queues, sched.Queue{ID: id + 1, Process: 1, Can: canAll, Counters: busy})
	}
	p.Plan(v)
	v.Now = v.Now.Add(100 * ms)
	v.Queues[0].Served = 100 * ms
	p.Plan(v)
	v.Queues = append(v.Queues, sched.Queue{ID: 3, Process: 1, Can: sched.CanInterrupt, Counters: busy})
	if got := p.Plan(v).Grants; len(got) != 1 || got[0].Queue != 2 {
		t.Errorf("got %+v, want the turn of queue 2, which had nothing", got)
	}
}

func TestManySmallChargesAddUpToOneLarge(t *testing.T) {
	often, once := vtime{weight: 1000 * unit}, vtime{weight: 1000 * unit}
	for range 1000 {
		often.charge(700)
	}
	once.charge(700_000)
	if often.at != once.at || once.at != 700 {
		t.Errorf("got virtual time %v by small charges and %v by one, want 700ns", often.at, once.at)
	}
}

// TestVirtualTimeOfWeight1IsService checks the scale of virtual time, in which the bonus of
// cfs is given: for a queue without a weight it is the device time that the queue has had.
func TestVirtualTimeOfWeight1IsService(t *testing.T) {
	for name, p := range map[string]*fair{"cfs": fresh(t, "cfs").(*fair), "wfq": &fresh(t, "wfq").(*wfq).fair} {
		for weight, want := range map[uint32]time.Duration{0: time.Second, 1: time.Second, 4: 250 * ms} {
			v := vtime{weight: p.weightOf(&sched.Queue{Attr: sched.Attr{Weight: weight}})}
			v.charge(time.Second)
			if v.at != want {
				t.Errorf("%s, weight %d: the virtual time after 1 s of service is %v, want %v", name, weight, v.at, want)
			}
		}
	}
}

// TestNoQueueIsChargedForAnIdleDevice checks that a device on which no queue is ready leaves
// no turn behind: of two equal queues that become ready together, the one with the lower ID
// has a whole turn first.
func TestNoQueueIsChargedForAnIdleDevice(t *testing.T) {
	for name, turn := range map[string]time.Duration{"wfq": 10 * ms, "cfs": 10 * ms, "share": 50 * ms} {
		l := newNode(t, name, nil)
		a, b := l.open(weight(1), idle), l.open(weight(1), idle)
		l.run(time.Second)
		a.load, b.load = saturating, saturating
		l.run(tick + turn) // they submit after a tick
		if a.served != turn {
			t.Errorf("%s: of the first %v queue 1 got %v and queue 2 %v, want all for queue 1", name, turn, a.served, b.served)
		}
	}
}

// TestUnusedTurnsAreCharged checks that a queue that cannot run, because its start
// fails or its kernel waits for another process, does not get every turn, also if it could
// run before.
func TestUnusedTurnsAreCharged(t *testing.T) {
	for _, name := range []string{"wfq", "cfs", "share", "share-process", "rr", "mlfq", "giveway"} {
		l := newNode(t, name, nil)
		l.measureEvery = ms
		batch := sched.Queue{Attr: sched.Attr{Class: sched.Batch}}
		stuck, b := l.open(batch, nil), l.open(batch, saturating)
		stuck.noCounters = true
		l.events = append(l.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: stuck.ID})
		l.run(2 * time.Second)
		if b.served < 900*ms {
			t.Errorf("%s: got %v of 2 s beside a queue that cannot run, want at least 900ms", name, b.served)
		}
		l = newNode(t, name, nil)
		l.measureEvery = ms
		stuck, b = l.openJob(batch, idleFrom(500*ms, time.Hour), 0), l.open(batch, saturating)
		l.run(time.Second)
		before := b.served
		l.run(2 * time.Second)
		if got := b.served - before; stuck.served < 100*ms || got < 900*ms {
			t.Errorf("%s: got %v of 2 s beside a queue that ran for %v and then cannot, want at least 900ms", name, got, stuck.served)
		}
	}
}

// TestNoChargeForATurnThatEndedIdle checks that a queue whose turn ended because it had no work, before
// it was served, is not charged for the time until it comes back.
func TestNoChargeForATurnThatEndedIdle(t *testing.T) {
	for _, name := range []string{"wfq", "cfs", "share", "share-process"} {
		ready, idle := sched.Counters{Known: true, Submitted: 1}, sched.Counters{Known: true}
		p := fresh(t, name)
		v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{
			{ID: 1, Process: 1, Can: canStop, Counters: ready}, {ID: 2, Process: 2, Can: canStop, Counters: idle},
		}}
		p.Plan(v)
		v.Now = v.Now.Add(ms)
		v.Queues[0].Counters = idle
		p.Plan(v)
		v.Now = v.Now.Add(time.Second)
		v.Queues[0].Counters, v.Queues[1].Counters = ready, ready
		if got := granted(p.Plan(v)); len(got) != 1 || got[0] != 1 {
			t.Errorf("%s: got %v, want queue 1, which is first among equals", name, got)
		}
	}
}

// TestTurnsAreLongWhereStopsAre checks that a turn takes at least ten times as long as a stop.
func TestTurnsAreLongWhereStopsAre(t *testing.T) {
	ready, dev := sched.Counters{Known: true, Submitted: 1}, plainGPU
	dev.StopTime = 100 * ms
	for _, name := range []string{"wfq", "cfs", "share", "share-process"} {
		v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{dev}, Queues: []sched.Queue{
			{ID: 1, Process: 1, Can: canStop, Counters: ready}, {ID: 2, Process: 2, Can: canStop, Counters: ready},
		}}
		if got := fresh(t, name).Plan(v).Wake.Sub(v.Now); got != time.Second {
			t.Errorf("%s: a stop takes 100 ms and a turn %v, want 1s", name, got)
		}
	}
}

// TestFairSharesWithSlowActionsAndLateMeasurements checks that neither changes the
// shares.
func TestFairSharesWithSlowActionsAndLateMeasurements(t *testing.T) {
	queues := []sched.Queue{
		{Attr: sched.Attr{Class: sched.Batch, Weight: 3, Share: 75}},
		{Attr: sched.Attr{Class: sched.Batch, Weight: 1}},
	}
	for _, name := range []string{"wfq", "cfs", "share", "share-process", "giveway"} {
		for _, delay := range []time.Duration{0, 500 * time.Microsecond, 3 * ms} {
			for _, tell := range []time.Duration{0, ms, 25 * ms} {
				l := newNode(t, name, nil)
				l.actionTime, l.measureEvery = delay, tell
				a, b := l.open(queues[0], saturating), l.open(queues[1], saturating)
				l.run(time.Duration(few(10)) * time.Second)
				if ratio := float64(a.served) / float64(b.served); ratio < 2.7 || ratio > 3.3 {
					t.Errorf("%s, actions take %v, measured every %v: got %.2f to 1, want 3 to 1", name, delay, tell, ratio)
				}
			}
		}
	}
}

func TestFairPolicyStartsWithoutThePast(t *testing.T) {
	for _, name := range []string{"wfq", "cfs", "share", "share-process", "giveway"} {
		l := newNode(t, "hpf", nil)
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
			t.Errorf("%s: of its first 2 s: got %v and %v, want 1s each", name, got, b.served)
		}
	}
}

func TestCFSNewQueueGetsItsShareAndNoMore(t *testing.T) {
	l := newNode(t, "cfs", nil)
	old := l.open(weight(1), saturating)
	l.run(9 * time.Second)
	young := l.open(weight(1), saturating)
	before := old.served
	l.run(6 * time.Second)
	if got := old.served - before; !near(young.served, 3*time.Second, 20*ms) || !near(got, 3*time.Second, 20*ms) {
		t.Errorf("in 6 s: got new queue %v, old queue %v, want 3s each", young.served, got)
	}
}

func TestCFSIdleQueueNeitherGainsNorStarves(t *testing.T) {
	for _, alone := range []time.Duration{0, 2 * time.Second} { // how long the first queue has the device alone
		l := newNode(t, "cfs", nil)
		idleBefore := l.open(weight(1), idleFrom(2*time.Second, 5*time.Second))
		other := l.open(weight(1), idleFrom(0, alone))
		l.run(5 * time.Second)
		s, o := idleBefore.served, other.served
		l.run(4 * time.Second)
		s, o = idleBefore.served-s, other.served-o
		if !near(s, 2*time.Second, 20*ms) || !near(o, 2*time.Second, 20*ms) {
			t.Errorf("other idle until %v, 4 s after the idle time: got %v and %v, want 2s each", alone, s, o)
		}
	}
}

func TestCFSIdleQueueGainsAtMostTheBonus(t *testing.T) {
	l := newNode(t, "cfs", map[string]string{"bonus": "500ms"})
	idleBefore := l.open(weight(1), idleFrom(time.Second, 5*time.Second))
	l.open(weight(1), saturating)
	l.run(5 * time.Second)
	before := idleBefore.served
	l.run(2 * time.Second)
	if got := idleBefore.served - before; !near(got, 1250*ms, 25*ms) {
		t.Errorf("in the 2 s after its idle time: got %v, want 1.25s: the bonus and half of the rest", got)
	}
}

func TestCFSNiceCountsAsOnTheCPU(t *testing.T) {
	l := newNode(t, "cfs", nil)
	nicer := l.open(sched.Queue{Attr: sched.Attr{Nice: 5}}, saturating)
	plain := l.open(sched.Queue{}, saturating)
	l.run(5 * time.Second)
	if ratio := float64(plain.served) / float64(nicer.served); ratio < 2.95 || ratio > 3.15 { // 1.25^5
		t.Errorf("nice 0 to nice 5: got %.2f, want 3.05", ratio)
	}
}

func TestCFSRunsEveryQueueWithinTheLatencyTarget(t *testing.T) {
	l := newNode(t, "cfs", map[string]string{"latency": "40ms"})
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
				t.Fatalf("queue %d: got %v of 40 ms, want 10ms", j.ID, got)
			}
		}
	}
}

func TestShareHoldsWithinOnePercent(t *testing.T) {
	type client struct {
		share   uint8
		process sched.ProcessID
		busy    bool
		want    float64 // percent of the device
	}
	tests := []struct {
		name    string
		policy  string
		clients []client
	}{
		{"all busy", "share", []client{{50, 1, true, 50}, {30, 2, true, 30}, {0, 3, true, 10}, {0, 4, true, 10}}},
		{"unused time of a queue without a share goes to the others without one", "share", []client{{50, 1, true, 50}, {0, 2, true, 50}, {0, 3, false, 0}}},
		{"unused time of a queue with a share goes to those without one", "share", []client{{50, 1, false, 0}, {20, 2, true, 20}, {0, 3, true, 80}}},
		{"unused time goes to queues with a share if there are no others", "share", []client{{40, 1, true, 80}, {10, 2, true, 20}, {0, 3, false, 0}}},
		{"more than 100 %", "share", []client{{100, 1, true, 50}, {100, 2, true, 50}}},
		{"100 %, and a queue without a share does not starve", "share", []client{{100, 1, true, 99}, {0, 2, true, 1}}},
		{"no shares", "share", []client{{0, 1, true, 50}, {0, 2, true, 50}}},
		{"share counts queues", "share", []client{{0, 1, true, 25}, {0, 1, true, 25}, {0, 1, true, 25}, {0, 2, true, 25}}},
		{"share-process counts processes", "share-process", []client{{0, 1, true, 50. / 3}, {0, 1, true, 50. / 3}, {0, 1, true, 50. / 3}, {0, 2, true, 50}}},
		{"a process has one share", "share-process", []client{{60, 1, true, 30}, {60, 1, true, 30}, {0, 2, true, 40}}},
		{"the busy queues of a process have its share", "share-process", []client{{60, 7, true, 60}, {0, 7, false, 0}, {0, 2, true, 40}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newNode(t, tt.policy, nil)
			for _, a := range tt.clients {
				load := saturating
				if !a.busy {
					load = idle
				}
				l.open(sched.Queue{Process: a.process, Attr: sched.Attr{Share: a.share}}, load)
			}
			l.run(10 * time.Second)
			for i, j := range l.jobs {
				if got := 100 * j.served.Seconds() / 10; got < tt.clients[i].want-1 || got > tt.clients[i].want+1 {
					t.Errorf("queue %d with share %d %%: got %.2f %%, want %.2f", j.ID, j.Attr.Share, got, tt.clients[i].want)
				}
			}
		})
	}
}

func TestShareAbove100PercentCountsAs100(t *testing.T) {
	f := newShare().(*fair)
	most := f.weightOf(&sched.Queue{Attr: sched.Attr{Share: 100}})
	for _, share := range []uint8{101, 255} {
		if got := f.weightOf(&sched.Queue{Attr: sched.Attr{Share: share}}); got != most {
			t.Errorf("a share of %d %% weighs %d, want %d as one of 100 %%", share, got, most)
		}
	}
}

// TestEveryEntityHasAnID checks that no process has the ID zero, which stands for no entity, and no
// two have the same.
func TestEveryEntityHasAnID(t *testing.T) {
	seen := map[uint64]bool{0: true}
	for _, process := range []sched.ProcessID{0, 1, 2} {
		id := byProcess(&sched.Queue{Process: process})
		if seen[id] {
			t.Errorf("process %d has the ID %d of another or of none", process, id)
		}
		seen[id] = true
	}
}

// TestShareOfTheRest checks what entities without a share get: equal parts of what the runnable ones
// with a share leave, and at least 1 %. Entities that are not runnable take nothing.
func TestShareOfTheRest(t *testing.T) {
	for _, c := range []struct {
		name   string
		shares []int64
		idle   int64 // share of an entity that is not runnable
		others int   // entities without a share
		want   int64
	}{
		{"no shares", nil, 0, 4, 25},
		{"one of 40 %", []int64{40}, 0, 3, 20},
		{"one of 40 %, and an idle one", []int64{40}, 30, 3, 20},
		{"more than all", []int64{60, 60}, 0, 2, 1},
		{"no runnable entity without one", []int64{40}, 0, 0, 60},
	} {
		entities := []entity{{newWeight: c.idle * unit}}
		for _, share := range c.shares {
			entities = append(entities, entity{newWeight: share * unit, ready: true})
		}
		for range c.others {
			entities = append(entities, entity{ready: true})
		}
		entities = append(entities, entity{})
		shareRest(entities)
		for i, e := range entities[1+len(c.shares):] {
			if e.newWeight != c.want*unit {
				t.Errorf("%s: entity %d without a share has %d %%, want %d", c.name, i, e.newWeight/unit, c.want)
			}
		}
	}
}

func TestRRGivesEqualTurnsAndSkipsIdleQueues(t *testing.T) {
	l := newNode(t, "rr", nil)
	a, b, c := l.open(sched.Queue{}, saturating), l.open(sched.Queue{}, idle), l.open(sched.Queue{}, saturating)
	l.run(time.Second)
	if !near(a.served, 500*ms, 10*ms) || !near(c.served, 500*ms, 10*ms) {
		t.Errorf("got %v and %v of 1 s, want 500ms each", a.served, c.served)
	}
	if !b.running {
		t.Error("got the idle queue stopped, want running")
	}
	if n := len(l.actions); n > 2*100+2 {
		t.Errorf("got %d actions for 100 turns, want at most 202", n)
	}
}

func TestMLFQShortWorkStaysAheadOfLongWork(t *testing.T) {
	l := newNode(t, "mlfq", nil)
	l.open(sched.Queue{}, saturating)
	l.run(500 * ms)
	short := l.open(sched.Queue{Attr: sched.Attr{Deadline: 2 * ms}}, periodic(20*ms, ms))
	l.run(150 * ms) // 7 ms used: it is still at the top
	for _, c := range short.finished[len(short.finished)-5:] {
		if took := c.done.Sub(c.arrived); took > 2*ms {
			t.Errorf("short work of %v: got %v, want at most 2ms", time.Duration(c.arrived), took)
		}
	}
}

func TestMLFQPausingBeforeTheQuantumEndsGainsNothing(t *testing.T) {
	l := newNode(t, "mlfq", map[string]string{"boost": "1h"})
	pausing := l.open(sched.Queue{}, periodic(10*ms, 9*ms))
	other := l.open(sched.Queue{}, saturating)
	l.run(4 * time.Second)
	if other.served < 1500*ms {
		t.Errorf("got %v for the queue that pauses and %v for the other, want at least 1.5s", pausing.served, other.served)
	}
}

func TestMLFQNoQueueStarvesForLongerThanABoostPeriod(t *testing.T) {
	l := newNode(t, "mlfq", map[string]string{"boost": "200ms"})
	long := l.open(sched.Queue{}, saturating)
	for range 5 {
		before := long.served
		for range 40 { // new queues, each of which uses its whole turn at the top level
			newcomer := l.open(sched.Queue{}, saturating)
			l.run(10 * ms)
			l.close(newcomer)
		}
		if long.served == before {
			t.Errorf("got nothing in the 400 ms before %v", time.Duration(l.now))
		}
	}
}

func TestMLFQBoostsFavourNoQueue(t *testing.T) {
	l := newNode(t, "mlfq", nil)
	all := []*job{l.open(sched.Queue{}, saturating), l.open(sched.Queue{}, saturating), l.open(sched.Queue{}, saturating)}
	l.run(30 * time.Second)
	for i, c := range all {
		if c.served < 9500*ms || c.served > 10500*ms {
			t.Errorf("queue %d: got %v of 30 s, want a third", i, c.served)
		}
	}
}

func TestMLFQPriorityIsTheStartLevel(t *testing.T) {
	l := newNode(t, "mlfq", nil)
	low := l.open(sched.Queue{Attr: sched.Attr{Priority: -2}}, saturating)
	high := l.open(sched.Queue{Attr: sched.Attr{Priority: 7}}, saturating)
	l.run(30 * ms) // two levels: 10 ms and 20 ms
	if low.served != 0 || high.served != 30*ms {
		t.Errorf("in the first two levels: got low %v, high %v, want 0 and 30ms", low.served, high.served)
	}
	l.run(100 * ms)
	if low.served == 0 {
		t.Error("got nothing for low after 130 ms")
	}
}

// TestMLFQStartsNoQueueBelowTheLowestLevel checks that of queues with priorities so low that
// there is no level for them, none goes before another.
func TestMLFQStartsNoQueueBelowTheLowestLevel(t *testing.T) {
	l := newNode(t, "mlfq", nil)
	all := []*job{
		l.open(sched.Queue{Attr: sched.Attr{Priority: -1000}}, saturating),
		l.open(sched.Queue{Attr: sched.Attr{Priority: -3}}, saturating),
		l.open(sched.Queue{Attr: sched.Attr{Priority: -5}}, saturating),
	}
	l.run(30 * time.Second)
	for _, c := range all {
		if c.served < 9500*ms || c.served > 10500*ms {
			t.Errorf("priority %d: got %v of 30 s, want a third", c.Attr.Priority, c.served)
		}
	}
}

// TestMLFQFewerLevelsShortenTurns checks that queues at a level that no longer exists move to
// the last one, and have its quantum.
func TestMLFQFewerLevelsShortenTurns(t *testing.T) {
	l := newNode(t, "mlfq", map[string]string{"boost": "1h"})
	a, b := l.open(sched.Queue{}, saturating), l.open(sched.Queue{}, saturating)
	l.run(time.Second)
	longest := func() (most time.Duration) {
		turn, was := time.Duration(0), a.running
		l.run(time.Second, func() {
			if turn += tick; a.running != was {
				turn, was = tick, a.running
			}
			most = max(most, turn)
		})
		return most
	}
	if got := longest(); !near(got, 80*ms, ms) {
		t.Errorf("four levels: got turns up to %v, want 80ms", got)
	}
	choice, err := Choose("mlfq", map[string]string{"boost": "1h", "levels": "2"})
	if err != nil {
		t.Fatal(err)
	}
	l.events = append(l.events, sched.Event{Kind: sched.PolicyChosen, Choice: choice})
	l.run(100 * ms)
	if got := longest(); !near(got, 20*ms, ms) || b.served == 0 {
		t.Errorf("two levels: got turns up to %v, want 20ms", got)
	}
}

// TestMLFQTurnsAtTheLowestLevelAreWhole checks that a queue at the lowest level whose turn was
// ended late has a whole turn the next time.
func TestMLFQTurnsAtTheLowestLevelAreWhole(t *testing.T) {
	choice, err := Choose("mlfq", map[string]string{"boost": "1h", "levels": "1"})
	if err != nil {
		t.Fatal(err)
	}
	p := choice.Make()
	v := &sched.View{Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{{ID: 1, Can: canAll}, {ID: 2, Can: canAll}}}
	turn := func(at time.Duration, want sched.QueueID) {
		t.Helper()
		v.Now = sched.Time(time.Second).Add(at)
		plan := p.Plan(v)
		if len(plan.Grants) != 1 || plan.Grants[0].Queue != want || plan.Wake != v.Now.Add(10*ms) {
			t.Errorf("at %v: got %+v until %v, want queue %d for 10 ms", at, plan.Grants, plan.Wake.Sub(v.Now), want)
		}
	}
	turn(0, 1)
	turn(17*ms, 2) // 7 ms late
	turn(27*ms, 1)
	turn(37*ms, 2)
}

// TestMLFQWakesForABoost checks that the policy wakes for the next boost if a queue has moved
// down, even if the current turn is longer, and otherwise at the end of the turn.
func TestMLFQWakesForABoost(t *testing.T) {
	p := newMLFQ().(*mlfq)
	p.boost = 25 * ms
	begin := sched.Time(time.Hour)
	v := &sched.View{Queues: []sched.Queue{{ID: 1}, {ID: 2}, {ID: 3, Attr: sched.Attr{Paused: true}}}}
	for _, c := range []struct{ after, wake time.Duration }{
		{0, 10 * ms},
		{4 * ms, 10 * ms}, // for another reason, within the turn
		{10 * ms, 20 * ms},
		{20 * ms, 25 * ms}, // both are at the second level, where turns take 20 ms
		{25 * ms, 35 * ms}, // boosted
	} {
		v.Now = begin.Add(c.after)
		if got := p.Plan(v).Wake.Sub(begin); got != c.wake {
			t.Errorf("after %v: the policy wakes after %v, want %v", c.after, got, c.wake)
		}
	}
	p = newMLFQ().(*mlfq)
	p.boost = 5 * ms
	if got := p.Plan(v).Wake.Sub(v.Now); got != 10*ms {
		t.Errorf("no queue has moved down: the policy wakes after %v, want the turn of 10 ms", got)
	}
}
