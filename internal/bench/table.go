package bench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
)

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%s; %s; Linux %s; %g s a measurement\n", or(m.GPU, "GPU unknown"), or(m.Driver, "driver unknown"), or(m.Kernel, "unknown"), r.Seconds)
	for i := range r.Cases {
		if err := r.Cases[i].writeTable(w); err != nil {
			return err
		}
	}
	return nil
}

func (c *CaseResult) writeTable(w io.Writer) error {
	fmt.Fprintf(w, "\n%s: %s\n", c.Name, c.About)
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
		fmt.Fprintf(w, "  pause took %.0f us, last kernel done after %.0f us; resume took %.0f us\n", p.PauseCallUs, p.StoppedAfterUs, p.ResumeCallUs)
	}
	if c.Error != "" {
		fmt.Fprintf(w, "  broken off: %s\n", c.Error)
	}
	return nil
}

// hasOnline says whether the case has latencies at all.
func (c *CaseResult) hasOnline() bool {
	for i := range c.Phases {
		if c.Phases[i].Latency != nil {
			return true
		}
	}
	return false
}

// several is the batch clients' names where each has a column.
func (c *CaseResult) several() []string {
	if c.hasOnline() {
		return nil
	}
	var names []string
	for i := range c.Phases {
		if len(c.Phases[i].Batch) > 1 && names == nil {
			for _, b := range c.Phases[i].Batch {
				names = append(names, b.Name)
			}
		}
	}
	return names
}

func (c *CaseResult) head() []string {
	head := []string{""}
	if c.hasOnline() {
		head = append(head, "P50", "P90", "P99", "max", "P50/alone", "P99/alone", "P50/native", "P99/native", "requests", "lost")
	}
	for _, name := range c.several() {
		head = append(head, name+"/s")
	}
	if len(c.several()) == 2 {
		head = append(head, "ratio")
	}
	return append(head, "batch/s", "kept")
}

const nothing = "-"

func (c *CaseResult) row(p *Phase) []string {
	row := []string{p.Name}
	if c.hasOnline() {
		row = append(row, latencyCells(p)...)
	}
	if names := c.several(); names != nil {
		for i := range names {
			if i < len(p.Batch) {
				row = append(row, rate(p.Batch[i].Rate))
			} else {
				row = append(row, nothing)
			}
		}
		if len(names) == 2 {
			row = append(row, ratioOf(p.Batch))
		}
	}
	if len(p.Batch) == 0 {
		return append(row, nothing, nothing)
	}
	kept := nothing
	if p.Kept != nil {
		kept = fmt.Sprintf("%.3f", *p.Kept)
	}
	return append(row, rate(p.BatchRate), kept)
}

func latencyCells(p *Phase) []string {
	if p.Latency == nil {
		return strings.Fields(strings.Repeat(nothing+" ", 10))
	}
	l := p.Latency
	cells := []string{micros(l.P50), micros(l.P90), micros(l.P99), micros(l.Max)}
	for _, r := range []*Ratios{p.VsAlone, p.VsNative} {
		if r == nil {
			cells = append(cells, nothing, nothing)
		} else {
			cells = append(cells, fmt.Sprintf("%.2f", r.P50), fmt.Sprintf("%.2f", r.P99))
		}
	}
	return append(cells, fmt.Sprint(l.Count), fmt.Sprint(p.unfinished()))
}

// line is a phase in one line, as it is measured.
func (p *Phase) line() string {
	s := p.Name + ":"
	if l := p.Latency; l != nil {
		s += fmt.Sprintf(" P50 %s, P90 %s, P99 %s, max %s of %d;", micros(l.P50), micros(l.P90), micros(l.P99), micros(l.Max), l.Count)
		if n := p.unfinished(); n > 0 {
			s += fmt.Sprintf(" %d never answered;", n)
		}
	}
	if len(p.Batch) > 0 {
		s += " batch " + rate(p.BatchRate) + "/s"
	}
	if len(p.Batch) > 1 {
		var each []string
		for _, b := range p.Batch {
			each = append(each, b.Name+" "+rate(b.Rate))
		}
		s += " (" + strings.Join(each, ", ") + ")"
	}
	return strings.TrimSuffix(s, ";")
}

func ratioOf(b []BatchResult) string {
	if len(b) != 2 || b[1].Rate == 0 {
		return nothing
	}
	return fmt.Sprintf("%.2f:1", b[0].Rate/b[1].Rate)
}

// micros writes a time in the unit that all are compared in.
func micros(d time.Duration) string {
	if v := us(d); v < 100 {
		return fmt.Sprintf("%.1fus", v)
	}
	return fmt.Sprintf("%.0fus", us(d))
}

func rate(r float64) string {
	if r < 100 {
		return fmt.Sprintf("%.2f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
