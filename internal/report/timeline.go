package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/htmlreport"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// timeline shows which client used each device, in the same short window of every
// run.
type timeline struct {
	Lanes   []laneGroup
	Legend  []legend
	Ticks   []htmlreport.Tick
	Note    string
	Window  string // its length in ns, for the tooltips
	Actions bool   // some action of the scheduler is shown
}

type legend struct{ Name, Colour string }

// laneGroup is one device in one run.
type laneGroup struct {
	Run, Colour string
	Device      string // empty if there is only one
	Lanes       []lane
	Labels      []string // of the lanes, if each is a client's
	Height      int
	Actions     string // path of marks
}

// lane is a row of pieces that do not overlap.
type lane struct {
	Y, Height int
	Fills     []fill
}

// fill is all pieces of one client in a lane, as one path.
type fill struct{ Name, Colour, Path string }

const (
	laneUnits      = 10000.0 // across
	wideLane       = 30
	narrowLane     = 15
	maxInLane      = 6     // clients that share a lane
	maxPieces      = 16000 // in all lanes together
	maxActions     = 500   // in a lane
	maxWindow      = 300 * time.Millisecond
	windowWithWork = 50 * time.Millisecond // where no client is judged by latency
)

// Timeline draws the recorded pieces; nil if there are none.
func (v *view) Timeline() *timeline {
	if !slices.ContainsFunc(v.Outcome.Runs, func(r scenario.Run) bool { return len(r.Result.Segments) > 0 }) {
		return nil
	}
	from, to, note := v.window()
	t := &timeline{Note: note, Window: fmt.Sprint(int64(to - from))}
	pieces := max(maxPieces/max(len(v.Outcome.Runs)*(len(v.Outcome.Alone)+1), 1), 50)
	for i := range v.Outcome.Runs {
		for _, d := range v.Outcome.Devices {
			g := laneGroup{Run: v.Outcome.Runs[i].Policy, Colour: v.RunColours[i]}
			if len(v.Outcome.Devices) > 1 {
				g.Device = string(d.ID)
			}
			v.fillLanes(&g, i, d.ID, from, to, pieces)
			t.Actions = t.Actions || g.Actions != ""
			t.Lanes = append(t.Lanes, g)
		}
	}
	for _, g := range v.Groups {
		t.Legend = append(t.Legend, legend{g.Name, v.Colours[g]})
	}
	t.Legend = append(t.Legend, legend{"switching", htmlreport.SwitchColour})
	t.Ticks = htmlreport.Scale{High: float64(to - from)}.Ticks(6, format.Nanoseconds)
	return t
}

// laneClient is a client on the device of a laneGroup.
type laneClient struct {
	name, colour string
	queue        sched.QueueID
}

// fillLanes draws run i on one device: in one lane if the device ran one client at
// a time and all have different colours, else in a lane for each client.
func (v *view) fillLanes(g *laneGroup, i int, id sched.DeviceID, from, to sched.Time, pieces int) {
	byQueue := map[sched.QueueID][]sim.Segment{}
	var all []sim.Segment
	for _, seg := range v.Outcome.Runs[i].Result.Segments {
		if seg.Device == id && seg.To > from && seg.From < to {
			seg.From, seg.To = max(seg.From, from), min(seg.To, to)
			all = append(all, seg)
			byQueue[seg.Queue] = append(byQueue[seg.Queue], seg)
		}
	}
	var clients []laneClient
	distinct, used := true, map[string]bool{}
	for _, grp := range v.Groups {
		for _, c := range v.Outcome.Runs[i].Result.Clients[grp.First : grp.First+grp.Count] {
			if c.Device == id {
				clients = append(clients, laneClient{c.Name, v.Colours[grp], c.Queue})
				distinct = distinct && !used[v.Colours[grp]]
				used[v.Colours[grp]] = true
			}
		}
	}
	add := func(l *lane, c laneClient) {
		if path := piecesPath(byQueue[c.queue], from, to, l.Y, l.Height, pieces); path != "" {
			l.Fills = append(l.Fills, fill{c.name, c.colour, path})
		}
	}
	switching := laneClient{name: "switching", colour: htmlreport.SwitchColour}
	if distinct && len(clients) <= maxInLane && !scenario.SideBySide(all) {
		l := lane{Height: wideLane}
		for _, c := range append(clients, switching) {
			add(&l, c)
		}
		g.Lanes, g.Height = append(g.Lanes, l), wideLane
	} else {
		for _, c := range clients {
			l := lane{Y: g.Height, Height: narrowLane - 3}
			add(&l, c)
			add(&l, switching)
			g.Labels, g.Lanes = append(g.Labels, c.name), append(g.Lanes, l)
			g.Height += narrowLane
		}
	}
	g.markActions(&v.Outcome.Runs[i], id, from, to)
}

// piecesPath draws pieces as bars. If there are more than most, pieces that are too
// close to each other to be distinguished become one.
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
		x := htmlreport.Coordinate(math.Round(float64(first-from)*unit*10) / 10)
		w := htmlreport.Coordinate(math.Round(float64(end-first)*unit*10) / 10)
		fmt.Fprintf(&b, "M%s,%dh%sv%dh-%sz", x, y, w, h, w)
	}
	return b.String()
}

// markActions marks the scheduler's actions on the device below the lanes.
func (g *laneGroup) markActions(run *scenario.Run, id sched.DeviceID, from, to sched.Time) {
	device := map[sched.QueueID]sched.DeviceID{}
	for _, c := range run.Result.Clients {
		device[c.Queue] = c.Device
	}
	var b strings.Builder
	n := 0
	for _, a := range run.Actions {
		if a.At < from || a.At >= to || device[a.Action.Queue] != id || n == maxActions {
			continue
		}
		n++
		fmt.Fprintf(&b, "M%s,%dv6", htmlreport.Coordinate(laneUnits*float64(a.At-from)/float64(to-from)), g.Height+3)
	}
	if n > 0 {
		g.Actions = b.String()
		g.Height += 10
	}
}
