package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Dist is a distribution of durations. The zero value is always zero.
type Dist struct {
	Kind   DistKind
	Mean   time.Duration // of Uniform: half-way between Min and Max
	Min    time.Duration
	Max    time.Duration
	Jitter float64 // Normal and LogNormal: the standard deviation, as a fraction of the mean
}

// DistKind is the shape of a Dist.
type DistKind uint8

const (
	Fixed DistKind = iota
	Uniform
	Normal // truncated at zero and at three times the mean
	LogNormal
	Exponential
)

// Always returns the distribution whose only value is d.
func Always(d time.Duration) Dist { return Dist{Mean: d} }

// Between returns the uniform distribution from lo to hi.
func Between(lo, hi time.Duration) Dist {
	return Dist{Kind: Uniform, Mean: (lo + hi) / 2, Min: lo, Max: hi}
}

// Around returns the normal distribution about mean.
func Around(mean time.Duration, jitter float64) Dist {
	return Dist{Kind: Normal, Mean: mean, Jitter: jitter}
}

// draw returns a random duration of at least zero.
func (d Dist) draw(r *rand.Rand) time.Duration {
	mean := float64(d.Mean)
	switch d.Kind {
	case Uniform:
		if d.Max <= d.Min {
			return d.Min
		}
		return d.Min + time.Duration(r.Int64N(int64(d.Max-d.Min)+1))
	case Normal:
		x := mean * (1 + d.Jitter*r.NormFloat64())
		return time.Duration(min(max(x, 0), 3*mean))
	case LogNormal:
		// Parameters of the logarithm, for this mean and standard deviation Jitter*mean.
		s2 := math.Log(1 + d.Jitter*d.Jitter)
		return time.Duration(math.Exp(math.Log(mean) - s2/2 + math.Sqrt(s2)*r.NormFloat64()))
	case Exponential:
		return time.Duration(mean * r.ExpFloat64())
	}
	return d.Mean
}
