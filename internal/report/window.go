package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// window chooses what the timeline shows, and says how. It is the same time in
// every run, and so the same requests where those come by the clock: some
// requests' length, lying so that the first online client has as much of the
// device in it as in the median of all such windows. What is shown is then
// neither the best nor the worst that was to be had. The run that answers
// soonest decides: what the others put off then still falls into the window.
func (s *study) window() (from, to sched.Time, note string) {
	width := s.windowWidth()
	least, most := sched.Time(s.o.Warmup), s.kept()
	warm := true
	if most < least+width { // pieces were kept of the beginning only
		least, warm = 0, false
	}
	from = min(least, max(most-width, 0))
	if sub, i := s.shown(); sub != nil {
		if start, ok := medianWindow(s.o.Runs[i].Result.Segments, sub.in[i].Queue, width, least, most); ok {
			from = start
			note = fmt.Sprintf("chosen so that %s has in it, under %s, the median of what it has of the device in all such windows", sub.name, s.o.Runs[i].Policy)
		}
	}
	text := fmt.Sprintf("The same %v of every run, %v after its start", time.Duration(width), time.Duration(from).Round(time.Millisecond))
	if note != "" {
		text += ", " + note
	}
	if !warm {
		text += ". It lies in the warm-up: pieces were kept of the beginning only"
	}
	return from, from + width, text + "." + s.unseen()
}

// unseen names the clients that did something, but of which no piece was kept.
func (s *study) unseen() string {
	text := ""
	for i := range s.o.Runs {
		seen := map[sched.QueueID]bool{}
		for _, seg := range s.o.Runs[i].Result.Segments {
			seen[seg.Queue] = true
		}
		var names []string
		for _, sub := range s.subjects {
			if c := sub.in[i]; c != nil && c.Requests > 0 && !seen[c.Queue] {
				names = append(names, sub.name)
			}
		}
		if len(names) > 0 && len(seen) > 0 {
			text += fmt.Sprintf(" Under %s no piece was kept of %s, which ran nevertheless.", s.o.Runs[i].Policy, strings.Join(names, ", "))
		}
	}
	return text
}

// kept is until when all runs have their pieces.
func (s *study) kept() sched.Time {
	until := sched.Time(0)
	for i := range s.o.Runs {
		last := sched.Time(0)
		for _, seg := range s.o.Runs[i].Result.Segments {
			last = max(last, seg.To)
		}
		if last > 0 && (until == 0 || last < until) {
			until = last
		}
	}
	return until
}

// windowWidth is a round length of about twenty requests of the first client
// that waits for answers, or twice that to show three that take longer.
func (s *study) windowWidth() sched.Time {
	want := idleWindow
	if len(s.latency) > 0 {
		want = 0
		first := s.latency[0]
		if first.alone != nil {
			want = 20 * first.alone.Latency.P50
		}
		most := 2 * want
		for _, in := range first.in {
			if in != nil {
				want = max(want, min(3*in.Latency.P50, most))
			}
		}
	}
	for _, round := range []time.Duration{10, 20, 30, 50, 100, 200} {
		if round *= time.Millisecond; round >= want {
			return sched.Time(round)
		}
	}
	return sched.Time(mostWindow)
}

// shown is the client that the window is about, and the run, of those that have
// pieces of it, that answers it soonest.
func (s *study) shown() (*subject, int) {
	for _, sub := range s.latency {
		best := -1
		for i, in := range sub.in {
			if in != nil && slices.ContainsFunc(s.o.Runs[i].Result.Segments, func(g sim.Segment) bool { return g.Queue == in.Queue }) &&
				(best < 0 || in.Latency.P50 < sub.in[best].Latency.P50) {
				best = i
			}
		}
		if best >= 0 {
			return sub, best
		}
	}
	return nil, 0
}

// medianWindow looks at the windows that begin a quarter of their width before a
// turn of queue q, and returns the one in which q has the median of device time.
func medianWindow(all []sim.Segment, q sched.QueueID, width, least, most sched.Time) (sched.Time, bool) {
	var mine []sim.Segment
	for _, seg := range all {
		if seg.Queue == q {
			mine = append(mine, seg)
		}
	}
	slices.SortFunc(mine, func(a, b sim.Segment) int { return cmp.Compare(a.From, b.From) })
	type candidate struct{ from, had sched.Time }
	var found []candidate
	first := 0                  // piece that may still reach into the window
	every := len(mine)/2000 + 1 // enough to find a median
	for i := 0; i < len(mine); i += every {
		from := mine[i].From - width/4
		if from < least || from+width > most {
			continue
		}
		for mine[first].To <= from {
			first++
		}
		c := candidate{from: from}
		for _, m := range mine[first:] {
			if m.From >= from+width {
				break
			}
			c.had += min(m.To, from+width) - max(m.From, from)
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return 0, false
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.had, b.had) })
	return found[len(found)/2].from, true
}
