package policy

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// rhythm predicts the arrivals of a queue whose requests come at regular intervals. Requests
// count as regular after eight intervals of which at most one differs. From then on rhythm
// follows their period and phase. The period is a mean of the intervals,
// whatever the phase is, so the two cannot make each other oscillate. An arrival is reported
// late, never early, so the phase follows early arrivals at once and late ones slowly. When
// too many arrivals do not come at the expected times, rhythm begins anew.
type rhythm struct {
	last   sched.Time // the last arrival
	period time.Duration
	next   sched.Time    // when the next arrival is expected; valid if period is not zero
	seen   sched.Time    // the last arrival that was expected, or the one that began the prediction
	jitter time.Duration // mean distance of arrivals from where they were expected

	// score rises by one with each expected arrival and falls by missScore with each other
	// one. At zero the prediction ends.
	score int

	intervals [8]time.Duration // the last ones before the prediction began, a ring
	n         int              // intervals so far
}

const (
	// An arrival counts as expected within 1/rhythmTolerance of the period.
	rhythmTolerance = 8
	maxScore        = 16
	pausePeriods    = 4 // periods without an arrival, after which the requests have paused
	missScore       = 5 // so one miss in six ends the prediction

	// At each arrival the period follows 1/rhythmGain of the rest of a change,
	// and the phase follows a late arrival by 1/lateGain. If the period becomes 2 %
	// longer, arrivals are then at most 8 % of a period late, which is within the tolerance.
	rhythmGain = 16
	lateGain   = 8
)

// arrived adds an arrival.
func (r *rhythm) arrived(at sched.Time) {
	if at <= r.last {
		return
	}
	interval := at.Sub(r.last)
	first, expected := r.last == 0, r.seen == r.last
	r.last = at
	switch {
	case first:
	case interval > pausePeriods*r.period+r.period/2 && r.period > 0:
		r.resume(at, expected)
	case r.period == 0:
		r.intervals[r.n%len(r.intervals)] = interval
		r.n++
		r.find(at)
	default:
		r.follow(at)
	}
}

// resume begins a new phase with an arrival after a pause. If the arrival before it began a phase too,
// the period may have become longer. That counts as a miss, and two such misses end the prediction.
func (r *rhythm) resume(at sched.Time, expected bool) {
	if expected && r.score <= missScore+1 {
		if r.score -= missScore; r.score <= 0 {
			*r = rhythm{last: at}
			return
		}
	}
	r.next, r.seen, r.score = at.Add(r.period), at, min(r.score, missScore+1)
}

// find begins to predict if the last intervals are regular. An interval may be a multiple
// of the period: an arrival may have been missed.
func (r *rhythm) find(at sched.Time) {
	if r.n < len(r.intervals) {
		return
	}
	sorted := r.intervals
	slices.Sort(sorted[:])
	usual := sorted[len(sorted)/2]
	regular := 0
	var periods, sum time.Duration
	for _, d := range r.intervals {
		k := (d + usual/2) / usual
		if k > 0 && (d-k*usual).Abs() <= usual/rhythmTolerance {
			regular++
			periods += k
			sum += d
		}
	}
	if regular < len(r.intervals)-1 {
		return
	}
	r.period, r.score = sum/periods, len(r.intervals)
	r.next, r.seen, r.jitter = at.Add(r.period), at, r.period/rhythmTolerance/2
}

// follow compares an arrival with the expected one and corrects phase and period.
func (r *rhythm) follow(at sched.Time) {
	periods := (at.Sub(r.next) + r.period*3/2) / r.period // since seen, to the nearest
	expected := r.next.Add((periods - 1) * r.period)
	off := at.Sub(expected)
	if off.Abs() > r.period/rhythmTolerance {
		if r.score -= missScore; r.score <= 0 {
			*r = rhythm{last: at}
		}
		return
	}
	if periods == 0 {
		return // it is part of the last request
	}
	interval := at.Sub(r.seen) / periods
	r.seen = at
	r.score = min(r.score+1, maxScore)
	r.jitter += (off.Abs() - r.jitter) / 8
	r.period += (interval - r.period) / rhythmGain
	r.next = expected.Add(r.period + min(off, off/lateGain))
}

// expected returns the first expected arrival that is not before now by more than the
// tolerance, or zero. After pausePeriods periods without an arrival it expects none.
func (r *rhythm) expected(now sched.Time) sched.Time {
	if r.period == 0 || now.Sub(r.last) > pausePeriods*r.period+r.period/2 {
		return 0
	}
	tolerance := r.period / rhythmTolerance
	missed := (now.Sub(r.next) - tolerance + r.period - 1) / r.period
	return r.next.Add(max(missed, 0) * r.period)
}
