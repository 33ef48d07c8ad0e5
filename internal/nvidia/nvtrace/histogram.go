package nvtrace

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations in 64 steps to a doubling, so that a quantile is
// within 1 % of one that was measured.
type histogram struct {
	counts [(maxSwitchBits - subBits + 1) << subBits]uint64
	n      uint64
	max    int64
}

const (
	subBits       = 6
	maxSwitchBits = 20 // MaxSwitch is less than 1<<20 ns
)

// add counts ns, which is from 0 to MaxSwitch.
func (h *histogram) add(ns int64) {
	h.counts[bucket(uint64(ns))]++
	h.n++
	h.max = max(h.max, ns)
}

// bucket is where v goes: itself below 64, then 64 buckets to each power of two.
func bucket(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - subBits
	return shift<<subBits + int(v>>shift)
}

// quantile returns the middle of the bucket that the part q ends in, and no more
// than the largest there was.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(h.n))), 1)
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen < rank {
			continue
		}
		shift := max(i>>subBits-1, 0)
		low := int64(i-shift<<subBits) << shift
		return time.Duration(min(low+(int64(1)<<shift)/2, h.max))
	}
	return time.Duration(h.max)
}
