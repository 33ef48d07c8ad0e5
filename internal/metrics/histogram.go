package metrics

import (
	"slices"
	"time"
)

// bounds are the upper bounds of the buckets of every histogram. They cover a hold at a gate
// as well as a request that takes seconds.
var bounds = []time.Duration{
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// maxBuckets is the number of buckets: the last one has no upper bound.
const maxBuckets = 20

// histogram counts durations.
type histogram struct {
	counts [maxBuckets]uint64 // not cumulative
	sum    time.Duration
}

// observe counts a duration. A negative one, which only a clock that was set back can give,
// counts as zero: a sum never goes down.
func (h *histogram) observe(d time.Duration) {
	d = max(d, 0)
	i, _ := slices.BinarySearch(bounds, d)
	h.counts[i]++
	h.sum += d
}
