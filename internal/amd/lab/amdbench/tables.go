package amdbench

import (
	"fmt"
	"io"
	"slices"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/stats"
)

// table is a table of the text and of the page. Its first row is the head.
type table struct {
	format.Table
	Title string
	Left  int // columns that are aligned to the left in the text
}

// WriteText writes the result as tables.
func (r *Result) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "Every figure is modelled; nothing was measured on an AMD GPU. %d requests of %s each; processes with offline queues: %d; seed %d.\n",
		r.Rounds, format.ExactDuration(r.OnlineWork), r.Processes, r.Seed)
	for i := range r.Models {
		m := &r.Models[i]
		fmt.Fprintf(w, "\n%s: %s\n", m.Name, m.Doc)
		for _, t := range m.Tables() {
			fmt.Fprintf(w, "\n%s:\n", t.Title)
			if err := t.Write(w, t.Left); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintln(w, "\nPublished by others:")
	for _, p := range r.Published {
		_, err = fmt.Fprintf(w, "  %s: %s: %s\n", p.Source, p.What, p.Value)
	}
	return err
}

// Tables returns the parameters, the latencies, the costs and the speed-ups.
func (m *ModelResult) Tables() []table {
	params := table{Title: "Parameters of " + m.Name, Left: 4}
	params.Add("parameter", "value", "kind", "source")
	for _, p := range m.Parameters {
		params.Add(p.Name, p.Value, string(p.Kind), p.Source)
	}
	latency := table{Title: "Time from a request until it has the device to itself, and until its answer; modelled", Left: 2}
	latency.Add("queues", "way", "device to itself: mean", "P50", "P95", "P99", "max", "answer: mean", "P50", "P95", "P99", "max")
	costs := table{Title: "Time that the caller waits, and costs to the device, per request; modelled", Left: 2}
	costs.Add("queues", "way", "unmap: mean", "P99", "map again: mean", "P99", "hiccup", "calls", "updates", "HQDs used", "mapped", "stalled", "offline kept")
	gains := table{Title: "Time of the other way over this one, of means; modelled", Left: 3}
	gains.Add("queues", "way", "other way", "device to itself", "answer", "unmap", "map again")
	for i := range m.Rows {
		r := &m.Rows[i]
		row := func(t *table, cells ...[]string) {
			t.Add(slices.Concat(append([][]string{{fmt.Sprint(r.Queues), string(r.Way)}}, cells...)...)...)
		}
		row(&latency, times(r.Exclusive, 5), times(&r.Answer, 5))
		row(&costs, times(r.Unmap, 2), times(r.Remap, 2), times(r.Hiccup, 1), []string{
			format.Number(r.Calls), format.Number(r.Updates), format.Percent(r.Utilisation),
			format.Percent(r.Mapped), format.Percent(r.Stalled), format.Percent(r.OfflineKept),
		})
		gain := func(other Way, s *SpeedUp) {
			if s != nil {
				row(&gains, []string{string(other), format.Ratio(s.Exclusive), format.Ratio(s.Answer), format.Ratio(s.Unmap), format.Ratio(s.Remap)})
			}
		}
		gain(OneByOne, r.VsOneByOne)
		gain(Stock, r.VsStock)
	}
	all := []table{params, latency, costs}
	if len(gains.Rows) > 1 {
		all = append(all, gains)
	}
	return all
}

// times returns one, two (mean and P99) or five cells of a distribution, which may be
// nil.
func times(s *stats.Summary, cells int) []string {
	if s == nil {
		return slices.Repeat([]string{format.Missing}, cells)
	}
	mean, p99 := format.Duration(s.Mean), format.Duration(s.P99)
	switch cells {
	case 1:
		return []string{mean}
	case 2:
		return []string{mean, p99}
	}
	return []string{mean, format.Duration(s.P50), format.Duration(s.P95), p99, format.Duration(s.Max)}
}
