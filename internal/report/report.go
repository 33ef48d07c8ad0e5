// Package report writes what came of a scenario as one HTML file that opens
// anywhere, without a network: the finding, the numbers, three plots, and what it
// takes to get them again.
//
// It computes nothing that is not in the outcome, rounds only for display, and
// says so where it pools, thins out or leaves out. Names come from scenario
// files and are hostile input: every one goes through html/template.
package report

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/giveway/giveway/internal/scenario"
)

//go:embed *.tmpl
var templates embed.FS

var pageTemplate = template.Must(template.New("page.tmpl").ParseFS(templates, "*.tmpl"))

// page is the whole report, ready to be drawn: every number in it is text by
// now. Parts that are nil or empty are left out.
type page struct {
	Title   string
	Doc     string
	Finding string
	Facts   []string // one line under the finding
	Alarms  []string // what the reader must know before believing the rest
	Words   words

	Latency  *latencyTable
	Rates    *rateTable
	Tails    *tails
	Timeline *timeline
	Trade    *trade

	Command   string
	Settings  []param
	Devices   []deviceParams
	Published []scenario.Published
	Counts    []countRow
}

// Write writes the report of o to w. It writes nothing if it cannot write all.
func Write(w io.Writer, o scenario.Outcome) error {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, newPage(&o)); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if _, err := w.Write(bytes.Map(visible, b.Bytes())); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// visible replaces what a name must not bring along though it needs no escaping
// in HTML: broken UTF-8, control characters, and marks that turn the direction
// of the text around them.
func visible(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return unicode.ReplacementChar
	}
	return r
}

func newPage(o *scenario.Outcome) *page {
	s := newStudy(o)
	return &page{
		Title:   title(o),
		Doc:     o.Doc,
		Finding: s.finding(),
		Facts:   s.facts(),
		Alarms:  s.alarms(),
		Words:   s.words,

		Latency:  s.latencyTable(),
		Rates:    s.rateTable(),
		Tails:    s.tails(),
		Timeline: s.timeline(),
		Trade:    s.trade(),

		Command:   command(o),
		Settings:  settings(o),
		Devices:   deviceTables(o.Devices),
		Published: o.Published,
		Counts:    counts(o),
	}
}

func title(o *scenario.Outcome) string {
	if o.Name == "" {
		return "Scenario without a name"
	}
	return o.Name
}

// facts say in one line what was simulated.
func (s *study) facts() []string {
	facts := []string{"Simulated on a virtual clock"}
	for _, d := range sameDevices(s.o.Devices) {
		facts = append(facts, fmt.Sprintf("%s: %s", strings.Join(d.ids, ", "), d.model.Name))
	}
	facts = append(facts, plural(len(s.subjects), "client"))
	if s.o.Length > 0 {
		facts = append(facts, fmt.Sprintf("%v counted after %v of warm-up", s.o.Length, s.o.Warmup))
	}
	return append(facts, fmt.Sprint("seed ", s.o.Seed))
}

// alarms are what makes the numbers doubtful.
func (s *study) alarms() []string {
	var all []string
	for i := range s.o.Runs {
		run := &s.o.Runs[i]
		for _, v := range run.Result.Violations {
			all = append(all, fmt.Sprintf("%s broke a rule: %s", run.Policy, v))
		}
		if n := run.Result.Crashes; n > 0 {
			all = append(all, fmt.Sprintf("%s: the daemon was made to crash %s", run.Policy, plural(n, "time")))
		}
		for _, sub := range s.latency {
			// Some are always under way at the end. A hundredth moves P99.
			if c := sub.in[i]; c != nil && c.Unfinished*100 > c.Latency.Count {
				all = append(all, fmt.Sprintf("%s: %s of %s had no answer when the run ended. They count with their wait so far: the tail is at least as long as shown.",
					run.Policy, plural(c.Unfinished, "request"), c.Name))
			}
		}
	}
	const most = 12
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more like these", len(all)-most))
	}
	return all
}

// command is what gives the same numbers again: the seed decides everything
// else.
func command(o *scenario.Outcome) string {
	file := o.File
	if file == "" {
		file = title(o)
	}
	parts := []string{"giveway", "sim", shellWord(file)}
	var policies []string
	for i := range o.Runs {
		policies = append(policies, o.Runs[i].Policy)
	}
	if len(policies) > 0 {
		parts = append(parts, "--compare", shellWord(strings.Join(policies, ",")))
	}
	return strings.Join(append(parts, "--seed", fmt.Sprint(o.Seed)), " ")
}

// shellWord quotes s so that a shell takes it as one word and nothing more.
func shellWord(s string) string {
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
	Policy, Events, Calls, CallRate, Turns, Simulated string
}

func counts(o *scenario.Outcome) []countRow {
	var rows []countRow
	for i := range o.Runs {
		r := &o.Runs[i].Result
		row := countRow{
			Policy: o.Runs[i].Policy, Events: integer(r.Events), Calls: integer(r.Calls), Turns: integer(r.Steps),
			CallRate: missing, Simulated: r.Simulated.Round(time.Microsecond).String(),
		}
		if r.Simulated > 0 {
			row.CallRate = rate(float64(r.Calls) / r.Simulated.Seconds())
		}
		rows = append(rows, row)
	}
	return rows
}
