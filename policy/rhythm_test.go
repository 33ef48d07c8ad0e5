package policy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// arrivalsAt returns the rhythm of requests at these intervals, and the last arrival.
func arrivalsAt(intervals ...time.Duration) (*rhythm, sched.Time) {
	r, at := &rhythm{}, sched.Time(time.Second)
	r.arrived(at)
	for _, d := range intervals {
		at = at.Add(d)
		r.arrived(at)
	}
	return r, at
}

func repeat(d time.Duration, n int) (list []time.Duration) {
	for range n {
		list = append(list, d)
	}
	return list
}

// TestRhythmIsFoundAfterEightIntervals checks from when on requests count as regular: after
// eight intervals, of which one may differ, and of which each may be a multiple.
func TestRhythmIsFoundAfterEightIntervals(t *testing.T) {
	const period = 16 * ms
	for _, tt := range []struct {
		name      string
		intervals []time.Duration
		want      time.Duration
	}{
		{"seven", repeat(period, 7), 0},
		{"eight", repeat(period, 8), period},
		{"one differs", append(repeat(period, 7), 7*ms), period},
		{"two differ", append(repeat(period, 6), 7*ms, 25*ms), 0},
		{"the different ones are long ago", append([]time.Duration{7 * ms, 25 * ms, 5 * ms}, repeat(period, 8)...), period},
		{"arrivals were missed", []time.Duration{period, period, 3 * period, period, 2 * period, period, period, period}, period},
		{"within an eighth", []time.Duration{14 * ms, period, 18 * ms, period, period, 14 * ms, period, 18 * ms}, period},
		{"three of them early by an eighth", []time.Duration{14 * ms, period, 14 * ms, period, period, 14 * ms, period, period}, 122 * ms / 8},
		{"two within a request", append(repeat(period, 6), ms, ms), 0},
		{"beyond an eighth", []time.Duration{13 * ms, period, 19 * ms, period, period, period, period, period}, 0},
	} {
		if r, _ := arrivalsAt(tt.intervals...); r.period != tt.want {
			t.Errorf("%s: got a period of %v, want %v", tt.name, r.period, tt.want)
		}
	}
	// The period is the mean of those that agree.
	r, last := arrivalsAt(14*ms, 18*ms, 16*ms, 14*ms, 16*ms, 16*ms, 16*ms, 40*ms)
	if want := 110 * ms / 7; r.period != want || r.next != last.Add(want) {
		t.Errorf("got a period of %v and the next after %v, want %v", r.period, r.next.Sub(last), want)
	}
	// Until more is known, arrivals are taken to be half as far off as they may be.
	if want := r.period / 16; r.jitter != want {
		t.Errorf("got a jitter of %v at first, want %v", r.jitter, want)
	}
}

// TestRhythmSurvivesAMissInSix checks how many arrivals may be elsewhere than expected until
// the prediction ends, and that it then begins anew.
func TestRhythmSurvivesAMissInSix(t *testing.T) {
	const period = 16 * ms
	missing := func(every, n int) *rhythm {
		r, last := arrivalsAt(repeat(period, 8)...)
		for i := range n {
			off := time.Duration(0)
			if i%every == every-1 {
				off = 5 * ms
			}
			r.arrived(last.Add(time.Duration(i+1)*period + off))
			if r.period == 0 {
				break
			}
		}
		return r
	}
	if r := missing(6, 600); r.period < period-ms || r.period > period+ms {
		t.Errorf("one of six elsewhere: got a period of %v, want %v", r.period, period)
	}
	if r := missing(5, 600); r.period != 0 || r.n != 0 || r.last == 0 {
		t.Errorf("one of five elsewhere: got a period of %v, want none", r.period)
	}
	// Two in a row end it after ten arrivals where they were expected.
	for n, want := range map[int]bool{10: false, 11: true} {
		r, last := arrivalsAt(repeat(period, n)...)
		r.arrived(last.Add(5 * ms))
		if r.arrived(last.Add(period + 5*ms)); (r.period != 0) != want {
			t.Errorf("two misses after %d intervals: got a period of %v", n, r.period)
		}
	}
	// After a long time without a miss the score is at its limit, 16: it takes four in a row.
	r, last := arrivalsAt(repeat(period, 100)...)
	for i := range 4 {
		if r.period == 0 {
			t.Fatalf("no period after %d misses, want after 4", i)
		}
		r.arrived(last.Add(time.Duration(i)*period + 5*ms))
	}
	if r.period != 0 {
		t.Errorf("got a period of %v after 4 misses, want none", r.period)
	}
}

// TestRhythmFollowsThePhase checks that the expected time follows an early arrival at once,
// and a late one by an eighth: arrivals are reported late, never early. The period, which is
// a mean of intervals, follows by a sixteenth.
func TestRhythmFollowsThePhase(t *testing.T) {
	const period = 16 * ms
	for _, tt := range []struct{ off, want time.Duration }{
		{0, 0},
		{-800 * time.Microsecond, -800 * time.Microsecond},
		{800 * time.Microsecond, 100 * time.Microsecond},
		{2 * ms, 250 * time.Microsecond},
		{2*ms + 1, 0}, // a miss moves nothing
		{-2 * ms, -2 * ms},
	} {
		r, last := arrivalsAt(repeat(period, 8)...)
		r.arrived(last.Add(period + tt.off))
		want, wantPeriod, wantJitter := last.Add(2*period+tt.want+tt.off/16), period+tt.off/16, ms+(tt.off.Abs()-ms)/8
		if tt.off > 2*ms {
			want, wantPeriod, wantJitter = last.Add(period), period, ms
		}
		if r.next != want || r.period != wantPeriod || r.jitter != wantJitter {
			t.Errorf("off by %v: the next one is expected after %v with a period of %v and a jitter of %v, want %v, %v and %v",
				tt.off, r.next.Sub(last), r.period, r.jitter, want.Sub(last), wantPeriod, wantJitter)
		}
	}
}

// TestRhythmFollowsThePeriod checks a loop whose period changes by 2 %: within 100 arrivals
// phase and period are those of the loop, to a fraction of the jitter, and stay there. None of
// the arrivals is taken for a miss.
func TestRhythmFollowsThePeriod(t *testing.T) {
	for _, change := range []time.Duration{-320 * time.Microsecond, -50 * time.Microsecond, 50 * time.Microsecond, 320 * time.Microsecond} {
		for _, jitter := range []time.Duration{0, 100 * time.Microsecond, 400 * time.Microsecond} {
			random := rand.New(rand.NewPCG(1, uint64(jitter)))
			r, began := arrivalsAt(repeat(16*ms, 100)...)
			period := 16*ms + change
			crossed, was := 0, change < 0
			for i := range 500 {
				due := began.Add(time.Duration(i+1) * period)
				if late := due.Sub(r.next); late > 2*ms || late < -2*ms {
					t.Fatalf("change %v, jitter %v: arrival %d is %v from where it is expected", change, jitter, i, late)
				}
				r.arrived(due.Add(time.Duration(random.Int64N(int64(jitter) + 1))))
				if above := r.period > period; jitter == 0 && above != was && r.period != period {
					crossed, was = crossed+1, above
				}
				if i < 100 {
					continue
				}
				off := r.next.Sub(due.Add(period))
				if (r.period-period).Abs() > jitter/8+3*time.Microsecond || off < -jitter/4-10*time.Microsecond || off > jitter*3/4+10*time.Microsecond {
					t.Fatalf("change %v, jitter %v: after %d arrivals the period is %v too long and the next is expected %v too late", change, jitter, i, r.period-period, off)
				}
			}
			if crossed > 1 {
				t.Errorf("change %v: the period passed that of the loop %d times, want no oscillation", change, crossed)
			}
			if r.score != 16 {
				t.Errorf("change %v, jitter %v: got a score of %d, want 16", change, jitter, r.score)
			}
		}
	}
}

// TestRhythmFollowsThePeriodOfArrivalsThatAreMissed checks that an interval of several periods
// counts as that many.
func TestRhythmFollowsThePeriodOfArrivalsThatAreMissed(t *testing.T) {
	r, at := arrivalsAt(repeat(16*ms, 8)...)
	for range 100 {
		at = at.Add(3 * (16*ms + 50*time.Microsecond))
		r.arrived(at)
	}
	if off := (r.period - 16*ms - 50*time.Microsecond).Abs(); off > time.Microsecond {
		t.Errorf("got a period of %v, want 16.05 ms", r.period)
	}
	// A miss is not the begin of an interval.
	before := r.period
	r.arrived(at.Add(5 * ms))
	r.arrived(at.Add(r.period))
	if off := (r.period - before).Abs(); off > time.Microsecond {
		t.Errorf("after an arrival between two others: got a period of %v, want %v", r.period, before)
	}
}

// TestRhythmOfArrivalsReportedLate checks that the period stays if arrivals are only reported
// late, and that the jitter is about their mean distance from the expected time.
func TestRhythmOfArrivalsReportedLate(t *testing.T) {
	r, from := arrivalsAt(repeat(16*ms, 8)...)
	for i := range 500 {
		r.arrived(from.Add(time.Duration(i+1)*16*ms + time.Duration(i%2)*400*time.Microsecond))
	}
	if r.jitter < 100*time.Microsecond || r.jitter > 400*time.Microsecond {
		t.Errorf("every other arrival 400 us late: got a jitter of %v, want about 200 us", r.jitter)
	}
	if off := (r.period - 16*ms).Abs(); off > 20*time.Microsecond {
		t.Errorf("every other arrival 400 us late: got a period of %v, want 16 ms", r.period)
	}
}

// TestRhythmExpects checks the time that is expected from before an arrival until long after
// it: an arrival is waited for an eighth of a period, and none is expected after four periods
// and a half.
func TestRhythmExpects(t *testing.T) {
	const period = 16 * ms
	r, last := arrivalsAt(repeat(period, 8)...)
	for _, tt := range []struct {
		after time.Duration
		want  int // in periods after the last arrival; 0: none
	}{
		{1, 1},
		{period, 1},
		{period + 2*ms, 1},
		{period + 2*ms + 1, 2},
		{2*period + 2*ms, 2},
		{2*period + 2*ms + 1, 3},
		{4*period + 2*ms, 4},
		{4*period + 8*ms, 5},
		{4*period + 8*ms + 1, 0},
	} {
		want := sched.Time(0)
		if tt.want > 0 {
			want = last.Add(time.Duration(tt.want) * period)
		}
		if got := r.expected(last.Add(tt.after)); got != want {
			t.Errorf("%v after the last arrival: got %v, want %v", tt.after, got, want)
		}
	}
	irregular, last := arrivalsAt(7 * ms)
	for _, now := range []sched.Time{last, last + 1} {
		if got := irregular.expected(now); got != 0 {
			t.Errorf("without a rhythm: got %v, want none", got)
		}
	}
}

// TestRhythmCountsMissedArrivals checks that an arrival after some that were missed, and one
// that comes before it is expected, are taken for those that they are.
func TestRhythmCountsMissedArrivals(t *testing.T) {
	const period = 16 * ms
	for _, tt := range []struct {
		after time.Duration
		next  time.Duration
	}{
		{3 * period, 4 * period},
		{3*period - ms, 4*period - ms},
		{period - ms, 2*period - ms},
		{10 * period, 11 * period},
		{ms, period}, // of the last period: nothing is known about the next
	} {
		r, last := arrivalsAt(repeat(period, 8)...)
		r.arrived(last.Add(tt.after))
		if off := r.next.Sub(last.Add(tt.next)).Abs(); off > 100*time.Microsecond {
			t.Errorf("an arrival after %v: the next is expected after %v, want %v", tt.after, r.next.Sub(last), tt.next)
		}
	}
	// A second arrival within a request is neither a miss nor a sign of regularity.
	r, last := arrivalsAt(repeat(period, 8)...)
	score := r.score
	r.arrived(last.Add(ms))
	if r.next != last.Add(period) || r.period != period || r.score != score {
		t.Errorf("an arrival within a request: the next is expected after %v, score %d", r.next.Sub(last), r.score)
	}
	r, last = arrivalsAt(repeat(period, 8)...)
	before := *r
	r.arrived(last)
	r.arrived(last - 5)
	if *r != before {
		t.Error("an arrival that was reported before changed the prediction")
	}
	r, last = arrivalsAt(repeat(period, 7)...)
	if r.arrived(last); r.n != 7 || r.period != 0 {
		t.Errorf("an arrival that was reported twice made %d intervals of 7", r.n)
	}
}

// TestRhythmAfterAPause checks that the first arrival after a pause sets the phase, and that the
// prediction ends with the second miss if the period has changed too.
func TestRhythmAfterAPause(t *testing.T) {
	const period = 16 * ms
	for _, tt := range []struct {
		pause time.Duration
		next  time.Duration // expected after the first arrival
	}{
		{4*period + period/2, period / 2}, // four and a half periods: a miss, and the phase is the old one
		{4*period + period/2 + 1, period},
		{100*period + 7*ms, period},
	} {
		r, last := arrivalsAt(repeat(period, 30)...)
		at := last.Add(tt.pause)
		r.arrived(at)
		if got := r.expected(at).Sub(at); got != tt.next {
			t.Errorf("pause of %v: the next arrival is expected after %v, want %v", tt.pause, got, tt.next)
		}
	}
	r, last := arrivalsAt(repeat(period, 30)...)
	at := last.Add(time.Second)
	r.arrived(at)
	for i, want := range []bool{true, false} {
		at = at.Add(period * 7 / 5)
		if r.arrived(at); (r.expected(at) != 0) != want {
			t.Errorf("after %d misses: predicted %v, want %v", i+1, !want, want)
		}
	}
	// Nor do a few hits between the misses keep it.
	r, last = arrivalsAt(repeat(period, 30)...)
	at = last.Add(time.Second)
	r.arrived(at)
	r.arrived(at.Add(period / 2))
	for range 4 {
		at = at.Add(period)
		r.arrived(at)
	}
	if at = at.Add(period / 2); r.expected(at) == 0 {
		t.Error("after a miss and four hits nothing is predicted")
	}
	if r.arrived(at); r.expected(at) != 0 {
		t.Error("after another miss arrivals are predicted, want an end")
	}
}

// TestRhythmFollowsALongerPeriod checks that a period which becomes so long that each arrival follows
// a pause is found.
func TestRhythmFollowsALongerPeriod(t *testing.T) {
	for _, period := range []time.Duration{70 * ms, 85 * ms, 100 * ms, 110 * ms, 250 * ms} {
		r, at := arrivalsAt(repeat(20*ms, 30)...)
		for range 20 {
			at = at.Add(period)
			r.arrived(at)
		}
		if r.period != period || r.expected(at) != at.Add(period) {
			t.Errorf("20 ms, then %v: got period %v", period, r.period)
		}
	}
}
