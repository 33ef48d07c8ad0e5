package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// window chooses the time that the timeline shows, the same in every run, and
// returns a note on how it was chosen.
//
// Of all windows of that length it takes the one in which one client has the
// median of its device time: neither the best nor the worst case. The client is
// the first that is judged by latency, in the run in which it is answered fastest:
// work that other runs delay then still falls into the window.
func (v *view) window() (from, to sched.Time, note string) {
	width := v.windowWidth()
	first, last := sched.Time(v.Outcome.Warmup), v.recordedUntil()
	inWarmup := last < first+width // only the beginning of the runs was recorded
	if inWarmup {
		first = 0
	}
	from = min(first, max(last-width, 0))
	note = fmt.Sprintf("The same %s of every run", format.ExactDuration(time.Duration(width)))
	if i, run := v.windowClient(); run != nil {
		client := &run.Result.Clients[i]
		if start, ok := medianWindow(run.Result.Segments, client.Queue, width, first, last); ok {
			from = start
			note += fmt.Sprintf(", chosen so that %s gets, under %s, the median of its device time in all such windows", client.Name, run.Policy)
		}
	}
	note += fmt.Sprintf(". It begins %s after the start of the run", format.ExactDuration(time.Duration(from).Round(time.Millisecond)))
	if inWarmup {
		note += ", in the warm-up: only the beginning of the runs was recorded"
	}
	return from, from + width, note + "." + v.unrecorded()
}

// unrecorded names the clients that ran but of which no piece was recorded.
func (v *view) unrecorded() string {
	text := ""
	for i := range v.Outcome.Runs {
		r := &v.Outcome.Runs[i].Result
		recorded := map[sched.QueueID]bool{}
		for _, seg := range r.Segments {
			recorded[seg.Queue] = true
		}
		var names []string
		for _, c := range r.Clients {
			if c.Requests > 0 && !recorded[c.Queue] {
				names = append(names, c.Name)
			}
		}
		if len(names) > 0 && len(recorded) > 0 {
			text += fmt.Sprintf(" Under %s these clients ran but were not recorded: %s.", v.Outcome.Runs[i].Policy, strings.Join(names, ", "))
		}
	}
	return text
}

// recordedUntil is the time until which all runs were recorded.
func (v *view) recordedUntil() sched.Time {
	until := sched.Time(0)
	for i := range v.Outcome.Runs {
		last := sched.Time(0)
		for _, seg := range v.Outcome.Runs[i].Result.Segments {
			last = max(last, seg.To)
		}
		if last > 0 && (until == 0 || last < until) {
			until = last
		}
	}
	return until
}

// windowWidth is a round length: about 20 requests of the first group that is
// judged by latency, or twice that to show three requests that take longer.
func (v *view) windowWidth() sched.Time {
	want := windowWithWork
	if len(v.Latency) > 0 {
		g := v.Latency[0]
		want = 20 * g.Alone.Latency.P50
		most := 2 * want
		for i := range g.Runs {
			want = max(want, min(3*g.Runs[i].Latency.P50, most))
		}
	}
	for _, round := range []time.Duration{10, 20, 30, 50, 100, 200} {
		if round *= time.Millisecond; round >= want {
			return sched.Time(round)
		}
	}
	return sched.Time(maxWindow)
}

// windowClient is the client that the window is about, and the run, of those that
// recorded it, in which it is answered fastest. run is nil if there is none.
func (v *view) windowClient() (client int, run *scenario.Run) {
	for _, g := range v.Latency {
		i := g.First
		for r := range v.Outcome.Runs {
			result := &v.Outcome.Runs[r].Result
			recorded := func(seg sim.Segment) bool { return seg.Queue == result.Clients[i].Queue }
			if slices.ContainsFunc(result.Segments, recorded) && (run == nil || result.Clients[i].Latency.P50 < run.Result.Clients[i].Latency.P50) {
				run = &v.Outcome.Runs[r]
			}
		}
		if run != nil {
			return i, run
		}
	}
	return 0, nil
}

// medianWindow looks at the windows that begin a quarter of their width before a
// piece of queue q, and returns the one in which q has the median of its device time.
func medianWindow(all []sim.Segment, q sched.QueueID, width, first, last sched.Time) (sched.Time, bool) {
	var own []sim.Segment
	for _, seg := range all {
		if seg.Queue == q {
			own = append(own, seg)
		}
	}
	slices.SortFunc(own, func(a, b sim.Segment) int { return cmp.Compare(a.From, b.From) })
	var starts, used []sched.Time // by window: when it begins, and the queue's device time in it
	reach := 0                    // index of the first piece that may reach into the window
	every := len(own)/2000 + 1    // 2000 windows are enough for a median
	for i := 0; i < len(own); i += every {
		from := own[i].From - width/4
		if from < first || from+width > last {
			continue
		}
		for own[reach].To <= from {
			reach++
		}
		time := sched.Time(0)
		for _, piece := range own[reach:] {
			if piece.From >= from+width {
				break
			}
			time += min(piece.To, from+width) - max(piece.From, from)
		}
		starts, used = append(starts, from), append(used, time)
	}
	if len(starts) == 0 {
		return 0, false
	}
	sorted := slices.Clone(used)
	slices.Sort(sorted)
	return starts[slices.Index(used, stats.Quantile(sorted, 0.5))], true
}
