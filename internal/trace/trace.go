// Package trace writes what happened on a node as a trace that opens in Perfetto
// (ui.perfetto.dev) and in chrome://tracing.
//
// It is JSON in the trace-event form of Chrome, kept to what Perfetto's own
// importer takes without loss. That importer drops, mostly in silence, whatever
// it does not like, so the writer promises more than the form asks for:
//
//   - slices of one thread never overlap, not even by the nanosecond that
//     rounding a start and a length apart can cost: times are whole
//     nanoseconds, written as microseconds with three decimals;
//   - no two processes or threads have the same number, and none is zero;
//   - a time before zero, or a piece that ends before it begins, is an error.
//
// A trace is only written here, never read: nothing in it is needed to run a
// simulation again, which takes the scenario and its seed.
package trace

import (
	"bufio"
	"fmt"
	"io"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Trace is a number of runs to be looked at side by side.
type Trace struct{ Runs []Run }

// Run is what happened under one policy.
type Run struct {
	Policy   string
	Clients  []sim.ClientResult
	Segments []sim.Segment
	Actions  []Action // what the scheduler ordered
}

// Action is an order of the scheduler and when it was given.
type Action struct {
	At     sched.Time
	Action sched.Action
}

// Write writes t to w as it goes. Every run and device is a process of the
// trace, with these threads:
//
//	who holds the device   one slice a segment and switch; left out where
//	                       queues run side by side, as nobody holds it then
//	scheduler              an instant an action
//	NAME (CLASS)           one slice a segment, for each client
//
// and with counters of the actions so far and, where queues run side by side,
// of the queues served at a time.
func Write(w io.Writer, t Trace) error {
	out := &writer{w: bufio.NewWriterSize(w, 1<<16)}
	out.text("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")
	for i := range t.Runs {
		if err := check(&t.Runs[i]); err != nil {
			return fmt.Errorf("write trace of policy %q: %w", t.Runs[i].Policy, err)
		}
		processes := layOut(&t.Runs[i])
		for j := range processes {
			out.process(&processes[j])
		}
	}
	out.text("\n]}\n")
	if err := out.flush(); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// check refuses what the importer would drop.
func check(r *Run) error {
	for i, s := range r.Segments {
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
