package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// Where the visits of a batch queue are not known, its counters tell its load: a light queue runs out
// of work all the time, because its process launches too little or waits. In a rotation it would give
// up its turn each time, for the whole turn of another queue, and each change of turns costs a stop and
// a start. Simulated (amd-hws): jobs that launch kernel by kernel beside training did a sixth of their
// work in turns, and nine tenths side by side.

// judgedByCounters reports whether the load of q is found out by its counters.
func judgedByCounters(q *sched.Queue) bool { return q.Counters.Known && !q.Visits.Known }

// workPeriods are the periods in which a queue with counters has work, from ready to idle.
type workPeriods struct {
	working bool          // the queue has work
	served  time.Duration // Queue.Served when it got work
	idleAt  sched.Time    // when it last ran out of work
	length  meanTime      // device time in a period
	gap     meanTime      // time between two periods
}

const (
	periodsToTell = 8                     // periods that a verdict needs
	lightPeriod   = 5 * time.Millisecond  // a tenth of a turn: a queue with shorter periods is light
	heavyPeriod   = 25 * time.Millisecond // half of a turn: a queue with a longer period is heavy
)

// watch updates the periods of q, and returns the load of q, which was verdict. Weighted says that
// queues have different weights. Then a queue that has work for most of the time is not light: side by
// side it would get as much as the others, whatever its weight.
func (w *workPeriods) watch(q *sched.Queue, now sched.Time, weighted bool, verdict load) load {
	switch ready := q.Ready(); {
	case ready && !w.working:
		w.working, w.served = true, q.Served
		if w.idleAt > 0 {
			w.gap.add(now.Sub(w.idleAt))
		}
	case !ready && w.working:
		w.working, w.idleAt = false, now
		w.length.add(q.Served - w.served)
	}
	gap := w.gap.mean
	if verdict == lightLoad {
		gap *= 2 // so that a queue on the border does not change all the time
	}
	switch {
	case w.working && q.Served-w.served > heavyPeriod:
		w.length, w.gap = meanTime{}, meanTime{} // what was before tells nothing about what is now
		return heavyLoad
	case w.length.n < periodsToTell:
		return verdict
	case w.length.mean > heavyPeriod, weighted && w.length.mean > gap:
		return heavyLoad
	case w.length.mean < lightPeriod:
		return lightLoad
	}
	return verdict
}
