package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// timeline shows who held each device, in the same short window of every run.
type timeline struct {
	Runs   []laneGroup
	Legend []legend
	Ticks  []tick
	Note   string
	Window string // its length in ns, for the tooltips
	Orders bool   // some order of the scheduler is shown
}

type legend struct{ Name, Colour string }

// laneGroup is one device in one run.
type laneGroup struct {
	Name, Colour string
	Device       string // empty if there is only one
	Lanes        []lane
	Labels       []string // of the lanes, if each is a client's
	Height       int
	Orders       string // path of marks
}

// lane is a row of pieces that do not overlap.
type lane struct {
	Y, Height int
	Fills     []fill
}

// fill is all of one client's pieces in a lane, as one path.
type fill struct{ Name, Colour, Path string }

const (
	laneUnits  = 10000.0 // across
	wideLane   = 30
	narrowLane = 15
	mostInLane = 6     // clients that colours can tell apart
	mostPieces = 16000 // in all lanes together
	mostWindow = 300 * time.Millisecond
	idleWindow = 50 * time.Millisecond // where nobody waits for an answer
)

func (s *study) timeline() *timeline {
	if !slices.ContainsFunc(s.o.Runs, func(r scenario.Run) bool { return len(r.Result.Segments) > 0 }) {
		return nil
	}
	from, to, note := s.window()
	t := &timeline{Note: note, Window: fmt.Sprint(int64(to - from))}
	devices := s.devicesShown()
	pieces := max(mostPieces/max(len(s.o.Runs)*(len(s.subjects)+1), 1), 50)
	for i := range s.o.Runs {
		for _, id := range devices {
			g := laneGroup{Name: s.o.Runs[i].Policy, Colour: s.runs[i].colour}
			if len(devices) > 1 {
				g.Device = string(id)
			}
			s.fillLanes(&g, i, id, from, to, pieces)
			t.Orders = t.Orders || g.Orders != ""
			t.Runs = append(t.Runs, g)
		}
	}
	for _, sub := range s.subjects {
		t.Legend = append(t.Legend, legend{sub.name, sub.colour})
	}
	t.Legend = append(t.Legend, legend{"switching", switchColour})
	axis := scale{lo: 0, hi: float64(to - from)}
	t.Ticks = axis.ticks(6, durationFloat)
	return t
}

func (s *study) devicesShown() []sched.DeviceID {
	var ids []sched.DeviceID
	for _, d := range s.o.Devices {
		ids = append(ids, d.ID)
	}
	for i := range s.o.Runs {
		for _, seg := range s.o.Runs[i].Result.Segments {
			if !slices.Contains(ids, seg.Device) {
				ids = append(ids, seg.Device)
			}
		}
	}
	return ids
}

// fillLanes draws run i on one device: in one lane if one client at a time held
// it and colours can tell them apart, else in a lane for each.
func (s *study) fillLanes(g *laneGroup, i int, id sched.DeviceID, from, to sched.Time, pieces int) {
	byQueue := map[sched.QueueID][]sim.Segment{}
	var all []sim.Segment
	for _, seg := range s.o.Runs[i].Result.Segments {
		if seg.Device == id && seg.To > from && seg.From < to {
			seg.From, seg.To = max(seg.From, from), min(seg.To, to)
			all = append(all, seg)
			byQueue[seg.Queue] = append(byQueue[seg.Queue], seg)
		}
	}
	var here []*subject
	for _, sub := range s.subjects {
		if sub.device == id && sub.in[i] != nil {
			here = append(here, sub)
		}
	}
	path := func(q sched.QueueID, y, h int) string {
		return piecesPath(byQueue[q], from, to, y, h, pieces)
	}
	together := !sideBySide(all) && len(here) <= mostInLane && allDiffer(here)
	if together {
		l := lane{Height: wideLane}
		for _, sub := range here {
			l.add(sub.name, sub.colour, path(sub.in[i].Queue, 0, wideLane))
		}
		l.add("switching", switchColour, path(0, 0, wideLane))
		g.Lanes, g.Height = append(g.Lanes, l), wideLane
	} else {
		for _, sub := range here {
			l := lane{Y: g.Height, Height: narrowLane - 3}
			g.Labels = append(g.Labels, sub.name)
			l.add(sub.name, sub.colour, path(sub.in[i].Queue, l.Y, l.Height))
			l.add("switching", switchColour, path(0, l.Y, l.Height))
			g.Lanes = append(g.Lanes, l)
			g.Height += narrowLane
		}
	}
	g.markOrders(&s.o.Runs[i], id, from, to)
}

func (l *lane) add(name, colour, path string) {
	if path != "" {
		l.Fills = append(l.Fills, fill{name, colour, path})
	}
}

func allDiffer(subjects []*subject) bool {
	seen := map[string]bool{}
	for _, sub := range subjects {
		if seen[sub.colour] {
			return false
		}
		seen[sub.colour] = true
	}
	return true
}

func sideBySide(all []sim.Segment) bool {
	slices.SortFunc(all, func(a, b sim.Segment) int { return cmp.Compare(a.From, b.From) })
	for i := 1; i < len(all); i++ {
		if all[i].From < all[i-1].To {
			return true
		}
	}
	return false
}

// piecesPath draws pieces as bars. Pieces nearer to each other than can be seen
// become one, so that there are no more than most.
func piecesPath(pieces []sim.Segment, from, to sched.Time, y, h, most int) string {
	slices.SortFunc(pieces, func(a, b sim.Segment) int { return cmp.Compare(a.From, b.From) })
	gap := sched.Time(0)
	if len(pieces) > most {
		gap = (to - from) / sched.Time(most)
	}
	unit := laneUnits / float64(to-from)
	var b strings.Builder
	for i := 0; i < len(pieces); {
		first, end := pieces[i].From, pieces[i].To
		for i++; i < len(pieces) && pieces[i].From <= end+gap; i++ {
			end = max(end, pieces[i].To)
		}
		x, w := math.Round(float64(first-from)*unit*10)/10, math.Round(float64(end-first)*unit*10)/10
		fmt.Fprintf(&b, "M%s,%dh%sv%dh-%sz", num(x), y, num(w), h, num(w))
	}
	return b.String()
}

// markOrders marks what the scheduler ordered, below the lanes.
func (g *laneGroup) markOrders(run *scenario.Run, id sched.DeviceID, from, to sched.Time) {
	home := map[sched.QueueID]sched.DeviceID{}
	for _, c := range run.Result.Clients {
		home[c.Queue] = c.Device
	}
	var b strings.Builder
	const most = 500
	n := 0
	for _, a := range run.Actions {
		if a.At < from || a.At >= to || home[a.Action.Queue] != id || n == most {
			continue
		}
		n++
		fmt.Fprintf(&b, "M%s,%dv6", num(laneUnits*float64(a.At-from)/float64(to-from)), g.Height+3)
	}
	if n > 0 {
		g.Orders = b.String()
		g.Height += 10
	}
}
