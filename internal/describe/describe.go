// Package describe turns what the daemon reports of processes into text: the cells that ps
// and top show, shares of device time, and the sentences of explain.
package describe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/sched"
)

// Use describes the queues of a process on one device.
type Use struct {
	Device string // the ID of the device; empty: it is not known
	GPU    string // its index, or the runtime if the device is not known
	State  string
	Why    string // why it runs or waits, in short
	Slice  string
	Time   string
	Can    string
}

// Uses describes the queues of a process, device by device. It returns one Use at least.
func Uses(p *api.Process) []Use {
	switch {
	case len(p.Queues) == 0 && p.Member != nil:
		return []Use{memberUse(p)}
	case len(p.Queues) == 0:
		return []Use{{}}
	}
	queues := slices.Clone(p.Queues)
	slices.SortStableFunc(queues, func(a, b api.Queue) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Device, b.Device))
	})
	var uses []Use
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
func memberUse(p *api.Process) Use {
	u := Use{GPU: strconv.Itoa(p.Member.Index), State: "member", Time: "~" + LongTime(p.Member.Served), Can: "nothing"}
	if p.Shim != nil {
		u.Can = "hold,bound"
	}
	switch {
	case p.Member.Lost:
		u.State, u.Can = "lost", "nothing"
	case p.Attrs.Bool(attr.Paused):
		u.State = "paused"
	}
	return u
}

// useOf describes queues of a process on the same device.
func useOf(queues []api.Queue, paused bool) Use {
	u := Use{Device: queues[0].Device, GPU: strconv.Itoa(queues[0].Index)}
	if queues[0].Index < 0 {
		u.GPU = format.Printable(queues[0].Device)
	}
	var served time.Duration
	native, measured, onFloor, inverted := 0, true, false, false
	var states, whys, slicesOf, can []string
	for _, q := range queues {
		served += q.Served
		native += q.KFDQueues
		measured = measured && q.Measured
		onFloor, inverted = onFloor || q.OnFloor, inverted || q.WaitsBehind != 0
		states = include(states, stateText(q))
		if q.Reason != "" {
			whys = include(whys, format.Text(q.Reason, 40))
		}
		slicesOf = include(slicesOf, Slice(q))
		can = include(can, q.Can...)
		can = include(can, canNotes(q)...)
	}
	if native > 1 {
		can = include(can, fmt.Sprintf("(%d queues)", native))
	}
	u.State, u.Why = strings.Join(states, ","), strings.Join(whys, ",")
	u.Slice, u.Time = strings.Join(slicesOf, ","), LongTime(served)
	switch {
	case paused:
		u.State = "paused"
	case inverted:
		u.State = "inverted"
	case onFloor:
		u.State = "floor"
	}
	if !measured {
		u.Time = "~" + u.Time
	}
	u.Can = cmp.Or(strings.Join(can, ","), "nothing")
	return u
}

// canNotes returns what is to be known of the abilities of a queue.
func canNotes(q api.Queue) (notes []string) {
	switch {
	case q.Pool != "":
		notes = append(notes, "(pool "+format.Printable(q.Pool)+")")
	case q.Shared != "":
		notes = append(notes, "("+format.Printable(q.Shared)+")")
	}
	if q.Way != "" {
		notes = append(notes, "("+format.Printable(q.Way)+")")
	}
	return notes
}

// stateText returns the state of a queue.
func stateText(q api.Queue) string {
	if q.SideBySide {
		return q.State + " side by side"
	}
	return q.State
}

// Slice returns the slice of a queue; in brackets if it is as the queue was found.
func Slice(q api.Queue) string {
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

// MembersBelow returns the processes with the clients of each MPS server below it.
func MembersBelow(all []api.Process) []api.Process {
	known := map[int]bool{}
	for i := range all {
		known[all[i].PID] = true
	}
	members := map[int][]api.Process{} // by server
	for _, p := range all {
		if m := p.Member; m != nil && !m.Lost && known[m.Server] && m.Server != p.PID {
			members[m.Server] = append(members[m.Server], p)
		}
	}
	out := make([]api.Process, 0, len(all))
	for _, p := range all {
		if m := p.Member; m != nil && !m.Lost && known[m.Server] && m.Server != p.PID {
			continue
		}
		out = append(out, p)
		out = append(out, members[p.PID]...)
	}
	return out
}

// PID returns the pid of a process, indented if it is a client of an MPS server.
func PID(p *api.Process) string {
	if p.Member != nil && !p.Member.Lost {
		return fmt.Sprintf("  %d", p.PID)
	}
	return strconv.Itoa(p.PID)
}

// P50 returns the median of the last minute's requests; empty: there were none.
func P50(p *api.Process) string {
	if p.Requests == nil || p.Requests.P50 == 0 {
		return ""
	}
	return format.Duration(p.Requests.P50)
}

// P99 returns the 99th percentile of the last minute's requests; empty: there were none.
func P99(p *api.Process) string {
	if p.Requests == nil || p.Requests.P99 == 0 {
		return ""
	}
	return format.Duration(p.Requests.P99)
}

// Memory returns how much memory of a device a process has; empty: it has none, or that is not
// known. A device that is not known stands for all of them, as of a member of a pool.
func Memory(p *api.Process, device string) string {
	var sum uint64
	for id, bytes := range p.Memory {
		if device == "" || id == device {
			sum += min(bytes, math.MaxInt64-sum)
		}
	}
	if sum == 0 {
		return ""
	}
	return format.Bytes(int64(sum))
}

// Attr returns the value of an attribute that was given; in brackets if it has no effect.
// It is empty if the attribute is its default.
func Attr(p *api.Process, id attr.ID) string {
	r := id.Row()
	value := p.Attrs.Int(id)
	if value == r.Default {
		return ""
	}
	if slices.ContainsFunc(p.Ignored, func(i api.Ignored) bool { return i.Name == r.Name && i.Mark != api.Limited }) {
		return "(" + r.Format(value) + ")"
	}
	return r.Format(value)
}

// Container returns the pod or the container of a process: the name if it is known, and
// otherwise the beginning of the id, as docker ps shows it.
func Container(p *api.Process) string {
	id := cmp.Or(p.Container, p.Pod)
	return format.Text(cmp.Or(p.ContainerNames.Pod, p.Name, id[:min(len(id), 12)]), 64)
}

// LongTime returns d in hours and minutes, or as format.Duration if it is under a minute.
func LongTime(d time.Duration) string {
	if d < time.Minute {
		return format.Duration(d)
	}
	d = d.Round(time.Second)
	if d < time.Hour {
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
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

// ClassStyle returns the look of a class on a terminal.
func ClassStyle(class string) format.Style {
	switch class {
	case "online":
		return format.Green
	case "batch":
		return format.Cyan
	case "idle":
		return format.Faint
	}
	return format.Plain
}

// StateStyle returns the look of a state on a terminal.
func StateStyle(state string) format.Style {
	switch state {
	case "stopped", "stopping", "floor":
		return format.Yellow
	case "paused":
		return format.Magenta
	case "lost":
		return format.Red
	}
	return format.Plain
}
