// Package report writes the outcome of a scenario as one HTML file: the finding,
// the figures, three plots, and how to repeat the run.
//
// All figures come from package analysis. Where the report pools, thins out or
// leaves out data to draw it, it says so.
package report

import (
	"embed"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/analysis"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/scenario"
)

//go:embed *.tmpl
var templates embed.FS

var page = htmlreport.Parse(templates, nil)

// view is the content of the report: every number in it is text. Parts that are
// nil or empty are left out.
type view struct {
	Title    string
	Doc      string
	Finding  string
	Facts    []string // one line under the finding
	Warnings []string

	Comparison *htmlreport.Comparison
	Latency    []latencyGroup
	LatencyOf  string // the clients of Latency, in words
	Tails      *tails
	Timeline   *timeline
	Work       *workTable
	WorkOf     string // the clients of Work, in words

	Command   string
	Settings  []param
	Devices   []deviceParams
	Published []scenario.Published
	Counts    []countRow
}

// study is an analysis with a colour for each run and group.
type study struct {
	*analysis.Analysis
	o       *scenario.Outcome
	runs    []string // colour by run
	colours map[*analysis.Group]string
}

// Write writes the report of an analysis to w.
func Write(w io.Writer, a *analysis.Analysis) error {
	s := newStudy(a)
	o := a.Outcome
	return htmlreport.Write(w, page, view{
		Title: title(o), Doc: o.Doc, Finding: s.finding(), Facts: s.facts(), Warnings: s.warnings(),
		Comparison: s.comparison(),
		Latency:    s.latencyTable(), LatencyOf: classWord(a.Latency),
		Tails: s.tails(), Timeline: s.timeline(),
		Work: s.workTable(), WorkOf: classWord(a.Work),
		Command: command(o), Settings: settings(o), Devices: deviceTables(o.Devices), Published: o.Published, Counts: counts(o),
	})
}

func newStudy(a *analysis.Analysis) *study {
	s := &study{Analysis: a, o: a.Outcome, colours: map[*analysis.Group]string{}}
	for i, g := range a.Latency {
		s.colours[g] = htmlreport.DarkColour(i)
	}
	for i, g := range a.Work {
		s.colours[g] = htmlreport.LightColour(i)
	}
	n := 0
	for _, r := range a.Runs {
		if r.Policy == scenario.Native {
			s.runs = append(s.runs, htmlreport.NativeColour)
			continue
		}
		s.runs = append(s.runs, htmlreport.RunColour(n))
		n++
	}
	return s
}

// classWord is the class of the groups, followed by a space, if they have the same.
func classWord(groups []*analysis.Group) string {
	for _, g := range groups {
		if g.Class != groups[0].Class {
			return ""
		}
	}
	if len(groups) == 0 {
		return ""
	}
	return groups[0].Class.String() + " "
}

func (s *study) finding() string {
	switch f := s.Finding(); {
	case f != "":
		return f
	case len(s.Groups) == 0:
		return "The scenario has no clients."
	case len(s.Runs) == 0:
		return "Every client ran alone. No policy was requested, so there is nothing to compare."
	}
	return "No client finished a request alone, so there is nothing to compare with."
}

func title(o *scenario.Outcome) string {
	if o.Name == "" {
		return "Scenario without a name"
	}
	return o.Name
}

// facts is what was simulated, in one line.
func (s *study) facts() []string {
	facts := []string{"Simulated"}
	for _, d := range sameDevices(s.o.Devices) {
		facts = append(facts, fmt.Sprintf("%s: %s", strings.Join(d.ids, ", "), d.model.Name))
	}
	facts = append(facts, format.Plural(len(s.o.Alone), "client"))
	if s.o.Length > 0 {
		facts = append(facts, fmt.Sprintf("%s counted after %s of warm-up", format.ExactDuration(s.o.Length), format.ExactDuration(s.o.Warmup)))
	}
	return append(facts, fmt.Sprint("seed ", s.o.Seed))
}

// warnings lists broken rules first, and not more than a reader can take in.
func (s *study) warnings() []string {
	var all []string
	for _, v := range s.o.Violations() {
		all = append(all, "A rule of the simulator was broken under "+v)
	}
	all = append(all, s.Warnings()...)
	const most = 12
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return all
}

func (s *study) comparison() *htmlreport.Comparison {
	var rows []htmlreport.Run
	for i, r := range s.Runs {
		row := htmlreport.Run{Name: r.Policy, Colour: s.runs[i], Kept: r.WorkKept, Ratio: r.Tail.P99OverAlone}
		if r.Tail.FallsBehind {
			row.RatioText = "falls behind"
		}
		for _, g := range s.Work {
			row.Parts = append(row.Parts, htmlreport.Part{Name: g.Name, Colour: s.colours[g], Size: g.Runs[i].WorkPart, Kept: g.Runs[i].WorkKept})
		}
		for _, g := range s.Latency {
			row.Dots = append(row.Dots, htmlreport.Dot{Name: g.Name, Ratio: g.Runs[i].P99OverAlone})
		}
		rows = append(rows, row)
	}
	tail := "P99 latency over P99 alone, logarithmic"
	if groups := s.TailGroups(); len(groups) > 1 {
		tail = fmt.Sprintf("worst P99 latency of %v clients over P99 alone, logarithmic", groups[0].Class)
	}
	return htmlreport.NewComparison(rows, classWord(s.Work)+"work kept", tail)
}

// command is the command line that gives the same figures again.
func command(o *scenario.Outcome) string {
	file := o.File
	if file == "" {
		file = title(o)
	}
	parts := []string{"giveway", "sim", shellQuote(file)}
	var policies []string
	for i := range o.Runs {
		policies = append(policies, o.Runs[i].Policy)
	}
	if len(policies) > 0 {
		parts = append(parts, "--compare", shellQuote(strings.Join(policies, ",")))
	}
	return strings.Join(append(parts, "--seed", fmt.Sprint(o.Seed)), " ")
}

// shellQuote quotes s, if necessary, so that a shell takes it as one word.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./,:=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// countRow is how much happened in a run.
type countRow struct {
	Policy, Events, Calls, CallRate, Steps, Simulated string
}

func counts(o *scenario.Outcome) []countRow {
	var rows []countRow
	for i := range o.Runs {
		r := &o.Runs[i].Result
		rows = append(rows, countRow{
			Policy: o.Runs[i].Policy, Events: format.Integer(r.Events), Calls: format.Integer(r.Calls), Steps: format.Integer(r.Steps),
			CallRate:  format.Rate(float64(r.Calls) / r.Simulated.Seconds()), // Missing for 0/0
			Simulated: format.ExactDuration(r.Simulated.Round(time.Microsecond)),
		})
	}
	return rows
}
