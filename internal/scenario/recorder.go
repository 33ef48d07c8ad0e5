package scenario

import (
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// simulate runs all clients together.
func (r *Run) simulate(cfg sim.Config, actions int) {
	rec := recorder{limit: actions, pending: map[sched.QueueID]int{}, decided: map[sched.QueueID]uint64{}}
	if actions > 0 {
		cfg.Requests, cfg.Recorder = actions, &rec
		cfg.Started = rec.started
	}
	r.Result = sim.New(cfg).Run()
	r.Actions, r.Decisions, r.RecordedUntil = rec.actions, rec.decisions, rec.full
	until := func(at sched.Time) {
		if r.RecordedUntil == 0 || at < r.RecordedUntil {
			r.RecordedUntil = at
		}
	}
	if n := len(r.Result.Segments); n > 0 && n == cfg.Segments {
		until(r.Result.Segments[n-1].To)
	}
	if n := len(r.Result.Requests); n > 0 && n == cfg.Requests {
		until(r.Result.Requests[n-1].End)
	}
}

// recorder records the first actions and decisions of the scheduler.
type recorder struct {
	limit     int
	sched     *sched.Scheduler
	actions   []TimedAction
	decisions []TimedDecision
	full      sched.Time // when the limit was reached; zero: it was not

	pending map[sched.QueueID]int // index of the action under way
	decided map[sched.QueueID]uint64
}

// started notes the scheduler. One of an earlier daemon learns no outcomes any more.
func (r *recorder) started(s *sched.Scheduler) {
	r.sched = s
	clear(r.pending)
	clear(r.decided)
}

// Record implements loop.Recorder.
func (r *recorder) Record(now sched.Time, events []sched.Event, actions []sched.Action) {
	for i := range events {
		ev := &events[i]
		if at, ok := r.pending[ev.Queue]; ok && ev.Kind == sched.ActionDone && r.actions[at].Action.ID == ev.Action {
			r.actions[at].Completed, r.actions[at].Outcome = now, ev.Outcome
			delete(r.pending, ev.Queue)
		}
	}
	for _, d := range r.sched.Decisions() {
		r.decided[d.Queue] = d.Number
		if len(r.decisions) < r.limit {
			r.decisions = append(r.decisions, TimedDecision{now, d})
		}
	}
	for _, a := range actions {
		if len(r.actions) < r.limit {
			r.pending[a.Queue] = len(r.actions)
			r.actions = append(r.actions, TimedAction{At: now, Action: a, Decision: r.decided[a.Queue]})
		}
	}
	if r.full == 0 && max(len(r.actions), len(r.decisions)) >= r.limit {
		r.full = now
	}
}
