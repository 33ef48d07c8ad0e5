package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/giveway/giveway/internal/format"
)

// Files that amd-tests.sh writes, by what measured them.
const (
	StopsFile = "stops.json"
	BenchFile = "bench.json"
	SoakFile  = "soak.json"
)

// WriteAMDTargets writes a table, in Markdown, of the targets that the design notes for AMD
// set, and what the files in a folder say was measured. It reports whether all limits that
// must be reached were.
func WriteAMDTargets(w io.Writer, folder string) (met bool, err error) {
	var stops StopsResult
	var bench Result
	var soak SoakResult
	var missing []error
	for name, into := range map[string]any{StopsFile: &stops, BenchFile: &bench, SoakFile: &soak} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // its rows say that they were not measured
		}
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			missing = append(missing, fmt.Errorf("read %s: %w", name, err))
		}
	}
	if err := errors.Join(missing...); err != nil {
		return false, err
	}
	machine := soak.Machine
	for _, m := range []Machine{bench.Machine, stops.Machine} {
		if m.GPU != "" {
			machine = m
		}
	}
	rows := append(stops.targets(), bench.onlineTarget())
	rows = append(rows, soak.targets()...)
	t := targetTable{head: []string{"document's target", "measured", "met?"}, machines: []Machine{machine}, driver: stops.Driver, rows: rows}
	return t.write(w)
}

func milliseconds(ms float64) string {
	return format.Duration(time.Duration(ms * float64(time.Millisecond)))
}

func ms3(d time.Duration) *float64 { return number(float64(d) / float64(time.Millisecond)) }

// targets returns the rows of stopping and starting queues with the batch calls.
func (r *StopsResult) targets() []targetRow {
	var rows []targetRow
	for _, n := range []int{1, 2, 10, 64} {
		of := format.Plural(n, "queue")
		stop := targetRow{what: "batch unmap of " + of + ", P99", limits: []float64{1, 0.5, 0.3}, write: milliseconds, note: "no " + StopsFile}
		if len(r.Rows) > 0 {
			stop.note = "not among the numbers of queues"
		}
		start := stop
		start.what = "fast remap of " + of + ", P99"
		if row := r.row(BatchWay, n); row != nil {
			stop.note, start.note = row.Skipped, row.Skipped
			if stock := r.row(StockWay, n); stock != nil && stock.Stop != nil {
				stop.note += fmt.Sprintf("; %s P99 %s", StockWay, format.Duration(stock.Stop.P99))
				start.note += fmt.Sprintf("; %s P99 %s", StockWay, format.Duration(stock.Start.P99))
			}
			if row.Stop != nil && row.Stopped && row.Resumed {
				stop.measured, stop.note = ms3(row.Stop.P99), fmt.Sprintf("P50 %s, %d hardware queues", format.Duration(row.Stop.P50), row.Queues)
				start.measured, start.note = ms3(row.Start.P99), fmt.Sprintf("P50 %s", format.Duration(row.Start.P50))
			}
		}
		rows = append(rows, stop, start)
	}
	return rows
}

// Names of ways to stop queues.
const (
	BatchWay = "batch"         // one call of the patched driver
	StockWay = "stock suspend" // one call of the stock driver
)

// row returns the row of a way with a number of queues, or nil.
func (r *StopsResult) row(way string, asked int) *StopsRow {
	for i := range r.Rows {
		if r.Rows[i].Way == way && r.Rows[i].Asked == asked {
			return &r.Rows[i]
		}
	}
	return nil
}

// onlineTarget returns the row of the online latency beside kernels of 40 ms.
func (r *Result) onlineTarget() targetRow {
	t := targetRow{what: "online request beside batch kernels of 40 ms, P99", limits: []float64{15, 10, 5}, write: milliseconds, note: "no " + BenchFile}
	for i := range r.Cases {
		c := &r.Cases[i]
		if c.Name != "micro-40ms" {
			continue
		}
		t.note = c.Error + c.Skipped
		if p := c.phase(underGiveway); p != nil && p.Latency != nil {
			t.measured, t.note = ms3(p.Latency.P99), "P50 "+format.Duration(p.Latency.P50)
			if shared := c.phase(native); shared != nil && shared.Latency != nil {
				t.note += ", native P99 " + format.Duration(shared.Latency.P99)
			}
		}
	}
	return t
}

// targets returns the rows of the soak.
func (r *SoakResult) targets() []targetRow {
	use := targetRow{what: "HQD slots in use", limits: []float64{0.8}, more: true, write: format.Percent, note: "no " + SoakFile}
	hour := targetRow{what: "an hour without error", limits: []float64{1}, write: func(n float64) string { return format.Plural(int(n), "error") }, note: "no " + SoakFile}
	hour.what += ":"
	if r.Rounds > 0 {
		use.note = "the driver does not count slots"
		hour.measured = number(float64(len(r.Errors) + r.Unanswered))
		hour.note = fmt.Sprintf("%s, %d rounds", r.Length.Round(time.Second), r.Rounds)
		if r.Length < time.Hour {
			hour.limits, hour.what = []float64{1}, "an hour without error, here "+r.Length.Round(time.Second).String()+":"
		}
	}
	if u := r.Slots; u != nil {
		use.measured, use.note = number(u.Mean), fmt.Sprintf("of %d, %d samples", u.Slots, u.Samples)
		if !u.Counted {
			use.note += "; an upper bound, because a stock driver does not count"
		}
	}
	return []targetRow{use, hour}
}
