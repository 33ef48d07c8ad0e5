package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// newLoneNode returns a node whose online process comes onto the device again and again beside one
// light batch queue, and does not wait for each of its kernels, so bursts gain little.
func newLoneNode(jobs ...sched.Attr) *loopNode {
	n := newLoopNode(jobs...)
	n.light = true
	return n
}

// sliceOfBatch returns the slice that the last plan gives the only batch queue.
func (n *loopNode) sliceOfBatch(t *testing.T) time.Duration {
	t.Helper()
	g, granted := n.batchGrant()
	if !granted {
		t.Fatalf("at %v the batch queue is stopped", time.Duration(n.view.Now))
	}
	return g.Slice
}

// shareOfLongSlice runs for d, and returns the part of that time in which the batch queue had the slice
// of queues that run side by side.
func (n *loopNode) shareOfLongSlice(d time.Duration) float64 {
	with := 0
	for range d / ms {
		n.run(ms)
		if g, granted := n.batchGrant(); granted && g.Slice == 500*us {
			with++
		}
	}
	return float64(with) / float64(d/ms)
}

// TestLoneLightQueueKeepsALongerSlice checks that a light batch queue has the longer slice soon, and
// nearly all the time, and that there are no bursts then.
func TestLoneLightQueueKeepsALongerSlice(t *testing.T) {
	n := newLoneNode(sched.Attr{})
	n.run(200 * ms)
	if got := n.sliceOfBatch(t); got != 500*us {
		t.Errorf("after 200 ms it has the slice %v, want 500us", got)
	}
	if got := n.shareOfLongSlice(30 * time.Second); got < 0.98 {
		t.Errorf("it has the longer slice for %.3f of the time, want 0.98", got)
	}
	if n.entries > 0 {
		t.Errorf("there were %d bursts, want none", n.entries)
	}
}

// TestLoneHeavyQueueIsTriedSeldom checks that a heavy batch queue is given the longer slice for less than
// one request in a hundred, and after 10 s, then 20 s.
func TestLoneHeavyQueueIsTriedSeldom(t *testing.T) {
	for _, bursts := range []bool{true, false} {
		n := newLoopNode(sched.Attr{})
		if !bursts {
			n.policy.burst.length = 0
		}
		if got := n.shareOfLongSlice(time.Minute); got == 0 || got > 0.01 {
			t.Errorf("bursts %v: it has the longer slice for %.4f of the time, want less than 0.01, but trials", bursts, got)
		}
		if got := n.policy.lone.wait; got != 40*time.Second {
			t.Errorf("bursts %v: after a minute the next trial has to wait for %v, want 40 s", bursts, got)
		}
	}
}

// TestLoneQueueChangesItsLoad checks that a light queue that becomes heavy loses the longer slice
// within a fifth of a second, and that a heavy one that becomes light gets it with a later trial.
func TestLoneQueueChangesItsLoad(t *testing.T) {
	n := newLoneNode(sched.Attr{})
	n.run(time.Second)
	n.light = false
	n.run(200 * ms)
	if got := n.shareOfLongSlice(time.Second); got > 0 {
		t.Errorf("when it is heavy it has the longer slice for %.2f of the time, want 0", got)
	}
	n.light = true
	n.run(11 * time.Second) // bursts are left every 5 s
	if got := n.shareOfLongSlice(time.Second); got < 0.9 {
		t.Errorf("when it is light again it has the longer slice for %.2f of the time, want 0.9", got)
	}
}

// TestLoneQueueHasTheMinimumSlice lists where a light batch queue keeps the setting of the policy.
func TestLoneQueueHasTheMinimumSlice(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(n *loopNode)
	}{
		{"requests that are one dense piece of work", func(n *loopNode) { n.minVisits = 0.2 }},
		{"turns by the parameter shared", func(n *loopNode) { n.policy.sharedSlice = sched.MinSlice }},
		{"no trace", func(n *loopNode) { n.facts[1].Visits.Known = false }},
		{"a queue that cannot be stopped", func(n *loopNode) { n.facts[1].Can = sched.CanSlice }},
		{"class idle", func(n *loopNode) { n.facts[1].Attr.Class = sched.Idle }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newLoneNode(sched.Attr{})
			n.policy.burst.length = 0
			tt.change(n)
			n.read()
			if got := n.shareOfLongSlice(3 * time.Second); got > 0 {
				t.Errorf("it has the longer slice for %.2f of the time, want 0", got)
			}
		})
	}
	n := newLoneNode(sched.Attr{})
	n.run(time.Second)
	queue := n.facts[1]
	queue.ID = 3
	n.facts = append(n.facts, queue)
	n.read()
	n.run(ms)
	if n.policy.lone.phase != loneOff {
		t.Errorf("beside another batch queue the phase is %d, want loneOff", n.policy.lone.phase)
	}
}

// TestLoneQueueWithoutWork checks that no trial begins while the only batch queue has no work: switches
// between online queues do not count.
func TestLoneQueueWithoutWork(t *testing.T) {
	n := newLoneNode(sched.Attr{})
	n.batchIdle = true
	n.facts[1].Counters = sched.Counters{Submitted: 1, Launched: 1, Completed: 1, Known: true}
	n.read()
	n.run(time.Second)
	if n.policy.lone.phase != loneOff {
		t.Errorf("the phase is %d, want loneOff", n.policy.lone.phase)
	}
}

// TestLoneQueueIsRechecked checks that a light queue has the minimum slice for a window every five seconds, so that
// it does not keep the longer one when the online work no longer comes onto the device again and again.
func TestLoneQueueIsRechecked(t *testing.T) {
	n := newLoneNode(sched.Attr{})
	n.run(time.Second)
	var began []sched.Time
	for was := n.policy.lone.phase; len(began) < 4 && n.view.Now < sched.Time(time.Minute); was = n.policy.lone.phase {
		if n.run(ms); n.policy.lone.phase == loneRecheck && was != loneRecheck {
			began = append(began, n.view.Now)
		}
	}
	for i := 1; i < len(began); i++ {
		if every := began[i].Sub(began[i-1]); every < 5*time.Second || every > 5200*ms {
			t.Errorf("recheck %d begins %v after the one before, want five seconds and a window", i+1, every)
		}
	}
	if len(began) < 4 {
		t.Errorf("got %d rechecks in a minute, want 4 at least", len(began))
	}
}

// TestLoneIsForShortSlices checks which settings let it choose a slice: those with bursts, a slice too short to share, and
// a longer one for queues that run side by side.
func TestLoneIsForShortSlices(t *testing.T) {
	good := setting{bursts: true, slice: sched.MinSlice, sharedSlice: 500 * us}
	for _, tt := range []struct {
		name   string
		change func(set *setting)
		want   bool
	}{
		{"as it is", func(*setting) {}, true},
		{"no bursts", func(set *setting) { set.bursts = false }, false},
		{"the default slice", func(set *setting) { set.slice = 0 }, false},
		{"a slice that can be shared", func(set *setting) { set.slice = h200Device.MinSharedSlice }, false},
		{"the default slice side by side", func(set *setting) { set.sharedSlice = 0 }, false},
		{"turns", func(set *setting) { set.sharedSlice = sched.MinSlice }, false},
	} {
		n := newLoneNode(sched.Attr{})
		n.run(time.Second)
		if n.policy.lone.phase != loneLight {
			t.Fatalf("the phase is %d, want loneLight", n.policy.lone.phase)
		}
		set := good
		tt.change(&set)
		n.policy.lone.update(&n.view, n.policy.states.update(n.view.Queues), &set, false)
		if got := n.policy.lone.phase != loneOff; got != tt.want {
			t.Errorf("%s: it chooses the slice %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestLoneCountsFromTheFirstPlan checks that visits before the first plan do not lead to a trial.
func TestLoneCountsFromTheFirstPlan(t *testing.T) {
	n := newLoneNode(sched.Attr{})
	n.run(time.Second)
	n.policy.lone = lone{queues: n.policy.lone.queues}
	set := setting{bursts: true, slice: sched.MinSlice, sharedSlice: 500 * us}
	n.policy.lone.update(&n.view, n.policy.states.update(n.view.Queues), &set, false)
	if l := &n.policy.lone; l.phase != loneOff || l.from.at != countVisits(&n.view).at {
		t.Errorf("after the first plan the phase is %d, and visits count from %v", l.phase, time.Duration(l.from.at))
	}
}

// TestLoneHeavyAfterThreeWindows checks that a light queue loses the longer slice after three windows in a row
// that are those of a heavy queue, not after fewer.
func TestLoneHeavyAfterThreeWindows(t *testing.T) {
	const slice = 500 * us
	l := lone{phase: loneLight, since: sched.Time(time.Second), next: 1}
	q := sched.Queue{Slice: slice, MeasuredAt: sched.Time(time.Second)}
	window := func(each time.Duration) lonePhase {
		for range 2 { // the first measurement begins the window
			q.MeasuredAt = q.MeasuredAt.Add(ms)
			l.change(q.MeasuredAt, &h200Device, &q, visitCount{at: q.MeasuredAt})
			q.Visits.Count += windowVisits
			q.Served += windowVisits * each
		}
		return l.phase
	}
	for i, each := range []time.Duration{slice, slice, slice / 2, slice, slice} {
		if phase := window(each); phase != loneLight {
			t.Errorf("after window %d the phase is %d, want light", i+1, phase)
		}
	}
	if phase := window(slice); phase != loneOff {
		t.Errorf("after three heavy windows the phase is %d, want off", phase)
	}
}

// TestLoneTrialsAreRarer checks that the wait after a failed trial doubles from ten seconds to two minutes.
func TestLoneTrialsAreRarer(t *testing.T) {
	var l lone
	now := sched.Time(time.Hour)
	for _, want := range []time.Duration{10, 20, 40, 80, 120, 120} {
		if l.fail(now, visitCount{}); l.wait != want*time.Second || l.next != now.Add(want*time.Second) || l.phase != loneOff {
			t.Errorf("the next trial waits for %v, until %v; want %v s", l.wait, l.next.Sub(now), int64(want))
		}
	}
}

// TestLoneMeasure checks which visits of a window with the longer slice are those of a light queue, and that what the
// queue was served before, alone or in visits of the default slice, does not count.
func TestLoneMeasure(t *testing.T) {
	const slice = 500 * us
	at := sched.Time(time.Second)
	before := sched.Queue{Slice: slice, Served: time.Minute, MeasuredAt: at, Visits: sched.Visits{Count: 1000, Full: 300, Alone: time.Second}}
	for _, tt := range []struct {
		name          string
		visits, full  uint64
		used          time.Duration
		alone         time.Duration
		judged, light bool
	}{
		{"light", windowVisits, 0, windowVisits * (slice*9/10 - 1), 0, true, true},
		{"heavy", windowVisits, 0, windowVisits * slice * 9 / 10, 0, true, false},
		{"too few visits", windowVisits - 1, 0, windowVisits * slice / 2, 0, false, false},
		{"alone at times, too few visits", mixedVisits - 1, 0, mixedVisits * slice / 2, ms, false, false},
		{"alone at times", mixedVisits, 0, mixedVisits*slice/2 + ms, ms, true, true},
		{"light, and alone for much of the time", mixedVisits, 0, mixedVisits*slice/2 + time.Minute, time.Minute, true, true},
		{"full visits beside light ones", windowVisits + 3, 3, windowVisits*slice/2 + 3*h200Device.Slice, 0, true, true},
		{"full visits beside heavy ones", windowVisits + 3, 3, windowVisits*slice + 3*h200Device.Slice, 0, true, false},
		{"full visits do not make a window", windowVisits + 2, 3, windowVisits * slice / 2, 0, false, false},
	} {
		var l lone
		q := before
		if judged, light := l.measure(&h200Device, &q); judged || light {
			t.Fatalf("%s: judged by the first measurement", tt.name)
		}
		q.MeasuredAt, q.Served = at.Add(10*ms), q.Served+tt.used
		q.Visits.Count, q.Visits.Full, q.Visits.Alone = q.Visits.Count+tt.visits, q.Visits.Full+tt.full, q.Visits.Alone+tt.alone
		if judged, light := l.measure(&h200Device, &q); judged != tt.judged || light != tt.light {
			t.Errorf("%s: judged %v, light %v; want %v, %v", tt.name, judged, light, tt.judged, tt.light)
		}
	}
	l, q := lone{}, before
	q.Slice = h200Device.MinSharedSlice - 1
	l.measure(&h200Device, &q)
	q.MeasuredAt, q.Visits.Count = at.Add(10*ms), q.Visits.Count+100
	if judged, light := l.measure(&h200Device, &q); judged || light {
		t.Error("judged with the minimum slice")
	}
}

// TestOnlyBatchQueue checks which queue of several has its slice chosen, and that there is none beside
// another that has work or had some just now.
func TestOnlyBatchQueue(t *testing.T) {
	works := sched.Queue{Can: sched.CanSlice | sched.CanInterrupt, Attr: sched.Attr{Class: sched.Batch}}
	rests := works
	rests.Counters = sched.Counters{Submitted: 1, Launched: 1, Completed: 1, Known: true}
	online, pool := works, works
	online.Attr.Class = sched.Online
	pool.Can = sched.CanSlice
	away := queueState{}
	lately := queueState{vtime: vtime{joined: true}, readyAt: sched.Time(time.Second)}
	for _, tt := range []struct {
		name   string
		queues []sched.Queue
		states []queueState
		only   int // index; -1: none
		alone  bool
	}{
		{"one", []sched.Queue{online, works}, []queueState{away, away}, 1, true},
		{"two", []sched.Queue{works, works}, []queueState{away, away}, -1, false},
		{"beside one that has rested for long", []sched.Queue{rests, works}, []queueState{away, away}, 1, true},
		{"beside one that has rested for a moment", []sched.Queue{rests, works}, []queueState{lately, away}, -1, false},
		{"none has work", []sched.Queue{online, rests}, []queueState{away, away}, -1, true},
		{"one that cannot be stopped", []sched.Queue{pool}, []queueState{away}, -1, false},
	} {
		v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: tt.queues}
		var want *sched.Queue
		if tt.only >= 0 {
			want = &v.Queues[tt.only]
		}
		if only, alone := onlyBatchQueue(v, tt.states); only != want || alone != tt.alone {
			t.Errorf("%s: got %p, alone %v, want %p, %v", tt.name, only, alone, want, tt.alone)
		}
	}
}
