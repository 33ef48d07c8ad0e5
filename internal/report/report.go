// Package report writes the outcome of a scenario as one HTML file: the finding,
// the figures, three plots, and how to repeat the run.
//
// All figures come from package analysis. Where the report pools, thins out or
// leaves out data to draw it, it says so.
package report

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
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

var page = htmlreport.Parse(templates, template.FuncMap{
	"class": classOf, "rate": format.Rate, "percent": format.Percent, "integer": format.Integer[int], "unsigned": format.Integer[uint64], "exact": format.ExactDuration,
	"toMillis":  func(d time.Duration) string { return format.ExactDuration(d.Round(time.Millisecond)) },
	"perSecond": func(n uint64, d time.Duration) string { return format.Rate(float64(n) / d.Seconds()) }, // Missing for 0/0
})

// view is the data of the page: an analysis with a colour for each run and group. The
// template calls its methods.
type view struct {
	*analysis.Analysis
	RunColours []string // by run
	Colours    map[*analysis.Group]string
}

// Write writes the report of an analysis to w.
func Write(w io.Writer, a *analysis.Analysis) error { return htmlreport.Write(w, page, newView(a)) }

func newView(a *analysis.Analysis) *view {
	v := &view{Analysis: a, Colours: map[*analysis.Group]string{}}
	for i, g := range a.Latency {
		v.Colours[g] = htmlreport.DarkColour(i)
	}
	for i, g := range a.Work {
		v.Colours[g] = htmlreport.LightColour(i)
	}
	n := 0
	for _, r := range a.Runs {
		if r.Policy == scenario.Native {
			v.RunColours = append(v.RunColours, htmlreport.NativeColour)
			continue
		}
		v.RunColours = append(v.RunColours, htmlreport.RunColour(n))
		n++
	}
	return v
}

// classOf returns the class of the groups, followed by a space, if they have the same.
func classOf(groups []*analysis.Group) string {
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

// Finding returns the analysis's finding, or why there is none.
func (v *view) Finding() string {
	switch f := v.Analysis.Finding(); {
	case f != "":
		return f
	case len(v.Groups) == 0:
		return "The scenario has no clients."
	case len(v.Runs) == 0:
		return "Every client ran alone. No policy was requested, so there is nothing to compare."
	}
	return "No client finished a request alone, so there is nothing to compare with."
}

// Title returns the scenario's name.
func (v *view) Title() string { return cmp.Or(v.Outcome.Name, "Scenario without a name") }

// Facts returns what was simulated, in a few words each.
func (v *view) Facts() []string {
	facts := []string{"Simulated"}
	for _, d := range v.Devices() {
		facts = append(facts, fmt.Sprintf("%s: %s", d.IDs(), d.Model.Name))
	}
	facts = append(facts, format.Plural(len(v.Outcome.Alone), "client"))
	if v.Outcome.Length > 0 {
		facts = append(facts, fmt.Sprintf("%s counted after %s of warm-up", format.ExactDuration(v.Outcome.Length), format.ExactDuration(v.Outcome.Warmup)))
	}
	return append(facts, fmt.Sprint("seed ", v.Outcome.Seed))
}

// Warnings lists broken rules, then the warnings of the analysis; 12 at most.
func (v *view) Warnings() []string {
	var all []string
	for _, broken := range v.Outcome.Violations() {
		all = append(all, "A rule of the simulator was broken under "+broken)
	}
	all = append(all, v.Analysis.Warnings()...)
	const most = 12
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return all
}

// Comparison draws the work kept and the tail of each run.
func (v *view) Comparison() *htmlreport.Comparison {
	var rows []htmlreport.Run
	for i, r := range v.Runs {
		row := htmlreport.Run{Name: r.Policy, Colour: v.RunColours[i], Kept: r.WorkKept, Ratio: r.Tail.P99OverAlone}
		if r.Tail.FallsBehind {
			row.RatioText = "falls behind"
		}
		for _, g := range v.Work {
			row.Parts = append(row.Parts, htmlreport.Part{Name: g.Name, Colour: v.Colours[g], Size: g.Runs[i].WorkPart, Kept: g.Runs[i].WorkKept})
		}
		for _, g := range v.Latency {
			row.Dots = append(row.Dots, htmlreport.Dot{Name: g.Name, Ratio: g.Runs[i].P99OverAlone})
		}
		rows = append(rows, row)
	}
	tail := "P99 latency over P99 alone, logarithmic"
	if groups := v.TailGroups(); len(groups) > 1 {
		tail = fmt.Sprintf("worst P99 latency of %v clients over P99 alone, logarithmic", groups[0].Class)
	}
	return htmlreport.NewComparison(rows, classOf(v.Work)+"work kept", tail)
}

// Command returns the command line that gives the same figures again.
func (v *view) Command() string {
	parts := []string{"giveway", "sim", shellQuote(cmp.Or(v.Outcome.File, v.Title()))}
	var policies []string
	for _, r := range v.Runs {
		policies = append(policies, r.Policy)
	}
	if len(policies) > 0 {
		parts = append(parts, "--compare", shellQuote(strings.Join(policies, ",")))
	}
	return strings.Join(append(parts, "--seed", fmt.Sprint(v.Outcome.Seed)), " ")
}

// shellQuote quotes s, if necessary, so that a shell takes it as one word.
func shellQuote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:="
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
