package policy

import (
	"math"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// loopNode is an online process and batch jobs on an H200, as far as the context-switch
// trace shows them. It calls the policy every millisecond with what the hardware has
// counted, which it reads every 10 ms.
type loopNode struct {
	policy *giveway
	view   sched.View
	facts  []sched.Queue // as the hardware has counted up to now; the view has the last reading

	// minVisits and gapVisits are how often the online queue comes on in a millisecond,
	// beside a batch queue with the minimum slice and one with the device's own. The batch
	// queue loses lost of each visit of the online queue.
	minVisits, gapVisits float64
	lost                 time.Duration
	idle                 bool // the online process has no work
	light                bool // the batch queue leaves the device by itself
	batchIdle            bool // the batch jobs have none: the online process loops beside others

	visits, launched float64
	plan             sched.Plan
	stopped          time.Duration // time in which no batch queue was granted
	entries          int           // how often a first burst began
}

var h200Device = sched.Device{ID: "gpu0", Slice: 2048 * time.Microsecond, MinSharedSlice: 200 * time.Microsecond, SwitchTime: 165 * time.Microsecond, StopTime: 800 * time.Microsecond}

// newLoopNode returns a node whose online process loops as measured with kernels of 100 us,
// 1 us apart.
func newLoopNode(jobs ...sched.Attr) *loopNode {
	n := &loopNode{policy: makeGiveway(), minVisits: 2.138, gapVisits: 0.396, lost: 340 * time.Microsecond}
	n.view = sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}}
	queue := sched.Queue{ID: 1, Can: sched.CanSlice | sched.CanInterrupt, Measured: true, Attr: sched.Attr{Class: sched.Online}}
	queue.Visits.Known = true
	n.facts = append(n.facts, queue)
	for _, attr := range jobs {
		queue.ID++
		queue.Attr = attr
		queue.Attr.Class = sched.Batch
		n.facts = append(n.facts, queue)
	}
	n.read()
	return n
}

func (n *loopNode) read() {
	for i := range n.facts {
		n.facts[i].MeasuredAt = n.view.Now
	}
	n.view.Queues = append(n.view.Queues[:0], n.facts...)
}

// run advances the clock by d.
func (n *loopNode) run(d time.Duration) {
	for end := n.view.Now.Add(d); n.view.Now < end; n.view.Now = n.view.Now.Add(ms) {
		n.launched += 2
		for i := range n.view.Queues {
			if q := &n.view.Queues[i]; i == 0 && q.Counters.Known && !n.idle {
				q.Counters.Submitted, q.Counters.Launched, q.Counters.Completed = uint64(n.launched), uint64(n.launched), uint64(n.launched)-1
			} else if i == 0 {
				q.Counters.Completed = q.Counters.Submitted
			}
			n.facts[i].Counters = n.view.Queues[i].Counters
		}
		if n.view.Now%sched.Time(10*ms) == 0 {
			n.read()
		}
		before := n.policy.burst.phase
		n.plan = n.policy.Plan(&n.view)
		if before == noBurst && n.policy.burst.phase == inBurst {
			n.entries++
		}
		n.serve()
	}
}

// serve counts what the hardware does in a millisecond.
func (n *loopNode) serve() {
	g, granted := n.batchGrant()
	if !granted {
		n.stopped += ms
		return
	}
	n.facts[g.Queue-1].Slice, n.view.Queues[g.Queue-1].Slice = g.Slice, g.Slice
	rate, lost := n.minVisits, n.lost
	switch {
	case g.Slice == 0:
		rate = n.gapVisits
	case g.Slice >= h200Device.MinSharedSlice:
		visit := g.Slice + 110*us
		if n.light {
			visit = 300 * us
		}
		lost = 330 * us // two switches
		rate = ms.Seconds() / (visit + lost).Seconds()
	}
	if n.idle {
		rate = 0
	}
	n.visits += rate
	batch := &n.facts[g.Queue-1]
	for ; n.visits >= 1; n.visits-- {
		n.facts[0].Visits.Count++
		if !n.batchIdle {
			batch.Visits.Count++
		}
	}
	if n.batchIdle {
		return
	}
	batch.Served += max(ms-time.Duration(rate*float64(lost)), time.Duration(rate*float64(h200Device.MinSharedSlice/2)))
}

func (n *loopNode) batchGrant() (sched.Grant, bool) {
	for _, g := range n.plan.Grants {
		if g.Queue > 1 {
			return g, true
		}
	}
	return sched.Grant{}, false
}

// TestBurstsForALoop checks that bursts begin within 110 ms, that batch work is then stopped
// for about 72 of 100 ms and has the device's own slice in between, and that the bursts are
// left for no longer than it takes to see that they are still needed.
func TestBurstsForALoop(t *testing.T) {
	n := newLoopNode(sched.Attr{})
	for n.entries == 0 && n.view.Now < sched.Time(2*time.Second) {
		n.run(ms)
	}
	if took := n.view.Now.Sub(sched.Time(time.Second)); took > 110*ms {
		t.Fatalf("bursts began after %v, want 110 ms", took)
	}
	n.stopped = 0
	short := time.Duration(0)
	for range 20_000 {
		n.run(ms)
		if g, granted := n.batchGrant(); granted && g.Slice != 0 {
			short += ms
		}
		if b := &n.policy.burst; b.phase != noBurst && (n.plan.Wake == 0 || n.plan.Wake > b.wake) {
			t.Fatalf("the policy looks again at %v, want when a burst or gap ends, at %v", time.Duration(n.plan.Wake), time.Duration(b.wake))
		}
	}
	if got := n.stopped.Seconds() / 20; got < 0.69 || got > 0.73 {
		t.Errorf("batch work was stopped for %.3f of the time, want about 0.71", got)
	}
	if short > 400*ms {
		t.Errorf("batch work had the minimum slice for %v of 20 s, want at most 0.4 s", short)
	}
}

// TestGapsForAQueueThatCannotBeStopped checks that a batch queue that cannot be stopped has the
// device's own slice in gaps, in which it makes progress, and the minimum slice in bursts.
func TestGapsForAQueueThatCannotBeStopped(t *testing.T) {
	n := newLoopNode(sched.Attr{})
	n.facts[1].Can = sched.CanSlice
	n.read()
	n.run(time.Second)
	n.stopped = 0
	gaps := time.Duration(0)
	for range 20_000 {
		n.run(ms)
		if g, _ := n.batchGrant(); g.Slice == 0 {
			gaps += ms
		} else if g.Slice != sched.MinSlice {
			t.Fatalf("got a slice of %v, want the minimum or the default", g.Slice)
		}
	}
	if got := gaps.Seconds() / 20; n.stopped > 0 || got < 0.25 || got > 0.31 {
		t.Errorf("it had the default slice for %.3f of the time and was stopped for %v, want 0.28 and never", got, n.stopped)
	}
}

// TestBurstsEndWithTheLoop checks that batch work is stopped no more when the loop has ended:
// within a burst and a gap if only the trace can tell, at once if the counters can.
func TestBurstsEndWithTheLoop(t *testing.T) {
	for _, counters := range []bool{false, true} {
		n := newLoopNode(sched.Attr{})
		n.view.Queues[0].Counters.Known, n.facts[0].Counters.Known = counters, counters
		n.run(time.Second)
		for n.policy.burst.phase != inBurst || n.view.Now.Sub(n.policy.burst.since) > 10*ms {
			n.run(ms)
		}
		n.idle, n.stopped = true, 0
		n.run(5 * time.Second)
		within := 80 * ms
		if counters {
			within = 10 * ms
		}
		if n.stopped > within {
			t.Errorf("counters known %v: batch work was stopped for %v after the loop, want at most %v", counters, n.stopped, within)
		}
		if g, _ := n.batchGrant(); g.Slice != sched.MinSlice {
			t.Errorf("counters known %v: got slice %v after the loop, want the minimum", counters, g.Slice)
		}
	}
}

// TestNoBursts checks what does not lead to bursts.
func TestNoBursts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*loopNode)
	}{
		{"a request every 5 ms", func(n *loopNode) { n.minVisits, n.gapVisits = 0.2, 0.15 }},
		{"a pause of a millisecond, in which batch work gets more than in gaps", func(n *loopNode) { n.minVisits, n.lost = 0.78, 430*time.Microsecond }},
		{"an idle batch job", func(n *loopNode) { n.batchIdle = true }},
		{"an idle process", func(n *loopNode) { n.idle = true }},
		{"no trace", func(n *loopNode) { n.facts[0].Visits.Known, n.facts[1].Visits.Known = false, false }},
		{"no bursts by the parameter", func(n *loopNode) { n.policy.burst.length = 0 }},
		{"a longer batch slice by the parameter", func(n *loopNode) { n.policy.slice = 500 * time.Microsecond }},
		{"the shortest slice with which batch work makes progress", func(n *loopNode) { n.policy.slice = h200Device.MinSharedSlice }},
		{"an online process alone", func(n *loopNode) { n.facts = n.facts[:1]; n.minVisits = 0 }},
		{"an online and a standard process", func(n *loopNode) { n.facts[1].Attr.Class = sched.Standard }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newLoopNode(sched.Attr{})
			tt.change(n)
			n.read()
			n.run(3 * time.Second)
			if n.entries > 0 {
				t.Errorf("got %d entries into bursts, want none", n.entries)
			}
		})
	}
}

// TestBurstsThatDoNotHelpAreRare checks that an online queue that looks like a loop with the
// minimum slice, but not in a gap, does not make the policy change its mind all the time.
func TestBurstsThatDoNotHelpAreRare(t *testing.T) {
	n := newLoopNode(sched.Attr{})
	n.gapVisits = 0.05
	n.run(20 * time.Second)
	if n.entries == 0 || n.entries > 25 {
		t.Errorf("bursts began %d times in 20 s, want a few times", n.entries)
	}
}

// TestBurstsAreRechecked checks that bursts end when batch work would get more with the
// minimum slice, although the online queue still comes on after every slice in a gap.
func TestBurstsAreRechecked(t *testing.T) {
	n := newLoopNode(sched.Attr{})
	n.run(time.Second)
	if n.policy.burst.phase == noBurst {
		t.Fatal("no bursts")
	}
	n.minVisits, n.lost = 0.4, 430*time.Microsecond // a pause of 2 ms
	n.run(6 * time.Second)
	n.stopped = 0
	n.run(5 * time.Second)
	if n.stopped > 0 {
		t.Errorf("batch work was stopped for %v, want to have the minimum slice", n.stopped)
	}
}

// TestBatchQueuesShareGaps checks that turns and weights work as without bursts: a burst uses
// up nothing of a turn.
func TestBatchQueuesShareGaps(t *testing.T) {
	n := newLoopNode(sched.Attr{Weight: 3}, sched.Attr{Weight: 1})
	n.policy.sharedSlice = sched.MinSlice // both take turns, whatever their visits
	n.run(time.Second)
	a, b := n.facts[1].Served, n.facts[2].Served
	n.run(60 * time.Second)
	a, b = n.facts[1].Served-a, n.facts[2].Served-b
	if ratio := a.Seconds() / b.Seconds(); math.Abs(ratio-3) > 0.3 {
		t.Errorf("device time %v and %v, a ratio of %.2f; want 3", a, b, ratio)
	}
	if sum := (a + b).Seconds() / 60; sum < 0.2 {
		t.Errorf("batch work got %.3f of the device, want at least 0.2", sum)
	}
}

// TestNewQueueStartsANewWindow checks that the visits that a process made before it became
// online, and its job batch, are not taken for a loop.
func TestNewQueueStartsANewWindow(t *testing.T) {
	n := newLoopNode(sched.Attr{})
	n.minVisits = 0.1
	for i := range n.facts {
		n.facts[i].Attr.Class, n.facts[i].Visits.Count = sched.Standard, 1_000_000
	}
	n.read()
	n.run(time.Second)
	n.facts[0].Attr.Class, n.facts[1].Attr.Class = sched.Online, sched.Batch
	n.run(time.Second)
	if n.entries > 0 {
		t.Errorf("got %d entries into bursts, want none", n.entries)
	}
}

// TestLateEntryNeedsNoBursts checks that bursts end as soon as requests enter late, and come
// back when none has for a while.
func TestLateEntryNeedsNoBursts(t *testing.T) {
	n := newLoopNode(sched.Attr{})
	n.run(time.Second)
	if n.policy.burst.phase == noBurst {
		t.Fatal("no bursts")
	}
	enterLate := func() {
		n.view.Queues[0].Counters.Late++
		n.facts[0].Counters.Late++
	}
	enterLate()
	n.run(2 * ms)
	n.stopped = 0
	for range 20 {
		enterLate()
		n.run(time.Second)
	}
	if n.stopped > 0 {
		t.Errorf("batch work was stopped for %v beside requests that enter late", n.stopped)
	}
	n.run(5 * time.Second)
	if n.stopped == 0 {
		t.Error("no bursts 5 s after the last late request")
	}
}

// TestQueueThatClosesIsNoLateEntry: the number of late entries falls when an online queue closes.
// That is no reason to do without bursts.
func TestQueueThatClosesIsNoLateEntry(t *testing.T) {
	visits := sched.Visits{Known: true}
	v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
		{ID: 1, Attr: sched.Attr{Class: sched.Online}, Visits: visits, Counters: sched.Counters{Known: true, Late: 3}},
		{ID: 2, Attr: sched.Attr{Class: sched.Online}, Visits: visits, Counters: sched.Counters{Known: true, Late: 5}},
		{ID: 3, Attr: sched.Attr{Class: sched.Batch}, Visits: visits, Can: sched.CanSlice},
	}}
	b := &makeGiveway().burst
	b.update(v, true)
	if b.lateEntryAt != 0 {
		t.Error("what happened before the policy began counts as a late entry")
	}
	v.Queues = v.Queues[1:]
	if b.update(v, true); b.lateEntryAt != 0 {
		t.Error("a queue that closes counts as a late entry")
	}
	v.Queues[0].Counters.Late++
	if b.update(v, true); b.lateEntryAt != v.Now {
		t.Error("a late entry does not count")
	}
}
