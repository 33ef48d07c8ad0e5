package trace

import (
	"slices"
	"time"

	"github.com/giveway/giveway/api"
)

// device is a device of the trace.
type device struct {
	lanes
	spans   []api.Entry // not written yet
	effects []effect    // not seen yet
	held    int         // pid of the last span if it was held; else -1
}

// effect is what an action is about to change on a device.
type effect struct {
	pid     int
	comes   bool // the process comes onto the device; else it leaves
	ordered time.Duration
	flow    uint64
}

// effectLimit is how long after its order an action has an effect.
const effectLimit = time.Second

// device returns the device with an ID.
func (t *Trace) device(id string) *device {
	d := t.devices[id]
	if d == nil {
		d = &device{held: -1, lanes: lanes{name: t.group + "GPU " + clean(id)}}
		t.devices[id] = d
	}
	return d
}

// addSpan keeps a span until the actions of its time are known.
func (t *Trace) addSpan(e *api.Entry) {
	d := t.device(e.Device)
	d.spans = append(d.spans, *e)
	t.pending++
}

// writeSettled writes the spans that were recorded until a time, and returns their number.
func (d *device) writeSettled(t *Trace, until time.Duration) (n int) {
	for n < len(d.spans) && (d.spans[n].At <= until || t.pending > maxPending) {
		d.write(t, &d.spans[n])
		n++
	}
	d.spans = slices.Delete(d.spans, 0, n)
	return n
}

// write writes a span.
func (d *device) write(t *Trace, e *api.Entry) {
	s := e.Span
	end := max(s.Begin, s.End)
	shown := event{category: string(e.Kind), name: clean(s.What), flows: d.seen(e)}
	if s.What == "held" {
		shown.name = t.process(e.PID).label
	}
	if e.PID != 0 {
		shown.args = append(shown.args, number("pid", uint64(e.PID)))
	}
	if e.Queue != 0 {
		shown.args = append(shown.args, number("queue", e.Queue))
	}
	if s.Left != "" {
		shown.args = append(shown.args, text("ended", s.Left))
	}
	t.w.slice(d.free(t.w, s.Begin, end), s.Begin, end, shown)
	d.held = -1
	if s.What == "held" {
		d.held = e.PID
	}
}

// seen returns the flows of the actions whose effect a span is.
func (d *device) seen(e *api.Entry) (flows []uint64) {
	holds := -1
	if e.Span.What == "held" {
		holds = e.PID
	}
	d.effects = slices.DeleteFunc(d.effects, func(f effect) bool {
		if e.Span.Begin < f.ordered {
			return false
		}
		if f.comes && holds == f.pid || !f.comes && d.held == f.pid && holds != f.pid {
			flows = append(flows, f.flow)
			return true
		}
		return e.Span.Begin > f.ordered+effectLimit
	})
	return flows
}

// lanes are tracks of one name. Slices that overlap are in different lanes: slices of a
// track must not overlap unless one contains the other.
type lanes struct {
	parent uint64
	name   string
	rank   int
	lanes  []lane
}

type lane struct {
	track uint64
	end   time.Duration
}

// free returns the track for a slice: of those that are free the one that was used last.
func (l *lanes) free(w *writer, begin, end time.Duration) uint64 {
	best := -1
	for i := range l.lanes {
		if l.lanes[i].end <= begin && (best < 0 || l.lanes[i].end > l.lanes[best].end) {
			best = i
		}
	}
	if best < 0 {
		best = len(l.lanes)
		l.lanes = append(l.lanes, lane{track: w.track(l.parent, l.name, l.rank)})
	}
	l.lanes[best].end = end
	return l.lanes[best].track
}
