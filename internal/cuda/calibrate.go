package cuda

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Fit says how long spin takes: a straight line through measured launches.
type Fit struct {
	Blocks         int
	NsPerIteration float64
	OverheadUs     float64 // of a launch without iterations, as events see it
	// Residual is the greatest distance of a measured time from the line, as a
	// part of it. Well above 0.05, something else was running on the GPU.
	Residual float64
}

// Iterations is the count that takes that long on an idle GPU.
func (f Fit) Iterations(length time.Duration) (uint32, error) {
	n := math.Round(float64(length) / f.NsPerIteration)
	if !(n >= 1 && n <= math.MaxUint32) {
		return 0, fmt.Errorf("a kernel of %v takes %g iterations of %g ns: out of range", length, n, f.NsPerIteration)
	}
	return uint32(n), nil
}

const (
	warmUp      = 200 * time.Millisecond // GPUs raise their clocks slowly
	longestMs   = 8.0                    // of the launches that are fitted
	repetitions = 7
)

// Calibrate measures spin with that many blocks. Nothing else should use the GPU.
func (m *Module) Calibrate(s *Stream, blocks int) (Fit, error) {
	start, err := m.c.NewEvent(true)
	if err != nil {
		return Fit{}, err
	}
	end, err := m.c.NewEvent(true)
	if err != nil {
		return Fit{}, err
	}
	measure := func(iterations uint32) (float64, error) { return m.timed(s, start, end, blocks, iterations) }
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

// timed returns the milliseconds of one launch by the GPU's clock.
func (m *Module) timed(s *Stream, start, end *Event, blocks int, iterations uint32) (float64, error) {
	if err := start.Record(s); err != nil {
		return 0, err
	}
	if err := m.Spin(blocks, iterations).Launch(s); err != nil {
		return 0, err
	}
	if err := end.Record(s); err != nil {
		return 0, err
	}
	if err := end.Synchronize(); err != nil {
		return 0, err
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

// fitTimes takes the median of some launches at each of several lengths.
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
		x, y = append(x, float64(n)), append(y, times[repetitions/2])
	}
	slope, intercept := line(x, y)
	if !(slope > 0) || math.IsInf(slope, 0) {
		return Fit{}, fmt.Errorf("calibrate: times %v ns for iterations %v do not rise", y, x)
	}
	fit := Fit{NsPerIteration: slope, OverheadUs: intercept / 1e3}
	for i := range x {
		on := slope*x[i] + intercept
		fit.Residual = max(fit.Residual, math.Abs(y[i]-on)/on)
	}
	return fit, nil
}

// line is the least-squares line through points.
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
