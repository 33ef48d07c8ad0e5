package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/stats"
)

// latencyRow is a row of the table of latencies: a group alone or in one run.
type latencyRow struct {
	*analysis.Figures
	Run, Colour string
	Cells       []latencyCell // P50, P90, P99, max, mean
}

type latencyCell struct{ Time, Ratio string }

// LatencyRows returns the rows of a group: alone, then each run.
func (v *view) LatencyRows(g *analysis.Group) []latencyRow {
	rows := []latencyRow{newLatencyRow("alone", htmlreport.AloneColour, &g.Alone, nil)}
	for i := range g.Runs {
		rows = append(rows, newLatencyRow(v.Runs[i].Policy, v.RunColours[i], &g.Runs[i], &g.Alone))
	}
	return rows
}

// newLatencyRow shows f, with ratios to alone unless that is nil.
func newLatencyRow(name, colour string, f, alone *analysis.Figures) latencyRow {
	row := latencyRow{Figures: f, Run: name, Colour: colour}
	for i, d := range columns(&f.Latency) {
		cell := latencyCell{Time: format.Missing}
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

// SLO returns the share of requests within the SLO; empty without an SLO.
func (r latencyRow) SLO() string {
	if math.IsNaN(r.SLOMet) {
		return ""
	}
	return format.Percent(r.SLOMet)
}

// HasSLO reports whether a group that is judged by latency has an SLO.
func (v *view) HasSLO() bool {
	return slices.ContainsFunc(v.Latency, func(g *analysis.Group) bool { return g.Alone.SLO > 0 })
}

// ManyRuns reports whether the table of work has a row for each run, because columns for
// all of them would not fit the page.
func (v *view) ManyRuns() bool {
	const mostRuns, mostCharacters = 4, 48
	characters := 0
	for _, r := range v.Runs {
		characters += len(r.Policy)
	}
	return len(v.Runs) > mostRuns || characters > mostCharacters
}

// tails are the latency distributions: a plot for each group, or one for all
// groups if they are many.
type tails struct {
	Plots []*htmlreport.TailPlot
	Note  string
}

// maxTailPlots is how many groups get a plot of their own.
const maxTailPlots = 4

// Tails draws the distributions; nil without groups that are judged by latency.
func (v *view) Tails() *tails {
	if len(v.Latency) == 0 {
		return nil
	}
	t := &tails{}
	add := func(p *htmlreport.TailPlot) {
		if p != nil {
			t.Plots = append(t.Plots, p)
		}
	}
	if len(v.Latency) > maxTailPlots {
		name := fmt.Sprintf("%d groups of clients together", len(v.Latency))
		t.Note = "Latencies are multiples of the group's own median alone, so that groups with requests of different length can be pooled."
		add(htmlreport.NewTailPlot(name, "latency over median alone, logarithmic", v.series(v.Latency, true), format.Ratio, true))
	} else {
		for _, g := range v.Latency {
			add(htmlreport.NewTailPlot(g.Name, "latency, logarithmic", v.series([]*analysis.Group{g}, false), format.Nanoseconds, false))
		}
	}
	if len(t.Plots) == 0 {
		t.Note = "There were no requests, so there is nothing to draw."
	}
	return t
}

// series returns the latencies of groups: alone, then in each run.
func (v *view) series(groups []*analysis.Group, overMedian bool) []htmlreport.Series {
	all := []htmlreport.Series{{Name: "alone", Colour: htmlreport.AloneColour}}
	for i, r := range v.Runs {
		all = append(all, htmlreport.Series{Name: r.Policy, Colour: v.RunColours[i]})
	}
	for _, g := range groups {
		unit := 1.0
		if overMedian {
			unit = float64(max(g.Alone.Latency.P50, 1))
		}
		all[0].Add(&g.Alone.Latencies, unit)
		for i := range g.Runs {
			all[1+i].Add(&g.Runs[i].Latencies, unit)
		}
	}
	return all
}
