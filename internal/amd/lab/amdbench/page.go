package amdbench

import (
	"embed"
	"html/template"
	"io"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/stats"
)

//go:embed page.tmpl
var templates embed.FS

var page = htmlreport.Parse(templates, template.FuncMap{
	"time": format.Duration, "ways": func() []Way { return AllWays }, "colour": func(w Way) string { return colours[w] },
})

var colours = map[Way]string{
	Native: htmlreport.AloneColour, OneByOne: htmlreport.NativeColour, Stock: htmlreport.RunColour(1), Batch: htmlreport.RunColour(0),
}

// WriteHTML writes a page with plots, tables and parameters.
func (r *Result) WriteHTML(w io.Writer) error { return htmlreport.Write(w, page, r) }

// tenQueues is the rows of one model with ten offline queues, except those of Native.
type tenQueues struct {
	Model                  string
	OneByOne, Stock, Batch *Row
}

// Rows returns the three rows.
func (t tenQueues) Rows() []*Row { return []*Row{t.OneByOne, t.Stock, t.Batch} }

// Total is the time that the caller waits for one request, on average.
func (r *Row) Total() time.Duration { return r.Unmap.Mean + r.Remap.Mean }

// TenQueues returns the rows of the models that have all three.
func (r *Result) TenQueues() []tenQueues {
	var all []tenQueues
	for _, m := range r.Models {
		rows := slices.DeleteFunc(slices.Clone(m.Rows), func(r Row) bool { return r.Queues != 10 })
		t := tenQueues{m.Name, find(rows, OneByOne), find(rows, Stock), find(rows, Batch)}
		if !slices.Contains(t.Rows(), nil) {
			all = append(all, t)
		}
	}
	return all
}

// Plots returns the plots of the page.
func (m *ModelResult) Plots() []*htmlreport.LinePlot {
	return []*htmlreport.LinePlot{
		m.timePlot("Time until the request has the device to itself", func(r *Row) *stats.Summary { return r.Exclusive }),
		m.timePlot("Time until the request is answered", func(r *Row) *stats.Summary { return &r.Answer }),
		m.timePlot("Time of the caller to unmap the queues", func(r *Row) *stats.Summary { return r.Unmap }),
		m.timePlot("Time of the caller to map them again", func(r *Row) *stats.Summary { return r.Remap }),
		m.sharePlot("Share of HQD slots in use", func(r *Row) float64 { return r.Utilisation }),
		m.sharePlot("Share of the time in which nothing ran", func(r *Row) float64 { return r.Stalled }),
	}
}

// timePlot draws the P50 and P99 of a time.
func (m *ModelResult) timePlot(title string, of func(*Row) *stats.Summary) *htmlreport.LinePlot {
	return m.plot(title, format.Nanoseconds, true, func(r *Row) (p htmlreport.Point) {
		if s := of(r); s != nil && s.P50 > 0 {
			p = htmlreport.Point{Y: float64(s.P50), Upper: float64(s.P99), Label: "P50 " + format.Duration(s.P50) + ", P99 " + format.Duration(s.P99)}
		}
		return p
	})
}

func (m *ModelResult) sharePlot(title string, of func(*Row) float64) *htmlreport.LinePlot {
	return m.plot(title, format.Percent, false, func(r *Row) htmlreport.Point {
		return htmlreport.Point{Y: of(r), Upper: of(r), Label: format.Percent(of(r))}
	})
}

// plot draws a line for each way. A point without a label is left out.
func (m *ModelResult) plot(title string, label func(float64) string, log bool, of func(*Row) htmlreport.Point) *htmlreport.LinePlot {
	lines := make([]htmlreport.Line, len(AllWays))
	for i, way := range AllWays {
		lines[i] = htmlreport.Line{Name: string(way), Colour: colours[way], Wide: way == Stock}
	}
	for i := range m.Rows {
		r := &m.Rows[i]
		if p := of(r); p.Label != "" {
			p.X = float64(r.Queues)
			p.Label = format.Plural(r.Queues, "queue") + ", " + string(r.Way) + ": " + p.Label
			line := &lines[slices.Index(AllWays, r.Way)]
			line.Points = append(line.Points, p)
		}
	}
	p := htmlreport.NewLinePlot(title, "offline queues, logarithmic", lines, label, log)
	p.Kind = string(Assumed)
	return p
}
