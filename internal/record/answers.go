package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// Delays returns which processes waited for which others. The caller adds the clock and sorts
// the delays.
func (a *Accounts) Delays() api.Delays {
	out := api.Delays{Version: api.RecordVersion, Delays: []api.Delay{}, Classes: []api.ClassDelay{}}
	for i, d := range a.devices {
		if end := time.Duration(d.to); i == 0 || end < out.WindowEnd {
			out.WindowEnd = end
		}
		for _, c := range d.clients {
			if c.closed() {
				continue
			}
			for j := range c.row.cells {
				cell := &c.row.cells[j]
				out.Delays = append(out.Delays, api.Delay{
					Device: string(d.id), PID: int(c.pid), Class: c.class.String(), Holder: holder(cell.holder), Total: cell.total,
					Last10: cell.window(d.to, 10), Last60: cell.window(d.to, buckets), Estimated: cell.estimated,
				})
			}
		}
		for victim := range d.classes {
			for by, total := range d.classes[victim] {
				if total > 0 {
					out.Classes = append(out.Classes, api.ClassDelay{
						Device: string(d.id), Class: sched.Class(victim).String(), Holder: holderClassName(by), Total: total,
					})
				}
			}
		}
	}
	return out
}

// SortDelays sorts delays, the largest total first.
func SortDelays(all []api.Delay) {
	slices.SortStableFunc(all, func(x, y api.Delay) int { return cmp.Compare(y.Total, x.Total) })
}

func holderClassName(class int) string {
	switch class {
	case classSwitch:
		return "switch"
	case classIdle:
		return "idle"
	case classUnknown:
		return "unknown"
	}
	return sched.Class(class).String()
}

// Pressure returns the pressure of devices and processes. The caller adds the clock.
func (a *Accounts) Pressure() api.Pressure {
	out := api.Pressure{Version: api.RecordVersion, Devices: []api.DevicePressure{}, Processes: []api.ProcessPressure{}}
	for _, d := range a.devices {
		out.Devices = append(out.Devices, api.DevicePressure{
			Device: string(d.id), Index: d.index, Some: d.some.stall(), Full: d.full.stall(), Estimated: d.estimated,
		})
	}
	for pid, p := range a.processes {
		out.Processes = append(out.Processes, api.ProcessPressure{PID: int(pid), Some: p.some.stall(), Full: p.full.stall(), Estimated: p.estimated})
	}
	slices.SortFunc(out.Processes, func(x, y api.ProcessPressure) int { return cmp.Compare(x.PID, y.PID) })
	return out
}
