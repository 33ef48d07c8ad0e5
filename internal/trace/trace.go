// Package trace writes the runs of a scenario as a trace that opens in Perfetto
// (ui.perfetto.dev) and in chrome://tracing.
//
// The trace is JSON in Chrome's trace-event format, restricted to what Perfetto's
// importer reads without loss. The importer silently drops most of what it does
// not accept, so the writer guarantees more than the format requires:
//
//   - slices of one thread never overlap, not even by the nanosecond that rounding
//     a start and a length separately can cost: times are whole nanoseconds,
//     written as microseconds with three decimals;
//   - no two processes or threads have the same number, and none has number zero;
//   - a time before zero, or a piece that ends before it begins, is an error.
//
// Traces are only written, never read: the scenario and its seed are enough to
// repeat a simulation.
package trace

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/giveway/giveway/internal/scenario"
)

// Write writes runs to w. Every device of every run is a process of the trace,
// with these threads:
//
//	device         one slice for each piece of device time and each switch; left
//	               out if queues run side by side
//	scheduler      one instant for each action
//	NAME (CLASS)   one slice for each piece of device time of a client
//
// Counters show the actions so far and, if queues run side by side, how many run
// at a time.
//
// The trace has at most limit bytes, if the segments of a queue do not overlap. A run that
// does not fit into its part is cut at one time in all its threads. Write returns the runs that are not
// complete, also those of which only the beginning was recorded.
func Write(w io.Writer, runs []scenario.Run, limit int) ([]Cut, error) {
	out := &writer{Writer: bufio.NewWriterSize(w, 1<<16)}
	var cuts []Cut
	parts := share(runs, limit)
	_, _ = out.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	for i := range runs {
		if err := check(&runs[i]); err != nil {
			return nil, fmt.Errorf("write trace of policy %q: %w", runs[i].Policy, err)
		}
		run, until := fit(&runs[i], parts[i])
		if until > 0 {
			cuts = append(cuts, Cut{runs[i].Policy, time.Duration(until)})
		}
		processes := layOut(run)
		for j := range processes {
			out.process(&processes[j])
		}
	}
	_, _ = out.WriteString("\n]}\n")
	if err := out.Flush(); err != nil {
		return nil, fmt.Errorf("write trace: %w", err)
	}
	return cuts, nil
}

// check returns an error for times that the importer would drop.
func check(r *scenario.Run) error {
	for i, s := range r.Result.Segments {
		if s.From < 0 || s.To < s.From {
			return fmt.Errorf("segment %d is from %d to %d ns", i, s.From, s.To)
		}
	}
	for i, a := range r.Actions {
		if a.At < 0 {
			return fmt.Errorf("action %d is at %d ns", i, a.At)
		}
	}
	return nil
}
