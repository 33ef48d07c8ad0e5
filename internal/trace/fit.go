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
	segmentBytes = 270 // on the threads of the device and the client, or with two counters
	switchBytes  = 150
	actionBytes  = 260 // with a counter
	clientBytes  = 800 // the names and places of its thread, and of its device's
	unknownName  = 32  // of a queue that belongs to no client
)

// share divides limit bytes among runs: what a run does not need, the others get.
func share(runs []scenario.Run, limit int) []int {
	parts, order := make([]int, len(runs)), make([]int, len(runs))
	for i := range runs {
		for _, c := range costs(&runs[i]) {
			parts[i] += c.bytes
		}
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(parts[a], parts[b]) })
	for done, i := range order {
		parts[i] = min(parts[i], limit/(len(runs)-done))
		limit -= parts[i]
	}
	return parts
}

// fit returns the beginning of a run that takes at most limit bytes, and when it ends; zero
// if the run is complete.
func fit(r *scenario.Run, limit int) (*scenario.Run, sched.Time) {
	until := r.RecordedUntil
	for _, c := range costs(r) {
		if limit -= c.bytes; limit < 0 {
			if at := max(c.at, 1); until == 0 || at < until {
				until = at
			}
			break
		}
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

// cost is bytes that the trace has from a time on.
type cost struct {
	at    sched.Time
	bytes int
}

// costs estimates what the events of a run take in the trace, from above, by time.
func costs(r *scenario.Run) []cost {
	names := map[sched.QueueID]int{}
	all := make([]cost, 0, len(r.Result.Clients)+len(r.Result.Segments)+len(r.Actions))
	for _, c := range r.Result.Clients {
		names[c.Queue] = quoted(c.Name)
		all = append(all, cost{0, clientBytes + quoted(c.Name) + quoted(r.Policy+string(c.Device))})
	}
	nameOf := func(q sched.QueueID) int { return cmp.Or(names[q], unknownName) }
	for _, s := range r.Result.Segments {
		if s.Queue == 0 {
			all = append(all, cost{s.From, switchBytes})
		} else {
			all = append(all, cost{s.From, segmentBytes + 2*nameOf(s.Queue)})
		}
	}
	for _, a := range r.Actions {
		all = append(all, cost{a.At, actionBytes + nameOf(a.Action.Queue)})
	}
	slices.SortStableFunc(all, func(a, b cost) int { return cmp.Compare(a.at, b.at) })
	return all
}

// quoted returns the length of a name as JSON.
func quoted(name string) int {
	b, _ := json.Marshal(name) // a string
	return len(b)
}
