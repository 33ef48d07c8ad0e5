package policy

import (
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
// and a late one by a sixteenth: arrivals are reported late, never early.
func TestRhythmFollowsThePhase(t *testing.T) {
	const period = 16 * ms
	for _, tt := range []struct{ off, want time.Duration }{
		{0, 0},
		{-800 * time.Microsecond, -800 * time.Microsecond},
		{800 * time.Microsecond, 50 * time.Microsecond},
		{2 * ms, 125 * time.Microsecond},
		{2*ms + 1, 0}, // a miss moves nothing
		{-2 * ms, -2 * ms},
	} {
		r, last := arrivalsAt(repeat(period, 8)...)
		r.arrived(last.Add(period + tt.off))
		want := last.Add(2*period + tt.want)
		if tt.off > 2*ms {
			want = last.Add(period)
		}
		// The period itself follows by at most a 64th of the error.
		if got := r.next.Sub(want); got.Abs() > tt.off.Abs()/60 {
			t.Errorf("off by %v: the next one is expected %v from the start, off by %v", tt.off, r.next.Sub(last), got)
		}
	}
}

// TestRhythmFollowsThePeriod checks that the expected time stays near the arrivals if their
// period is a little shorter or longer than it was, that the period itself stays if arrivals
// are only reported late, and that the jitter is about their mean distance from the expected
// time.
func TestRhythmFollowsThePeriod(t *testing.T) {
	for _, change := range []time.Duration{-50 * time.Microsecond, 50 * time.Microsecond} {
		r, at := arrivalsAt(repeat(16*ms, 8)...)
		for i := range 500 {
			at = at.Add(16*ms + change)
			r.arrived(at)
			if off := r.next.Sub(at.Add(16*ms + change)).Abs(); off > ms {
				t.Fatalf("period changed by %v: arrival %d is expected %v away from where it will be", change, i, off)
			}
		}
		if moved := r.period - 16*ms; moved*change <= 0 || moved.Abs() > change.Abs() {
			t.Errorf("period changed by %v: got a period of %v, want it to move that way", change, r.period)
		}
	}
	r, at := arrivalsAt(repeat(16*ms, 8)...)
	from := at
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
		{2*period + 2*ms - 1, 2},
		{2*period + 2*ms + 1, 3},
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
	r, last := arrivalsAt(repeat(period, 8)...)
	before := *r
	r.arrived(last)
	r.arrived(last - 5)
	if *r != before {
		t.Error("an arrival that was reported before changed the prediction")
	}
}
