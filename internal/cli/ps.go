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
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/sched"
	"github.com/spf13/cobra"
)

// commandWidth is how many characters of a command line are shown.
const commandWidth = 60

func newPs() *cobra.Command {
	var asJSON, wide bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the processes on the devices",
		Long: `List the processes on the devices, one line for each device that a process uses.

  CLASS       and its source: default, backend, rule, run, hint or set
  GPU         the index of the device, or the runtime if the device is not known
  SLICE       the time slice; in brackets if it is as the process was found
  GPU TIME    device time; after a ~ if it is estimated
  CAN         what can be done to the process: hold, deactivate, interrupt, slice, bound
  ATTRIBUTES  other attributes that were given; marked if the policy in force ignores them
  REQUESTS    with --wide, if they are known: how long the last ones took, P50 and P99`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := client.New("").Processes(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), all)
			}
			return printProcesses(cmd.OutOrStdout(), all, wide)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&wide, "wide", "w", false, "show requests, and command lines in full")
	return cmd
}

const noProcesses = `No process uses a device here.
Start one with 'giveway run --class batch -- COMMAND', or start it as usual and then
'giveway set PID --class batch'. If there should be one, see 'giveway doctor'.
`

// column is a column of the table of processes.
type column struct {
	name string
	cell func(p *api.Process, u *use) string
}

func printProcesses(w io.Writer, all []api.Process, wide bool) error {
	if len(all) == 0 {
		_, err := io.WriteString(w, noProcesses)
		return err
	}
	columns := []column{
		{"PID", func(p *api.Process, _ *use) string { return strconv.Itoa(p.PID) }},
		{"USER", func(p *api.Process, _ *use) string { return printable(p.User) }},
		{"CLASS", func(p *api.Process, _ *use) string {
			return p.Class() + " (" + p.Attrs.Source(attr.Class).String() + ignoredMark(p, attr.Class, ", %s") + ")"
		}},
		{"GPU", func(_ *api.Process, u *use) string { return u.gpu }},
		{"STATE", func(_ *api.Process, u *use) string { return u.state }},
		{"SLICE", func(_ *api.Process, u *use) string { return u.slice }},
		{"GPU TIME", func(_ *api.Process, u *use) string { return u.time }},
		{"CAN", func(_ *api.Process, u *use) string { return u.can }},
	}
	if slices.ContainsFunc(all, func(p api.Process) bool { return attrsText(&p, attr.Paused) != "" }) {
		columns = append(columns, column{"ATTRIBUTES", func(p *api.Process, _ *use) string { return cmp.Or(attrsText(p, attr.Paused), "-") }})
	}
	if wide && slices.ContainsFunc(all, func(p api.Process) bool { return p.Requests != nil }) {
		columns = append(columns, column{"REQUESTS", func(p *api.Process, _ *use) string { return requestsText(p) }})
	}
	columns = append(columns, column{"COMMAND", func(p *api.Process, _ *use) string {
		width := commandWidth
		if wide {
			width = 0
		}
		return cmp.Or(cut(printable(p.Command), width), "-") // empty: the caller may not see it
	}})

	var t format.Table
	heads := t.Add()
	for _, c := range columns {
		heads.Cells = append(heads.Cells, c.name)
	}
	for i := range all {
		for _, u := range usesOf(&all[i]) {
			row := t.Add()
			for _, c := range columns {
				row.Cells = append(row.Cells, c.cell(&all[i], &u))
			}
		}
	}
	return t.Write(w, len(columns))
}

// requestsText says how long the last requests of a process took.
func requestsText(p *api.Process) string {
	if p.Requests == nil || p.Requests.Count == 0 {
		return "-"
	}
	return format.Duration(p.Requests.P50) + " " + format.Duration(p.Requests.P99)
}

// use describes the queues of a process on one device.
type use struct{ gpu, state, slice, time, can string }

// usesOf describes the queues of a process, device by device.
func usesOf(p *api.Process) []use {
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
		uses = append(uses, useOf(queues[:n], p.Attrs.Bool(attr.Paused)))
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
		native += q.KFDQueues
		measured = measured && q.Measured
		states = include(states, q.State)
		slicesOf = include(slicesOf, sliceText(q))
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
	u.can = cmp.Or(strings.Join(can, ","), "nothing")
	return u
}

func sliceText(q api.Queue) string {
	switch {
	case q.Slice == sched.MinSlice:
		return "minimum"
	case q.Slice > 0:
		return format.Duration(q.Slice)
	case q.VendorSlice > 0:
		return "(" + format.Duration(q.VendorSlice) + ")"
	}
	return "-"
}

// include appends word unless words has it.
func include(words []string, word string) []string {
	if slices.Contains(words, word) {
		return words
	}
	return append(words, word)
}

// longTime returns d in hours and minutes, or as format.Duration if it is under a minute.
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
