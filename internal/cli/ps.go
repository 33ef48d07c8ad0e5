package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/pool"
	"github.com/spf13/cobra"
)

// psVersion is the version of what ps --json prints. docs/TOP.md describes it. Within a
// version keys are only added.
const psVersion = 1

// psJSON is what ps --json prints.
type psJSON struct {
	Version   int           `json:"version"`
	At        time.Time     `json:"at"`
	Processes []api.Process `json:"processes"`
	Shares    []psShare     `json:"shares"`
	Faults    []pool.Fault  `json:"pool_faults"` // of the caller's own pools
}

// psShare is the part of a moment for which a process had a device.
type psShare struct {
	PID    int     `json:"pid"`
	Device string  `json:"device,omitempty"` // the ID; none: it is a part of its MPS server's share
	Share  float64 `json:"share"`
}

// psMoment is how long ps measures shares, unless it repeats itself.
var psMoment = 400 * time.Millisecond

func newPs() *cobra.Command {
	var wide bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the processes on the devices",
		Long: `List the processes on the devices, one line for each device that a process uses. A
narrow terminal, or COLUMNS, shortens the command and leaves out columns; --wide shows all.

  CLASS       and its source: default, backend, rule, run, hint or set
  GPU         the index of the device, or the runtime if the device is not known
  STATE       running, stopping, stopped, starting; paused by 'giveway pause'; floor if
              the process gets no more than the share that every process is guaranteed;
              side by side if it is a batch job that takes no turns with others;
              inverted if it waits behind a process that is to be stopped; member of an
              MPS server, whose queue runs its work; lost if that server has exited
  SHARE       of the device's time, in 0.4 s or, with --watch, since the last list
  WEIGHT, SLO, BOUND
              if they were given; in brackets if they have no effect: ATTRIBUTES says why
  P99         of the last requests, if they are known
  SLICE       the time slice; in brackets if it is as the process was found
  GPU TIME    device time; after a ~ if it is estimated
  MEMORY      device memory that the process has there, if it is known
  CAN         what can be done to the process: hold, deactivate, interrupt, slice, bound
  ATTRIBUTES  other attributes that were given; marked if the policy in force ignores them
  PID         indented below an MPS server: a member of its pool, or a client
  P50         with --wide, if it is known
  LATE ENTRY  with --wide: requests that entered late, wrong guesses among them, and the
              time that was left to other processes

A line below the table says what part of the last second a GPU lost in context switches,
in which no process makes progress, if it was more than 1 %. Another one names each of your
pools (NVIDIA) that takes no member after a fault. 'giveway explain PID' says why
a process runs or waits, and 'giveway top' shows all of it live.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("watch") {
				return fmt.Errorf("ps takes no arguments; write --watch=%s", args[0])
			}
			return noArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := psCommand{cmd: cmd, client: client.New(""), wide: wide}
			if watch > 0 {
				return p.watch(cmd.Context(), watch)
			}
			if cmd.Flags().Changed("watch") {
				return usageError{errors.New("watch is a time above 0, such as 2s")}
			}
			return p.once(cmd.Context())
		},
	}
	addJSON(cmd, printJSON)
	cmd.Flags().BoolVarP(&wide, "wide", "w", false, "show all columns and requests, and command lines in full")
	cmd.Flags().DurationVar(&watch, "watch", 0, "repeat it every so often, 2s unless another `time` is given, until Ctrl-C")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
	return cmd
}

const noProcesses = `No process uses a device here.
Start one with 'giveway run --class batch -- COMMAND', or start it as usual and then
'giveway set PID --class batch'. If there should be one, see 'giveway doctor'.
`

// psCommand is one call of ps.
type psCommand struct {
	cmd    *cobra.Command
	client *client.Client
	wide   bool
}

// sample reads the processes.
func (p *psCommand) sample(ctx context.Context) (describe.Sample, error) {
	all, err := p.client.Processes(ctx)
	return describe.Sample{At: time.Now(), Processes: all}, err
}

// once prints the processes, after a moment in which their shares are measured.
func (p *psCommand) once(ctx context.Context) error {
	before, err := p.sample(ctx)
	if err != nil {
		return err
	}
	if len(before.Processes) > 0 {
		time.Sleep(psMoment)
	}
	after, err := p.sample(ctx)
	if err != nil {
		return err
	}
	return p.print(ctx, before, after, false)
}

// watch prints the processes again and again. While the daemon is away it says so, and
// goes on when there is one again.
func (p *psCommand) watch(ctx context.Context, every time.Duration) error {
	before, err := p.sample(ctx)
	if err != nil {
		return err
	}
	for wait := min(every, psMoment); ; wait = every {
		time.Sleep(wait)
		after, err := p.sample(ctx)
		if err != nil {
			s := screenOf(p.cmd.OutOrStdout())
			text := format.Text("giveway: "+err.Error(), cmp.Or(s.width, 1000)) + "\n"
			if _, err := io.WriteString(p.cmd.OutOrStdout(), s.redraw(text)); err != nil {
				return err
			}
			continue
		}
		if err := p.print(ctx, before, after, true); err != nil {
			return err
		}
		before = after
	}
}

// print prints the processes of a sample, with their shares since the one before.
func (p *psCommand) print(ctx context.Context, before, after describe.Sample, again bool) error {
	shares := describe.Shares(before, after)
	faults, _ := pool.Faults() // 'giveway pool' says which pools cannot be read
	if wantsJSON(p.cmd) {
		out := psJSON{psVersion, after.At, append([]api.Process{}, after.Processes...), []psShare{}, append([]pool.Fault{}, faults...)}
		for key, share := range shares {
			out.Shares = append(out.Shares, psShare{key.PID, key.Device, share})
		}
		slices.SortFunc(out.Shares, func(a, b psShare) int { return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Device, b.Device)) })
		return writeJSON(p.cmd.OutOrStdout(), out)
	}
	s := screenOf(p.cmd.OutOrStdout()) // now: the user may have changed its size
	text := processesText(after.Processes, shares, p.wide, s)
	if len(after.Processes) > 0 {
		if st, err := p.client.Status(ctx); err == nil {
			text += switchingText(st.Devices)
		}
	}
	for _, f := range faults {
		text += faultText(f)
	}
	if again {
		text = s.redraw(text)
	}
	_, err := io.WriteString(p.cmd.OutOrStdout(), text)
	return err
}

// processesText returns the table of processes, in lines that fit the screen unless wide is
// set.
func processesText(all []api.Process, shares map[describe.Key]float64, wide bool, s screen) string {
	if len(all) == 0 {
		return noProcesses
	}
	table := format.Columns{Gap: 2, All: psColumns(all, shares, wide)}
	table.All = slices.DeleteFunc(table.All, func(c format.Column) bool {
		optional := !slices.Contains([]string{"PID", "USER", "CLASS", "GPU", "STATE", "SHARE", "SLICE", "GPU TIME", "CAN", "COMMAND"}, c.Head)
		return optional && !slices.ContainsFunc(c.Cells, func(cell string) bool { return cell != "-" })
	})
	if wide {
		s.width = 0
	}
	table.Fit(s.width)
	var b strings.Builder
	for row := format.Heads; row < len(table.All[0].Cells); row++ {
		table.Line(&b, row, s.colour)
		b.WriteString("\n")
	}
	return b.String()
}

// psColumns returns the columns of ps, all of them.
func psColumns(all []api.Process, shares map[describe.Key]float64, wide bool) []format.Column {
	columns := []format.Column{
		{Head: "PID"},
		{Head: "USER", Rank: 9},
		{Head: "CLASS", Elide: 14},
		{Head: "GPU", Rank: 1},
		{Head: "STATE", Elide: 10},
		{Head: "SHARE", Right: true, Rank: 2},
		{Head: "WEIGHT", Right: true, Rank: 7},
		{Head: "SLO", Right: true, Rank: 4},
		{Head: "P50", Right: true, Rank: 13},
		{Head: "P99", Right: true, Rank: 3},
		{Head: "BOUND", Right: true, Rank: 10},
		{Head: "SLICE", Rank: 8},
		{Head: "GPU TIME", Rank: 5},
		{Head: "MEMORY", Right: true, Rank: 12},
		{Head: "CAN", Rank: 11},
		{Head: "ATTRIBUTES", Elide: 14, Rank: 6},
		{Head: "LATE ENTRY", Rank: 14},
		{Head: "COMMAND", Elide: 12},
	}
	if !wide {
		columns = slices.DeleteFunc(columns, func(c format.Column) bool { return c.Head == "P50" || c.Head == "LATE ENTRY" })
		columns[len(columns)-1].Max = 60
	}
	var rows []api.Process // for each row its process
	var states []string
	for _, p := range describe.MembersBelow(all) {
		for _, u := range describe.Uses(&p) {
			rows, states = append(rows, p), append(states, u.State)
			cells := psCells(&p, u, shares)
			for i := range columns {
				columns[i].Cells = append(columns[i].Cells, cmp.Or(cells[columns[i].Head], "-"))
			}
		}
	}
	for i := range columns {
		switch columns[i].Head {
		case "CLASS":
			columns[i].Paint = func(row int) format.Style { return describe.ClassStyle(rows[row].Class()) }
		case "STATE":
			columns[i].Paint = func(row int) format.Style { return describe.StateStyle(states[row]) }
		}
	}
	return columns
}

// psCells returns the cells of a row by the head of their column. Empty cells are not known.
func psCells(p *api.Process, u describe.Use, shares map[describe.Key]float64) map[string]string {
	cells := map[string]string{
		"PID": describe.PID(p), "USER": format.Printable(p.User), "GPU": u.GPU, "STATE": u.State, "SLICE": u.Slice, "GPU TIME": u.Time, "CAN": u.Can,
		"CLASS":  p.Class() + " (" + p.Attrs.Source(attr.Class).String() + ignoredMark(p, attr.Class, ", %s") + ")",
		"WEIGHT": describe.Attr(p, attr.Weight), "SLO": describe.Attr(p, attr.SLO), "BOUND": describe.Attr(p, attr.Bound),
		"P50": describe.P50(p), "P99": describe.P99(p), "ATTRIBUTES": attrsText(p, psAttrs(p)...), "LATE ENTRY": lateText(p),
		"MEMORY":  describe.Memory(p, u.Device),
		"COMMAND": format.Printable(p.Command), // empty: the caller may not see it
	}
	if share, known := shares[describe.Key{PID: p.PID, Device: u.Device}]; known {
		cells["SHARE"] = format.Percent(share)
	}
	return cells
}

// psAttrs returns the attributes of a process that other columns show in full.
func psAttrs(p *api.Process) []attr.ID {
	shown := []attr.ID{attr.Paused}
	for _, id := range []attr.ID{attr.Weight, attr.SLO, attr.Bound} {
		if ignoredMark(p, id, "%s") == "" {
			shown = append(shown, id)
		}
	}
	return shown
}

// switchingText returns a line for each device that lost more than 1 % of the last second in
// context switches.
func switchingText(devices []api.Device) string {
	var b strings.Builder
	for _, d := range devices {
		if s := d.Switching; s != nil && s.Share > 0.01 {
			fmt.Fprintf(&b, "%s lost %s of the last second in %.0f context switches.\n", deviceName(d), format.Percent(s.Share), s.Rate)
		}
	}
	return b.String()
}

// lateText returns how many requests of a process entered late, and what that gave to others.
func lateText(p *api.Process) string {
	if p.Shim == nil || p.Shim.LateRequests == 0 {
		return ""
	}
	return fmt.Sprintf("%d (%d wrong) %s", p.Shim.LateRequests, p.Shim.LateEarly, describe.LongTime(p.Shim.LateFor))
}
