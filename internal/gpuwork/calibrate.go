package gpuwork

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// Fit is the time of the spin kernel as a straight line through measured launches.
type Fit struct {
	Blocks         int
	NsPerIteration float64
	OverheadUs     float64 // of a launch without iterations, measured with events
	// Residual is the largest relative distance of a measured time from the line. If
	// it is well above 0.05, another process used the GPU.
	Residual float64
}

// Iterations returns how many iterations take that long on an idle GPU.
func (f Fit) Iterations(length time.Duration) (uint32, error) {
	n := math.Round(float64(length) / f.NsPerIteration)
	if !(n >= 1 && n <= math.MaxUint32) {
		return 0, fmt.Errorf("a kernel of %v needs %g iterations of %g ns: out of range", length, n, f.NsPerIteration)
	}
	return uint32(n), nil
}

const (
	warmUp      = 200 * time.Millisecond // a GPU raises its clock slowly
	longestMs   = 8.0                    // of the launches that are fitted
	repetitions = 7
)

// Calibrate measures the spin kernel with that many blocks. The GPU must be idle.
func Calibrate(g GPU, blocks int) (Fit, error) {
	stream, err := g.NewStream()
	if err != nil {
		return Fit{}, err
	}
	start, err := g.NewEvent(true)
	if err != nil {
		return Fit{}, err
	}
	end, err := g.NewEvent(true)
	if err != nil {
		return Fit{}, err
	}
	measure := func(iterations uint32) (float64, error) { return timed(stream, start, g.Spin(blocks, iterations), end) }
	longest, err := findLongest(measure)
	if err != nil {
		return Fit{}, err
	}
	for begun := time.Now(); time.Since(begun) < warmUp; {
		if _, err := measure(longest); err != nil {
			return Fit{}, err
		}
	}
	fit, err := fitTimes(measure, longest)
	fit.Blocks = blocks
	return fit, err
}

// timed returns how many milliseconds one launch takes by the GPU's clock.
func timed(s Stream, start Event, k Kernel, end Event) (float64, error) {
	if err := cmp.Or(start.Record(s), k.Launch(s), end.Record(s), end.Synchronize()); err != nil {
		return 0, err // the first; the calls after it did no harm
	}
	return end.MillisecondsSince(start)
}

// findLongest doubles the iterations until a launch takes long enough.
func findLongest(measure func(uint32) (float64, error)) (uint32, error) {
	for n := uint32(256); n < 1<<30; n *= 2 {
		ms, err := measure(n)
		if err != nil {
			return 0, err
		}
		if ms >= longestMs {
			return n, nil
		}
	}
	return 0, fmt.Errorf("calibrate: %d iterations take less than %g ms: the kernel does no work", 1<<30, longestMs)
}

// fitTimes fits a line through the median time at each of eight lengths.
func fitTimes(measure func(uint32) (float64, error), longest uint32) (Fit, error) {
	var x, y []float64
	for n := longest / 8; n <= longest; n += longest / 8 {
		times := make([]float64, repetitions)
		for i := range times {
			ms, err := measure(n)
			if err != nil {
				return Fit{}, err
			}
			times[i] = ms * 1e6
		}
		slices.Sort(times)
		x, y = append(x, float64(n)), append(y, stats.Quantile(times, 0.5))
	}
	slope, intercept := line(x, y)
	if !(slope > 0) || math.IsInf(slope, 0) {
		return Fit{}, fmt.Errorf("calibrate: times %v ns for %v iterations do not increase", y, x)
	}
	fit := Fit{NsPerIteration: slope, OverheadUs: intercept / 1e3}
	for i := range x {
		on := slope*x[i] + intercept
		fit.Residual = max(fit.Residual, math.Abs(y[i]-on)/on)
	}
	return fit, nil
}

// line returns the least-squares line through points.
func line(x, y []float64) (slope, intercept float64) {
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx += x[i]
		sy += y[i]
		sxx += x[i] * x[i]
		sxy += x[i] * y[i]
	}
	n := float64(len(x))
	slope = (n*sxy - sx*sy) / (n*sxx - sx*sx)
	return slope, (sy - slope*sx) / n
}
