package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/format"
)

// WriteTable writes the result as text.
func (r *Result) WriteTable(w io.Writer) error {
	fmt.Fprintln(w, strings.Join(r.Facts(), "; "))
	for i := range r.Cases {
		fmt.Fprintf(w, "\n%s: %s\n", r.Cases[i].Name, r.Cases[i].About)
		if err := r.Cases[i].writeTable(w); err != nil {
			return err
		}
	}
	return nil
}

func (c *CaseResult) writeTable(w io.Writer) error {
	if c.Skipped != "" {
		fmt.Fprintf(w, "  skipped: %s\n", c.Skipped)
		return nil
	}
	if len(c.Phases) > 0 {
		if err := c.table().Write(w, 1); err != nil {
			return err
		}
	}
	if p := c.Pause; p != nil {
		fmt.Fprintf(w, "  pause took %.0f us, the last kernel ended after %.0f us; resume took %.0f us\n", p.PauseCallUs, p.StoppedAfterUs, p.ResumeCallUs)
	}
	for _, p := range c.Phases {
		if p.Late != nil {
			fmt.Fprintf(w, "  %s: %s\n", p.Name, p.Late.line())
		}
		if p.Ahead != nil {
			fmt.Fprintf(w, "  %s: %s\n", p.Name, p.Ahead.line())
		}
		if p.Lost != nil {
			fmt.Fprintf(w, "  %s: %s of the time lost in context switches\n", p.Name, format.Percent(*p.Lost))
		}
	}
	fmt.Fprint(w, c.targetLines())
	for _, note := range c.Notes {
		fmt.Fprintf(w, "  %s\n", note)
	}
	if c.Error != "" {
		fmt.Fprintf(w, "  stopped by an error: %s\n", c.Error)
	}
	return nil
}

// table has a row for each phase.
func (c *CaseResult) table() *format.Table {
	head := []string{""}
	if c.hasOnline() {
		head = append(head, "p50", "p90", "p99", "max", "p50/alone", "p99/alone", "p50/native", "p99/native", "requests", "per second", "unanswered")
	}
	names, first := c.batchColumns(), len(head)
	head = append(head, names...)
	ratio := len(names) == 2 && !c.Mixed
	if ratio {
		head = append(head, "ratio")
	}
	late := len(head)
	if c.hasPairs() {
		head = append(head, "pairs", "late/at once")
	}
	head = append(head, "batch", "batch/native", "kept")
	t := &format.Table{}
	t.Add(head...)
	for i := range c.Phases {
		p := &c.Phases[i]
		row := slices.Repeat([]string{format.Missing}, len(head))
		row[0] = p.Name
		copy(row[1:], p.latencyCells())
		for j, name := range names {
			if k := slices.IndexFunc(p.Batch, func(b BatchResult) bool { return b.Name == name }); k >= 0 {
				row[first+j] = format.Rate(p.Batch[k].Rate)
				if r := p.Batch[k].VsNative; r != nil && c.Mixed {
					row[first+j] += " (" + format.Ratio(*r) + ")"
				}
			}
		}
		if ratio && len(p.Batch) == 2 && p.Batch[1].Rate > 0 {
			row[first+2] = fmt.Sprintf("%.2f:1", p.Batch[0].Rate/p.Batch[1].Rate)
		}
		if c.hasPairs() && p.Late != nil && p.Late.Compared != nil {
			copy(row[late:], p.Late.Compared.cells())
		}
		copy(row[len(row)-3:], c.batchCells(p))
		t.Add(row...)
	}
	return t
}

// batchCells returns the batch clients' rate, that over native, and the work kept.
func (c *CaseResult) batchCells(p *Phase) []string {
	cells := []string{format.Missing, format.Missing, format.Missing}
	if len(p.Batch) > 0 && !c.Mixed {
		cells[0] = format.Rate(p.BatchRate)
	}
	if p.BatchVsNative != nil {
		cells[1] = format.Ratio(*p.BatchVsNative)
	}
	if p.Kept != nil {
		cells[2] = format.Percent(*p.Kept)
	}
	return cells
}

// hasOnline reports whether any phase has latencies.
func (c *CaseResult) hasOnline() bool {
	return slices.ContainsFunc(c.Phases, func(p Phase) bool { return p.Latency != nil })
}

// hasPairs reports whether requests that entered late were compared in any phase.
func (c *CaseResult) hasPairs() bool {
	return slices.ContainsFunc(c.Phases, func(p Phase) bool { return p.Late != nil && p.Late.Compared != nil })
}

// cells returns the number of pairs and the median of their ratios, with its bounds.
func (c *LateCompared) cells() []string {
	ratio := format.Missing
	if c.Ratio > 0 {
		ratio = fmt.Sprintf("%.3f (%.3f to %.3f)", c.Ratio, c.Low, c.High)
	}
	return []string{fmt.Sprint(c.Pairs), ratio}
}

// batchColumns returns the names of the batch clients that get a column each: those
// of a case without online clients, if there are several, and those that do different work.
func (c *CaseResult) batchColumns() []string {
	var names []string
	i := slices.IndexFunc(c.Phases, func(p Phase) bool { return len(p.Batch) > 1 && p.Name != alone })
	if i >= 0 && (!c.hasOnline() || c.Mixed) {
		for _, b := range c.Phases[i].Batch {
			names = append(names, b.Name)
		}
	}
	return names
}

// latencyCells returns nil if the phase has no latencies.
func (p *Phase) latencyCells() []string {
	l := p.Latency
	if l == nil {
		return nil
	}
	cells := []string{format.Duration(l.P50), format.Duration(l.P90), format.Duration(l.P99), format.Duration(l.Max)}
	for _, r := range []*Ratios{p.VsAlone, p.VsNative} {
		if r == nil {
			cells = append(cells, format.Missing, format.Missing)
		} else {
			cells = append(cells, format.Ratio(r.P50), format.Ratio(r.P99))
		}
	}
	return append(cells, fmt.Sprint(l.Count), format.Rate(p.answersPerSecond()), fmt.Sprint(p.unanswered()))
}

// line is a phase in one line, for the log.
func (p *Phase) line() string {
	var parts []string
	if l := p.Latency; l != nil {
		parts = append(parts, fmt.Sprintf("P50 %s, P90 %s, P99 %s, max %s of %d requests, %s",
			format.Duration(l.P50), format.Duration(l.P90), format.Duration(l.P99), format.Duration(l.Max), l.Count, format.Rate(p.answersPerSecond())))
		if n := p.unanswered(); n > 0 {
			parts = append(parts, fmt.Sprintf("%d unanswered", n))
		}
	}
	if p.Late != nil {
		parts = append(parts, p.Late.line())
	}
	if p.Ahead != nil {
		parts = append(parts, p.Ahead.line())
	}
	if p.Lost != nil {
		parts = append(parts, format.Percent(*p.Lost)+" lost in switches")
	}
	if len(p.Batch) > 0 {
		batch := "batch " + format.Rate(p.BatchRate)
		if len(p.Batch) > 1 {
			var each []string
			for _, b := range p.Batch {
				each = append(each, b.Name+" "+format.Rate(b.Rate))
			}
			batch += " (" + strings.Join(each, ", ") + ")"
		}
		parts = append(parts, batch)
	}
	return p.Name + ": " + strings.Join(parts, "; ")
}
