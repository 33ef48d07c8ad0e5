// Package stats sums up measured times as a distribution: never as a mean alone.
package stats

import (
	"math"
	"slices"
	"time"
)

// Summary is a distribution in a few numbers.
type Summary struct {
	Count int           `json:"count"`
	Mean  time.Duration `json:"mean_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P95   time.Duration `json:"p95_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

// Summarize sums up samples, which it sorts.
func Summarize(samples []time.Duration) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	slices.Sort(samples)
	var sum float64
	for _, s := range samples {
		sum += float64(s)
	}
	return Summary{
		Count: len(samples),
		Mean:  time.Duration(sum / float64(len(samples))),
		P50:   Quantile(samples, 0.50),
		P90:   Quantile(samples, 0.90),
		P95:   Quantile(samples, 0.95),
		P99:   Quantile(samples, 0.99),
		Max:   samples[len(samples)-1],
	}
}

// Quantile returns the least sample that at least a part q of the sorted
// samples do not exceed: always a value that was measured.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
