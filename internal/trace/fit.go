package trace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/sched"
)

// Cut is a run of which the trace has only the beginning.
type Cut struct {
	Policy string
	Until  time.Duration
}

// Bytes in the trace, at most, without names.
const (
	segmentBytes = 300 // on the threads of the device and the client, or with two counters
	switchBytes  = 150
	actionBytes  = 260 // with a counter
	clientBytes  = 800 // the names and places of its thread, and of its device's
	unknownName  = 32  // of a queue that belongs to no client
)

// fit returns the beginning of a run that takes at most limit bytes, and when it ends; zero
// if the run is complete.
func fit(r *scenario.Run, limit int) (*scenario.Run, sched.Time) {
	until := r.RecordedUntil
	if at, over := full(r, limit); over && (until == 0 || at < until) {
		until = at
	}
	if until == 0 {
		return r, 0
	}
	out := *r
	out.Policy += fmt.Sprintf(" (first %v)", time.Duration(until).Round(time.Microsecond))
	out.Actions = nil
	for _, a := range r.Actions {
		if a.At < until {
			out.Actions = append(out.Actions, a)
		}
	}
	out.Result.Segments = nil
	for _, s := range r.Result.Segments {
		if s.From < until {
			s.To = min(s.To, until)
			out.Result.Segments = append(out.Result.Segments, s)
		}
	}
	return &out, until
}

// full returns when the events of a run have reached limit bytes; over is false if they
// never do.
func full(r *scenario.Run, limit int) (at sched.Time, over bool) {
	names := map[sched.QueueID]int{}
	left := limit
	for _, c := range r.Result.Clients {
		names[c.Queue] = quoted(c.Name)
		left -= clientBytes + quoted(c.Name) + quoted(r.Policy+string(c.Device))
	}
	nameOf := func(q sched.QueueID) int { return cmp.Or(names[q], unknownName) }
	type cost struct {
		at    sched.Time
		bytes int
	}
	costs := make([]cost, 0, len(r.Result.Segments)+len(r.Actions))
	for _, s := range r.Result.Segments {
		if s.Queue == 0 {
			costs = append(costs, cost{s.From, switchBytes})
		} else {
			costs = append(costs, cost{s.From, segmentBytes + 2*nameOf(s.Queue)})
		}
	}
	for _, a := range r.Actions {
		costs = append(costs, cost{a.At, actionBytes + nameOf(a.Action.Queue)})
	}
	slices.SortFunc(costs, func(a, b cost) int { return cmp.Compare(a.at, b.at) })
	for _, c := range costs {
		if left -= c.bytes; left < 0 {
			return max(c.at, 1), true
		}
	}
	return 0, false
}

// quoted returns the length of a name as JSON.
func quoted(name string) int {
	b, _ := json.Marshal(name) // a string
	return len(b)
}
