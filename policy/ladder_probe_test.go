package policy

import (
	"math"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

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
		if x.chosen != 1 || len(x.changes) != 4 {
			t.Errorf("every %v: ends at rung %d by %d changes, want 1 by 4", every, x.chosen, len(x.changes))
		}
	}
}

// TestLadderMildestRungIsForLongRequests checks when the default slice is tried for online queues: if
// requests need more device time than that, and nine of ten have as much time to spare for each
// batch queue that runs beside them.
func TestLadderMildestRungIsForLongRequests(t *testing.T) {
	for _, c := range []struct {
		name     string
		needs    time.Duration // device time of a request
		took     time.Duration
		beside   int
		measured bool
		want     bool
	}{
		{"long", 3 * ms, testSLO - 3*ms - 1, 0, true, true},
		{"as long as a slice", h200.Slice, 3 * ms, 0, true, false},
		{"too little time to spare", 3 * ms, testSLO - 3*ms, 0, true, false},
		{"two queues beside", 3 * ms, testSLO - 6*ms - 1, 2, true, true},
		{"too little for two", 3 * ms, testSLO - 6*ms, 2, true, false},
		{"not measured", 3 * ms, 3 * ms, 0, false, false},
	} {
		x := newLadderRun(h200, 20*ms)
		x.choose(1)
		x.measured, x.queuesBeside = c.measured, c.beside
		for range 16 {
			x.finish(c.took)
			r := &x.rungs[1]
			r.requests++
			r.wall += x.every
			r.lost += 80 * time.Microsecond
			r.batch += x.every - c.needs - 90*time.Microsecond // an eighth of what is lost is not progress
		}
		if got := x.mayTry(0, x.now); got != c.want {
			t.Errorf("%s: tried %v, want %v", c.name, got, c.want)
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
	x.rungs[x.current].wall = probeTime
	if x.finish(ms); len(x.changes) != 1 {
		t.Errorf("with a measurement of %v: got no change, want one", probeTime)
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
		x.never(1, 2, 3)
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
		x.never(1, 2, 3)
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
			r.openTime = time.Duration(r.requests * float64(open))
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
		x.never(1, 2, 3, 4)
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

// TestLadderTrialOfStopsEndsIfBatchWorkStarves checks that a trial of stops ends after 16 requests and
// a sixteenth of a second if batch work gets less than half of what it gets with the chosen rung, and
// is then not made again for 20 s. Otherwise the trial goes on.
func TestLadderTrialOfStopsEndsIfBatchWorkStarves(t *testing.T) {
	for _, c := range []struct {
		every, after time.Duration
		share        float64
		unknown      bool // what batch work gets with the chosen rung
	}{
		{ms, 63 * ms, 0, false},
		{ms, 63 * ms, 0.29, false},
		{ms, 500 * ms, 0.31, false},
		{ms, 500 * ms, 0.7, false},
		{20 * ms, 320 * ms, 0, false},
		{20 * ms, 500 * ms, 0.31, false},
		{ms, 500 * ms, 0, true},
	} {
		x := newLadderRun(h200, c.every)
		x.never(x.start - 1)
		run := func(n int, share float64) {
			for range n {
				x.gets(share)
				x.finish(5 * ms)
			}
		}
		x.rungs[x.start].lost = time.Hour // more than enough to try it
		for x.current == x.start {
			run(1, 0.6)
		}
		began := x.now
		if c.unknown {
			x.rungs[x.start].measurement = measurement{}
		}
		for x.current == x.last && x.chosen == x.start {
			run(1, c.share)
		}
		if got := x.now.Sub(began); got != c.after {
			t.Errorf("requests every %v, batch work gets %.2f, not 0.6: the trial takes %v, want %v", c.every, c.share, got, c.after)
		}
		if got := x.rungs[x.last].retry; c.share < 0.6 && got != x.now.Add(noGainPause) {
			t.Errorf("requests every %v, batch work gets %.2f: the next trial is in %v, want %v", c.every, c.share, got.Sub(x.now), noGainPause)
		}
	}
}

// TestLadderTrialEndsIfRequestsAreNearlyLate checks that a milder setting under which no request
// is late, but soon one would be, is left and paused as if one had been.
func TestLadderTrialEndsIfRequestsAreNearlyLate(t *testing.T) {
	for _, c := range []struct {
		least, tenth time.Duration // time to spare of two of 25 requests, and of four
		want         int
	}{{2 * ms, 2 * ms, 4}, {50 * time.Microsecond, 500 * time.Microsecond, 5}} {
		x := newLadderRun(h200, 20*ms)
		x.never(1, 2, 3, x.last)
		x.choose(x.start)
		x.setCurrent(4, x.now) // a trial
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
		if paused := x.rungs[4].retry == x.now.Add(5*time.Second); paused != (c.want == x.start) {
			t.Errorf("%v to spare: the setting is paused until %v from now", c.least, x.rungs[4].retry.Sub(x.now))
		}
	}
}

// TestLadderSettingIsInForce checks from when on a setting counts as in force: when the queue whose
// turn it is has its slice, or its bound if it has no slices, or is stopped as the setting says, and
// otherwise more than half a second after it was set.
func TestLadderSettingIsInForce(t *testing.T) {
	set := sched.Time(time.Hour)
	for _, c := range []struct {
		name  string
		queue sched.Queue
		after time.Duration
		want  bool
		stops bool // during requests
	}{
		{"the slice", sched.Queue{ID: 2, Can: canAll, Slice: ms}, ms, true, false},
		{"another slice", sched.Queue{ID: 2, Can: canAll, Slice: 2 * ms, Bound: 4}, ms, false, false},
		{"the bound of one without a slice", sched.Queue{ID: 2, Can: sched.CanBound, Bound: 4}, ms, true, false},
		{"another bound", sched.Queue{ID: 2, Can: sched.CanBound, Slice: ms, Bound: 3}, ms, false, false},
		{"another queue", sched.Queue{ID: 3, Can: canAll, Slice: ms, Bound: 4}, ms, false, false},
		{"half a second", sched.Queue{ID: 2}, probeTime, false, false},
		{"more", sched.Queue{ID: 2}, probeTime + 1, true, false},
		{"stopped as the setting says", sched.Queue{ID: 2, Can: canAll, State: sched.Stopped}, ms, true, true},
		{"stopped for another reason", sched.Queue{ID: 2, Can: canAll, State: sched.Stopped}, ms, false, false},
		{"not stopped yet", sched.Queue{ID: 2, Can: canAll, State: sched.Stopping}, ms, false, true},
	} {
		var l ladder
		l.build(h200)
		l.rungs[1].setting = setting{slice: ms, bound: 4, stopDuringRequests: c.stops}
		l.setCurrent(1, set)
		now, want := set.Add(c.after), sched.Never
		if c.want {
			want = now
		}
		if l.confirm(&sched.View{Now: now, Queues: []sched.Queue{c.queue}}, 2); l.since != want {
			t.Errorf("%s: in force since %d, want %d", c.name, l.since, want)
		}
	}
}
