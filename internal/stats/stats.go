// Package stats computes the figures that results are judged by: latency
// distributions, ratios of them, and the work that clients keep when they share a
// device. The simulator's analysis and the GPU benchmark use the same functions.
package stats

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Summary describes a distribution of times. The mean alone says little about
// latency, so it never comes without the percentiles.
type Summary struct {
	Count int           `json:"count"`
	Mean  time.Duration `json:"mean_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P95   time.Duration `json:"p95_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

// Summarize returns the summary of samples. It sorts them in place.
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

// Quantile returns the smallest sample that is not exceeded by a share q of all
// samples, which must be sorted. The result is always one of the samples, never an
// interpolation. Without samples it is zero.
func Quantile[T cmp.Ordered](sorted []T, q float64) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Ratio returns a over b, or NaN if b is not positive.
func Ratio[T time.Duration | float64](a, b T) float64 {
	if b <= 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}

// Work is what WorkKept needs to know about one client.
type Work struct {
	Device    string
	Rate      float64 // requests finished per second in the run
	AloneRate float64 // requests finished per second with the device to itself
	AloneUse  float64 // share of the device that the client uses when alone, 0 to 1
}

// WorkKept returns the work that the clients did in a run, as a share of the work
// that the same clients can do on the same devices without any other client. parts
// is what each client contributes to that share.
//
// Work is counted in device time: a client that keeps half of its rate and uses
// 40% of the device alone did 0.2 devices of work. The clients can do the sum of
// what each uses alone, but at most 1 on each device. For a single client this is
// Rate over AloneRate. Clients that did nothing alone are left out; without any
// client the result is NaN.
func WorkKept(clients []Work) (kept float64, parts []float64) {
	possible := 0.0
	demand := map[string]float64{}
	parts = make([]float64, len(clients))
	for i, c := range clients {
		if c.AloneRate <= 0 || c.AloneUse <= 0 {
			continue
		}
		parts[i] = c.Rate / c.AloneRate * c.AloneUse
		before := min(demand[c.Device], 1)
		demand[c.Device] += c.AloneUse
		possible += min(demand[c.Device], 1) - before
	}
	if possible == 0 {
		return math.NaN(), parts
	}
	for i := range parts {
		parts[i] /= possible
		kept += parts[i]
	}
	return kept, parts
}
