package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// ladderRun drives a ladder as slo does, without a scheduler: a setting is in force at
// once, and a request finishes every so often. docs/POLICIES.md states the figures that
// are tested here.
type ladderRun struct {
	*ladder
	now     sched.Time
	every   time.Duration
	score   float64
	changes []ladderChange
}

// ladderChange is a change of the current rung.
type ladderChange struct {
	at       sched.Time
	n        int // requests until then
	from, to int
}

func newLadderRun(dev sched.Device, every time.Duration) *ladderRun {
	x := &ladderRun{ladder: &ladder{}, every: every, now: sched.Time(time.Hour)}
	x.build(dev)
	x.begin()
	return x
}

// begin puts the current setting in force, and resets the score if the ladder says so.
func (x *ladderRun) begin() {
	r := &x.rungs[x.current]
	x.confirm(&sched.View{Now: x.now, Queues: []sched.Queue{{ID: 2, Slice: r.slice, Bound: r.bound}}}, 2)
	if x.resetScores {
		x.resetScores, x.score = false, 0
	}
}

// finish finishes a request.
func (x *ladderRun) finish(took time.Duration) {
	x.now = x.now.Add(x.every)
	was := x.current
	x.request(x.now.Add(-took), took, testSLO, &x.score)
	x.duration(took)
	x.decide(x.now)
	if x.current != was {
		x.changes = append(x.changes, ladderChange{x.now, x.total, was, x.current})
	}
	x.begin()
}

// gets makes batch work get a share of the device in the time of one request.
func (x *ladderRun) gets(share float64) {
	x.measured = true
	r := &x.rungs[x.current]
	r.wall += x.every
	r.batch += time.Duration(share * float64(x.every))
	r.requests++
}

// choose makes a rung the chosen one.
func (x *ladderRun) choose(i int) {
	x.chosen = i
	x.put(i, x.now)
	x.changes, x.score = nil, 0
	x.begin()
}

// never makes a rung not be tried.
func (x *ladderRun) never(rungs ...int) {
	for _, i := range rungs {
		x.rungs[i].retry = sched.Never
	}
}

func TestLadderHasTheDocumentedRungs(t *testing.T) {
	us := time.Microsecond
	for _, c := range []struct {
		name  string
		dev   sched.Device
		want  []setting
		start int
	}{
		{"H200", h200, []setting{{}, {slice: 1024 * us}, {slice: 512 * us}, {slice: 256 * us}, {slice: 1}, {slice: 1, stop: true}}, 4},
		{"any slice is safe", sched.Device{Slice: 2 * ms}, []setting{{}, {slice: ms}, {slice: 500 * us}, {slice: 250 * us}, {slice: 125 * us}, {slice: 1}, {slice: 1, stop: true}}, 5},
		{"half can be shared", sched.Device{Slice: 2 * ms, MinSharedSlice: ms}, []setting{{}, {slice: ms}, {slice: 1}, {slice: 1, stop: true}}, 2},
		{"only the default can", sched.Device{Slice: 2 * ms, MinSharedSlice: 2 * ms}, []setting{{}, {slice: 1}, {slice: 1, stop: true}}, 1},
		{"no slices", sched.Device{}, []setting{{}, {bound: 16}, {bound: 4}, {bound: 4, stop: true}}, 3},
	} {
		var l ladder
		l.build(c.dev)
		var got []setting
		for _, r := range l.rungs[:l.last+1] {
			got = append(got, r.setting)
		}
		if !slices.Equal(got, c.want) || l.start != c.start || l.current != l.start || l.chosen != l.start {
			t.Errorf("%s: got %+v, start %d, want %+v, %d", c.name, got, l.start, c.want, c.start)
		}
	}
}

// TestLadderTrialTakes16RequestsAndHalfASecond measures how long each setting is in force
// on the way to the mildest, with requests that are rare, frequent, and in between.
func TestLadderTrialTakes16RequestsAndHalfASecond(t *testing.T) {
	for _, every := range []time.Duration{ms, 30 * ms, 32 * ms, 200 * ms} {
		x := newLadderRun(h200, every)
		for range 5000 {
			x.finish(ms)
		}
		at, n := sched.Time(time.Hour), 0
		for _, c := range x.changes {
			want := max(16, int((500*ms+every-1)/every))
			if got := c.n - n; got != want || c.to != c.from-1 {
				t.Errorf("every %v: from rung %d to %d after %d requests and %v, want %d", every, c.from, c.to, got, c.at.Sub(at), want)
			}
			at, n = c.at, c.n
		}
		if x.chosen != 0 || len(x.changes) != 4 {
			t.Errorf("every %v: ends at rung %d by %d changes, want 0 by 4", every, x.chosen, len(x.changes))
		}
	}
}

// TestLadderTrialNeedsMeasuredTime checks that a trial goes on until its gain has been
// measured for half a second too, where the hardware measures.
func TestLadderTrialNeedsMeasuredTime(t *testing.T) {
	x := newLadderRun(h200, 20*ms)
	x.measured = true
	for range 100 {
		x.finish(ms)
	}
	if len(x.changes) != 0 {
		t.Errorf("without a measurement: got %v, want no change", x.changes)
	}
	x.rungs[x.current].wall = trialTime
	if x.finish(ms); len(x.changes) != 1 {
		t.Errorf("with a measurement of %v: got no change, want one", trialTime)
	}
}

// pauses runs the ladder with one rung milder than the chosen one to try, and returns how
// long it waits from the end of each trial to the next one. A trial has inTime requests in
// time before a late one, or no late one if that is negative.
func pauses(x *ladderRun, inTime, n int) (all []time.Duration) {
	x.choose(x.start)
	milder := x.start - 1
	ended, trial := sched.Never, 0
	for len(all) < n {
		took := 9 * ms
		if x.current == milder {
			if trial++; trial > inTime && inTime >= 0 {
				took = testSLO + 100*time.Microsecond
			}
		}
		was := x.current
		x.finish(took)
		switch {
		case was == milder && x.current != milder:
			ended, trial = x.now, 0
		case was != milder && x.current == milder && ended != sched.Never:
			all = append(all, x.now.Sub(ended))
		}
	}
	return all
}

// TestLadderFirstLateRequestEndsATrial checks that, and that the pause before the next
// trial is 5 s and doubles up to 2 minutes; twice each time if most requests were late.
func TestLadderFirstLateRequestEndsATrial(t *testing.T) {
	for _, c := range []struct {
		inTime        int
		first, factor time.Duration
	}{{5, 5 * time.Second, 2}, {0, 10 * time.Second, 4}} {
		x := newLadderRun(h200, 11*ms)
		x.never(0, 1, 2)
		got := pauses(x, c.inTime, 7)
		want := c.first
		for i, p := range got {
			if p < want || p > want+100*ms {
				t.Errorf("%d requests in time first: pause %d is %v, want %v", c.inTime, i+1, p, want)
			}
			want = min(c.factor*want, 2*time.Minute)
		}
		for i := 0; i+1 < len(x.changes); i++ {
			if c0, c1 := x.changes[i], x.changes[i+1]; c0.to == x.start-1 && c1.n-c0.n != c.inTime+1 {
				t.Errorf("a trial took %d requests, want %d: the late one ends it", c1.n-c0.n, c.inTime+1)
			}
		}
	}
}

// TestLadderKeepsASettingByWhichBatchWorkGains checks the gain that is needed: 2 % of what
// batch work gets. Without it the next trial is after 20 s at the earliest.
func TestLadderKeepsASettingByWhichBatchWorkGains(t *testing.T) {
	for _, c := range []struct {
		gain float64
		keep bool
	}{{0.03, true}, {0.025, true}, {0.015, false}, {0, false}, {-0.1, false}} {
		x := newLadderRun(h200, 20*ms)
		x.never(0, 1, 2)
		x.choose(x.start)
		for range 25 * 50 { // 25 s: a second trial is over
			share := 0.6
			if x.current < x.start {
				share *= 1 + c.gain
			}
			x.gets(share)
			x.finish(5 * ms)
		}
		if kept := x.chosen == x.start-1; kept != c.keep {
			t.Errorf("a gain of %.1f %%: kept %v, want %v", 100*c.gain, kept, c.keep)
		}
		if c.keep {
			continue
		}
		var begun []sched.Time
		for _, ch := range x.changes {
			if ch.to == x.start-1 {
				begun = append(begun, ch.at)
			}
		}
		if len(begun) != 2 || begun[1].Sub(begun[0]) < 20*time.Second || begun[1].Sub(begun[0]) > 22*time.Second {
			t.Errorf("a gain of %.1f %%: trials at %v, want two, 20 s apart", 100*c.gain, begun)
		}
	}
}

// TestLadderComparesLossPerRequest checks that a setting under which fewer requests came
// is not taken for better: batch work gets more then with any setting.
func TestLadderComparesLossPerRequest(t *testing.T) {
	var l ladder
	l.build(h200)
	l.measured = true
	// Each request costs batch work 4 ms with rung 3, and 5 ms with rung 4.
	fill := func(i int, requests float64, cost time.Duration) {
		l.rungs[i].wall, l.rungs[i].requests = time.Second, requests
		l.rungs[i].batch = time.Second - time.Duration(requests)*cost
	}
	fill(3, 100, 4*ms)
	fill(4, 20, 5*ms)
	// At 20 requests a second rung 3 would cost 80 ms instead of 100, of 900 that batch
	// work gets.
	if got, want := l.gain(3, 4), 0.020/0.900; math.Abs(got-want) > 1e-9 {
		t.Errorf("got a gain of %v by the cheaper setting, want %v", got, want)
	}
	if got := l.gain(4, 3); got >= 0 {
		t.Errorf("got a gain of %v by the dearer setting, want a loss", got)
	}
	// Without enough measurements a milder setting is better.
	for _, c := range []struct {
		name         string
		measured     bool
		wall3, wall4 time.Duration
		n3, n4       float64
		counts       bool
	}{
		{"enough", true, 250 * ms, 250 * ms, 8, 8, true},
		{"not measured", false, time.Second, time.Second, 100, 100, false},
		{"little time under one", true, 249 * ms, time.Second, 100, 100, false},
		{"little time under the other", true, time.Second, 249 * ms, 100, 100, false},
		{"few requests under one", true, time.Second, time.Second, 7, 100, false},
		{"few requests under the other", true, time.Second, time.Second, 100, 7, false},
	} {
		l.measured = c.measured
		l.rungs[3].wall, l.rungs[3].requests, l.rungs[3].batch = c.wall3, c.n3, c.wall3/2
		l.rungs[4].wall, l.rungs[4].requests, l.rungs[4].batch = c.wall4, c.n4, c.wall4*3/4
		// By the order of the rungs 3 gains over 4; by these measurements it may not.
		if got := l.gain(3, 4); (got != 1) != c.counts {
			t.Errorf("%s: got a gain of %v", c.name, got)
		}
	}
}

// TestLadderComparesSharesInAClosedLoop checks that a setting under which fewer requests came
// because each took longer is judged by what batch work gets: a process that waits for each
// answer makes fewer requests then, and each costs batch work the same.
func TestLadderComparesSharesInAClosedLoop(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name           string
		cycle3, cycle4 time.Duration // from one request to the next
		open3, open4   time.Duration // how long each takes
		closed         bool
	}{
		{"one at a time", 760 * us, 460 * us, 700 * us, 400 * us, true},
		{"faster with the milder one", 460 * us, 760 * us, 400 * us, 700 * us, true},
		{"several at once", 700 * us, 400 * us, 7 * ms, 4 * ms, true},
		{"hardly slower", 520 * us, 460 * us, 460 * us, 400 * us, false},
		{"pauses differ a little", 850 * us, 460 * us, 700 * us, 400 * us, true},
		{"pauses differ", 910 * us, 460 * us, 700 * us, 400 * us, false},
		{"pauses are shorter", 600 * us, 800 * us, 590 * us, 400 * us, false},
		{"another load", 5 * ms, ms, 700 * us, 700 * us, false},
	} {
		var l ladder
		l.build(h200)
		l.measured = true
		fill := func(i int, cycle, open time.Duration) {
			r := &l.rungs[i]
			r.wall, r.requests = time.Second, float64(time.Second)/float64(cycle)
			r.open = time.Duration(r.requests * float64(open))
			r.batch = time.Duration(r.requests * float64(cycle-350*us)) // each request costs 350 us
		}
		fill(3, c.cycle3, c.open3)
		fill(4, c.cycle4, c.open4)
		share3, share4 := l.rungs[3].batch.Seconds(), l.rungs[4].batch.Seconds()
		got := l.gain(3, 4)
		if want := share3/share4 - 1; c.closed && math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: got a gain of %v, want %v", c.name, got, want)
		} else if !c.closed && math.Abs(got) > 1e-6 {
			t.Errorf("%s: got a gain of %v, want none: each request costs the same", c.name, got)
		}
		// What is next to nothing counts as 1 %.
		l.rungs[4].batch = 5 * ms
		if got, want := l.gain(3, 4), (share3-0.005)/0.01; c.closed && math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: got a gain of %v over next to nothing, want %v", c.name, got, want)
		}
	}
}

// TestLadderLeavesASettingAfterThreeLateRequests checks that three late requests in a row
// end a setting, or a few more with others between them. The ladder begins anew if three
// are within 16 requests; otherwise the next stricter setting is chosen.
func TestLadderLeavesASettingAfterThreeLateRequests(t *testing.T) {
	late := testSLO + 500*time.Microsecond
	for _, c := range []struct {
		late, apart int
		want        int
	}{
		{2, 1, 1}, {3, 1, 4}, {3, 7, 1}, {4, 7, 4}, {4, 8, 2}, {4, 20, 2},
	} {
		x := newLadderRun(h200, 20*ms)
		x.never(0)
		x.choose(1)
		for range 40 {
			x.finish(9 * ms)
		}
		for range c.late {
			for range c.apart - 1 {
				x.finish(9 * ms)
			}
			x.finish(late)
		}
		if x.chosen != c.want || x.current != c.want {
			t.Errorf("%d late requests, one in %d: got rung %d, want %d", c.late, c.apart, x.chosen, c.want)
		}
	}
}

// TestLadderToleratesAFewLateRequests checks the long run: 0.4 % late are tolerated, 1 %
// are not.
func TestLadderToleratesAFewLateRequests(t *testing.T) {
	for _, c := range []struct {
		oneIn int
		stays bool
	}{{260, true}, {230, false}, {100, false}} {
		x := newLadderRun(h200, ms)
		x.never(0)
		x.choose(1)
		for i := range 60_000 {
			took := 5 * ms
			if i%c.oneIn == c.oneIn-1 {
				took = testSLO + 500*time.Microsecond
			}
			// A stall takes four times the device's stop time or its slice longer than
			// usual: this one does not.
			if took > testSLO {
				x.allTook = [len(x.allTook)]time.Duration{}
				for i := range x.allTook {
					x.allTook[i] = 8 * ms
				}
			}
			x.finish(took)
		}
		if stayed := len(x.changes) == 0; stayed != c.stays {
			t.Errorf("one request in %d is late: stays %v, want %v: %v", c.oneIn, stayed, c.stays, x.changes)
		}
	}
}

// TestLadderCountsALateRequestTwiceIfOthersWereNearlyLate checks that two late requests
// end a setting under which the others had little time to spare.
func TestLadderCountsALateRequestTwiceIfOthersWereNearlyLate(t *testing.T) {
	for _, c := range []struct {
		spread time.Duration
		want   int // late requests until the setting ends
	}{{100 * time.Microsecond, 3}, {1900 * time.Microsecond, 2}} {
		x := newLadderRun(h200, 20*ms)
		x.never(0)
		x.choose(1)
		for i := range 64 {
			x.finish(8*ms + c.spread*time.Duration(i*37%64)/64)
		}
		n := 0
		for x.chosen == 1 && n < 10 {
			x.finish(testSLO + 200*time.Microsecond)
			n++
		}
		if n != c.want {
			t.Errorf("a spread of %v: the setting ended after %d late requests, want %d", c.spread, n, c.want)
		}
	}
}

// TestLadderForgivesStalls checks what is a stall: a request later than usual by four
// slices or stop times, and by four times the spread of the slowest tenth. Up to six in a
// row do not count, in a trial one.
func TestLadderForgivesStalls(t *testing.T) {
	stall := func(x *ladderRun, n int, took time.Duration) (counted int) {
		before := x.lateCounted
		for i := range n {
			if i == 4 {
				took *= 3 // the first four are the slowest tenth now
			}
			x.finish(took)
		}
		return int(math.Round(x.lateCounted - before))
	}
	run := func(rung int, spread time.Duration) *ladderRun {
		x := newLadderRun(h200, 20*ms)
		x.never(0, 1, 2, 3, 4, 5)
		x.choose(rung)
		for i := range 40 {
			x.finish(8*ms + spread*time.Duration(i%8/7))
		}
		return x
	}
	const us = time.Microsecond
	for _, c := range []struct {
		name   string
		rung   int
		spread time.Duration
		n      int
		took   time.Duration
		want   int // late requests that count
	}{
		{"four default slices", 0, 0, 1, 8*ms + 4*2048*us, 0},
		{"less than four default slices", 0, 0, 1, 8*ms + 4*2048*us - 1, 1},
		{"four half slices", 1, 0, 1, 8*ms + 4*1024*us, 0},
		{"less than four half slices", 1, 0, 1, 8*ms + 4*1024*us - 1, 1},
		{"four stop times", 4, 0, 1, 8*ms + 4*700*us, 0},
		{"less than four stop times", 4, 0, 1, 8*ms + 4*700*us - 1, 1},
		{"four times the spread", 4, ms, 1, 8*ms + 4*ms, 0},
		{"less than four times the spread", 4, ms, 1, 8*ms + 4*ms - 1, 1},
		{"six in a row", 4, 0, 6, 20 * ms, 0},
		{"seven in a row", 4, 0, 7, 20 * ms, 1},
	} {
		if got := stall(run(c.rung, c.spread), c.n, c.took); got != c.want {
			t.Errorf("%s: %d late requests count, want %d", c.name, got, c.want)
		}
	}
	x := newLadderRun(h200, 20*ms)
	for range 7 {
		x.finish(8 * ms)
	}
	if stall(x, 1, 20*ms) != 1 {
		t.Error("the eighth request of all: it does not count, but what is usual is not known yet")
	}
	// A trial: the second in a row is due to it.
	for n := 1; n <= 2; n++ {
		x = run(4, 0)
		x.put(3, x.now)
		x.begin()
		if got := stall(x, n, 20*ms); got != n-1 || (x.current == 3) != (n == 1) {
			t.Errorf("%d in a row in a trial: %d count, rung %d", n, got, x.current)
		}
	}
}

// TestLadderForgivesFewStallsInTheLongRun checks that stalls do not count if they are at
// most 0.6 % of all requests, besides the first six.
func TestLadderForgivesFewStallsInTheLongRun(t *testing.T) {
	for _, c := range []struct {
		oneIn   int
		forgive bool
	}{{180, true}, {90, false}} {
		x := newLadderRun(h200, ms)
		x.never(0, 1, 2, 3, 4, 5)
		x.choose(4)
		counted := 0.0
		for i := range 20_000 {
			took := 8 * ms
			if i%c.oneIn == c.oneIn-1 {
				took = 20 * ms
			}
			before := x.lateCounted
			x.finish(took)
			counted += max(x.lateCounted-before, 0)
		}
		if (counted == 0) != c.forgive {
			t.Errorf("one stall in %d: %.0f count", c.oneIn, counted)
		}
	}
}

// TestLadderTrialsKeepTheirBudget checks that trials, which may end with a late request
// each, make at most 0.3 % of the last 2,000 requests late, besides the first.
func TestLadderTrialsKeepTheirBudget(t *testing.T) {
	x := newLadderRun(h200, 20*ms)
	late, n := 0, 0
	for range 30_000 {
		took := 9 * ms
		if x.current < x.start {
			// The pause alone would allow more: it is forgotten when a queue opens.
			took = testSLO + 100*time.Microsecond
			late++
		}
		n++
		x.finish(took)
		for i := range x.rungs {
			x.rungs[i].retry, x.rungs[i].pause = 0, 0
		}
	}
	if part := float64(late) / float64(n); part < 0.003 || part > 0.004 {
		t.Errorf("trials made %.2f %% of the requests late, want 0.3 %%", 100*part)
	}
}

// TestLadderTriesOnlyWhatHasAChance checks that no trial of a longer slice begins unless
// nine of ten requests have as much time to spare as the slice becomes longer.
func TestLadderTriesOnlyWhatHasAChance(t *testing.T) {
	longer := 256 * time.Microsecond // from the minimum slice to the next
	for _, c := range []struct {
		spare  time.Duration
		short  int // of 20 requests, those with less to spare
		begins bool
	}{
		{longer + 1, 0, true}, {longer, 0, false}, {longer + 1, 2, true}, {longer + 1, 3, false},
	} {
		x := newLadderRun(h200, 50*ms)
		for i := range 60 {
			took := testSLO - c.spare
			if i%20 < c.short {
				took = testSLO - longer/2
			}
			x.finish(took)
			if x.current != x.start {
				break
			}
		}
		// The first decision is after 16 requests; all 20 kinds have been seen after 60.
		if begun := x.current != x.start; begun != c.begins {
			t.Errorf("%v to spare but for %d of 20: trial %v, want %v", c.spare, c.short, begun, c.begins)
		}
	}
}

// TestLadderStopsBatchOnlyIfSwitchesCostMuch checks when it is tried to stop batch work during
// requests: if more than 8 % of the time is lost in context switches, and requests take
// longer than a stop and a start.
func TestLadderStopsBatchOnlyIfSwitchesCostMuch(t *testing.T) {
	for _, c := range []struct {
		lost  float64
		took  time.Duration
		tries bool
	}{{0.09, 5 * ms, true}, {0.07, 5 * ms, false}, {0, 5 * ms, false}, {0.09, 2 * h200.StopTime, false}, {0.09, 2*h200.StopTime + 1, true}} {
		x := newLadderRun(h200, 20*ms)
		x.never(0, 1, 2, 3)
		x.choose(x.start)
		for range 100 {
			x.gets(0.6)
			x.rungs[x.current].lost += time.Duration(c.lost * float64(x.every))
			x.finish(c.took)
		}
		if tries := len(x.changes) > 0 && x.changes[0].to == x.last; tries != c.tries {
			t.Errorf("%.0f %% lost, requests of %v: tries to stop batch work %v, want %v", 100*c.lost, c.took, tries, c.tries)
		}
	}
}

// TestLadderOpenRequestCountsBetweenOnceAndTwiceItsSLO checks when a request that is still
// open counts as late: after its SLO, or when it has taken so long that the host may have
// stalled, but after twice its SLO in any case.
func TestLadderOpenRequestCountsBetweenOnceAndTwiceItsSLO(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{
		{2 * ms, testSLO + 1}, // four stop times more are less than the SLO
		{8 * ms, 8*ms + 4*h200.StopTime},
		{30 * ms, 2 * testSLO},
	} {
		x := newLadderRun(h200, 20*ms)
		for range 20 {
			x.duration(c.took)
		}
		if got := x.latePeriod(testSLO); got != c.want {
			t.Errorf("requests take %v: one counts as late after %v, want %v", c.took, got, c.want)
		}
	}
}

// TestLadderForeseesLateRequests checks nearlyLate on normally distributed durations: it
// is true if more than one in a hundred would be late, in nearly all samples of 64.
func TestLadderForeseesLateRequests(t *testing.T) {
	for _, c := range []struct {
		sigmas   float64 // from the mean duration to the SLO; one in a hundred is beyond 2.33
		from, to float64 // part of the samples in which it is true
	}{{1.3, 0.95, 1}, {1.7, 0.7, 1}, {3.5, 0, 0.3}, {5, 0, 0.05}} {
		random, yes := rand.New(rand.NewPCG(5, 5)), 0
		const samples = 2000
		for range samples {
			var l ladder
			l.build(h200)
			for range recent {
				l.spare[l.requests] = time.Duration((c.sigmas + random.NormFloat64()) * float64(ms))
				l.requests++
			}
			if l.nearlyLate() {
				yes++
			}
		}
		if part := float64(yes) / samples; part < c.from || part > c.to {
			t.Errorf("the SLO is %.1f deviations above the mean: nearly late in %.2f of the samples, want %.2f to %.2f", c.sigmas, part, c.from, c.to)
		}
	}
}

// TestQuantileOfARing compares with a sorted slice.
func TestQuantileOfARing(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	for range 2000 {
		ring := make([]time.Duration, recent/2)
		n := random.IntN(2 * len(ring))
		var all []time.Duration
		for i := range n {
			ring[i%len(ring)] = time.Duration(random.IntN(1000))
		}
		all = append(all, ring[:min(n, len(ring))]...)
		slices.Sort(all)
		for _, q := range [][2]int{{0, 1}, {1, 10}, {1, 4}, {1, 2}, {9, 10}} {
			want := time.Duration(0)
			if len(all) > 0 {
				want = all[len(all)*q[0]/q[1]]
			}
			if got := quantileOf(ring, n, q[0], q[1]); got != want {
				t.Fatalf("%d values: quantile %d/%d is %v, want %v", n, q[0], q[1], got, want)
			}
		}
	}
}

// TestLadderStopsPredictingAfterLateRequests checks that light queues take turns for a while, twice
// as long each time, if requests are late while the queues run side by side between them. The
// rung stays.
func TestLadderStopsPredictingAfterLateRequests(t *testing.T) {
	var l ladder
	l.build(h200)
	now := sched.Time(time.Hour)
	for _, pause := range []time.Duration{latePause, 2 * latePause, 4 * latePause} {
		if !l.mayPredict(now) {
			t.Fatalf("at %v it may not predict", time.Duration(now))
		}
		l.since, l.predicts, l.failed = now, true, true
		l.decide(now)
		if l.mayPredict(now.Add(pause-1)) || !l.mayPredict(now.Add(pause)) || l.current != l.start || l.chosen != l.start || !l.resetScores {
			t.Errorf("it may not be that it predicts before %v, and then it must, on rung %d; now on %d", pause, l.start, l.current)
		}
		now = now.Add(pause)
	}
	l.put(l.start-1, now)
	if l.mayPredict(now) {
		t.Error("it predicts on a rung on which light queues run side by side anyway")
	}
}

// TestLadderNearlyLate checks from how many requests, and from which spare time, one in a
// hundred is expected to be late.
func TestLadderNearlyLate(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		requests              int
		least, tenth, quarter time.Duration // time to spare of the slowest requests
		want                  bool
	}{
		{"close", 16, 2 * ms, 3 * ms, 5 * ms, false},
		{"far apart", 16, ms, 3 * ms, 5 * ms, true},
		{"too few requests", 15, ms, 3 * ms, 5 * ms, false},
		{"much time to spare", 16, 98 * ms, 100 * ms, 102 * ms, false},
		{"the quarter is of a faster kind", 16, 2900 * time.Microsecond, 3 * ms, 50 * ms, false},
		{"the slowest is an exception", 16, -50 * ms, 3 * ms, 3100 * time.Microsecond, false},
		{"late by now", 16, -2 * ms, -ms, 5 * ms, true},
	} {
		l := ladder{requests: tt.requests}
		for i := range tt.requests {
			switch {
			case i == 0:
				l.spare[i] = tt.least
			case i < 4:
				l.spare[i] = tt.tenth
			default:
				l.spare[i] = tt.quarter
			}
		}
		if got := l.nearlyLate(); got != tt.want {
			t.Errorf("%s: nearly late %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestLadderPausesTheRungThatItLeaves checks that a setting that was left because requests were
// late is tried again after five seconds, and one that was left because a stricter one was
// better for batch work after 20 s, although the settings in between are tried before.
func TestLadderPausesTheRungThatItLeaves(t *testing.T) {
	backOn := func(x *ladderRun, rung int, finish func()) time.Duration {
		for left := x.now; ; {
			if finish(); x.current == rung || x.now.Sub(left) > time.Minute {
				return x.now.Sub(left)
			}
		}
	}
	x := newLadderRun(h200, ms)
	x.never(0, x.last)
	x.choose(1)
	for range 400 { // less than a trial takes
		x.finish(9 * ms)
	}
	for x.chosen == 1 && x.total < 420 {
		x.finish(testSLO + 500*time.Microsecond)
	}
	if x.chosen != x.start {
		t.Fatalf("got rung %d after late requests, want %d", x.chosen, x.start)
	}
	if got := backOn(x, 1, func() { x.finish(9 * ms) }); got < 5*time.Second || got > 6*time.Second {
		t.Errorf("the setting with late requests is tried again after %v, want 5 s", got)
	}

	x = newLadderRun(h200, 20*ms)
	x.never(0, 1, 2, 3)
	x.choose(x.start)
	finish := func() {
		share := 0.6
		if x.current == x.last {
			share = 0.8
		}
		x.gets(share)
		x.rungs[x.start].lost = x.rungs[x.start].wall / 10
		x.finish(5 * ms)
	}
	for x.chosen == x.start && x.total < 1000 {
		finish()
	}
	if x.chosen != x.last {
		t.Fatalf("got rung %d, by which batch work gains less, want %d", x.chosen, x.last)
	}
	if got := backOn(x, x.start, finish); got < 20*time.Second || got > 21*time.Second {
		t.Errorf("the setting by which batch work gets less is tried again after %v, want 20 s", got)
	}
}

// TestLadderStallsInARow checks what ends a row of stalls: a request in time, a late one that
// is no stall, and another setting. Six in a row do not count.
func TestLadderStallsInARow(t *testing.T) {
	for _, c := range []struct {
		name    string
		between func(x *ladderRun)
		want    float64 // late requests that count
	}{
		{"nothing", func(*ladderRun) {}, 6},
		{"a request in time", func(x *ladderRun) { x.finish(8 * ms) }, 0},
		{"a late request", func(x *ladderRun) { x.finish(testSLO + 500*time.Microsecond) }, 1},
		{"another setting", func(x *ladderRun) { x.choose(x.current) }, 0},
	} {
		x := newLadderRun(h200, ms)
		x.never(0, 1, 2, 3, 4, 5)
		for range 3000 { // so many allow 18 stalls
			x.finish(8 * ms)
		}
		before := x.lateCounted
		for i := range 12 {
			if i == 6 {
				c.between(x)
			}
			x.finish(20 * ms)
			for j := range x.allTook {
				x.allTook[j] = 8 * ms // these requests are not what is usual
			}
			x.score = 0 // the setting stays
		}
		if got := x.lateCounted - before; math.Abs(got-c.want) > 0.1 {
			t.Errorf("%s between six stalls and six: %.1f late requests count, want %.0f", c.name, got, c.want)
		}
	}
}

// TestLadderForgets checks how fast what is known fades: of a rung, all counts are halved beyond
// 256 requests; of all requests, about the last 2,000 count.
func TestLadderForgets(t *testing.T) {
	x := newLadderRun(h200, 20*ms)
	x.never(0, 1, 2, 3, 4, 5)
	x.choose(4)
	r := &x.rungs[4]
	for i := range 257 {
		took := 9 * ms
		if i%64 == 0 {
			took = testSLO + 200*time.Microsecond
		}
		if x.finish(took); i == 255 && (r.tried != 256 || r.late != 4) {
			t.Errorf("after 256 requests: %.1f, %.1f late, want 256 and 4", r.tried, r.late)
		}
	}
	if r.tried != 128.5 || r.late != 2+1 {
		t.Errorf("after 257 requests: %.1f, %.1f late, want 128.5 and 3", r.tried, r.late)
	}

	x = newLadderRun(h200, 20*ms)
	x.never(0, 1, 2, 3, 4, 5)
	x.stalls, x.lateCounted = 10, 20
	for range 4000 {
		x.finish(5 * ms)
	}
	left := math.Exp(-2)
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"requests", x.counted, 2000 * (1 - left)},
		{"stalls", x.stalls, 10 * left},
		{"late requests", x.lateCounted, 20 * left},
	} {
		if math.Abs(c.got-c.want) > c.want/100 {
			t.Errorf("after 4000 requests %.2f %s count, want %.2f", c.got, c.name, c.want)
		}
	}
}

// TestLadderRestarts checks that the ladder begins anew at the start rung, from which it has to
// try the others again, with late requests of before forgotten.
func TestLadderRestarts(t *testing.T) {
	x := newLadderRun(h200, 20*ms)
	x.choose(1)
	x.finish(testSLO + ms)
	x.pause(2, x.now, time.Minute)
	x.restart(x.now)
	if x.current != x.start || x.chosen != x.start || !x.resetScores || x.late != 0 || x.rungs[2].retry != 0 {
		t.Errorf("on rung %d, chosen %d, %d late, scores reset %v; want rung %d, nothing known", x.current, x.chosen, x.late, x.resetScores, x.start)
	}
}

// TestLadderLeavesTheStrictestRungs checks what follows too many late requests where batch
// work gives way at once: it is stopped during requests if they take long enough and that is
// not paused, and is no longer if more requests are late so.
func TestLadderLeavesTheStrictestRungs(t *testing.T) {
	const start, last = 4, 5
	for _, c := range []struct {
		name      string
		from      int
		took      time.Duration // of a late request
		retry     time.Duration // until the rung that stops batch work may be tried
		startRate float64       // of late requests at the start rung
		want      int
	}{
		{"long requests", start, 12 * ms, 0, 0, last},
		{"long requests, paused until now", start, 12 * ms, 1, 0, last},
		{"long requests, paused", start, 12 * ms, 2, 0, start},
		{"as long as a stop and a start", start, 2 * h200.StopTime, 0, 0, start},
		{"more are late than at the start rung", last, 12 * ms, 0, 0.3, start},
		{"fewer are", last, 12 * ms, 0, 0.9, last},
	} {
		var l ladder
		l.build(h200)
		now := sched.Time(time.Hour)
		l.chosen = c.from
		l.put(c.from, now)
		l.since = now
		score := 0.0
		for i := range 16 {
			l.request(now, c.took-time.Duration(i%2), c.took-1, &score) // every other one is late
		}
		l.rungs[start].tried, l.rungs[start].late = 10, 10*c.startRate
		l.rungs[last].retry = now
		if c.retry > 0 {
			l.rungs[last].retry = now.Add(c.retry - 1)
		}
		if !l.failed {
			t.Fatalf("%s: the rung has not failed", c.name)
		}
		if l.decide(now); l.chosen != c.want || l.current != c.want || !l.resetScores || l.failed {
			t.Errorf("%s: got rung %d, want %d", c.name, l.chosen, c.want)
		}
	}
}

// TestLadderIsHopeless checks when bursts are allowed beside requests with an SLO: if most of
// at least 16 are late although batch work gives way at once, and they are too short to
// stop it for each.
func TestLadderIsHopeless(t *testing.T) {
	for _, c := range []struct {
		name        string
		current     int
		chosen      int
		tried, late float64
		took        time.Duration
		want        bool
	}{
		{"most are late", 4, 4, 16, 9, ms, true},
		{"half", 4, 4, 16, 8, ms, false},
		{"too few requests", 4, 4, 15, 15, ms, false},
		{"long enough to stop batch work", 4, 4, 16, 9, 2*h200.StopTime + 1, false},
		{"a milder setting", 3, 3, 16, 9, ms, false},
		{"a trial", 3, 4, 16, 9, ms, false},
		{"a trial at the start rung", 4, 5, 16, 9, ms, false},
	} {
		var l ladder
		l.build(h200)
		l.current, l.chosen = c.current, c.chosen
		l.rungs[4].tried, l.rungs[4].late = c.tried, c.late
		l.took[0], l.requests = c.took, 1
		if got := l.mostlyLate(); got != c.want {
			t.Errorf("%s: hopeless %v, want %v", c.name, got, c.want)
		}
	}
}

// TestLadderTrialEndsIfRequestsAreNearlyLate checks that a milder setting under which no request
// is late, but soon one would be, is left and paused as if one had been.
func TestLadderTrialEndsIfRequestsAreNearlyLate(t *testing.T) {
	for _, c := range []struct {
		least, tenth time.Duration // time to spare of two of 25 requests, and of four
		want         int
	}{{2 * ms, 2 * ms, 3}, {50 * time.Microsecond, 500 * time.Microsecond, 4}} {
		x := newLadderRun(h200, 20*ms)
		x.never(0, 1, 2, 5)
		x.choose(4)
		x.put(3, x.now) // a trial
		x.begin()
		for i := range 25 { // half a second
			switch {
			case i < 2:
				x.finish(testSLO - c.least)
			case i < 6:
				x.finish(testSLO - c.tenth)
			default:
				x.finish(testSLO - 2*ms)
			}
		}
		if x.current != c.want || x.chosen != c.want {
			t.Errorf("%v to spare: got rung %d, chosen %d, want %d", c.least, x.current, x.chosen, c.want)
		}
		if paused := x.rungs[3].retry == x.now.Add(5*time.Second); paused != (c.want == 4) {
			t.Errorf("%v to spare: the setting is paused until %v from now", c.least, x.rungs[3].retry.Sub(x.now))
		}
	}
}

// TestLadderSharedSlice checks that with each setting batch queues side by side have the slice of
// the one whose turn it is.
func TestLadderSharedSlice(t *testing.T) {
	var l ladder
	l.build(h200)
	for i := range l.last + 1 {
		if set := l.setting(i); set.shared != l.rungs[i].slice || set.slice != l.rungs[i].slice {
			t.Errorf("rung %d: got a slice of %v, and %v side by side, want %v", i, set.slice, set.shared, l.rungs[i].slice)
		}
	}
}
