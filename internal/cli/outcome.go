package cli

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/sched"
)

// printOutcome prints what came of a scenario for a person who sees it for the
// first time: how long those waited who wait, how much those did who work, and
// what that comes to in a sentence.
func printOutcome(w io.Writer, o *scenario.Outcome) error {
	all := jobs(o)
	if _, err := fmt.Fprintln(w, heading(o)); err != nil {
		return err
	}
	var t format.Table
	t.Add()
	head := []string{"latency", "", "", "p50", "p90", "p99", "max", "p99/alone"}
	if showsMean(o) {
		head = append(head, "mean")
	}
	t.Add(head...)
	for i := range all {
		if all[i].waits() {
			latencyRows(&t, &all[i], o)
		}
	}
	if len(t.Rows) == 2 {
		t.Rows = nil // nobody waits
	}
	workTable(&t, all, o)
	if err := t.Write(w, 3); err != nil {
		return err
	}
	printPublished(w, o)
	if s := summary(o); s != "" {
		fmt.Fprintf(w, "\n%s\n", s)
	}
	for _, r := range o.Runs {
		if m := r.Result.Overruled; m != sched.NoMistake {
			fmt.Fprintf(w, "%s was overruled, because it %v: for a while the device ran as the vendor has it.\n", r.Policy, m)
		}
	}
	return nil
}

// showsMean reports whether to show the mean, which alone says little: only
// beside figures of others, who often published nothing else.
func showsMean(o *scenario.Outcome) bool { return len(o.Published) > 0 }

// workTable adds those that work to t, if there are any.
func workTable(t *format.Table, all []job, o *scenario.Outcome) {
	before := len(t.Rows)
	t.Add()
	t.Add("work done", "", "", "rate", "of alone")
	for i := range all {
		if !all[i].waits() {
			workRows(t, &all[i], o)
		}
	}
	for _, c := range crews(all) {
		crewRows(t, &c, o)
	}
	if len(t.Rows) == before+2 {
		t.Rows = t.Rows[:before]
	}
}

// heading says what was run.
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

// label is the job's place in the first columns, told once.
type label struct{ class, name string }

func labelOf(j *job, o *scenario.Outcome) *label {
	l := &label{j.class.String(), j.name}
	if len(o.Devices) > 1 {
		l.name += " on " + string(j.device)
	}
	return l
}

// take returns the label the first time, and blanks from then on.
func (l *label) take() (string, string) {
	class, name := l.class, l.name
	l.class, l.name = "", ""
	return class, name
}

func latencyRows(t *format.Table, j *job, o *scenario.Outcome) {
	l := labelOf(j, o)
	row := func(run string, f *fare, tail string) {
		class, name := l.take()
		cells := []string{class, name, run, "-", "-", "-", "-", tail}
		if s := f.latency; s.Count > 0 {
			copy(cells[3:], []string{format.Duration(s.P50), format.Duration(s.P90), format.Duration(s.P99), format.Duration(s.Max)})
		}
		if showsMean(o) {
			cells = append(cells, format.Duration(f.latency.Mean))
		}
		var notes []string
		if f.slo > 0 && f.latency.Count > 0 {
			notes = append(notes, fmt.Sprintf("met %s %%", strconv.FormatFloat(math.Floor(f.met*1000)/10, 'f', -1, 64)))
		}
		if f.unfinished > 1 {
			notes = append(notes, fmt.Sprintf("%d unanswered", f.unfinished))
		}
		t.Add(cells...).Note = strings.Join(notes, ", ")
	}
	row("alone", &j.alone, "")
	for i := range j.runs {
		tail := ""
		if x := j.tail(i); x > 0 {
			tail = format.Ratio(x)
		}
		row(o.Runs[i].Policy, &j.runs[i], tail)
	}
}

func workRows(t *format.Table, j *job, o *scenario.Outcome) {
	class, name := labelOf(j, o).take()
	first := t.Add(class, name, "alone", format.Rate(j.alone.rate), "")
	if j.count > 1 {
		first.Note = "one of them"
	}
	for i, f := range j.runs {
		part := j.kept(i)
		if !j.flatOut {
			part /= float64(j.count)
		}
		r := t.Add("", "", o.Runs[i].Policy, format.Rate(f.rate), format.Percent(part))
		if j.count > 1 {
			r.Note = fmt.Sprintf("each %s to %s", format.Rate(f.least), format.Rate(f.most))
		}
	}
}

// crewRows are the sums of a class, unless the rows of a single job say it all.
func crewRows(t *format.Table, c *crew, o *scenario.Outcome) {
	if len(c.jobs) == 1 {
		return
	}
	l := &label{c.class.String(), "together"}
	for i := range o.Runs {
		class, name := l.take()
		t.Add(class, name, o.Runs[i].Policy, "", format.Percent(c.kept(i)))
	}
}

func printPublished(w io.Writer, o *scenario.Outcome) {
	if len(o.Published) == 0 {
		return
	}
	fmt.Fprintln(w, "\nfor comparison:")
	for _, p := range o.Published {
		line := p.Value
		if p.What != "" {
			line = p.What + ": " + p.Value
		}
		fmt.Fprintf(w, "  %s (%s)\n", line, p.Source)
	}
}
