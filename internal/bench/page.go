package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

//go:embed page.tmpl
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// colours by phase; the online-idle phases have no curve.
var colours = map[string]string{
	alone: "#888", onlineOnly: "#5a9", native: "#d60", underGiveway: "#06c", pausedPhase: "#d60", resumedPhase: "#06c",
}

// plot is where a case's curves and bars are, in the units of the picture.
type plot struct {
	CaseResult
	Curves []curve
	Ticks  []tick
	Bars   []bar
	Height int // of the bars' picture
	Table  string
}

type curve struct{ Name, Colour, Points string }

type tick struct {
	X     float64
	Label string
}

type bar struct {
	Name, Colour, Label string
	Y, Width            float64
}

const (
	plotWidth, plotHeight = 600.0, 200.0
	barHeight             = 22
)

// WriteHTML writes a page with the tables, the distributions of latencies, and the
// batch rates. It loads nothing from anywhere.
func (r *Result) WriteHTML(w io.Writer) error {
	data := struct {
		*Result
		Plots []plot
	}{Result: r}
	for _, c := range r.Cases {
		p, err := plotOf(c)
		if err != nil {
			return err
		}
		data.Plots = append(data.Plots, p)
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

func plotOf(c CaseResult) (plot, error) {
	p := plot{CaseResult: c}
	var table strings.Builder
	if err := c.writeTable(&table); err != nil {
		return p, err
	}
	p.Table = strings.TrimSpace(table.String())
	lo, hi, most := math.Inf(1), 0.0, 0.0
	for i := range c.Phases {
		for _, s := range c.Phases[i].sorted() {
			lo, hi = min(lo, us(s)), max(hi, us(s))
		}
		most = max(most, c.Phases[i].BatchRate)
	}
	if hi > 0 {
		lo, hi = max(lo, 1)*0.8, hi*1.25
		at := func(v float64) float64 { return plotWidth * math.Log(max(v, lo)/lo) / math.Log(hi/lo) }
		p.Ticks = ticks(lo, hi, at)
		for i := range c.Phases {
			if points := c.Phases[i].points(at); points != "" {
				p.Curves = append(p.Curves, curve{c.Phases[i].Name, colours[c.Phases[i].Name], points})
			}
		}
	}
	for i := range c.Phases {
		if ph := &c.Phases[i]; len(ph.Batch) > 0 {
			width := 0.0
			if most > 0 {
				width = 0.6 * plotWidth * ph.BatchRate / most
			}
			p.Bars = append(p.Bars, bar{ph.Name, or(colours[ph.Name], "#aac"), rate(ph.BatchRate) + "/s", float64(len(p.Bars) * barHeight), width})
		}
	}
	p.Height = len(p.Bars) * barHeight
	return p, nil
}

// sorted is all requests' latencies. They come from the samples as written, so
// that a page can be made of a file too.
func (p *Phase) sorted() []time.Duration {
	var all []time.Duration
	for _, o := range p.Online {
		for _, s := range o.SamplesUs {
			all = append(all, time.Duration(s*1e3))
		}
	}
	slices.Sort(all)
	return all
}

// points is the distribution: a part of the requests (upwards) took no longer than
// a time (to the right).
func (p *Phase) points(at func(us float64) float64) string {
	all := p.sorted()
	var b strings.Builder
	step := max(len(all)/400, 1)
	for i := 0; i < len(all); i += step {
		fmt.Fprintf(&b, "%.1f,%.1f ", at(us(all[i])), plotHeight*(1-float64(i+1)/float64(len(all))))
	}
	if len(all) > 0 {
		fmt.Fprintf(&b, "%.1f,0", at(us(all[len(all)-1])))
	}
	return b.String()
}

// ticks are at 1, 2 and 5 of each power of ten.
func ticks(lo, hi float64, at func(float64) float64) []tick {
	var all []tick
	for power := math.Pow(10, math.Floor(math.Log10(lo))); power <= hi; power *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v := m * power; v >= lo && v <= hi {
				all = append(all, tick{at(v), time.Duration(v * 1e3).String()})
			}
		}
	}
	return all
}
