package report

import (
	"fmt"
	"math"
)

// trade shows what a run keeps of the batch work beside what that costs online
// clients.
type trade struct {
	Rows       []tradeRow
	Height     int // of the rows
	Full       int // with the axis
	Kept, Tail *axis
	Stacked    bool // bars are made of more than one client
	Dots       bool // there is more than one online client
}

type axis struct {
	Ticks []tick
	One   string // where one is
}

type tradeRow struct {
	Policy, Full, Colour string
	Y, TextY, BarY       int
	Bars                 []bar
	Kept, KeptX          string
	Dots                 []dot
	Tail, TailX          string
	TailLeft             bool // the number stands left of its dot: there is no room on the right
	DotY                 int
}

type bar struct{ Name, Kept, X, W, Colour string }

type dot struct {
	Name, X string
	Worst   bool
}

const (
	tradeRowHeight = 34
	barHeight      = 18
)

func (s *study) trade() *trade {
	if len(s.runs) == 0 {
		return nil
	}
	t := &trade{Stacked: len(s.rates) > 1, Dots: len(s.latency) > 1}
	mostKept, lo, hi := 1.0, 1.0, 1.0
	haveKept, haveTail := false, false
	for i, r := range s.runs {
		if !math.IsNaN(r.kept) {
			haveKept, mostKept = true, max(mostKept, r.kept)
		}
		for _, sub := range s.latency {
			if x := sub.p99Ratio(i); x > 0 {
				haveTail, lo, hi = true, min(lo, x), max(hi, x)
			}
		}
	}
	if !haveKept && !haveTail {
		return nil
	}
	kept := scale{lo: 0, hi: mostKept * 1.2} // room for the number
	tail := logScale(lo, hi*math.Pow(max(hi/lo, 2), 0.45))
	for i := range s.runs {
		t.Rows = append(t.Rows, s.tradeRow(i, kept, tail))
	}
	t.Height = len(t.Rows) * tradeRowHeight
	t.Full = t.Height + 22
	if haveKept {
		t.Kept = &axis{One: num(kept.at(1)), Ticks: kept.ticks(3, percent)}
	}
	if haveTail {
		t.Tail = &axis{One: num(tail.at(1)), Ticks: tail.ticks(3, times)}
	}
	return t
}

func (s *study) tradeRow(i int, kept, tail scale) tradeRow {
	r := s.runs[i]
	y := i * tradeRowHeight
	row := tradeRow{
		Policy: short(r.policy, 15), Full: r.policy, Colour: r.colour,
		Y: y, BarY: y + (tradeRowHeight-barHeight)/2, TextY: y + tradeRowHeight/2 + 4, DotY: y + tradeRowHeight/2,
	}
	if !math.IsNaN(r.kept) {
		at := 0.0
		for _, sub := range s.rates {
			if part := s.part(sub, i); part > 0 {
				row.Bars = append(row.Bars, bar{
					Name: sub.name, Kept: percent(sub.kept(i)), Colour: sub.colour,
					X: num(kept.at(at)), W: num(kept.at(at+part) - kept.at(at)),
				})
				at += part
			}
		}
		row.Kept, row.KeptX = percent(r.kept), num(kept.at(at))
	}
	for _, sub := range s.latency {
		if x := sub.p99Ratio(i); x > 0 {
			row.Dots = append(row.Dots, dot{Name: fmt.Sprintf("%s: %s", sub.name, times(x)), X: num(tail.at(x)), Worst: sub == r.worst})
		}
	}
	if !math.IsNaN(r.ratio) {
		row.Tail, row.TailX, row.TailLeft = times(r.ratio), num(tail.at(r.ratio)), tail.at(r.ratio) > 68
	}
	return row
}
