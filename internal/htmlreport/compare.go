package htmlreport

import (
	"math"

	"github.com/giveway/giveway/internal/format"
)

// Comparison draws, for each run, the work kept as a bar and the P99 over the P99
// alone as a dot.
type Comparison struct {
	Rows                 []comparisonRow
	Height               int // of the rows
	Full                 int // with the axis
	Kept, Tail           *axis
	KeptTitle, TailTitle string
	LongText             bool // a text beside a dot is longer than a ratio
}

type axis struct {
	Ticks []Tick
	One   string // position of 1
}

// Run is one row of a Comparison. Kept and Ratio are NaN if they are not known.
type Run struct {
	Name, Colour string
	Kept         float64
	Parts        []Part // of Kept, by client
	Ratio        float64
	RatioText    string // beside the dot; empty: the ratio
	Dots         []Dot  // all clients' ratios, the largest included
}

// Part is one client's part of the work kept.
type Part struct {
	Name, Colour string
	Size         float64
	Kept         float64 // of the client's own work
}

// Dot is one client's P99 over its P99 alone.
type Dot struct {
	Name  string
	Ratio float64
}

type comparisonRow struct {
	Name, Full, Colour string
	TextY, BarY, DotY  int
	Bars               []bar
	Kept, KeptX        string
	Dots               []drawnDot
	Tail, TailX        string
}

type bar struct{ Name, Kept, X, W, Colour string }

type drawnDot struct {
	Name, X string
	Large   bool
}

const (
	rowHeight = 34
	barHeight = 18

	maxRatioText = 6 // characters of a ratio; a longer text needs the class long
)

// NewComparison draws the runs. It returns nil if neither figure is known for any.
func NewComparison(runs []Run, keptTitle, tailTitle string) *Comparison {
	c := &Comparison{KeptTitle: keptTitle, TailTitle: tailTitle, Height: len(runs) * rowHeight}
	c.Full = c.Height + 22
	most, low, high := 1.0, 1.0, 1.0
	hasKept, hasTail := false, false
	for _, r := range runs {
		if !math.IsNaN(r.Kept) {
			hasKept, most = true, max(most, r.Kept)
		}
		for _, d := range r.Dots {
			if d.Ratio > 0 {
				hasTail, low, high = true, min(low, d.Ratio), max(high, d.Ratio)
			}
		}
	}
	if !hasKept && !hasTail {
		return nil
	}
	// The style sheet leaves room for the texts to the right of both plots.
	kept, tail := Scale{High: most}, LogScale(low, high)
	for i := range runs {
		c.Rows = append(c.Rows, runs[i].row(i*rowHeight, kept, tail))
		c.LongText = c.LongText || len(c.Rows[i].Tail) > maxRatioText
	}
	if hasKept {
		c.Kept = &axis{One: Coordinate(kept.At(1)), Ticks: kept.Ticks(3, format.Percent)}
	}
	if hasTail {
		c.Tail = &axis{One: Coordinate(tail.At(1)), Ticks: tail.Ticks(3, format.Ratio)}
	}
	return c
}

func (r *Run) row(y int, kept, tail Scale) comparisonRow {
	row := comparisonRow{
		Name: clip(r.Name, 15), Full: r.Name, Colour: r.Colour,
		BarY: y + (rowHeight-barHeight)/2, TextY: y + rowHeight/2 + 4, DotY: y + rowHeight/2,
	}
	if !math.IsNaN(r.Kept) {
		at := 0.0
		for _, p := range r.Parts {
			if p.Size > 0 {
				row.Bars = append(row.Bars, bar{
					Name: p.Name, Kept: format.Percent(p.Kept), Colour: p.Colour,
					X: Coordinate(kept.At(at)), W: Coordinate(kept.At(at+p.Size) - kept.At(at)),
				})
				at += p.Size
			}
		}
		row.Kept, row.KeptX = format.Percent(r.Kept), Coordinate(kept.At(at))
	}
	for _, d := range r.Dots {
		if d.Ratio > 0 {
			row.Dots = append(row.Dots, drawnDot{Name: d.Name + ": " + format.Ratio(d.Ratio), X: Coordinate(tail.At(d.Ratio)), Large: d.Ratio == r.Ratio})
		}
	}
	if !math.IsNaN(r.Ratio) {
		row.Tail, row.TailX = r.RatioText, Coordinate(tail.At(r.Ratio))
		if row.Tail == "" {
			row.Tail = format.Ratio(r.Ratio)
		}
	}
	return row
}
