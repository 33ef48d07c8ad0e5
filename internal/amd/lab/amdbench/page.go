package amdbench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

//go:embed page.tmpl
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"time": clock, "part": percent, "times": times,
}).Parse(pageText))

// WriteHTML writes a page with plots, tables and parameters. It loads nothing
// from anywhere.
func (r *Result) WriteHTML(w io.Writer) error {
	data := struct {
		*Result
		Ten   []ten
		Plots [][]plot
	}{Result: r, Ten: r.tens()}
	for i := range r.Models {
		data.Plots = append(data.Plots, r.Models[i].plots())
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// ten is the case of ten queues, one by one and batched.
type ten struct {
	Model           string
	One, Stock, All *Row
}

// Rows are the three ways, the dearest first.
func (t ten) Rows() []*Row { return []*Row{t.One, t.Stock, t.All} }

// Total is what one request costs the caller, on average.
func (r *Row) Total() time.Duration { return r.Unmap.Mean + r.Remap.Mean }

func (r *Result) tens() []ten {
	var all []ten
	for _, m := range r.Models {
		t := ten{Model: m.Name}
		for i := range m.Rows {
			if row := &m.Rows[i]; row.Queues == 10 {
				switch row.Way {
				case OneByOne:
					t.One = row
				case Stock:
					t.Stock = row
				case Batch:
					t.All = row
				}
			}
		}
		if t.One != nil && t.Stock != nil && t.All != nil {
			all = append(all, t)
		}
	}
	return all
}

// plot is a picture, in its own units: a figure (upwards) by the number of
// offline queues (to the right).
type plot struct {
	Title  string
	Curves []curve
	X, Y   []tick
}

type curve struct {
	Name, Class string
	Points      string
	Upper       string // the same at P99
	Dots        []dot
}

type dot struct {
	X, Y  float64
	Label string
}

type tick struct {
	At    float64
	Label string
}

const plotWidth, plotHeight = 400.0, 210.0

var classes = map[Way]string{Native: "native", OneByOne: "one", Stock: "stock", Batch: "batch"}

// measured is what a plot shows of a row; ok is false where the row has none.
type measured func(*Row) (typical, upper float64, label string, ok bool)

func ofTimes(pick func(*Row) *stats.Summary) measured {
	return func(r *Row) (float64, float64, string, bool) {
		s := pick(r)
		if s == nil || s.P50 <= 0 {
			return 0, 0, "", false
		}
		return float64(s.P50), float64(s.P99), fmt.Sprintf("P50 %s, P99 %s", clock(s.P50), clock(s.P99)), true
	}
}

func (m *ModelResult) plots() []plot {
	return []plot{
		m.plot("Until the device is the request's own", true, ofTimes(func(r *Row) *stats.Summary { return r.Own })),
		m.plot("Until the request is answered", true, ofTimes(func(r *Row) *stats.Summary { return &r.Answer })),
		m.plot("Taking the queues off: the caller's time", true, ofTimes(func(r *Row) *stats.Summary { return r.Unmap })),
		m.plot("Putting them back: the caller's time", true, ofTimes(func(r *Row) *stats.Summary { return r.Remap })),
		m.plot("HQD slots in which work went on", false, func(r *Row) (float64, float64, string, bool) {
			return r.Utilisation, r.Utilisation, percent(r.Utilisation), true
		}),
		m.plot("Time in which nothing ran at all", false, func(r *Row) (float64, float64, string, bool) {
			return r.Stalled, r.Stalled, percent(r.Stalled), true
		}),
	}
}

func (m *ModelResult) plot(title string, isTime bool, of measured) plot {
	p := plot{Title: title}
	lo, hi := math.Inf(1), 0.0
	most := 2
	for i := range m.Rows {
		if v, up, _, ok := of(&m.Rows[i]); ok {
			lo, hi = min(lo, v), max(hi, up)
		}
		most = max(most, m.Rows[i].Queues)
	}
	x := func(n int) float64 { return plotWidth * math.Log2(float64(n)) / math.Log2(float64(most)) }
	y := func(v float64) float64 { return plotHeight * (1 - v/scaleOf(hi)) }
	if isTime {
		lo, hi = lo/1.3, hi*1.3
		y = func(v float64) float64 { return plotHeight * (1 - math.Log(v/lo)/math.Log(hi/lo)) }
		p.Y = timeTicks(lo, hi, y)
	} else {
		for i := range 5 {
			v := scaleOf(hi) * float64(i) / 4
			p.Y = append(p.Y, tick{y(v), percent(v)})
		}
	}
	for n := 1; n <= most; n *= 2 {
		p.X = append(p.X, tick{x(n), fmt.Sprint(n)})
	}
	for _, way := range AllWays {
		if c := m.curve(way, x, y, of); c.Points != "" {
			p.Curves = append(p.Curves, c)
		}
	}
	return p
}

func (m *ModelResult) curve(way Way, x func(int) float64, y func(float64) float64, of measured) curve {
	c := curve{Name: string(way), Class: classes[way]}
	var line, upper strings.Builder
	for i := range m.Rows {
		r := &m.Rows[i]
		v, up, label, ok := of(r)
		if r.Way != way || !ok {
			continue
		}
		fmt.Fprintf(&line, "%.1f,%.1f ", x(r.Queues), y(v))
		fmt.Fprintf(&upper, "%.1f,%.1f ", x(r.Queues), y(up))
		c.Dots = append(c.Dots, dot{x(r.Queues), y(v), fmt.Sprintf("%d queues, %s: %s", r.Queues, way, label)})
	}
	c.Points, c.Upper = strings.TrimSpace(line.String()), strings.TrimSpace(upper.String())
	return c
}

// scaleOf is the end of an axis of parts: a quarter, a half or all of it.
func scaleOf(most float64) float64 {
	for _, end := range []float64{0.04, 0.1, 0.25, 0.5} {
		if most <= end {
			return end
		}
	}
	return 1
}

// timeTicks are at 1 and 3 of each power of ten.
func timeTicks(lo, hi float64, at func(float64) float64) []tick {
	var all []tick
	for power := math.Pow(10, math.Floor(math.Log10(lo))); power <= hi; power *= 10 {
		for _, m := range []float64{1, 3} {
			if v := m * power; v >= lo && v <= hi {
				all = append(all, tick{at(v), clock(time.Duration(math.Round(v)))})
			}
		}
	}
	return all
}

// clock writes a time with three digits that count.
func clock(d time.Duration) string {
	x, unit := float64(d)/1e3, "µs"
	if x >= 999.5 {
		x, unit = x/1e3, "ms"
	}
	return digits(x) + "\u00a0" + unit
}

func digits(x float64) string {
	switch {
	case x >= 99.95 || x == math.Trunc(x):
		return fmt.Sprintf("%.0f", x)
	case x >= 9.995:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func percent(x float64) string { return digits(math.Round(x*1000)/10) + "\u00a0%" }

func times(x float64) string { return digits(x) + "\u00a0×" }
