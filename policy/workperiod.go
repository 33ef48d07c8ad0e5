package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// Where the visits of a batch queue are not known, its load is found by its counters. A light queue
// runs out of work all the time, because its process launches too little or waits. In a rotation it
// would give up its turn each time, for the whole turn of another queue, and each change of turns costs
// a stop and a start. Simulated (amd-hws): jobs that launch kernel by kernel beside training do a sixth
// of their work in turns, and nine tenths side by side.

// judgedByCounters reports whether the load of the queue is found by its counters. It is not if the
// trace is only lost for a moment.
func (st *queueState) judgedByCounters(q *sched.Queue) bool { return q.Counters.Known && !st.traced }

// judgeByCounters updates the load of q if it is found by its counters. If it is found by its visits,
// counters that are those of a light queue make a heavy one unknown: it has few visits to judge it
// by, because it gives up its turn whenever it is out of work.
func (st *queueState) judgeByCounters(q *sched.Queue, now sched.Time) {
	st.traced = st.traced || q.Visits.Known
	if q.Attr.Class != sched.Batch || !q.Counters.Known {
		return
	}
	switch verdict := st.work.watch(q, st.load.verdict); {
	case !st.traced:
		st.load.verdict = verdict
	case verdict == lightLoad && st.load.verdict == heavyLoad:
		st.load.doubt(now)
	}
}

// workPeriods are the periods of device time in which a queue with counters had work.
type workPeriods struct {
	begun     bool
	idled     uint64        // Counters.Idled when the first of them began
	completed uint64        // Counters.Completed then
	served    time.Duration // Queue.Served then
	last      uint64        // Counters.Idled at the last plan
	since     time.Duration // Queue.Served when that last changed
	command   time.Duration // device time of a command in the earlier periods; if none was completed, what they took
}

const (
	periodsToTell = 8                     // periods that a verdict needs
	maxPeriods    = 1 << 20               // more are not counted: the process may write any number
	lightPeriod   = 25 * time.Millisecond // half of a turn: a queue with shorter periods is light
	heavyPeriod   = 50 * time.Millisecond // a turn: a queue with a longer period is heavy

	// longCommand is the device time of a long command: half a turn. A device that runs one command
	// at a time gives a queue of such commands nearly all of its time if others run side by side with
	// it, whatever the weights are.
	longCommand = 25 * time.Millisecond
)

// watch updates the periods of q, and returns the load of q, which was verdict.
func (w *workPeriods) watch(q *sched.Queue, verdict load) load {
	if !w.begun {
		*w = workPeriods{begun: true, idled: q.Counters.Idled, completed: q.Counters.Completed, served: q.Served, last: q.Counters.Idled, since: q.Served}
	}
	if idled := q.Counters.Idled; idled != w.last {
		w.last, w.since = idled, q.Served
	}
	periods, took := min(w.last-w.idled, maxPeriods), q.Served-w.served
	switch {
	case q.Served-w.since > heavyPeriod: // it no longer runs out of work
		verdict = heavyLoad
	case periods < periodsToTell:
		return verdict
	case took < time.Duration(periods)*lightPeriod:
		verdict = lightLoad
	}
	w.command = took / time.Duration(min(max(q.Counters.Completed-w.completed, 1), maxPeriods))
	w.idled, w.completed, w.served, w.since = w.last, q.Counters.Completed, q.Served, q.Served
	return verdict
}
