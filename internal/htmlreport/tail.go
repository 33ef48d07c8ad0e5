package htmlreport

import (
	"cmp"
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
	Top, Height   int // of the plot within the drawing
	Full          int // height of the drawing
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
	P99X, P99Y string // position of the P99; empty with less than 100 values
	Label      string
	Anchor     string
	EndX       string
	EndY       int
	LabelY     int

	end, left, right float64
	row              int // of the label, counted upwards
}

const (
	tailHeight = 250
	labelRow   = 17
	maxPoints  = 300
	maxNines   = 4.0
)

// NewTailPlot draws the series that have values. It returns nil if none has.
// format writes a value; ratio says that values are multiples.
func NewTailPlot(title, xLabel string, series []Series, format func(float64) string, ratio bool) *TailPlot {
	p := &TailPlot{Title: title, XLabel: xLabel, Ratio: ratio, Height: tailHeight}
	low, high, most := math.Inf(1), 0.0, 0
	for _, s := range series {
		if n := len(s.Values); n > 0 {
			label := Clip(s.Name, 18) + " P99 " + format(stats.Quantile(s.Values, 0.99))
			p.Lines = append(p.Lines, tailLine{Series: s, Label: label})
			low, high, most = min(low, s.Values[0]), max(high, s.Values[n-1]), max(most, n)
		}
	}
	if len(p.Lines) == 0 {
		return nil
	}
	x := LogScale(low, high)
	nines := min(max(math.Log10(float64(most)), 2.05), maxNines)
	down := func(n float64) float64 { return tailHeight * (1 - min(n, nines)/nines) }
	for i := range p.Lines {
		p.Lines[i].draw(x, down, nines)
	}
	p.Top = placeLabels(p.Lines)*labelRow + 8
	p.Full = p.Top + p.Height + 22
	for i := range p.Lines {
		l := &p.Lines[i]
		l.EndY += p.Top
		l.LabelY = p.Top - 8 - l.row*labelRow
	}
	p.X = x.Ticks(5, format)
	for i, name := range []string{"P50", "P90", "P99", "P99.9", "P99.99"} {
		n := max(float64(i), -math.Log10(0.5))
		if n <= nines+1e-9 {
			p.Y = append(p.Y, Tick{At: Coordinate(float64(p.Top) + down(n)), Label: name})
		}
	}
	p.Low, p.High = Coordinate(math.Log10(x.Low)*1000), Coordinate(math.Log10(x.High)*1000)
	p.Nines = Coordinate(nines)
	return p
}

// draw makes the points of a line: a step for every value if they are few, else
// maxPoints points that are evenly spread over the height.
func (l *tailLine) draw(x Scale, down func(float64) float64, nines float64) {
	n := len(l.Values)
	var b strings.Builder
	point := func(v, nine float64) {
		l.end = x.At(v)
		l.EndY = int(math.Round(down(nine)))
		fmt.Fprintf(&b, "%s,%s ", Coordinate(10*l.end), Coordinate(down(nine)))
	}
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
	l.EndX = Coordinate(l.end)
	if n >= 100 {
		l.P99X, l.P99Y = Coordinate(x.At(stats.Quantile(l.Values, 0.99))), Coordinate(down(2))
	}
}

// placeLabels puts every line's label into a row above the plot: the lowest row
// where labels do not overlap and, if there is one, no leader to the plot passes
// behind a label. It assumes a narrow screen and returns the number of rows.
func placeLabels(lines []tailLine) int {
	const screen, letter = 330.0, 6.7 // pixels
	order := make([]*tailLine, len(lines))
	for i := range lines {
		l := &lines[i]
		order[i] = l
		width := 100 * (letter*float64(len([]rune(l.Label))) + 8) / screen
		l.Anchor, l.left, l.right = "start", l.end-1, l.end+width
		if l.end > 50 {
			l.Anchor, l.left, l.right = "end", l.end-width, l.end+1
		}
	}
	// From the middle outwards: the leader of an outer label passes the inner ones.
	slices.SortStableFunc(order, func(a, b *tailLine) int {
		return cmp.Compare(math.Abs(a.end-50), math.Abs(b.end-50))
	})
	rows := 1
	for i, l := range order {
		for l.row = 0; l.row < len(order); l.row++ {
			if !slices.ContainsFunc(order[:i], l.touches) {
				break
			}
		}
		if l.row == len(order) {
			for l.row = 0; slices.ContainsFunc(order[:i], l.overlaps); {
				l.row++
			}
		}
		rows = max(rows, l.row+1)
	}
	return rows
}

// touches reports whether the labels overlap, or one label and the other's leader.
func (l *tailLine) touches(m *tailLine) bool {
	upper, lower := l, m
	if l.row < m.row {
		upper, lower = m, l
	}
	return l.overlaps(m) || l.row != m.row && upper.end >= lower.left && upper.end <= lower.right
}

func (l *tailLine) overlaps(m *tailLine) bool {
	return l.row == m.row && l.left < m.right && m.left < l.right
}
