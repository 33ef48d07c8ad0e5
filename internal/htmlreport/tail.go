package htmlreport

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/stats"
)

// TailPlot draws latency distributions so that the tail is visible: every step up
// leaves a tenth of the slower requests, so P99.9 takes as much room as P90.
//
// Lengths across are per cent, so that the plot takes any width; lengths down are
// pixels.
type TailPlot struct {
	Title, XLabel string
	Lines         []tailLine
	X, Y          []Tick
	Low, High     string
	Nines         string // -log10 of the share of slower requests at the top
	Ratio         bool   // values are multiples, not times
}

// Series is one distribution of a TailPlot.
type Series struct {
	Name, Colour string
	values       []value // in order
	count        int     // of values, each as often as it occurs
}

// value is a positive value, in nanoseconds unless the plot is of multiples.
type value struct {
	at    float64
	count int // how often it occurs
	rank  int // how many values of the series are not greater
}

// Add adds latencies in multiples of unit.
func (s *Series) Add(latencies *stats.Distribution, unit float64) {
	for d, n := range latencies.All() {
		s.values = append(s.values, value{at: float64(max(d, 1)) / unit, count: n})
	}
	slices.SortStableFunc(s.values, func(a, b value) int { return cmp.Compare(a.at, b.at) })
	s.count = 0
	for i := range s.values {
		s.count += s.values[i].count
		s.values[i].rank = s.count
	}
}

// quantile is stats.Quantile of a series that is not empty.
func (s *Series) quantile(q float64) float64 {
	return s.ranked(min(max(int(math.Ceil(q*float64(s.count))), 1), s.count))
}

// ranked returns the value of a rank, from 1 to s.count.
func (s *Series) ranked(rank int) float64 {
	i, _ := slices.BinarySearchFunc(s.values, rank, func(v value, rank int) int { return cmp.Compare(v.rank, rank) })
	return s.values[i].at
}

// tailLine is the distribution of one series.
type tailLine struct {
	Series
	Points     string
	P99        string
	P99X, P99Y string // position of the P99; empty with less than 100 values
}

const (
	tailHeight = 250 // of the plot in pixels, without the axis; also in plots.tmpl
	maxPoints  = 300
	maxNines   = 4.0
)

// NewTailPlot draws the series that have values. It returns nil if none has.
// format writes a value; ratio says that values are multiples.
func NewTailPlot(title, xLabel string, series []Series, format func(float64) string, ratio bool) *TailPlot {
	p := &TailPlot{Title: title, XLabel: xLabel, Ratio: ratio}
	low, high, most := math.Inf(1), 0.0, 0
	for _, s := range series {
		if s.count > 0 {
			p.Lines = append(p.Lines, tailLine{Series: s, P99: format(s.quantile(0.99))})
			low, high, most = min(low, s.quantile(0)), max(high, s.quantile(1)), max(most, s.count)
		}
	}
	if len(p.Lines) == 0 {
		return nil
	}
	x := LogScale(low, high)
	nines := min(max(math.Log10(float64(most)), 2.05), maxNines)
	down := func(n float64) string { return Coordinate(tailHeight * (1 - min(n, nines)/nines)) }
	for i := range p.Lines {
		p.Lines[i].draw(x, down, nines)
	}
	p.X = x.Ticks(5, format)
	for i, name := range []string{"P50", "P90", "P99", "P99.9", "P99.99"} {
		if n := max(float64(i), -math.Log10(0.5)); n <= nines+1e-9 {
			p.Y = append(p.Y, Tick{At: down(n), Label: name})
		}
	}
	p.Low, p.High = Coordinate(math.Log10(x.Low)*1000), Coordinate(math.Log10(x.High)*1000)
	p.Nines = Coordinate(nines)
	return p
}

// draw makes the points of a line: a step for every value if they are few, else
// maxPoints points that are evenly spread over the height.
func (l *tailLine) draw(x Scale, down func(float64) string, nines float64) {
	n := l.count
	var b strings.Builder
	point := func(v, nine float64) { fmt.Fprintf(&b, "%s,%s ", Coordinate(10*x.At(v)), down(nine)) }
	if 2*n <= maxPoints {
		for i := range n {
			v := l.ranked(i + 1)
			point(v, max(-math.Log10(float64(n-i)/float64(n)), 0))
			if i+1 < n {
				point(v, -math.Log10(float64(n-i-1)/float64(n)))
			}
		}
	} else {
		top := min(math.Log10(float64(n)), nines)
		for i := range maxPoints {
			nine := top * float64(i) / (maxPoints - 1)
			point(l.quantile(1-math.Pow(10, -nine)), nine)
		}
	}
	l.Points = strings.TrimSpace(b.String())
	if n >= 100 {
		l.P99X, l.P99Y = Coordinate(x.At(l.quantile(0.99))), down(2)
	}
}
