package bench

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/stats"
)

//go:embed stops
var stopsTemplates embed.FS

var stopsPage = htmlreport.Parse(subfolder(stopsTemplates, "stops"), nil)

func subfolder(of fs.FS, name string) fs.FS {
	sub, err := fs.Sub(of, name)
	if err != nil {
		panic(err) // the name is not valid
	}
	return sub
}

// WriteHTML writes a page with plots and the table.
func (r *StopsResult) WriteHTML(w io.Writer) error { return htmlreport.Write(w, stopsPage, r) }

// WriteTable writes the result as text.
func (r *StopsResult) WriteTable(w io.Writer) error {
	fmt.Fprintln(w, strings.Join(r.Facts(), "; "))
	fmt.Fprintln(w, r.Finding())
	_, err := io.WriteString(w, r.Text()+"\n")
	return err
}

// Facts describes the machine and the run in a few words each.
func (r *StopsResult) Facts() []string {
	return append(r.Machine.labels(), r.Driver, "Linux "+r.Machine.Kernel, fmt.Sprintf("%d rounds", r.Rounds), r.Started.Format("2006-01-02 15:04 UTC"))
}

// labels returns the name of the GPU and, for a double, what that means.
func (m *Machine) labels() []string {
	if m.isDouble() {
		return []string{m.GPU, "no figure says anything about a GPU"}
	}
	return []string{m.GPU}
}

// isDouble reports whether the GPU is the double of shim/test/hipdevice.c.
func (m *Machine) isDouble() bool { return strings.Contains(m.GPU, "not hardware") }

// Finding compares the ways for ten queues, or for the most that were measured.
func (r *StopsResult) Finding() string {
	n := 0
	for _, row := range r.Rows {
		if row.Stop != nil && (row.Asked == 10 || n != 10 && row.Asked > n) {
			n = row.Asked
		}
	}
	var parts []string
	for _, row := range r.Rows {
		if row.Asked == n && row.Stop != nil {
			parts = append(parts, fmt.Sprintf("%s %s and %s", row.Way, format.Duration(row.Stop.P50), format.Duration(row.Start.P50)))
		}
	}
	if len(parts) == 0 {
		return "Nothing was measured."
	}
	return fmt.Sprintf("To stop and start %s takes (P50): %s.", format.Plural(n, "queue"), strings.Join(parts, "; "))
}

// Text returns the table as text.
func (r *StopsResult) Text() string {
	var table format.Table
	table.Add("queues", "way", "had", "stop p50", "p95", "p99", "max", "start p50", "p95", "p99", "max")
	for _, row := range r.Rows {
		cells := []string{fmt.Sprint(row.Asked), row.Way}
		if row.Stop == nil {
			table.Add(cells...).Note = "not measured: " + row.Skipped
			continue
		}
		cells = append(cells, fmt.Sprint(row.Queues))
		for _, s := range []*stats.Summary{row.Stop, row.Start} {
			cells = append(cells, format.Duration(s.P50), format.Duration(s.P95), format.Duration(s.P99), format.Duration(s.Max))
		}
		added := table.Add(cells...)
		if !row.Stopped || !row.Resumed {
			added.Note = "THE CALLS HAVE NO EFFECT: " + row.Skipped
		}
	}
	var text strings.Builder
	_ = table.Write(&text, 2) // a Builder takes everything
	return strings.TrimRight(text.String(), "\n")
}

// Plots draws the times by the number of queues.
func (r *StopsResult) Plots() []*htmlreport.LinePlot {
	return []*htmlreport.LinePlot{
		r.plot("Stop all queues", func(row *StopsRow) *stats.Summary { return row.Stop }),
		r.plot("Start all queues", func(row *StopsRow) *stats.Summary { return row.Start }),
	}
}

func (r *StopsResult) plot(title string, of func(*StopsRow) *stats.Summary) *htmlreport.LinePlot {
	var lines []htmlreport.Line
	for i := range r.Rows {
		row := &r.Rows[i]
		s := of(row)
		if s == nil {
			continue
		}
		at := slices.IndexFunc(lines, func(l htmlreport.Line) bool { return l.Name == row.Way })
		if at < 0 {
			at = len(lines)
			lines = append(lines, htmlreport.Line{Name: row.Way, Colour: htmlreport.RunColour(at)})
		}
		lines[at].Points = append(lines[at].Points, htmlreport.Point{
			X: float64(row.Queues), Y: float64(s.P50), Upper: float64(s.P99),
			Label: fmt.Sprintf("%s, %s: P50 %s, P99 %s", format.Plural(row.Queues, "queue"), row.Way, format.Duration(s.P50), format.Duration(s.P99)),
		})
	}
	p := htmlreport.NewLinePlot(title, "queues, logarithmic", lines, format.Nanoseconds, true)
	p.Kind = "measured"
	if r.Machine.isDouble() {
		p.Kind = "double, not hardware"
	}
	return p
}
