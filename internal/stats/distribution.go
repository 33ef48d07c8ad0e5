package stats

import (
	"iter"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Distribution collects times in bounded memory. Up to exactLimit times it is exact.
// Beyond that it counts the times in buckets, and a quantile is at most 0.4% wrong;
// count, mean and maximum stay exact. The zero value is empty.
type Distribution struct {
	samples []time.Duration // exact; nil once there are buckets
	sorted  bool            // samples are in order
	buckets []uint64        // counts by bucketOf
	count   int
	sum     float64
	min     time.Duration
	max     time.Duration
}

const (
	exactLimit = 1 << 14

	// A power of two is divided into 1<<bucketBits buckets of equal width. A bucket is at
	// most 1/128 as wide as its times are long, and its middle is at most half of that
	// from each of them.
	bucketBits = 7
)

// NewDistribution returns the distribution of samples.
func NewDistribution(samples ...time.Duration) Distribution {
	var d Distribution
	for _, t := range samples {
		d.Add(t)
	}
	return d
}

// Add adds one time. A negative one counts as zero.
func (d *Distribution) Add(t time.Duration) { d.add(max(t, 0), 1) }

// Merge adds all times of other.
func (d *Distribution) Merge(other *Distribution) {
	if other.count == 0 {
		return
	}
	low, high, sum := other.min, other.max, d.sum+other.sum
	for t, n := range other.All() {
		d.add(t, n)
	}
	// All gives the middles of buckets. These are known exactly.
	d.min, d.max, d.sum = min(d.min, low), max(d.max, high), sum
}

func (d *Distribution) add(t time.Duration, n int) {
	if d.count == 0 {
		d.min = t
	}
	d.count += n
	d.sum += float64(t) * float64(n)
	d.min, d.max = min(d.min, t), max(d.max, t)
	if d.buckets == nil && d.count <= exactLimit {
		for range n {
			d.samples = append(d.samples, t)
		}
		d.sorted = false
		return
	}
	for _, s := range d.samples {
		d.addToBucket(s, 1)
	}
	d.samples = nil
	d.addToBucket(t, n)
}

func (d *Distribution) addToBucket(t time.Duration, n int) {
	i := bucketOf(t)
	if i >= len(d.buckets) {
		d.buckets = append(d.buckets, make([]uint64, i+1-len(d.buckets))...)
	}
	d.buckets[i] += uint64(n)
}

// bucketOf returns the index of the bucket of t: t itself if it is short, else the
// position of its highest bit followed by the next bucketBits bits.
func bucketOf(t time.Duration) int {
	shift := max(bits.Len64(uint64(t))-1-bucketBits, 0)
	return shift<<bucketBits + int(t>>shift)
}

// middleOf returns the time in the middle of a bucket.
func middleOf(bucket int) time.Duration {
	shift := max(bucket>>bucketBits-1, 0)
	low := time.Duration(bucket-shift<<bucketBits) << shift
	return low + (time.Duration(1)<<shift-1)/2
}

// Count returns the number of times.
func (d *Distribution) Count() int { return d.count }

// All returns every time in order, and how often it occurs. Beyond exactLimit they are
// the middles of buckets, but never outside the least and the greatest time.
func (d *Distribution) All() iter.Seq2[time.Duration, int] {
	return func(yield func(time.Duration, int) bool) {
		for _, t := range d.inOrder() {
			if !yield(t, 1) {
				return
			}
		}
		for i, n := range d.buckets {
			if n > 0 && !yield(min(max(middleOf(i), d.min), d.max), int(n)) {
				return
			}
		}
	}
}

func (d *Distribution) inOrder() []time.Duration {
	if !d.sorted {
		slices.Sort(d.samples)
		d.sorted = true
	}
	return d.samples
}

// Quantile returns the smallest time that is not exceeded by a share q of all times.
// Without times it is zero.
func (d *Distribution) Quantile(q float64) time.Duration {
	rank := min(max(int(math.Ceil(q*float64(d.count))), 1), d.count)
	switch {
	case d.buckets == nil:
		return Quantile(d.inOrder(), q)
	case rank == d.count:
		return d.max
	}
	for t, n := range d.All() {
		if rank -= n; rank <= 0 {
			return t
		}
	}
	return d.max
}

// Summary returns the summary of the distribution.
func (d *Distribution) Summary() Summary {
	if d.count == 0 {
		return Summary{}
	}
	return Summary{
		Count: d.count,
		Mean:  time.Duration(d.sum / float64(d.count)),
		P50:   d.Quantile(0.50),
		P90:   d.Quantile(0.90),
		P95:   d.Quantile(0.95),
		P99:   d.Quantile(0.99),
		Max:   d.max,
	}
}
