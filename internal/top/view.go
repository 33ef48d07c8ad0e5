package top

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/format"
)

// View returns the screen: at most height lines of at most width columns.
func (s *State) View() string {
	if s.width < 1 || s.height < 1 {
		return ""
	}
	var lines []string
	switch s.mode {
	case inHelp:
		lines = s.page(helpText)
	case inExplain:
		lines = s.page(describe.Write(s.explained, max(min(s.width, 100), 20)))
	default:
		lines = s.table()
	}
	return strings.Join(lines, "\n")
}

// page returns a text that can be scrolled.
func (s *State) page(text string) []string {
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	room := max(s.height-1, 1)
	s.scroll = max(min(s.scroll, len(all)-room), 0)
	lines := all[s.scroll:min(s.scroll+room, len(all))]
	out := make([]string, 0, s.height)
	for _, line := range lines {
		out = append(out, format.Text(line, s.width))
	}
	for len(out) < s.height-1 {
		out = append(out, "")
	}
	foot := "Esc: back"
	if len(all) > room {
		foot += "   up, down: scroll"
	}
	return append(out, s.paint(format.Reverse, pad(format.Text(foot, s.width), s.width)))[:s.height]
}

// paint returns text in a style. A style without colour is used on every terminal.
func (s *State) paint(style format.Style, text string) string {
	if !s.look.Colour && style != format.Bold && style != format.Reverse {
		return text
	}
	return style.Paint(text)
}

// pad returns text with spaces up to a width.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-format.Width(text), 0))
}

// table returns the lines of the main screen.
func (s *State) table() []string {
	out := append(make([]string, 0, s.height+1), s.header())
	if !s.shown {
		return out
	}
	out = append(out, s.deviceLines()...)
	room := s.height - len(out) - 2 // the heads and the line at the bottom
	if room > 0 {
		out = append(out, s.rowLines(room)...)
	}
	for len(out) < s.height-1 {
		out = append(out, "")
	}
	return append(out[:min(len(out), max(s.height-1, 1))], s.foot())[:s.height]
}

// tableHeight returns how many rows there is room for.
func (s *State) tableHeight() int { return max(s.height-3-len(s.deviceLines()), 1) }

// header returns the first line.
func (s *State) header() string {
	if s.gone != nil {
		return s.paint(format.Red, format.Text(s.goneText(), s.width))
	}
	if !s.shown {
		return format.Text("giveway top: asking the daemon", s.width)
	}
	parts := []string{"giveway", "policy " + format.Text(s.last.Status.Policy.Name, 30)}
	if s.last.Status.Policy.Overruled != "" {
		parts[1] += " (overruled)"
	}
	count := format.Plural(len(s.all), "process")
	if len(s.all) != 1 {
		count = fmt.Sprintf("%d processes", len(s.all))
	}
	if s.filter != "" {
		count = fmt.Sprintf("%d of %s with %q", len(s.rows), count, format.Text(s.filter, 20))
	}
	by := "by " + sorts[s.sort].name
	if s.reverse {
		by += ", reversed"
	}
	parts = append(parts, count, by, "up "+describe.LongTime(s.last.Status.Uptime))
	if s.frozen {
		parts = append([]string{"FROZEN, Space goes on"}, parts...)
	}
	clock := s.last.At.Format("15:04:05")
	left := format.Text(join(parts, s.width-len(clock)-2), s.width)
	if room := s.width - format.Width(left); room > len(clock) {
		return s.paint(format.Bold, pad(left, s.width-len(clock))+clock)
	}
	return s.paint(format.Bold, left)
}

func (s *State) goneText() string {
	if s.shown {
		return "No answer since " + s.last.At.Format("15:04:05") + ", trying again: " + s.gone.Error()
	}
	return "No answer yet, trying again: " + s.gone.Error()
}

// join returns as many of the parts as fit, the first of them in any case.
func join(parts []string, width int) string {
	text := parts[0]
	for _, p := range parts[1:] {
		if format.Width(text)+2+format.Width(p) > width {
			break
		}
		text += "  " + p
	}
	return text
}

// foot returns the last line: a question, a message, or the keys.
func (s *State) foot() string {
	if text := s.prompt(); text != "" {
		return s.paint(format.Bold, format.Text(text, s.width))
	}
	keys := join([]string{"q quit", "? help", "Enter explain", "/ filter", "<> sort", "c class", "w weight", "p pause", "u resume", "t tree", "Space freeze"}, s.width)
	return s.paint(format.Faint, format.Text(keys, s.width))
}

// sparkWidth returns how many columns the last minute takes.
func (s *State) sparkWidth() int {
	if s.width >= 120 {
		return 12
	}
	return 6
}

// columns returns the columns of the table for some rows.
func (s *State) columns(rows []row) format.Columns {
	all := []struct {
		column format.Column
		cell   func(r *row) string
	}{
		{format.Column{Head: "PID", Right: false, Min: 7, Paint: func(i int) format.Style { return s.slotStyle(rows[i].history.slot) }}, s.pidCell},
		{format.Column{Head: "USER", Max: 10, Rank: 14}, func(r *row) string { return format.Text(r.process.User, 10) }},
		{format.Column{Head: "CLASS", Paint: func(i int) format.Style { return describe.ClassStyle(rows[i].process.Class()) }}, func(r *row) string { return r.process.Class() }},
		{format.Column{Head: "GPU", Max: 8, Rank: 13}, func(r *row) string { return r.use.GPU }},
		{format.Column{Head: "STATE", Min: 7, Max: 12, Elide: 7, Paint: func(i int) format.Style { return describe.StateStyle(rows[i].use.State) }}, func(r *row) string { return r.use.State }},
		{format.Column{Head: "WHY", Max: 24, Elide: 12, Rank: 6}, func(r *row) string { return r.use.Why }},
		{format.Column{Head: "NOW", Right: true, Min: 6}, shareCell(func(r *row) float64 { return r.now })},
		{format.Column{Head: "MINUTE", Right: true, Min: 6, Rank: 7}, shareCell(func(r *row) float64 { return r.minute })},
		{format.Column{Head: "TREND", Min: s.sparkWidth(), Rank: 5}, s.sparkCell},
		{format.Column{Head: "REQ/S", Right: true, Min: 5, Rank: 3}, rateCell},
		{format.Column{Head: "P99", Right: true, Min: 6, Rank: 1}, func(r *row) string { return describe.P99(r.process) }},
		{format.Column{Head: "SLO", Right: true, Rank: 10}, func(r *row) string { return describe.Attr(r.process, attr.SLO) }},
		{format.Column{Head: "MET", Right: true, Min: 6, Rank: 4, Paint: func(i int) format.Style { return metStyle(&rows[i]) }}, metCell},
		{format.Column{Head: "WAITS FOR", Min: 12, Rank: 8}, func(r *row) string { return r.waitsFor }},
		{format.Column{Head: "HOLDS UP", Min: 12, Rank: 11}, func(r *row) string { return r.holdsUp }},
		{format.Column{Head: "WEIGHT", Right: true, Rank: 9}, func(r *row) string { return describe.Attr(r.process, attr.Weight) }},
		{format.Column{Head: "SLICE", Max: 14, Rank: 12}, func(r *row) string { return r.use.Slice }},
		{format.Column{Head: "GPU TIME", Right: true, Min: 8, Rank: 16}, timeCell},
		{format.Column{Head: "MEMORY", Right: true, Min: 6, Rank: 15}, func(r *row) string { return describe.Memory(r.process, r.use.Device) }},
		{format.Column{Head: "CONTAINER", Max: 24, Elide: 12, Rank: 17}, func(r *row) string { return describe.Container(r.process) }},
		{format.Column{Head: "COMMAND", Elide: 10, Max: 200}, func(r *row) string { return format.Text(r.process.Command, 200) }},
	}
	table := format.Columns{Gap: 1}
	for i := range all {
		c := all[i].column
		if !s.wants(c.Head) {
			continue
		}
		c.Cells = make([]string, len(rows))
		for j := range rows {
			c.Cells[j] = all[i].cell(&rows[j])
		}
		table.All = append(table.All, c)
	}
	return table
}

// wants reports whether any process has something in a column. It looks at all processes,
// so that columns do not come and go when the table is scrolled.
func (s *State) wants(head string) bool {
	has := func(f func(r *row) bool) bool {
		for i := range s.all {
			if f(&s.all[i]) {
				return true
			}
		}
		return false
	}
	switch head {
	case "MINUTE", "TREND":
		return !s.once // they would be as NOW
	case "GPU":
		return len(s.last.Status.Devices) > 1
	case "WHY":
		return has(func(r *row) bool { return r.use.Why != "" })
	case "REQ/S", "P99":
		return has(func(r *row) bool { return r.process.Requests != nil })
	case "SLO", "MET":
		return has(func(r *row) bool { return r.process.Attrs.Int(attr.SLO) != 0 })
	case "WAITS FOR", "HOLDS UP":
		return s.last.Delays != nil
	case "WEIGHT":
		return has(func(r *row) bool { return r.process.Attrs.Int(attr.Weight) != attr.Weight.Row().Default })
	case "MEMORY":
		return has(func(r *row) bool { return len(r.process.Memory) > 0 })
	case "CONTAINER":
		return has(func(r *row) bool { return describe.Container(r.process) != "" })
	}
	return true
}

func (s *State) pidCell(r *row) string {
	if m := r.process.Member; m != nil && !m.Lost && !s.flat {
		return fmt.Sprintf("  %d", r.process.PID)
	}
	return fmt.Sprint(r.process.PID)
}

func shareCell(share func(r *row) float64) func(r *row) string {
	return func(r *row) string {
		if !r.known {
			return format.Missing
		}
		return format.Percent(share(r))
	}
}

func timeCell(r *row) string {
	for _, q := range r.process.Queues {
		if !q.Measured {
			return "~" + describe.LongTime(served(r.process))
		}
	}
	return describe.LongTime(served(r.process))
}

func rateCell(r *row) string {
	if !r.rates {
		return ""
	}
	return format.Number(math.Round(10*r.rate) / 10)
}

func metCell(r *row) string {
	if !r.hasMet {
		return ""
	}
	return format.Percent(r.met)
}

func metStyle(r *row) format.Style {
	if r.hasMet && r.met < 0.99 {
		return format.Red
	}
	return format.Plain
}

// sparks are the levels of a share, from none to all.
var sparks = map[bool][]rune{false: []rune("_.-=+*%#"), true: []rune("▁▂▃▄▅▆▇█")}

func (s *State) sparkCell(r *row) string {
	levels := sparks[s.look.UTF8]
	out := make([]rune, 0, s.sparkWidth())
	for _, share := range r.history.levels(s.sparkWidth()) {
		switch {
		case share < 0:
			out = append(out, ' ')
		case share == 0:
			out = append(out, levels[0])
		default:
			out = append(out, levels[min(int(share*float64(len(levels)-1))+1, len(levels)-1)])
		}
	}
	return string(out)
}

// rowLines returns the heads and the rows of the table.
func (s *State) rowLines(room int) []string {
	if len(s.all) == 0 {
		return []string{format.Text("No process uses a device here.", s.width)}
	}
	if len(s.rows) == 0 {
		return []string{format.Text("No process has "+s.filter+". Esc shows all.", s.width)}
	}
	at := max(s.cursor(), 0)
	s.offset = min(s.offset, at)
	s.offset = max(s.offset, at-room+1)
	s.offset = max(min(s.offset, len(s.rows)-room), 0)
	visible := s.rows[s.offset:min(s.offset+room, len(s.rows))]
	table := s.columns(visible)
	table.Fit(s.width)
	var b strings.Builder
	line := func(i int, paint bool) string {
		b.Reset()
		table.Line(&b, i, paint)
		return b.String()
	}
	out := []string{s.paint(format.Reverse, pad(line(format.Heads, false), s.width))}
	for i := range visible {
		if s.offset+i == at {
			out = append(out, s.paint(format.Reverse, pad(line(i, false), s.width)))
			continue
		}
		out = append(out, line(i, s.look.Colour))
	}
	return out
}

// Text returns the screen as text without control characters, with all processes, in lines
// of at most width columns; zero is any number.
func (s *State) Text(width int) string {
	plain := *s
	plain.look.Colour, plain.once = false, true
	plain.width = cmp.Or(width, 120)
	var b strings.Builder
	b.WriteString(format.Text(strings.Trim(join([]string{
		"giveway", "policy " + format.Text(s.last.Status.Policy.Name, 30), s.last.At.Format("2006-01-02 15:04:05"),
	}, plain.width), " "), plain.width) + "\n")
	for _, d := range s.last.Status.Devices {
		b.WriteString(plain.deviceTitle(d) + "\n" + plain.bar(d, "") + "\n")
		if line := plain.betweenClasses(d); line != "" {
			b.WriteString(line + "\n")
		}
	}
	if len(s.rows) == 0 {
		b.WriteString("No process uses a device here.\n")
		return b.String()
	}
	table := plain.columns(s.rows)
	table.Fit(width)
	for i := format.Heads; i < len(s.rows); i++ {
		table.Line(&b, i, false)
		b.WriteString("\n")
	}
	return b.String()
}

// pressureOf returns the pressure of a device, or nil.
func (s *State) pressureOf(id string) *api.DevicePressure {
	if s.last.Pressure == nil {
		return nil
	}
	for i := range s.last.Pressure.Devices {
		if d := &s.last.Pressure.Devices[i]; d.Device == id {
			return d
		}
	}
	return nil
}
