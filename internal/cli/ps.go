package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/sched"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newPs() *cobra.Command {
	var wide bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the processes on the devices",
		Long: `List the processes on the devices, one line for each device that a process uses. A
narrow terminal, or COLUMNS, leaves out columns and shortens text; --wide shows all.

  CLASS       and its source: default, backend, rule, run, hint or set
  GPU         the index of the device, or the runtime if the device is not known
  STATE       running, stopping, stopped, starting; paused by 'giveway pause'; floor if
              the process gets no more than the share that every process is guaranteed;
              side by side if it is a batch job that takes no turns with others
  SLICE       the time slice; in brackets if it is as the process was found
  GPU TIME    device time; after a ~ if it is estimated
  CAN         what can be done to the process: hold, deactivate, interrupt, slice, bound
  ATTRIBUTES  other attributes that were given; marked if the policy in force ignores them
  PID         indented below an MPS server: a member of its pool, or a client
  REQUESTS    with --wide, if they are known: how long the last ones took, P50 and P99
  LATE ENTRY  with --wide: requests that entered late, wrong guesses among them, and the
              time that was left to other processes

A line below the table says what part of the last second a GPU lost in context switches,
in which no process makes progress, if it was more than 1 %.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := client.New("").Processes(cmd.Context())
			if err != nil {
				return err
			}
			text := processesText(all, wide, terminalWidth(cmd.OutOrStdout()))
			if st, err := client.New("").Status(cmd.Context()); err == nil && len(all) > 0 {
				text += switchingText(st.Devices)
			}
			return show(cmd, all, text)
		},
	}
	addJSON(cmd, printJSON)
	cmd.Flags().BoolVarP(&wide, "wide", "w", false, "show all columns and requests, and command lines in full")
	return cmd
}

const noProcesses = `No process uses a device here.
Start one with 'giveway run --class batch -- COMMAND', or start it as usual and then
'giveway set PID --class batch'. If there should be one, see 'giveway doctor'.
`

// processesText returns the table of processes, in lines of width characters if width is
// not zero and wide is not set.
func processesText(all []api.Process, wide bool, width int) string {
	if len(all) == 0 {
		return noProcesses
	}
	columns := []column{{"PID"}, {"USER"}, {"CLASS"}, {"GPU"}, {"STATE"}, {"SLICE"}, {"GPU TIME"}, {"CAN"}, {"ATTRIBUTES"}, {"REQUESTS"}, {"LATE ENTRY"}, {"COMMAND"}}
	all = membersBelow(all)
	for i := range all {
		p := &all[i]
		class := p.Class() + " (" + p.Attrs.Source(attr.Class).String() + ignoredMark(p, attr.Class, ", %s") + ")"
		for _, u := range usesOf(p) {
			for i, cell := range []string{
				pidText(p), printable(p.User), class, u.gpu, u.state, u.slice, u.time, u.can,
				attrsText(p, attr.Paused), requestsText(p), lateText(p), printable(p.Command), // empty: the caller may not see it
			} {
				columns[i] = append(columns[i], cmp.Or(cell, "-"))
			}
		}
	}
	columns = slices.DeleteFunc(columns, func(c column) bool {
		detail := c[0] == "REQUESTS" || c[0] == "LATE ENTRY"
		return detail && !wide || (detail || c[0] == "ATTRIBUTES") && c.empty()
	})
	if !wide {
		columns[len(columns)-1].cut(60)
		columns = fit(columns, width)
	}
	var t format.Table
	for i := range columns[0] {
		row := t.Add()
		for _, c := range columns {
			row.Cells = append(row.Cells, c[i])
		}
	}
	var b strings.Builder
	_ = t.Write(&b, len(columns)) // a Builder takes everything
	return b.String()
}

// membersBelow returns the processes with the clients of each MPS server below it.
func membersBelow(all []api.Process) []api.Process {
	var out []api.Process
	serves := func(m *api.Member, p *api.Process) bool { return m != nil && !m.Lost && m.Server == p.PID }
	for i := range all {
		p := &all[i]
		if slices.ContainsFunc(all, func(o api.Process) bool { return serves(p.Member, &o) }) {
			continue
		}
		out = append(out, *p)
		for _, o := range all {
			if serves(o.Member, p) {
				out = append(out, o)
			}
		}
	}
	return out
}

func pidText(p *api.Process) string {
	if p.Member != nil && !p.Member.Lost {
		return fmt.Sprintf("  %d", p.PID)
	}
	return strconv.Itoa(p.PID)
}

// switchingText returns a line for each device that lost more than 1 % of the last second in
// context switches.
func switchingText(devices []api.Device) string {
	var b strings.Builder
	for _, d := range devices {
		if s := d.Switching; s != nil && s.Share > 0.01 {
			fmt.Fprintf(&b, "%s lost %.1f %% of the last second in %.0f context switches.\n", deviceName(d), 100*s.Share, s.Rate)
		}
	}
	return b.String()
}

// column is a column of a table: its head, then a cell for each row.
type column []string

func (c column) empty() bool {
	return !slices.ContainsFunc(c[1:], func(cell string) bool { return cell != "-" })
}

func (c column) width() (n int) {
	for _, cell := range c {
		n = max(n, utf8.RuneCountInString(cell))
	}
	return n
}

func (c column) cut(width int) {
	for i := range c {
		c[i] = cut(c[i], width)
	}
}

// fit makes lines of at most width characters, as far as possible; zero is any number. It
// leaves out the columns that matter least, and then shortens commands and attributes.
func fit(columns []column, width int) []column {
	excess := func() int {
		n := -2 - width
		for _, c := range columns {
			n += c.width() + 2
		}
		return n
	}
	if width == 0 {
		return columns
	}
	for _, name := range []string{"CAN", "USER", "SLICE"} {
		if excess() > 0 {
			columns = slices.DeleteFunc(columns, func(c column) bool { return c[0] == name })
		}
	}
	for _, c := range slices.Backward(columns) {
		if n := excess(); n > 0 && (c[0] == "COMMAND" || c[0] == "ATTRIBUTES") {
			c.cut(max(c.width()-n, 12))
		}
	}
	return columns
}

// terminalWidth returns how many characters fit in a line: COLUMNS, or the width of the
// terminal that w is; zero: there is no limit.
func terminalWidth(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return int(size.Col)
		}
	}
	return 0
}

// requestsText returns how long the last requests of a process took.
func requestsText(p *api.Process) string {
	if p.Requests == nil || p.Requests.Count == 0 {
		return ""
	}
	return format.Duration(p.Requests.P50) + " " + format.Duration(p.Requests.P99)
}

// lateText returns how many requests of a process entered late, and what that gave to others.
func lateText(p *api.Process) string {
	if p.Shim == nil || p.Shim.LateRequests == 0 {
		return ""
	}
	return fmt.Sprintf("%d (%d wrong) %s", p.Shim.LateRequests, p.Shim.LateEarly, longTime(p.Shim.LateFor))
}

// use describes the queues of a process on one device.
type use struct{ gpu, state, slice, time, can string }

// usesOf describes the queues of a process, device by device.
func usesOf(p *api.Process) []use {
	switch {
	case len(p.Queues) == 0 && p.Member != nil:
		return []use{memberUse(p)}
	case len(p.Queues) == 0:
		return []use{{}}
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

// memberUse describes a client of an MPS server, which has no queue of its own.
func memberUse(p *api.Process) use {
	u := use{gpu: strconv.Itoa(p.Member.Index), state: "member", time: "~" + longTime(p.Member.Served), can: "nothing"}
	if p.Shim != nil {
		u.can = "hold,bound"
	}
	switch {
	case p.Member.Lost:
		u.state, u.can = "lost", "nothing"
	case p.Attrs.Bool(attr.Paused):
		u.state = "paused"
	}
	return u
}

// stateText returns the state of a queue as ps shows it.
func stateText(q api.Queue) string {
	if q.SideBySide {
		return q.State + " side by side"
	}
	return q.State
}

func useOf(queues []api.Queue, paused bool) use {
	u := use{gpu: strconv.Itoa(queues[0].Index)}
	if queues[0].Index < 0 {
		u.gpu = printable(queues[0].Device)
	}
	var served time.Duration
	native, measured, onFloor := 0, true, false
	var states, slicesOf, can []string
	for _, q := range queues {
		served += q.Served
		native += q.KFDQueues
		measured = measured && q.Measured
		onFloor = onFloor || q.OnFloor
		states = include(states, stateText(q))
		slicesOf = include(slicesOf, sliceText(q))
		can = include(can, q.Can...)
		switch {
		case q.Pool != "":
			can = include(can, "(pool "+printable(q.Pool)+")")
		case q.Shared != "":
			can = include(can, "("+q.Shared+")")
		}
		if q.Way != "" {
			can = include(can, "("+printable(q.Way)+")")
		}
	}
	if native > 1 {
		can = include(can, fmt.Sprintf("(%d queues)", native))
	}
	u.state, u.slice, u.time = strings.Join(states, ","), strings.Join(slicesOf, ","), longTime(served)
	switch {
	case paused:
		u.state = "paused"
	case onFloor:
		u.state = "floor"
	}
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

// include appends the words that are not in the list yet.
func include(list []string, words ...string) []string {
	for _, word := range words {
		if !slices.Contains(list, word) {
			list = append(list, word)
		}
	}
	return list
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
