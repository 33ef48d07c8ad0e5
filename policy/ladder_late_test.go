package policy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestLadderLeavesASettingAfterThreeLateRequests checks that three late requests in a row
// end a setting, or a few more with others between them. The ladder begins anew if three
// are within 16 requests; otherwise the next stricter setting is chosen.
func TestLadderLeavesASettingAfterThreeLateRequests(t *testing.T) {
	late := testSLO + 500*time.Microsecond
	for _, c := range []struct {
		late, apart int
		want        int
	}{
		{2, 1, 2}, {3, 1, 5}, {3, 7, 2}, {4, 7, 5}, {4, 8, 3}, {4, 20, 3},
	} {
		x := newLadderRun(h200, 20*ms)
		x.never(1)
		x.choose(2)
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
		x.never(1)
		x.choose(2)
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
		x.never(1)
		x.choose(2)
		for i := range 64 {
			x.finish(8*ms + c.spread*time.Duration(i*37%64)/64)
		}
		n := 0
		for x.chosen == 2 && n < 10 {
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
		before := x.recentLate
		for i := range n {
			if i == 4 {
				took *= 3 // the first four are the slowest tenth now
			}
			x.finish(took)
		}
		return int(math.Round(x.recentLate - before))
	}
	run := func(rung int, spread time.Duration) *ladderRun {
		x := newLadderRun(h200, 20*ms)
		x.never(0, 1, 2, 3, 4, 5, 6)
		x.choose(rung)
		for i := range 40 {
			x.finish(8*ms + spread*time.Duration(i%8/7))
		}
		return x
	}
	for _, c := range []struct {
		name   string
		rung   int
		spread time.Duration
		n      int
		took   time.Duration
		want   int // late requests that count
	}{
		{"four default slices", 1, 0, 1, 8*ms + 4*2048*us, 0},
		{"less than four default slices", 1, 0, 1, 8*ms + 4*2048*us - 1, 1},
		{"four half slices", 2, 0, 1, 8*ms + 4*1024*us, 0},
		{"less than four half slices", 1, 0, 1, 8*ms + 4*1024*us - 1, 1},
		{"four stop times", 5, 0, 1, 8*ms + 4*700*us, 0},
		{"less than four stop times", 5, 0, 1, 8*ms + 4*700*us - 1, 1},
		{"four times the spread", 5, ms, 1, 8*ms + 4*ms, 0},
		{"less than four times the spread", 5, ms, 1, 8*ms + 4*ms - 1, 1},
		{"six in a row", 5, 0, 6, 20 * ms, 0},
		{"seven in a row", 5, 0, 7, 20 * ms, 1},
	} {
		if got := stall(run(c.rung, c.spread), c.n, c.took); got != c.want {
			t.Errorf("%s: %d late requests count, want %d", c.name, got, c.want)
		}
	}
	var x *ladderRun
	for before, want := range map[int]int{7: 1, 8: 0} {
		x = newLadderRun(h200, 20*ms)
		for range before {
			x.finish(8 * ms)
		}
		if got := stall(x, 1, 20*ms); got != want {
			t.Errorf("after %d requests: %d late requests count, want %d: what is usual is known after eight", before, got, want)
		}
	}
	// A trial: the second in a row is due to it.
	for n := 1; n <= 2; n++ {
		x = run(5, 0)
		x.setCurrent(4, x.now)
		x.begin()
		if got := stall(x, n, 20*ms); got != n-1 || (x.current == 4) != (n == 1) {
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
		x.never(0, 1, 2, 3, 4, 5, 6)
		x.choose(x.start)
		counted := 0.0
		for i := range 20_000 {
			took := 8 * ms
			if i%c.oneIn == c.oneIn-1 {
				took = 20 * ms
			}
			before := x.recentLate
			x.finish(took)
			counted += max(x.recentLate-before, 0)
		}
		if (counted == 0) != c.forgive {
			t.Errorf("one stall in %d: %.0f count", c.oneIn, counted)
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
			x.addDuration(c.took)
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
			for range keptRequests {
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
	l.setCurrent(l.start-1, now)
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
		{"many, far apart", 64, ms, 3 * ms, 5 * ms, true},
		{"many, close", 64, 2 * ms, 3 * ms, 5 * ms, false},
	} {
		l := ladder{rungRequests: rungRequests{requests: tt.requests}}
		for i := range tt.requests {
			switch {
			case i < (tt.requests+9)/10-1: // the next one is the tenth
				l.spare[i] = tt.least
			case i < tt.requests/4:
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

// TestLadderEndsAProbeThatIsNearlyLate checks that a probe of a longer slice ends when one in a hundred requests is
// expected to be late, and is paused, and that the chosen rung is not paused for that.
func TestLadderEndsAProbeThatIsNearlyLate(t *testing.T) {
	for _, probe := range []bool{true, false} {
		x := newLadderRun(h200, ms)
		x.choose(2)
		x.never(1)
		if probe {
			x.setCurrent(1, x.now)
		}
		x.requests = probeRequests
		for i := range x.requests {
			x.spare[i] = 5 * ms
			if i < x.requests/4 {
				x.spare[i] = 3 * ms
			}
			if i < (x.requests+9)/10-1 {
				x.spare[i] = ms
			}
		}
		x.since, x.measured = x.now.Add(-2*probeTime), false
		if !x.nearlyLate() {
			t.Fatal("the requests are not nearly late")
		}
		was := x.rungs[2].retry
		x.decide(x.now)
		if x.current != 2 || x.chosen != 2 || x.rungs[2].retry != was {
			t.Errorf("probe %v: on rung %d, chosen is %d, which may be tried in %v", probe, x.current, x.chosen, x.rungs[2].retry.Sub(x.now))
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
	x.never(1, x.last)
	x.choose(2)
	for range 400 { // less than a trial takes
		x.finish(9 * ms)
	}
	for x.chosen == 2 && x.total < 420 {
		x.finish(testSLO + 500*time.Microsecond)
	}
	if x.chosen != x.start {
		t.Fatalf("got rung %d after late requests, want %d", x.chosen, x.start)
	}
	if got := backOn(x, 2, func() { x.finish(9 * ms) }); got < 5*time.Second || got > 6*time.Second {
		t.Errorf("the setting with late requests is tried again after %v, want 5 s", got)
	}

	x = newLadderRun(h200, 20*ms)
	x.never(1, 2, 3, 4)
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
		x.never(0, 1, 2, 3, 4, 5, 6)
		for range 3000 { // so many allow 18 stalls
			x.finish(8 * ms)
		}
		before := x.recentLate
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
		if got := x.recentLate - before; math.Abs(got-c.want) > 0.1 {
			t.Errorf("%s between six stalls and six: %.1f late requests count, want %.0f", c.name, got, c.want)
		}
	}
}

// TestLadderLeavesTheStrictestRungs checks what follows too many late requests where batch
// work gives way at once: it is stopped during requests if they take long enough and that is
// not paused, and is no longer if more requests are late so.
func TestLadderLeavesTheStrictestRungs(t *testing.T) {
	const start, last = 5, 6
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
		{"as many are", last, 12 * ms, 0, 0.5, last},
	} {
		var l ladder
		l.build(h200)
		now := sched.Time(time.Hour)
		l.chosen = c.from
		l.setCurrent(c.from, now)
		l.since = now
		score := 0.0
		for i := range 16 {
			l.addRequest(now, c.took-time.Duration(i%2), c.took-1, &score) // every other one is late
		}
		l.rungs[start].tried, l.rungs[start].late = 10, 10*c.startRate
		l.rungs[last].retry = now
		if c.retry > 0 {
			l.rungs[last].retry = now.Add(c.retry - 1)
		}
		if !l.failed {
			t.Fatalf("%s: the rung has not failed", c.name)
		}
		l.resetScores = false
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
		{"most are late", 5, 5, 16, 9, ms, true},
		{"half", 5, 5, 16, 8, ms, false},
		{"too few requests", 5, 5, 15, 15, ms, false},
		{"long enough to stop batch work", 5, 5, 16, 9, 2*h200.StopTime + 1, false},
		{"a milder setting", 4, 4, 16, 9, ms, false},
		{"a trial", 4, 5, 16, 9, ms, false},
		{"a trial at the start rung", 5, 6, 16, 9, ms, false},
	} {
		var l ladder
		l.build(h200)
		l.current, l.chosen = c.current, c.chosen
		l.rungs[l.start].tried, l.rungs[l.start].late = c.tried, c.late
		l.took[0], l.requests = c.took, 1
		if got := l.mostlyLate(); got != c.want {
			t.Errorf("%s: hopeless %v, want %v", c.name, got, c.want)
		}
	}
}
