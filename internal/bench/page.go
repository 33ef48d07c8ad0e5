package bench

import (
	"cmp"
	"embed"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/stats"
)

//go:embed page.tmpl
var templates embed.FS

var page = htmlreport.Parse(templates, nil)

// colours by phase, of those that are in most cases.
var colours = map[string]string{
	alone: htmlreport.AloneColour, onlineOnly: "r2", native: htmlreport.NativeColour, native + ", " + onlineIdle: "r4",
	underGiveway: "r1", underGiveway + ", " + onlineIdle: "r5", pausedPhase: htmlreport.NativeColour, resumedPhase: "r1",
}

// colour returns the colour of phase i.
func (c *CaseResult) colour(i int) string {
	return cmp.Or(colours[c.Phases[i].Name], htmlreport.RunColour(i))
}

// WriteHTML writes a page with the plots and tables of all cases.
func (r *Result) WriteHTML(w io.Writer) error { return htmlreport.Write(w, page, r) }

// Facts describes the machine and the run in a few words each.
func (r *Result) Facts() []string {
	m := r.Machine
	facts := []string{
		cmp.Or(m.GPU, "unknown GPU"), cmp.Or(m.Driver, "unknown driver"), "Linux " + cmp.Or(m.Kernel, "of unknown version"),
		fmt.Sprintf("%gs per measurement", r.Seconds),
	}
	if !r.Started.IsZero() {
		facts = append(facts, r.Started.Format("2006-01-02 15:04 UTC"))
	}
	return facts
}

// Text returns the table as text.
func (c *CaseResult) Text() (string, error) {
	var text strings.Builder
	err := c.writeTable(&text)
	return strings.TrimRight(text.String(), "\n"), err
}

// Comparison draws the work kept and the P99 of the phases except alone.
func (c *CaseResult) Comparison() *htmlreport.Comparison {
	var runs []htmlreport.Run
	for i := range c.Phases {
		if p := &c.Phases[i]; p.Name != alone {
			runs = append(runs, c.comparisonRow(p, c.colour(i)))
		}
	}
	return htmlreport.NewComparison(runs, "batch work kept", "P99 latency over P99 alone, logarithmic")
}

// Tail draws the latency distributions of all phases.
func (c *CaseResult) Tail() *htmlreport.TailPlot {
	var series []htmlreport.Series
	for i, p := range c.Phases {
		s := htmlreport.Series{Name: p.Name, Colour: c.colour(i)}
		for _, o := range p.Online {
			latencies := stats.NewDistribution(o.durations()...)
			s.Add(&latencies, 1)
		}
		series = append(series, s)
	}
	return htmlreport.NewTailPlot("Latency distribution", "latency, logarithmic", series, format.Nanoseconds, false)
}

func (c *CaseResult) comparisonRow(p *Phase, colour string) htmlreport.Run {
	run := htmlreport.Run{Name: p.Name, Colour: colour, Kept: math.NaN(), Ratio: math.NaN()}
	if p.Kept != nil {
		run.Kept = *p.Kept
		for i, b := range p.Batch {
			size := stats.Ratio(b.Rate, b.AloneRate)
			run.Parts = append(run.Parts, htmlreport.Part{Name: b.Name, Colour: htmlreport.LightColour(i), Size: size, Kept: size})
		}
	}
	if p.VsAlone != nil {
		run.Ratio = p.VsAlone.P99
		run.Dots = []htmlreport.Dot{{Name: p.Name, Ratio: run.Ratio}}
	}
	return run
}
