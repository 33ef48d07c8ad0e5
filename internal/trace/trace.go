// Package trace writes what the scheduler decided, did and measured as a trace that opens in
// Perfetto (ui.perfetto.dev): the record of a daemon, and the runs of a scenario.
//
// The format is Perfetto's protobuf: a sequence of packets that name a track or have an
// event on one. The reader silently drops most of what it does not accept, so the writer
// guarantees more than the format requires: slices of one track never overlap, every slice
// that begins ends, and every text is valid UTF-8.
package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/sched"
)

// Cut is a run of which the trace has only the beginning.
type Cut struct {
	Policy string
	Until  time.Duration
}

// Write writes runs to w, as a Trace shows the record of a daemon. Every run has devices and
// processes of its own, with the policy before their names.
//
// The trace has about limit bytes at most. Each run may use an equal part of what the runs
// before it have left. Write returns the runs that are not complete, also those of which
// only the beginning was recorded.
func Write(w io.Writer, runs []scenario.Run, limit int64) ([]Cut, error) {
	t := New(w, 0)
	var cuts []Cut
	for i := range runs {
		r := &runs[i]
		entries, err := entriesOf(r, i)
		if err != nil {
			return nil, fmt.Errorf("write trace of policy %q: %w", r.Policy, err)
		}
		t.limit = t.w.written + (limit-t.w.written)/int64(len(runs)-i)
		t.reset(clean(r.Policy)+": ", namesOf(r, i))
		t.now, t.written, t.summary.LeftOut, t.summary.Until = 0, 0, 0, time.Duration(r.RecordedUntil)
		for j := range entries {
			t.Add(&entries[j])
		}
		t.finish()
		if t.summary.Until > 0 {
			cuts = append(cuts, Cut{r.Policy, t.summary.Until})
		}
	}
	_, err := t.Close()
	return cuts, err
}

// pidsPerRun is the distance between the pids of the first processes of two runs.
const pidsPerRun = 100_000

// pidOf returns the pid that the trace has for a queue of run i.
func pidOf(i int, q sched.QueueID) int { return i*pidsPerRun + 1 + int(q%(pidsPerRun-1)) }

// namesOf returns the names of the processes of run i.
func namesOf(r *scenario.Run, i int) map[int]string {
	names := map[int]string{}
	for _, c := range r.Result.Clients {
		if c.Queue != 0 {
			names[pidOf(i, c.Queue)] = fmt.Sprintf("%s (%v)", c.Name, c.Class)
		}
	}
	for _, s := range r.Result.Segments {
		if pid := pidOf(i, s.Queue); s.Queue != 0 && names[pid] == "" {
			names[pid] = fmt.Sprint("queue ", s.Queue)
		}
	}
	return names
}

// entriesOf returns what was recorded of run i as the record of a daemon has it.
func entriesOf(r *scenario.Run, i int) ([]api.Entry, error) {
	until := cmp.Or(r.RecordedUntil, sched.Never)
	b := entryList{run: i, until: until, devices: map[sched.QueueID]sched.DeviceID{}}
	for _, c := range r.Result.Clients {
		b.devices[c.Queue] = c.Device
	}
	for j, s := range r.Result.Segments {
		if s.From < 0 || s.To < s.From {
			return nil, fmt.Errorf("segment %d is from %d to %d ns", j, s.From, s.To)
		}
		span := api.Span{Begin: time.Duration(s.From), End: time.Duration(min(s.To, until)), What: "held"}
		if s.Queue == 0 {
			span.What = "switch"
		}
		b.add(api.Entry{Kind: api.KindSpan, Device: string(s.Device), Span: &span}, s.Queue, s.From, min(s.To, until))
	}
	for _, q := range r.Result.Requests {
		c := &r.Result.Clients[q.Client]
		took := q.End.Sub(q.Begin)
		request := api.RequestSpan{Begin: time.Duration(q.Begin), End: time.Duration(q.End), SLO: c.SLO, Late: c.SLO > 0 && took > c.SLO}
		b.add(api.Entry{Kind: api.KindRequest, Request: &request}, c.Queue, q.End, q.End)
	}
	b.waits(r)
	for j := range r.Decisions {
		b.decision(&r.Decisions[j])
	}
	for j := range r.Actions {
		if r.Actions[j].At < 0 {
			return nil, fmt.Errorf("action %d is at %d ns", j, r.Actions[j].At)
		}
		b.action(&r.Actions[j])
	}
	slices.SortStableFunc(b.entries, func(a, b api.Entry) int { return cmp.Compare(a.At, b.At) })
	return b.entries, nil
}

// entryList collects the entries of a run.
type entryList struct {
	run     int
	until   sched.Time
	devices map[sched.QueueID]sched.DeviceID
	entries []api.Entry
}

// add adds an entry about a queue, or none if it is zero, unless it begins after the end of
// what was recorded.
func (b *entryList) add(e api.Entry, q sched.QueueID, begin, at sched.Time) {
	if begin >= b.until {
		return
	}
	e.At = time.Duration(at)
	if q != 0 {
		e.Queue, e.PID = uint64(q), pidOf(b.run, q)
		e.Device = cmp.Or(e.Device, string(b.devices[q]))
	}
	b.entries = append(b.entries, e)
}

func (b *entryList) decision(t *scenario.TimedDecision) {
	d := &t.Decision
	b.add(api.Entry{Kind: api.KindDecision, Device: string(d.Device), Decision: &api.Decision{
		Number: d.Number, Policy: d.Policy, Run: d.Run, Reason: d.Reason.String(), Slice: d.Slice, Bound: d.Bound,
	}}, d.Queue, t.At, t.At)
}

// levels are the names of the levels of a stop.
var levels = []string{"none", "hold", "deactivate", "interrupt"}

func (b *entryList) action(t *scenario.TimedAction) {
	a := &t.Action
	shown := api.Action{
		Number: uint64(a.ID), Verb: a.Verb.String(), Slice: a.Slice, Bound: a.Bound, Decision: t.Decision,
		Ordered: time.Duration(t.At), Completed: time.Duration(max(t.Completed, t.At)), Outcome: t.Outcome.String(),
	}
	if a.Verb == sched.Stop || a.Verb == sched.Start {
		shown.Level = levels[min(int(a.Level), len(levels)-1)]
	}
	if t.Completed == 0 {
		shown.Outcome = "no outcome"
	}
	b.add(api.Entry{Kind: api.KindAction, Action: &shown}, a.Queue, t.At, max(t.Completed, t.At))
}
