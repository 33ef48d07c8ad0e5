package stats

import "math"

// Bin counts the samples from From to To.
type Bin struct {
	From, To float64
	Count    uint64
}

// Median is the median of samples with its 95 % confidence bounds.
type Median struct {
	Count             uint64
	Median, Low, High float64 // zero: fewer than minForBounds samples
}

// minForBounds is the number of samples from which on the lowest and the highest of them
// enclose the median with a probability of 95 %.
const minForBounds = 6

// MedianOf returns the median of samples in bins, which must be in order. The bounds are order
// statistics, so they need no assumption about the distribution. They are rounded outwards to
// the edges of bins.
func MedianOf(bins []Bin) (m Median) {
	for _, b := range bins {
		m.Count += b.Count
	}
	if m.Count < minForBounds {
		return m
	}
	n := float64(m.Count)
	away := 1.96 * math.Sqrt(n) / 2
	low, high := max(math.Floor(n/2-away), 1), min(math.Ceil(n/2+1+away), n) // numbers of samples, from 1
	before := 0.0
	for _, b := range bins {
		upTo := before + float64(b.Count)
		if before < low && low <= upTo {
			m.Low = b.From
		}
		if before < n/2 && n/2 <= upTo {
			m.Median = b.From + (b.To-b.From)*(n/2-before)/float64(b.Count)
		}
		if before < high && high <= upTo {
			m.High = b.To
		}
		before = upTo
	}
	return m
}
