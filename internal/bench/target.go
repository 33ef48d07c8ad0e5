package bench

import (
	"fmt"
	"strings"

	"github.com/giveway/giveway/internal/stats"
)

// Target is what a phase is to reach on an H200 with driver 580. Another GPU may miss it.
type Target struct {
	Phase  string
	Figure Figure
	Least  float64 // zero: none
	Most   float64 // zero: none
}

// Figure is a ratio or a share of a phase.
type Figure string

const inMs = " in ms"

// Figures, named as the columns of the table.
const (
	P50         Figure = "p50" + inMs
	P99         Figure = "p99" + inMs
	FirstToNext Figure = "ratio of the batch rates"
	P50Alone    Figure = "p50/alone"
	P99Alone    Figure = "p99/alone"
	P99Native   Figure = "p99/native"
	BatchNative Figure = "batch/native"
	LostShare   Figure = "time lost in context switches"
)

// of returns the figure of a phase, or nil where it has none.
func (f Figure) of(p *Phase) *float64 {
	switch {
	case f == P50 && p.Latency != nil:
		return ms3(p.Latency.P50)
	case f == P99 && p.Latency != nil:
		return ms3(p.Latency.P99)
	case f == FirstToNext && len(p.Batch) > 1:
		return number(stats.Ratio(p.Batch[0].Rate, p.Batch[1].Rate))
	case f == P50Alone && p.VsAlone != nil:
		return &p.VsAlone.P50
	case f == P99Alone && p.VsAlone != nil:
		return &p.VsAlone.P99
	case f == P99Native && p.VsNative != nil:
		return &p.VsNative.P99
	case f == BatchNative:
		return p.BatchVsNative
	case f == LostShare:
		return p.Lost
	}
	return nil
}

// TargetResult is a target and what was measured.
type TargetResult struct {
	Phase  string  `json:"phase"`
	Figure Figure  `json:"figure"`
	Limit  string  `json:"limit"` // ">= 0.97"
	Got    float64 `json:"got"`
	Met    bool    `json:"met"`
}

// judge compares the phases with the targets. A phase that was not measured has no result.
func (c *CaseResult) judge(targets []Target) {
	for _, t := range targets {
		p := c.phase(t.Phase)
		if p == nil {
			continue
		}
		got := t.Figure.of(p)
		if got == nil {
			continue
		}
		r := TargetResult{Phase: t.Phase, Figure: t.Figure, Got: *got, Limit: fmt.Sprintf("<= %g", t.Most), Met: *got <= t.Most}
		if t.Least > 0 {
			r.Limit, r.Met = fmt.Sprintf(">= %g", t.Least), *got >= t.Least
		}
		c.Targets = append(c.Targets, r)
	}
}

// targetLines returns a line for each target.
func (c *CaseResult) targetLines() string {
	var lines strings.Builder
	for _, t := range c.Targets {
		verdict := "met"
		if !t.Met {
			verdict = "MISSED"
		}
		fmt.Fprintf(&lines, "  %s: %s %s: %.3f, target %s\n", verdict, t.Phase, t.Figure, t.Got, t.Limit)
	}
	return lines.String()
}
