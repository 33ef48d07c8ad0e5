package bench

import (
	"fmt"
	"io"
	"strings"

	"github.com/giveway/giveway/internal/format"
)

// WriteTable writes the result as text.
func (r *Result) WriteTable(w io.Writer) error {
	fmt.Fprintln(w, strings.Join(r.facts(), "; "))
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
		var t format.Table
		t.Add(c.head()...)
		for i := range c.Phases {
			t.Add(c.row(&c.Phases[i])...)
		}
		if err := t.Write(w, 1); err != nil {
			return err
		}
	}
	if p := c.Pause; p != nil {
		fmt.Fprintf(w, "  pause took %.0f us, the last kernel ended after %.0f us; resume took %.0f us\n", p.PauseCallUs, p.StoppedAfterUs, p.ResumeCallUs)
	}
	if c.Error != "" {
		fmt.Fprintf(w, "  stopped by an error: %s\n", c.Error)
	}
	return nil
}

// hasOnline reports whether any phase has latencies.
func (c *CaseResult) hasOnline() bool {
	for i := range c.Phases {
		if c.Phases[i].Latency != nil {
			return true
		}
	}
	return false
}

// batchColumns returns the names of the batch clients that get a column each: those
// of a case without online clients, if there are several.
func (c *CaseResult) batchColumns() []string {
	if c.hasOnline() {
		return nil
	}
	for i := range c.Phases {
		if len(c.Phases[i].Batch) > 1 {
			var names []string
			for _, b := range c.Phases[i].Batch {
				names = append(names, b.Name)
			}
			return names
		}
	}
	return nil
}

func (c *CaseResult) head() []string {
	head := []string{""}
	if c.hasOnline() {
		head = append(head, "p50", "p90", "p99", "max", "p50/alone", "p99/alone", "p50/native", "p99/native", "requests", "unanswered")
	}
	names := c.batchColumns()
	head = append(head, names...)
	if len(names) == 2 {
		head = append(head, "ratio")
	}
	return append(head, "batch", "kept")
}

func (c *CaseResult) row(p *Phase) []string {
	row := []string{p.Name}
	if c.hasOnline() {
		row = append(row, latencyCells(p)...)
	}
	names := c.batchColumns()
	for i := range names {
		cell := format.Missing
		if i < len(p.Batch) {
			cell = format.Rate(p.Batch[i].Rate)
		}
		row = append(row, cell)
	}
	if len(names) == 2 {
		row = append(row, ratioOf(p.Batch))
	}
	if len(p.Batch) == 0 {
		return append(row, format.Missing, format.Missing)
	}
	kept := format.Missing
	if p.Kept != nil {
		kept = format.Percent(*p.Kept)
	}
	return append(row, format.Rate(p.BatchRate), kept)
}

func latencyCells(p *Phase) []string {
	if p.Latency == nil {
		return strings.Fields(strings.Repeat(format.Missing+" ", 10))
	}
	l := p.Latency
	cells := []string{format.Duration(l.P50), format.Duration(l.P90), format.Duration(l.P99), format.Duration(l.Max)}
	for _, r := range []*Ratios{p.VsAlone, p.VsNative} {
		if r == nil {
			cells = append(cells, format.Missing, format.Missing)
		} else {
			cells = append(cells, format.Ratio(r.P50), format.Ratio(r.P99))
		}
	}
	return append(cells, fmt.Sprint(l.Count), fmt.Sprint(p.unanswered()))
}

// line is a phase in one line, for the log.
func (p *Phase) line() string {
	var parts []string
	if l := p.Latency; l != nil {
		parts = append(parts, fmt.Sprintf("P50 %s, P90 %s, P99 %s, max %s of %d requests",
			format.Duration(l.P50), format.Duration(l.P90), format.Duration(l.P99), format.Duration(l.Max), l.Count))
		if n := p.unanswered(); n > 0 {
			parts = append(parts, fmt.Sprintf("%d unanswered", n))
		}
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

func ratioOf(b []BatchResult) string {
	if len(b) != 2 || b[1].Rate == 0 {
		return format.Missing
	}
	return fmt.Sprintf("%.2f:1", b[0].Rate/b[1].Rate)
}
