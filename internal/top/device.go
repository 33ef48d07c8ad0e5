package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/format"
)

// slots is how many processes can be told apart by colour.
const slots = 6

// slotStyles are the colours of processes, in bars and beside their pid. slotFills are what
// bars are filled with where there are no colours.
var (
	slotStyles  = [slots]format.Style{"30;42", "30;46", "97;44", "30;43", "97;45", "30;47"}
	switchStyle = format.Style("97;41")
	slotFills   = map[bool][slots]rune{
		false: {'#', '=', '+', '*', '%', 'o'},
		true:  {'█', '▓', '▒', '░', '▚', '▤'},
	}
)

func (s *State) slotStyle(slot int) format.Style {
	if !s.look.Colour {
		return format.Plain
	}
	return slotStyles[slot]
}

// deviceLines returns the lines of the devices: two for each, or one if there is little
// room. They take not more than half of the screen.
func (s *State) deviceLines() (out []string) {
	devices := s.last.Status.Devices
	room := max((s.height-3)/2, 0)
	titles, between := 2*len(devices) <= room, 3*len(devices) <= room
	for i, d := range devices {
		switch left := len(devices) - i; {
		case titles:
			out = append(out, s.deviceTitle(d), s.bar(d, ""))
			if line := s.betweenClasses(d); between && line != "" {
				out = append(out, line)
			}
		case len(out) == room:
			return out
		case left > 1 && len(out) == room-1:
			return append(out, format.Text(fmt.Sprintf("and %d GPUs more", left), s.width))
		default:
			out = append(out, s.bar(d, fmt.Sprintf("%d ", d.Index)))
		}
	}
	return out
}

// deviceTitle describes a device in one line.
func (s *State) deviceTitle(d api.Device) string {
	name := fmt.Sprintf("GPU %d", d.Index)
	if d.Index < 0 {
		name = format.Text(d.ID, 20)
	}
	used := 0.0
	for _, part := range s.partsOf(d) {
		if part.row != nil {
			used += part.share
		}
	}
	parts := []string{name}
	if s.shares != nil {
		parts = append(parts, "used "+format.Percent(used))
	}
	if sw := d.Switching; sw != nil {
		parts = append(parts, fmt.Sprintf("%s switches/s, %s lost", format.Number(math.Round(sw.Rate)), format.Percent(sw.Share)))
	}
	if p := s.pressureOf(d.ID); p != nil {
		about := ""
		if p.Estimated {
			about = "~"
		}
		parts = append(parts, fmt.Sprintf("pressure %s%.1f%% full %.1f%%", about, p.Some.Avg10, p.Full.Avg10))
	}
	return format.Text(join(append(parts, format.Text(d.Model, 40)), s.width), s.width)
}

// betweenClasses says how long online and batch work waited for each other, and online work
// for context switches; empty: they do not share the device, or it is not known.
func (s *State) betweenClasses(d api.Device) string {
	has := map[string]bool{}
	for i := range s.last.Processes {
		p := &s.last.Processes[i]
		if slices.ContainsFunc(p.Queues, func(q api.Queue) bool { return q.Device == d.ID }) {
			has[p.Class()] = true
		}
	}
	if len(s.classes) < 2 || !has["online"] || !has["batch"] {
		return ""
	}
	first, last := s.classes[0], s.classes[len(s.classes)-1]
	waited := func(class, holder string) string {
		key := classPair{d.ID, class, holder}
		return format.Duration(last.totals[key] - first.totals[key])
	}
	seconds, batch, switches, online := (last.at - first.at).Seconds(), waited("online", "batch"), waited("online", "switch"), waited("batch", "online")
	text := fmt.Sprintf("in %.0f s online waited %s for batch and %s for switches, batch waited %s for online work", seconds, batch, switches, online)
	if format.Width(text) > s.width {
		text = fmt.Sprintf("%.0f s: online waited %s for batch, %s switching; batch %s for online", seconds, batch, switches, online)
	}
	return format.Text(text, s.width)
}

// part is a part of a bar.
type part struct {
	share float64
	row   *row // nil: context switches
}

// partsOf returns how the time of a device was divided between the last two snapshots.
func (s *State) partsOf(d api.Device) (parts []part) {
	sum := 0.0
	for i := range s.all {
		if share := s.all[i].devices[d.ID]; share > 0 {
			parts = append(parts, part{share, &s.all[i]})
			sum += share
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.row.process.PID, b.row.process.PID) })
	if d.Switching != nil && d.Switching.Share > 0 && sum < 1 {
		parts = append(parts, part{min(d.Switching.Share, 1-sum), nil})
	}
	return parts
}

// bar returns how the time of a device was divided: a piece for each process, in order of
// pid, one for context switches, and the rest for the time in which it was idle.
func (s *State) bar(d api.Device, title string) string {
	room := s.width - len(title) - 2
	if room < 1 {
		return format.Text(title, s.width)
	}
	var b strings.Builder
	b.WriteString(title + "[")
	used, sum := 0, 0.0
	for _, p := range s.partsOf(d) {
		sum += p.share
		n := min(int(math.Round(sum*float64(room))), room) - used
		if n > 0 {
			b.WriteString(s.piece(p, n))
			used += n
		}
	}
	b.WriteString(strings.Repeat(" ", room-used) + "]")
	return b.String()
}

// piece returns a piece of a bar, n columns wide, with as much of its name as fits.
func (s *State) piece(p part, n int) string {
	fill, style, labels := '-', switchStyle, []string{"switching " + format.Percent(p.share), "sw"}
	if p.row != nil {
		fill, style = slotFills[s.look.UTF8][p.row.history.slot], slotStyles[p.row.history.slot]
		pid, share := fmt.Sprint(p.row.process.PID), format.Percent(p.share)
		labels = []string{pid + " " + share, pid}
		if name := format.Text(p.row.process.Command, 30); name != "" {
			labels = append([]string{pid + " " + name + " " + share}, labels...)
		}
	}
	label := ""
	for _, l := range labels {
		if format.Width(l)+1 <= n {
			label = l
			break
		}
	}
	if s.look.Colour {
		return style.Paint(pad(label, n))
	}
	if label != "" && format.Width(label)+2 <= n {
		label += " "
	}
	return label + strings.Repeat(string(fill), n-format.Width(label))
}
