package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/sched"
	"github.com/spf13/cobra"
)

// commandWidth is how much of a command line is shown.
const commandWidth = 60

func newPs() *cobra.Command {
	var asJSON, wide bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the programs on the GPUs",
		Long: `List the programs on the GPUs, one line for each GPU that a program uses.

  CLASS     and who says so: default, rule, run, hint (itself) or set
  GPU       its index, or what it is used through where nobody knows more
  SLICE     its time slice; in brackets where it is as the program was found
  GPU TIME  time on the GPU; after a ~ where it is a guess
  CAN       what can be done to it: hold, deactivate, interrupt, slice, bound
  REQUESTS  with --wide, where it tells: how long the last ones took, P50 and P99`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := client.New("").Processes(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), all)
			}
			width := commandWidth
			if wide {
				width = 0
			}
			return printProcesses(cmd.OutOrStdout(), all, width, wide)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&wide, "wide", "w", false, "show requests, and command lines in full")
	return cmd
}

const nobodyRuns = `No program uses a GPU here.
Start one with 'giveway run --class batch -- COMMAND', or start it as you always do and
then 'giveway set PID --class batch'. If there ought to be one, see 'giveway doctor'.
`

func printProcesses(w io.Writer, all []api.Process, width int, requests bool) error {
	if len(all) == 0 {
		_, err := io.WriteString(w, nobodyRuns)
		return err
	}
	requests = requests && slices.ContainsFunc(all, func(p api.Process) bool { return p.Requests != nil })
	var t format.Table
	add := func(p api.Process, cells ...string) {
		if requests {
			last := len(cells) - 1
			cells = slices.Insert(cells, last, requestsOf(p))
		}
		t.Add(cells...)
	}
	t.Add("PID", "USER", "CLASS", "GPU", "STATE", "SLICE", "GPU TIME", "CAN", "COMMAND")
	if requests {
		t.Rows[0].Cells = slices.Insert(t.Rows[0].Cells, 8, "REQUESTS")
	}
	for _, p := range all {
		class := p.Class
		if p.From != "" {
			class += " (" + p.From + ")"
		}
		command := cut(printable(p.Command), width)
		if p.Command == "" {
			command = "-" // not ours to see
		}
		for _, u := range usesOf(p) {
			add(p, strconv.Itoa(p.PID), printable(p.User), class, u.gpu, u.state, u.slice, u.time, u.can, command)
		}
	}
	return t.Write(w, len(t.Rows[0].Cells))
}

// requestsOf is how long the requests of a process took of late.
func requestsOf(p api.Process) string {
	if p.Requests == nil || p.Requests.Count == 0 {
		return "-"
	}
	return format.Duration(p.Requests.P50) + " " + format.Duration(p.Requests.P99)
}

// use is what a process has on one device, in words.
type use struct{ gpu, state, slice, time, can string }

// usesOf takes the queues of a process on a device together.
func usesOf(p api.Process) []use {
	if len(p.Queues) == 0 {
		return []use{{"-", "-", "-", "-", "-"}}
	}
	queues := slices.Clone(p.Queues)
	slices.SortStableFunc(queues, func(a, b api.Queue) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Device, b.Device))
	})
	var uses []use
	for len(queues) > 0 {
		n := slices.IndexFunc(queues, func(q api.Queue) bool { return q.Device != queues[0].Device })
		if n < 0 {
			n = len(queues)
		}
		uses = append(uses, useOf(queues[:n], p.Paused))
		queues = queues[n:]
	}
	return uses
}

func useOf(queues []api.Queue, paused bool) use {
	u := use{gpu: strconv.Itoa(queues[0].Index)}
	if queues[0].Index < 0 {
		u.gpu = printable(queues[0].Device)
	}
	var served time.Duration
	native := 0
	measured := true
	var states, slicesOf, can []string
	for _, q := range queues {
		served += q.Served
		native += q.Native
		measured = measured && q.Measured
		states = include(states, q.State)
		slicesOf = include(slicesOf, sliceOf(q))
		for _, a := range q.Can {
			can = include(can, a)
		}
		if q.Shared != "" {
			can = include(can, "("+q.Shared+")")
		}
		if q.Way != "" {
			can = include(can, "("+printable(q.Way)+")")
		}
	}
	u.state = strings.Join(states, ",")
	if paused {
		u.state = "paused"
	}
	u.slice = strings.Join(slicesOf, ",")
	if native > 1 {
		can = include(can, fmt.Sprintf("(%d queues)", native))
	}
	u.time = longTime(served)
	if !measured {
		u.time = "~" + u.time
	}
	if u.can = strings.Join(can, ","); u.can == "" {
		u.can = "nothing"
	}
	return u
}

func sliceOf(q api.Queue) string {
	switch {
	case q.Slice == sched.MinSlice:
		return "least"
	case q.Slice > 0:
		return format.Duration(q.Slice)
	case q.Found > 0:
		return "(" + format.Duration(q.Found) + ")"
	}
	return "-"
}

func include(words []string, word string) []string {
	if slices.Contains(words, word) {
		return words
	}
	return append(words, word)
}

// longTime is d as humanTime has it, and in hours and minutes beyond those.
func longTime(d time.Duration) string {
	if d < time.Minute {
		return format.Duration(d)
	}
	d = d.Round(time.Second)
	if d < time.Hour {
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}
