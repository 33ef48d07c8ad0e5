package report

import (
	"fmt"
	"math"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/stats"
)

// latencyGroup is the rows of one group: alone, then each run.
type latencyGroup struct {
	Name, Class, Device string
	Rows                []latencyRow
}

type latencyRow struct {
	Run, Colour string
	Cells       []timeCell // P50, P90, P99, max, mean
	Requests    string
	Unanswered  string
	SLOMet      string // empty without an SLO
}

type timeCell struct {
	Time, Ratio string
	Key         bool // the column that the finding is about
}

func (s *study) latencyTable() []latencyGroup {
	var all []latencyGroup
	for _, g := range s.Latency {
		t := latencyGroup{Name: g.Name, Class: g.Class.String(), Device: string(g.Device)}
		t.Rows = append(t.Rows, newLatencyRow("alone", htmlreport.AloneColour, &g.Alone, nil))
		for i := range g.Runs {
			t.Rows = append(t.Rows, newLatencyRow(s.Runs[i].Policy, s.runs[i], &g.Runs[i], &g.Alone))
		}
		all = append(all, t)
	}
	return all
}

// newLatencyRow shows f, with ratios to alone unless that is nil.
func newLatencyRow(name, colour string, f, alone *analysis.Figures) latencyRow {
	row := latencyRow{Run: name, Colour: colour, Requests: format.Integer(uint64(f.Requests))}
	if f.Unanswered > 0 {
		row.Unanswered = format.Integer(uint64(f.Unanswered))
	}
	if !math.IsNaN(f.SLOMet) {
		row.SLOMet = format.Percent(f.SLOMet) + " within " + format.Duration(f.SLO)
	}
	for i, d := range columns(&f.Latency) {
		cell := timeCell{Time: format.Missing, Key: i == 2}
		if f.Latency.Count > 0 {
			cell.Time = format.Duration(d)
			if alone != nil && alone.Latency.Count > 0 {
				cell.Ratio = format.Ratio(stats.Ratio(d, columns(&alone.Latency)[i]))
			}
		}
		row.Cells = append(row.Cells, cell)
	}
	return row
}

func columns(l *stats.Summary) [5]time.Duration {
	return [5]time.Duration{l.P50, l.P90, l.P99, l.Max, l.Mean}
}

// workTable has a row for each group and a column for each run.
type workTable struct {
	Runs []runHead
	Rows []workRow
}

type runHead struct{ Policy, Colour string }

type workRow struct {
	Name, Class, Device, Colour string
	Alone                       string
	Cells                       []workCell
	Total                       bool // of a class or of all
}

type workCell struct{ Rate, Kept, Range string }

func (s *study) workTable() *workTable {
	if len(s.Work) == 0 {
		return nil
	}
	t := &workTable{}
	for i, r := range s.Runs {
		t.Runs = append(t.Runs, runHead{r.Policy, s.runs[i]})
	}
	for _, g := range s.Work {
		row := workRow{Name: g.Name, Class: g.Class.String(), Device: string(g.Device), Colour: s.colours[g], Alone: format.Rate(g.Alone.Rate)}
		for i := range g.Runs {
			f := &g.Runs[i]
			cell := workCell{Rate: format.Rate(f.Rate), Kept: format.Percent(f.WorkKept)}
			if g.Count > 1 {
				cell.Range = fmt.Sprintf("each %s to %s", format.Rate(f.MinRate), format.Rate(f.MaxRate))
			}
			row.Cells = append(row.Cells, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	for _, c := range s.Classes {
		if len(c.Groups) == 1 {
			continue
		}
		row := workRow{Name: c.Class.String() + " clients together", Total: true}
		if c.OpenLoop {
			row.Alone = format.Rate(c.Alone)
		}
		for _, f := range c.Runs {
			cell := workCell{Kept: format.Percent(f.WorkKept)}
			if c.OpenLoop {
				cell.Rate = format.Rate(f.Rate)
			}
			row.Cells = append(row.Cells, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// tails are the latency distributions: a plot for each group, or one for all
// groups if they are many.
type tails struct {
	Plots []*htmlreport.TailPlot
	Note  string
}

// maxTailPlots is how many groups get a plot of their own.
const maxTailPlots = 4

func (s *study) tails() *tails {
	if len(s.Latency) == 0 {
		return nil
	}
	t := &tails{}
	add := func(p *htmlreport.TailPlot) {
		if p != nil {
			t.Plots = append(t.Plots, p)
		}
	}
	if len(s.Latency) > maxTailPlots {
		name := fmt.Sprintf("%d groups of clients together", len(s.Latency))
		t.Note = "Latencies are multiples of the group's own median alone, so that groups with requests of different length can be pooled."
		add(htmlreport.NewTailPlot(name, "latency over median alone, logarithmic", s.series(s.Latency, true), format.Ratio, true))
	} else {
		for _, g := range s.Latency {
			add(htmlreport.NewTailPlot(g.Name, "latency, logarithmic", s.series([]*analysis.Group{g}, false), format.Nanoseconds, false))
		}
	}
	if len(t.Plots) == 0 {
		t.Note = "There were no requests, so there is nothing to draw."
	}
	return t
}

// series returns the latencies of groups: alone, then in each run.
func (s *study) series(groups []*analysis.Group, overMedian bool) []htmlreport.Series {
	all := []htmlreport.Series{{Name: "alone", Colour: htmlreport.AloneColour}}
	for i, r := range s.Runs {
		all = append(all, htmlreport.Series{Name: r.Policy, Colour: s.runs[i]})
	}
	for _, g := range groups {
		unit := 1.0
		if overMedian {
			unit = float64(max(g.Alone.Latency.P50, 1))
		}
		all[0].Add(g.Alone.Samples, unit)
		for i := range g.Runs {
			all[1+i].Add(g.Runs[i].Samples, unit)
		}
	}
	return all
}
