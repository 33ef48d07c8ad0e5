package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
)

// printOutcome prints a scenario's figures as tables: latency, then work, then the
// finding and the warnings.
func printOutcome(w io.Writer, a *analysis.Analysis) error {
	o := a.Outcome
	fmt.Fprintln(w, heading(o))
	var t format.Table
	latencyTable(&t, a)
	workTable(&t, a)
	if err := t.Write(w, 3); err != nil {
		return err
	}
	printPublished(w, o)
	if s := a.Finding(); s != "" {
		fmt.Fprintf(w, "\n%s\n", s)
	}
	for _, s := range a.Warnings() {
		fmt.Fprintln(w, s)
	}
	return nil
}

// printBrief prints the finding and the warnings of a scenario in one line.
func printBrief(w io.Writer, a *analysis.Analysis) error {
	_, err := fmt.Fprintln(w, a.Outcome.Name+": "+strings.Join(append([]string{a.Finding()}, a.Warnings()...), " "))
	return err
}

func heading(o *scenario.Outcome) string {
	var devices []string
	for _, d := range o.Devices {
		devices = append(devices, fmt.Sprintf("%s (%s)", d.ID, d.Model.Name))
	}
	title := o.Name
	if o.Doc != "" {
		title += ": " + strings.Join(strings.Fields(o.Doc), " ")
	}
	return fmt.Sprintf("%s\n%s simulated on %s, seed %d", title, format.ExactDuration(o.Length), strings.Join(devices, ", "), o.Seed)
}

// label returns the first two cells of a group's first row.
func label(g *analysis.Group, o *scenario.Outcome) (class, name string) {
	if len(o.Devices) > 1 {
		return g.Class.String(), g.Name + " on " + string(g.Device)
	}
	return g.Class.String(), g.Name
}

func latencyTable(t *format.Table, a *analysis.Analysis) {
	if len(a.Latency) == 0 {
		return
	}
	// Others often publish only a mean, so the mean is shown beside their figures.
	mean := len(a.Outcome.Published) > 0
	t.Add()
	head := t.Add("latency", "", "", "p50", "p90", "p99", "max", "p99/alone")
	if mean {
		head.Cells = append(head.Cells, "mean")
	}
	for _, g := range a.Latency {
		class, name := label(g, a.Outcome)
		row := func(run, ratio string, f *analysis.Figures) {
			cells := []string{class, name, run, "-", "-", "-", "-", ratio}
			if l := f.Latency; l.Count > 0 {
				copy(cells[3:], []string{format.Duration(l.P50), format.Duration(l.P90), format.Duration(l.P99), format.Duration(l.Max)})
			}
			if mean {
				cells = append(cells, format.Duration(f.Latency.Mean))
			}
			t.Add(cells...).Note = latencyNote(f)
			class, name = "", ""
		}
		row("alone", "", &g.Alone)
		for i := range g.Runs {
			row(a.Runs[i].Policy, format.Ratio(g.Runs[i].P99OverAlone), &g.Runs[i])
		}
	}
}

func latencyNote(f *analysis.Figures) string {
	var notes []string
	if f.SLO > 0 && f.Latency.Count > 0 {
		notes = append(notes, "SLO met "+format.Percent(f.SLOMet))
	}
	if f.Unanswered > 1 {
		notes = append(notes, fmt.Sprintf("%d unanswered", f.Unanswered))
	}
	return strings.Join(notes, ", ")
}

func workTable(t *format.Table, a *analysis.Analysis) {
	if len(a.Work) == 0 {
		return
	}
	t.Add()
	t.Add("work", "", "", "rate", "kept")
	for _, g := range a.Work {
		class, name := label(g, a.Outcome)
		first := t.Add(class, name, "alone", format.Rate(g.Alone.Rate), "")
		if g.Count > 1 {
			first.Note = "one of them"
		}
		for i := range g.Runs {
			f := &g.Runs[i]
			row := t.Add("", "", a.Runs[i].Policy, format.Rate(f.Rate), format.Percent(f.WorkKept))
			if g.Count > 1 {
				row.Note = fmt.Sprintf("each %s to %s", format.Rate(f.MinRate), format.Rate(f.MaxRate))
			}
		}
	}
	for _, c := range a.Classes {
		if len(c.Groups) > 1 {
			classRows(t, c, a)
		}
	}
}

// classRows adds the sums of a class. The rates of closed-loop clients count
// different work, so only those of open-loop clients are added up.
func classRows(t *format.Table, c *analysis.Class, a *analysis.Analysis) {
	class, name := c.Class.String(), "together"
	if c.OpenLoop {
		t.Add(class, name, "arrivals", format.Rate(c.Alone), "")
		class, name = "", ""
	}
	for i, f := range c.Runs {
		rate := ""
		if c.OpenLoop {
			rate = format.Rate(f.Rate)
		}
		t.Add(class, name, a.Runs[i].Policy, rate, format.Percent(f.WorkKept))
		class, name = "", ""
	}
}

func printPublished(w io.Writer, o *scenario.Outcome) {
	if len(o.Published) == 0 {
		return
	}
	fmt.Fprintln(w, "\npublished:")
	for _, p := range o.Published {
		line := p.Value
		if p.What != "" {
			line = p.What + ": " + p.Value
		}
		fmt.Fprintf(w, "  %s (%s)\n", line, p.Source)
	}
}
