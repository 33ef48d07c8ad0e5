package amdbench

import (
	"embed"
	"html/template"
	"io"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/stats"
)

//go:embed page.tmpl
var templates embed.FS

var page = htmlreport.Parse(templates, template.FuncMap{
	"time": format.Duration, "part": format.Percent, "times": format.Ratio, "colour": func(w Way) string { return colours[w] },
})

var colours = map[Way]string{
	Native: htmlreport.AloneColour, OneByOne: htmlreport.NativeColour, Stock: htmlreport.RunColour(1), Batch: htmlreport.RunColour(0),
}

// WriteHTML writes a page with plots, tables and parameters.
func (r *Result) WriteHTML(w io.Writer) error {
	data := struct {
		*Result
		Ways  []Way
		Ten   []tenQueues
		Plots [][]*htmlreport.LinePlot
	}{Result: r, Ways: AllWays, Ten: r.tenQueues()}
	for i := range r.Models {
		data.Plots = append(data.Plots, r.Models[i].plots())
	}
	return htmlreport.Write(w, page, data)
}

// tenQueues is the rows of one model with ten offline queues.
type tenQueues struct {
	Model                  string
	OneByOne, Stock, Batch *Row
}

// Rows returns the three rows.
func (t tenQueues) Rows() []*Row { return []*Row{t.OneByOne, t.Stock, t.Batch} }

// Total is the caller's time for one request, on average.
func (r *Row) Total() time.Duration { return r.Unmap.Mean + r.Remap.Mean }

func (r *Result) tenQueues() []tenQueues {
	var all []tenQueues
	for _, m := range r.Models {
		rows := map[Way]*Row{}
		for i := range m.Rows {
			if m.Rows[i].Queues == 10 {
				rows[m.Rows[i].Way] = &m.Rows[i]
			}
		}
		t := tenQueues{m.Name, rows[OneByOne], rows[Stock], rows[Batch]}
		if t.OneByOne != nil && t.Stock != nil && t.Batch != nil {
			all = append(all, t)
		}
	}
	return all
}

func (m *ModelResult) plots() []*htmlreport.LinePlot {
	return []*htmlreport.LinePlot{
		m.timePlot("Time until the request has the device to itself", func(r *Row) *stats.Summary { return r.Own }),
		m.timePlot("Time until the request is answered", func(r *Row) *stats.Summary { return &r.Answer }),
		m.timePlot("Time of the caller to unmap the queues", func(r *Row) *stats.Summary { return r.Unmap }),
		m.timePlot("Time of the caller to map them again", func(r *Row) *stats.Summary { return r.Remap }),
		m.sharePlot("Share of HQD slots in use", func(r *Row) float64 { return r.Utilisation }),
		m.sharePlot("Share of the time in which nothing ran", func(r *Row) float64 { return r.Stalled }),
	}
}

// timePlot draws the P50 and P99 of a time.
func (m *ModelResult) timePlot(title string, of func(*Row) *stats.Summary) *htmlreport.LinePlot {
	return m.plot(title, format.Nanoseconds, true, func(r *Row) (p htmlreport.Point, ok bool) {
		s := of(r)
		if s == nil || s.P50 <= 0 {
			return p, false
		}
		return htmlreport.Point{Y: float64(s.P50), Upper: float64(s.P99), Label: "P50 " + format.Duration(s.P50) + ", P99 " + format.Duration(s.P99)}, true
	})
}

func (m *ModelResult) sharePlot(title string, of func(*Row) float64) *htmlreport.LinePlot {
	return m.plot(title, format.Percent, false, func(r *Row) (htmlreport.Point, bool) {
		return htmlreport.Point{Y: of(r), Upper: of(r), Label: format.Percent(of(r))}, true
	})
}

func (m *ModelResult) plot(title string, label func(float64) string, log bool, of func(*Row) (htmlreport.Point, bool)) *htmlreport.LinePlot {
	var lines []htmlreport.Line
	for _, way := range AllWays {
		line := htmlreport.Line{Name: string(way), Colour: colours[way], Wide: way == Stock}
		for i := range m.Rows {
			if r := &m.Rows[i]; r.Way == way {
				if p, ok := of(r); ok {
					p.X = float64(r.Queues)
					p.Label = format.Plural(r.Queues, "queue") + ", " + string(way) + ": " + p.Label
					line.Points = append(line.Points, p)
				}
			}
		}
		lines = append(lines, line)
	}
	p := htmlreport.NewLinePlot(title, "offline queues, logarithmic", lines, label, log)
	p.Kind = string(Assumed)
	return p
}
