package cli

import (
	"io"

	"github.com/giveway/giveway/internal/report"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/trace"
)

func writeReport(w io.Writer, o *scenario.Outcome) error { return report.Write(w, *o) }

func writeTrace(w io.Writer, o *scenario.Outcome) error {
	var t trace.Trace
	for _, r := range o.Runs {
		run := trace.Run{Policy: r.Policy, Clients: r.Result.Clients, Segments: r.Result.Segments}
		for _, a := range r.Actions {
			run.Actions = append(run.Actions, trace.Action(a))
		}
		t.Runs = append(t.Runs, run)
	}
	return trace.Write(w, t)
}
