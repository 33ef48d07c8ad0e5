package trace

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// minWait is the shortest wait of a trace, as in the record of a daemon.
const minWait = 10 * time.Microsecond

// period is a part of a run.
type period struct{ from, to sched.Time }

// timeline has the segments of a device in order of time. Segments of queues that run at the
// same time overlap.
type timeline struct {
	segments []sim.Segment
	latest   []sched.Time // the latest end of this segment and all before it
}

func timelinesOf(segments []sim.Segment) map[sched.DeviceID]*timeline {
	all := map[sched.DeviceID]*timeline{}
	for _, s := range segments {
		if all[s.Device] == nil {
			all[s.Device] = &timeline{}
		}
		all[s.Device].segments = append(all[s.Device].segments, s)
	}
	for _, t := range all {
		slices.SortStableFunc(t.segments, func(a, b sim.Segment) int { return cmp.Compare(a.From, b.From) })
		last := sched.Time(0)
		for _, s := range t.segments {
			last = max(last, s.To)
			t.latest = append(t.latest, last)
		}
	}
	return all
}

// within calls f with each segment that overlaps a period, in order of their begin.
func (t *timeline) within(p period, f func(s *sim.Segment)) {
	first := sort.Search(len(t.latest), func(i int) bool { return t.latest[i] > p.from })
	for i := first; i < len(t.segments) && t.segments[i].From < p.to; i++ {
		if t.segments[i].To > p.from {
			f(&t.segments[i])
		}
	}
}

// without returns the parts of a period in which a queue was not on the device.
func (t *timeline) without(q sched.QueueID, p period) (parts []period) {
	t.within(p, func(s *sim.Segment) {
		if s.Queue != q {
			return
		}
		if p.from < s.From {
			parts = append(parts, period{p.from, s.From})
		}
		p.from = max(p.from, s.To)
	})
	if p.from < p.to {
		parts = append(parts, p)
	}
	return parts
}

// holder returns the queue that held the device for the largest part of a period, and for how
// long. Zero is context switches; idle: no queue held it for longer.
func (t *timeline) holder(p period) (q sched.QueueID, held time.Duration, idle bool) {
	sums := map[sched.QueueID]time.Duration{}
	free, until := p.to.Sub(p.from), p.from
	t.within(p, func(s *sim.Segment) {
		from, to := max(s.From, p.from), min(s.To, p.to)
		sums[s.Queue] += to.Sub(from)
		if from = max(from, until); from < to {
			free -= to.Sub(from)
			until = to
		}
	})
	held, idle = free, true
	for id, sum := range sums {
		if sum > held || sum == held && !idle && id < q {
			q, held, idle = id, sum, false
		}
	}
	return q, held, idle
}

// busy returns when a client had an open request.
func busy(requests []sim.Request, client int) (all []period) {
	for _, r := range requests {
		if r.Client == client && r.End > r.Begin {
			all = append(all, period{r.Begin, r.End})
		}
	}
	slices.SortFunc(all, func(a, b period) int { return cmp.Compare(a.from, b.from) })
	joined := all[:0]
	for _, p := range all {
		if n := len(joined); n > 0 && p.from <= joined[n-1].to {
			joined[n-1].to = max(joined[n-1].to, p.to)
		} else {
			joined = append(joined, p)
		}
	}
	return joined
}

// waits adds the periods in which an online client had an open request and was not on its
// device, as the record of a daemon has them. The simulator knows both exactly.
func (b *entryList) waits(r *scenario.Run) {
	timelines := timelinesOf(r.Result.Segments)
	for i, c := range r.Result.Clients {
		t := timelines[c.Device]
		if c.Class != sched.Online || c.Queue == 0 || t == nil {
			continue
		}
		for _, request := range busy(r.Result.Requests, i) {
			request.to = min(request.to, b.until)
			for _, p := range t.without(c.Queue, request) {
				if p.to.Sub(p.from) >= minWait {
					b.wait(t, c.Queue, p)
				}
			}
		}
	}
}

func (b *entryList) wait(t *timeline, q sched.QueueID, p period) {
	w := api.Wait{Begin: time.Duration(p.from), End: time.Duration(p.to)}
	holder, held, idle := t.holder(p)
	switch w.Held = held; {
	case idle:
		w.Holder.Kind = "idle"
	case holder == 0:
		w.Holder.Kind = "switch"
	default:
		w.Holder = api.Holder{Kind: "process", PID: pidOf(b.run, holder)}
	}
	b.add(api.Entry{Kind: api.KindWait, Wait: &w}, q, p.from, p.to)
}
