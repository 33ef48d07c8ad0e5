package nvidia

import (
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/sched"
)

// timeline turns the spans of an Account, which are in GPU time, into spans in the time of
// the scheduler. Each begins where the last one ended, whatever the clocks do.
type timeline struct {
	origin time.Time // when the scheduler's clock was zero
	offset int64     // the scheduler's clock minus the GPU's
	syncAt time.Time // when offset was measured; zero: never

	begun  bool
	end    sched.Time // of the last span
	endGPU int64      // the same in GPU time
	spans  []hal.Span // to be reported
}

// begin begins a reading. now is a little earlier than the present time: the smallest
// difference seen is used.
func (t *timeline) begin(now sched.Time) {
	if o := time.Now().Add(-time.Duration(now)); t.origin.IsZero() || o.Before(t.origin) {
		t.origin = o
	}
}

// slowCall is how long a reading of the GPU's clock may take to be used for offset, unless
// none was used for maxSyncAge. It takes 10 to 20 us on an idle machine.
const (
	slowCall   = 200 * time.Microsecond
	maxSyncAge = time.Second
)

// synchronize takes in a reading of the GPU's clock between two moments.
func (t *timeline) synchronize(clock int64, before, after time.Time) {
	took := after.Sub(before)
	if took > slowCall && !t.syncAt.IsZero() && after.Sub(t.syncAt) < maxSyncAge {
		return
	}
	t.offset, t.syncAt = int64(before.Sub(t.origin)+took/2)-clock, after
}

// at returns the scheduler's time at a GPU time.
func (t *timeline) at(gpu int64) sched.Time { return sched.Time(gpu + t.offset) }

// time returns the time at a GPU time.
func (t *timeline) time(gpu int64) time.Time { return t.origin.Add(time.Duration(t.at(gpu))) }

// spent implements Account.Spent.
func (t *timeline) spent(s nvtrace.Span) {
	switch {
	case !t.begun:
		t.begun, t.end = true, max(t.at(s.Begin), 0)
	case s.Begin != t.endGPU: // the GPU's clock was set back
		t.add(hal.Span{End: t.at(s.Begin)})
	}
	t.endGPU = s.End
	span := hal.Span{End: t.at(s.End), Kind: s.Kind, Left: s.Left}
	if s.PID != nvtrace.PIDKernel {
		span.PID = int(s.PID)
	}
	t.add(span)
}

// add adds a span that begins where the last one ended. The clock of the GPU is compared with ours
// from time to time; after that the end of a span can lie before its begin, and it is then empty.
func (t *timeline) add(s hal.Span) {
	if !t.begun {
		return
	}
	s.Begin, s.End = t.end, max(s.End, t.end)
	t.end = s.End
	if s.Begin < s.End || s.Left != hal.Stays || s.Kind == hal.SpanSwitch {
		t.spans = append(t.spans, s)
	}
}

// sliceOf implements Account.Slice: the slice with which the group of the process was found. That is
// the slice it has when the policy sets none. g.mu is held.
func (g *gpu) sliceOf(pid uint32) time.Duration {
	slice := defaultSlice
	if q := g.processes[int(pid)].queue; q != nil && q.found > 0 {
		slice = q.found
	}
	return slice
}

// left implements Account.Left. The trace does not say why a context left, but how long it
// was there. g.mu is held.
func (g *gpu) left(pid uint32, begin, end int64) hal.Departure {
	p := g.processes[int(pid)]
	switch {
	case p.more:
		return hal.LeftUnknown // its groups may have different slices
	case p.queue == nil || p.queue.group == nil:
		return departure(time.Duration(end-begin), defaultSlice)
	}
	return p.queue.group.use.Load().departure(g.timeline.time(begin), g.timeline.time(end))
}

// cut implements Account.Cut. g.mu is held.
func (g *gpu) cut(pid uint32, end int64) bool {
	p := g.processes[int(pid)]
	return !p.more && p.queue != nil && p.queue.group != nil && p.queue.group.use.Load().stoppedAt(g.timeline.time(end))
}

// groupUse is how a group was last controlled. A call takes effect at some moment while it
// is under way.
type groupUse struct {
	slice, oldSlice    time.Duration
	sliceFrom, sliceTo time.Time // the call that changed the slice
	stopFrom, stopTo   time.Time // when the group was stopped, and started again; zero: it was not
}

// departure returns how a visit ended.
func (u *groupUse) departure(begin, end time.Time) hal.Departure {
	visit := end.Sub(begin)
	switch {
	case u == nil:
		return departure(visit, defaultSlice)
	case u.stoppedAt(end):
		return hal.Preempted
	}
	old, now := departure(visit, u.oldSlice), departure(visit, u.slice)
	switch {
	case old == now, begin.After(u.sliceTo):
		return now
	case end.Before(u.sliceFrom):
		return old
	}
	return hal.LeftUnknown
}

// stoppedAt reports whether the group was stopped at a time, as far as is known.
func (u *groupUse) stoppedAt(at time.Time) bool {
	const clocks = 50 * time.Microsecond // by which the GPU's clock and ours may differ
	return u != nil && !u.stopFrom.IsZero() && !at.Before(u.stopFrom.Add(-clocks)) && (u.stopTo.IsZero() || !at.After(u.stopTo))
}

// departure returns how a visit ended with a slice. A visit takes as long as the slice and a
// context switch if another group waits. With a slice that is too short to share the GPU, the
// group leaves whenever another one has work. A long visit began while no group waited: at
// its end the slice may have been over, or the work.
func departure(visit, slice time.Duration) hal.Departure {
	const contextSwitch = 200 * time.Microsecond
	switch {
	case visit < slice-slice/16:
		return hal.LeftItself
	case slice < minSharedSlice, visit <= slice+slice/4+contextSwitch:
		return hal.Preempted
	}
	return hal.LeftUnknown
}
