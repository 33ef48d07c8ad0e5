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

// colours by phase.
var colours = map[string]string{
	alone: htmlreport.AloneColour, onlineOnly: "r2", native: htmlreport.NativeColour, nativeIdle: "r4",
	underGiveway: "r1", givewayIdle: "r5", pausedPhase: htmlreport.NativeColour, resumedPhase: "r1",
}

// caseView is one case of the page.
type caseView struct {
	CaseResult
	Comparison *htmlreport.Comparison
	Tail       *htmlreport.TailPlot
	Table      string
}

// WriteHTML writes a page with the plots and tables of all cases.
func (r *Result) WriteHTML(w io.Writer) error {
	view := struct {
		*Result
		Facts []string
		Views []caseView
	}{Result: r, Facts: r.facts()}
	for _, c := range r.Cases {
		v, err := newCaseView(c)
		if err != nil {
			return err
		}
		view.Views = append(view.Views, v)
	}
	return htmlreport.Write(w, page, view)
}

// facts describes the machine and the run in a few words each.
func (r *Result) facts() []string {
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

func newCaseView(c CaseResult) (caseView, error) {
	v := caseView{CaseResult: c}
	var text strings.Builder
	if err := c.writeTable(&text); err != nil {
		return v, err
	}
	v.Table = strings.TrimRight(text.String(), "\n")
	var runs []htmlreport.Run
	var series []htmlreport.Series
	for i := range c.Phases {
		p := &c.Phases[i]
		s := htmlreport.Series{Name: p.Name, Colour: colours[p.Name]}
		for _, o := range p.Online {
			s.Add(o.durations(), 1)
		}
		series = append(series, s)
		if p.Name != alone {
			runs = append(runs, c.comparisonRow(p))
		}
	}
	v.Comparison = htmlreport.NewComparison(runs, "batch work kept", "P99 latency over P99 alone, logarithmic")
	v.Tail = htmlreport.NewTailPlot("Latency distribution", "latency, logarithmic", series, format.Nanoseconds, false)
	return v, nil
}

func (c *CaseResult) comparisonRow(p *Phase) htmlreport.Run {
	run := htmlreport.Run{Name: p.Name, Colour: colours[p.Name], Kept: math.NaN(), Ratio: math.NaN()}
	if p.Kept != nil {
		run.Kept = *p.Kept
		for i, b := range p.Batch {
			size := stats.Ratio(b.Rate, c.phase(alone).BatchRate)
			run.Parts = append(run.Parts, htmlreport.Part{Name: b.Name, Colour: htmlreport.LightColour(i), Size: size, Kept: size})
		}
	}
	if p.VsAlone != nil {
		run.Ratio = p.VsAlone.P99
		run.Dots = []htmlreport.Dot{{Name: p.Name, Ratio: run.Ratio}}
	}
	return run
}
