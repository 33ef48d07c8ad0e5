package htmlreport

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

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
	Values       []float64 // sorted and positive; in nanoseconds, unless the plot is of multiples
}

// Add adds latencies in multiples of unit.
func (s *Series) Add(latencies []time.Duration, unit float64) {
	for _, d := range latencies {
		s.Values = append(s.Values, float64(max(d, 1))/unit)
	}
	slices.Sort(s.Values)
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
		if n := len(s.Values); n > 0 {
			p.Lines = append(p.Lines, tailLine{Series: s, P99: format(stats.Quantile(s.Values, 0.99))})
			low, high, most = min(low, s.Values[0]), max(high, s.Values[n-1]), max(most, n)
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
	n := len(l.Values)
	var b strings.Builder
	point := func(v, nine float64) { fmt.Fprintf(&b, "%s,%s ", Coordinate(10*x.At(v)), down(nine)) }
	if 2*n <= maxPoints {
		for i, v := range l.Values {
			point(v, max(-math.Log10(float64(n-i)/float64(n)), 0))
			if i+1 < n {
				point(v, -math.Log10(float64(n-i-1)/float64(n)))
			}
		}
	} else {
		top := min(math.Log10(float64(n)), nines)
		for i := range maxPoints {
			nine := top * float64(i) / (maxPoints - 1)
			point(stats.Quantile(l.Values, 1-math.Pow(10, -nine)), nine)
		}
	}
	l.Points = strings.TrimSpace(b.String())
	if n >= 100 {
		l.P99X, l.P99Y = Coordinate(x.At(stats.Quantile(l.Values, 0.99))), down(2)
	}
}
