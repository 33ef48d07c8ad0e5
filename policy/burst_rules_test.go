package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// burstTest is the state of bursts, of an online and a batch queue on an H200.
type burstTest struct {
	burst
	v sched.View
}

func newBurstTest() *burstTest {
	b := &burstTest{}
	b.burstParams()
	can := sched.CanSlice | sched.CanInterrupt
	b.v = sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
		{ID: 1, Can: can, Measured: true, Attr: sched.Attr{Class: sched.Online}, Visits: sched.Visits{Known: true}},
		{ID: 2, Can: can, Measured: true, Attr: sched.Attr{Class: sched.Batch}, Visits: sched.Visits{Known: true}},
	}}
	b.after(0, 0, 0, 0)
	return b
}

// after reports what the hardware has counted in the next d.
func (b *burstTest) after(d time.Duration, online, batch uint64, served time.Duration) {
	b.v.Now = b.v.Now.Add(d)
	for i, n := range []uint64{online, batch} {
		b.v.Queues[i].Visits.Count += n
		b.v.Queues[i].MeasuredAt = b.v.Now
	}
	b.v.Queues[1].Served += served
	b.update(&b.v, true)
}

// pass lets time pass without a measurement.
func (b *burstTest) pass(d time.Duration) {
	b.v.Now = b.v.Now.Add(d)
	b.update(&b.v, true)
}

// work lets the online queue show that it works, and time pass.
func (b *burstTest) work(d time.Duration) {
	for ; d > 0; d -= ms {
		b.v.Queues[0].Counters.Launched++
		b.pass(min(d, ms))
	}
}

func (b *burstTest) wants(t *testing.T, what string, phase burstPhase, wake time.Duration) {
	t.Helper()
	if b.phase != phase || b.wake != b.v.Now.Add(wake) {
		t.Errorf("%s: got phase %d until %v from now, want %d until %v", what, b.phase, b.wake.Sub(b.v.Now), phase, wake)
	}
}

// enter begins the first burst.
func (b *burstTest) enter(t *testing.T) {
	t.Helper()
	b.after(50*ms, 100, 100, 12*ms)
	b.wants(t, "ping-pong", inBurst, 5*ms)
}

// TestPingPong checks what counts as ping-pong in a window of 50 ms: visits of the online
// queue cost a fifth of the time, the batch queue comes on in between, and gets less than
// three quarters of what it would have in gaps, 14 ms. Of each of its visits 100 us are lost.
func TestPingPong(t *testing.T) {
	for _, tt := range []struct {
		name          string
		online, batch uint64
		served        time.Duration
		want          bool
	}{
		{"a loop", 100, 100, 11 * ms, true},
		{"enough visits", 31, 31, 3 * ms, true},
		{"too few visits", 30, 30, 3 * ms, false},
		{"the batch queue comes on for half of them", 100, 50, 6 * ms, true},
		{"for fewer: other online work is on the device", 100, 49, 6 * ms, false},
		{"the batch queue gets almost as much as in gaps", 100, 100, 20*ms + 499*time.Microsecond, true},
		{"it gets enough", 100, 100, 20*ms + 500*time.Microsecond, false},
		{"it gets nothing", 100, 100, 0, true},
	} {
		b := newBurstTest()
		b.after(50*ms, tt.online, tt.batch, tt.served)
		if got := b.phase == inBurst; got != tt.want {
			t.Errorf("%s: a burst begins: %v, want %v", tt.name, got, tt.want)
		}
	}
	b := newBurstTest()
	b.after(49*ms, 200, 200, 20*ms)
	b.wants(t, "before the window is over", noBurst, ms)
	b.pass(ms)
	b.wants(t, "without a measurement at its end", noBurst, 50*ms)
	// What was counted in an earlier window does not count in the next.
	b = newBurstTest()
	b.after(50*ms, 20, 20, 0)
	b.after(50*ms, 20, 20, 0)
	b.wants(t, "few visits in each of two windows", noBurst, 50*ms)
	b = newBurstTest()
	b.after(31*5*2*h200Device.SwitchTime, 31, 31, 3*ms)
	b.wants(t, "exactly a fifth of the time", inBurst, 5*ms)
}

// TestPingPongIsFoundAtOnce checks that only the last window counts: a process that begins to wait for
// each of its kernels after a second without is found as soon as one that starts with that.
func TestPingPongIsFoundAtOnce(t *testing.T) {
	b := newBurstTest()
	for range 20 {
		b.after(50*ms, 5, 5, 40*ms)
		b.wants(t, "no ping-pong", noBurst, 50*ms)
	}
	b.enter(t)
}

// TestPingPongWithOtherQueues checks that queues that take no part in ping-pong do not matter:
// those without visits, those that do not give way, and batch queues without slices. They
// may come, go and be measured in a window.
func TestPingPongWithOtherQueues(t *testing.T) {
	visits := sched.Visits{Known: true, Count: 1000}
	for name, q := range map[string]sched.Queue{
		"visits are not known": {Can: canAll, Attr: sched.Attr{Class: sched.Batch}, Visits: sched.Visits{Count: 1000}},
		"does not give way":    {Can: canAll, Attr: sched.Attr{Class: sched.Standard}, Visits: visits},
		"has no slice":         {Can: sched.CanInterrupt, Attr: sched.Attr{Class: sched.Batch}, Visits: visits},
	} {
		q.ID, q.Served, q.Counters.Late = 3, time.Hour, 7
		b := newBurstTest()
		b.after(25*ms, 50, 50, 6*ms)
		b.v.Queues = append(b.v.Queues, q)
		b.pass(24 * ms)
		b.v.Queues[2].MeasuredAt = b.v.Now.Add(ms) // later than the others
		b.pass(ms)
		b.wants(t, name+", measured at the end of the window", noBurst, 50*ms)
		b.after(ms, 50, 50, 6*ms)
		b.wants(t, name+", the others measured too", inBurst, 5*ms)
		b.work(71 * ms)
		b.v.Queues = b.v.Queues[:2]
		b.work(ms)
		b.wants(t, name+", gone", inGap, 28*ms)
	}
	// One that takes part begins another window.
	b := newBurstTest()
	b.after(25*ms, 50, 50, 6*ms)
	other := b.v.Queues[1]
	other.ID = 3
	b.v.Queues = append(b.v.Queues, other)
	b.after(25*ms, 50, 50, 6*ms)
	b.wants(t, "another batch queue", noBurst, 50*ms)
	// However many there are, one in place of another begins another window.
	for replaced := range 32 {
		b := newBurstTest()
		for len(b.v.Queues) < 32 {
			b.v.Queues = append(b.v.Queues, other)
		}
		for i := range b.v.Queues {
			b.v.Queues[i].ID = sched.QueueID(2 * i)
		}
		b.after(50*ms, 0, 0, 0)
		b.after(25*ms, 100, 100, 6*ms)
		b.v.Queues[replaced].ID++
		b.pass(25 * ms)
		if b.phase != noBurst || b.from.at != b.v.Now.Add(-25*ms) {
			t.Errorf("queue %d replaced: phase %d, the window began %v ago, want a new one", replaced+1, b.phase, b.v.Now.Sub(b.from.at))
		}
	}
	// Without either kind nothing is known.
	for i := range 2 {
		b := newBurstTest()
		b.v.Queues[i].Visits.Known = false
		if b.after(50*ms, 100, 100, 12*ms); b.phase != noBurst || b.wake != 0 {
			t.Errorf("visits of queue %d are not known: got phase %d until %v, want nothing to wait for", b.v.Queues[i].ID, b.phase, b.wake)
		}
	}
}

// TestBurstAndGap checks the length of a burst and of the gap that follows, and that the next
// burst begins if the online queue came on after every slice of the batch queue.
func TestBurstAndGap(t *testing.T) {
	b := newBurstTest()
	b.enter(t)
	b.work(71 * ms)
	b.wants(t, "in the burst", inBurst, ms)
	b.work(ms)
	b.wants(t, "in the gap", inGap, 28*ms)
	b.after(10*ms, 0, 0, 0)
	b.wants(t, "in the gap", inGap, 18*ms)
	b.after(17*ms, 6, 6, 15*ms)
	b.wants(t, "in the gap", inGap, ms)
	b.pass(ms)
	b.wants(t, "after the gap", inBurst, 5*ms)
}

// TestBurstsEndIfNotNeeded checks what a gap must show for bursts to go on: the batch queue
// gets at most one slice and a half for each visit of the online queue. Too little to judge
// by is no reason to end them.
func TestBurstsEndIfNotNeeded(t *testing.T) {
	slice := h200Device.Slice
	for _, tt := range []struct {
		name   string
		over   time.Duration // how long the gap is watched
		visits uint64
		served time.Duration
		want   burstPhase
	}{
		{"a slice for each visit", 20 * ms, 8, 8 * slice, inBurst},
		{"one and a half", 20 * ms, 4, 6 * slice, inBurst},
		{"more", 20 * ms, 4, 6*slice + 1, noBurst},
		{"no visit", 20 * ms, 0, 0, noBurst},
		{"one visit", 20 * ms, 1, slice, inBurst},
		{"watched for a quarter of the gap", 7 * ms, 0, 7 * ms, noBurst},
		{"for less", 6 * ms, 0, 6 * ms, inBurst},
	} {
		b := newBurstTest()
		b.enter(t)
		b.work(72 * ms)
		b.after(28*ms-tt.over, 50, 50, 20*ms) // before it is watched nothing counts
		if b.after(tt.over, tt.visits, tt.visits, tt.served); b.phase != tt.want {
			t.Errorf("%s: got phase %d after the gap, want %d", tt.name, b.phase, tt.want)
		}
	}
}

// TestGapIsWatchedFromAMeasurementInIt checks that a measurement of the moment in which the gap begins
// does not count: with a single one after that nothing can be judged.
func TestGapIsWatchedFromAMeasurementInIt(t *testing.T) {
	b := newBurstTest()
	b.enter(t)
	b.work(72 * ms)
	b.after(0, 0, 0, 0)
	if b.after(28*ms, 0, 0, 20*ms); b.phase != inBurst {
		t.Errorf("got phase %d after the gap, want the next burst", b.phase)
	}
}

// TestBurstsThatEndAtOnceBeginLessReadily checks that ping-pong must last twice as long each
// time that bursts ended within three periods, up to a second, and 50 ms again otherwise.
func TestBurstsThatEndAtOnceBeginLessReadily(t *testing.T) {
	b := newBurstTest()
	end := func(periods int) {
		for i := range periods {
			b.work(72 * ms)
			b.after(10*ms, 0, 0, 0)
			visits := uint64(9)
			if i == periods-1 {
				visits = 0
			}
			b.after(18*ms, visits, visits, 18*ms)
		}
	}
	for _, want := range []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second} {
		b.after(want-ms, 4000, 4000, 0)
		b.wants(t, "before the window is over", noBurst, ms)
		b.after(ms, 0, 0, 0)
		b.wants(t, "after a window of ping-pong", inBurst, 5*ms)
		end(1)
		b.wants(t, "after a gap without a loop", noBurst, min(2*want, time.Second))
	}
	b.after(time.Second, 4000, 4000, 0)
	end(2)
	b.wants(t, "after two periods", noBurst, time.Second)
	b.after(time.Second, 4000, 4000, 0)
	end(3)
	b.wants(t, "after three periods", noBurst, 50*ms)
}

// TestBurstsAreLeftAfterFiveSeconds checks that bursts of a loop that goes on are left after
// five seconds, to see whether they are still needed.
func TestBurstsAreLeftAfterFiveSeconds(t *testing.T) {
	b := newBurstTest()
	b.enter(t)
	for i := range 50 {
		if b.phase != inBurst {
			t.Fatalf("bursts were left after %d periods of 100 ms, want 50", i)
		}
		b.work(72 * ms)
		b.after(10*ms, 0, 0, 0)
		b.after(18*ms, 9, 9, 18*ms)
	}
	b.wants(t, "after five seconds", noBurst, 50*ms)
}

// TestBurstEndsWithoutOnlineWork checks that a burst ends when no online queue has had work
// for 5 ms. A queue without counters, and one that launches, may have work.
func TestBurstEndsWithoutOnlineWork(t *testing.T) {
	b := newBurstTest()
	b.v.Queues[0].Counters = sched.Counters{Known: true, Submitted: 1}
	b.enter(t)
	b.pass(10 * ms)
	b.wants(t, "a command is not finished", inBurst, 5*ms)
	b.v.Queues[0].Counters.Launched, b.v.Queues[0].Counters.Completed = 1, 1
	b.pass(4 * ms) // it was launched
	b.pass(4 * ms)
	b.wants(t, "4 ms without work", inBurst, ms)
	b.v.Queues[0].Counters = sched.Counters{Known: true, Submitted: 2, Launched: 2, Completed: 2}
	b.pass(0)
	b.wants(t, "a short command", inBurst, 5*ms)
	b.pass(5 * ms)
	b.wants(t, "5 ms without work", noBurst, 50*ms)
}

// TestNoBurstsAfterALateEntry checks that bursts end when a request enters late, and begin two
// seconds after the last that did, at the earliest.
func TestNoBurstsAfterALateEntry(t *testing.T) {
	b := newBurstTest()
	b.enter(t)
	b.v.Queues[0].Counters.Late++
	b.pass(ms)
	b.wants(t, "a late request", noBurst, 2*time.Second)
	b.after(time.Second, 3000, 3000, 0)
	b.wants(t, "one second later", noBurst, time.Second)
	b.after(999*ms, 3000, 3000, 0)
	b.wants(t, "almost two seconds later", noBurst, ms)
	b.after(ms, 3, 3, 0)
	b.wants(t, "two seconds later", noBurst, 49*ms)
	b.after(50*ms, 100, 100, 0)
	b.wants(t, "ping-pong after that", inBurst, 5*ms)
}

// TestBatchQueuesHaveTheDefaultSliceInAGap checks which slices are in force in a gap: the
// device's own, also of queues side by side, unless those take turns beside online work.
func TestBatchQueuesHaveTheDefaultSliceInAGap(t *testing.T) {
	for shared, want := range map[time.Duration]time.Duration{500 * time.Microsecond: 0, 0: 0, sched.MinSlice: sched.MinSlice} {
		b := newBurstTest()
		b.enter(t)
		b.work(72 * ms)
		p := makeGiveway()
		p.burst = b.burst
		set := setting{slice: sched.MinSlice, sharedSlice: shared, bursts: true}
		p.updateBurst(&b.v, &set)
		if p.burst.phase != inGap || set.slice != 0 || set.sharedSlice != want {
			t.Errorf("shared %v: got phase %d, a slice of %v and %v side by side, want %v", shared, p.burst.phase, set.slice, set.sharedSlice, want)
		}
	}
}

// TestBurstsOnlyWithAShortSlice checks that ping-pong leads to bursts only with a setting that has
// the hardware leave batch queues at once, and that allows bursts.
func TestBurstsOnlyWithAShortSlice(t *testing.T) {
	shared := h200Device.MinSharedSlice
	for _, tt := range []struct {
		set  setting
		want burstPhase
	}{
		{setting{slice: sched.MinSlice, bursts: true}, inBurst},
		{setting{slice: shared - 1, bursts: true}, inBurst},
		{setting{slice: shared, bursts: true}, noBurst},
		{setting{bursts: true}, noBurst},
		{setting{slice: sched.MinSlice}, noBurst},
	} {
		p, b := makeGiveway(), newBurstTest()
		p.updateBurst(&b.v, &tt.set)
		b.after(50*ms, 100, 100, 12*ms)
		if p.updateBurst(&b.v, &tt.set); p.burst.phase != tt.want {
			t.Errorf("%+v: got phase %d, want %d", tt.set, p.burst.phase, tt.want)
		}
	}
}
