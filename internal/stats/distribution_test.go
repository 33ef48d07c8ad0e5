package stats_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// TestDistributionAgainstSamples compares the quantiles with those of all samples, for
// few samples, which must agree exactly, and for many, within 0.4%.
func TestDistributionAgainstSamples(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() time.Duration{
		"constant":    func() time.Duration { return 1234567 },
		"nanoseconds": func() time.Duration { return time.Duration(rng.IntN(300)) },
		"uniform":     func() time.Duration { return time.Duration(rng.Int64N(int64(time.Second))) },
		"lognormal":   func() time.Duration { return time.Duration(1e6 * math.Exp(3*rng.NormFloat64())) },
		"two modes":   func() time.Duration { return []time.Duration{100, time.Hour}[rng.IntN(2)] },
		"extremes":    func() time.Duration { return []time.Duration{0, 1, 1 << 62}[rng.IntN(3)] },
	} {
		for _, n := range []int{1, 2, 99, 5000, 100_000} {
			var d stats.Distribution
			samples := make([]time.Duration, n)
			for i := range samples {
				samples[i] = draw()
				d.Add(samples[i])
			}
			within := 0.0
			if n > 10_000 {
				within = 0.004
			}
			checkQuantiles(t, name, &d, samples, within)
		}
	}
}

func checkQuantiles(t *testing.T, name string, d *stats.Distribution, samples []time.Duration, within float64) {
	t.Helper()
	want := stats.Summarize(slices.Clone(samples))
	got := d.Summary()
	if got.Count != want.Count || got.Max != want.Max || math.Abs(float64(got.Mean-want.Mean)) > 1e-9*float64(want.Mean) {
		t.Errorf("%s, %d samples: count %d, mean %v, max %v, want %d, %v, %v",
			name, len(samples), got.Count, got.Mean, got.Max, want.Count, want.Mean, want.Max)
	}
	slices.Sort(samples)
	for _, q := range []float64{0, 0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 0.9999, 1} {
		got, want := d.Quantile(q), stats.Quantile(samples, q)
		if math.Abs(float64(got-want)) > within*float64(want) {
			t.Errorf("%s, %d samples: quantile %g is %v, want %v", name, len(samples), q, got, want)
		}
	}
	total, last := 0, time.Duration(-1)
	for at, n := range d.All() {
		if at < last || at < samples[0] || at > samples[len(samples)-1] {
			t.Errorf("%s: %v after %v, out of order or of range", name, at, last)
		}
		total, last = total+n, at
	}
	if total != len(samples) {
		t.Errorf("%s: all values are %d, want %d", name, total, len(samples))
	}
}

// TestDistributionMerge checks that merging gives the same as adding all samples to one.
func TestDistributionMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for _, sizes := range [][2]int{{0, 0}, {0, 10}, {10, 0}, {10, 20}, {10_000, 10_000}, {10, 50_000}, {50_000, 10}, {50_000, 50_000}} {
		var parts [2]stats.Distribution
		var samples []time.Duration
		for i, n := range sizes {
			for range n {
				s := time.Duration(1e6 * math.Exp(rng.NormFloat64()))
				parts[i].Add(s)
				samples = append(samples, s)
			}
		}
		parts[0].Merge(&parts[1])
		within := 0.0
		if len(samples) > 10_000 {
			within = 0.008 // a time in a bucket may be moved twice
		}
		if len(samples) > 0 {
			checkQuantiles(t, "merged", &parts[0], samples, within)
		} else if parts[0].Summary() != (stats.Summary{}) || parts[0].Quantile(0.5) != 0 {
			t.Errorf("two empty ones: got %+v, want zeros", parts[0].Summary())
		}
	}
}

// TestDistributionMemoryIsBounded adds ten million times, from a nanosecond to centuries.
func TestDistributionMemoryIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var d stats.Distribution
	for i := range 10_000_000 {
		d.Add(time.Duration(math.MaxInt64 >> (i % 63)))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 256<<10 {
		t.Errorf("%d samples take %d bytes, want at most 256 KiB", d.Count(), grown)
	}
}
