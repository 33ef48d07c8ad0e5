package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// load is how much of the device a batch queue needs. A heavy queue fills the device. A
// light one does not: its process launches too little, or waits. Jobs that are heavy do
// more work if they take turns; jobs that are light do several times more side by side.
//
// The load of a queue is found by its visits, while it runs beside another batch queue with the
// device's default slice. A heavy queue stays for the whole slice. A light one leaves earlier, or makes
// no visit for a while, so that others are alone on the device: see presence.
// Measured on an H200 with a slice of 2048 us: of training and of ResNet-50 with a batch
// of 64, nine of ten visits took 2158 to 2217 us; of ResNet-50 launched kernel by kernel,
// nine of ten took less than 730 us (four jobs) or 1282 us (two beside training).
//
// With a shorter slice, which batch queues have beside online work, the visits raise only a
// suspicion. The queue then gets the default slice for a moment, which is called a retrial here.
// A trial is that of newcomers: see updateTrial.
type load uint8

const (
	unknownLoad load = iota // a newcomer: counts as light in a trial, so that it runs beside the others
	lightLoad
	heavyLoad
)

// Figures for the loads of queues.
const (
	windowVisits = 6                      // visits that a verdict needs
	maxUnclear   = 4                      // unclear windows, after which the queue counts as heavy
	maxWindow    = 250 * time.Millisecond // after which a window with fewer visits is dropped
	trialLength  = 300 * time.Millisecond // after which a trial or retrial without a verdict ends

	// A verdict holds for holdTime. It holds twice as long if it follows soon after
	// another, so that a queue on the border changes seldom.
	holdTime    = 500 * time.Millisecond
	maxHoldTime = 64 * time.Second
)

// loadState is what is known about the load of a queue, and the window of visits from
// which it is found out.
type loadState struct {
	verdict   load
	judgedAt  sched.Time // when the last window was complete
	wasHeavy  bool       // the last window with the default slice was that of a heavy queue
	unclear   int        // windows in a row, in a trial or a retrial, that were those of neither a heavy nor a light queue
	filled    float64    // part of the last windows with a short slice in which the visits filled the slice
	fills     bool       // the visits usually fill the short slice: see updateFills
	suspected bool       // so the queue, whose verdict is light, may be heavy: it needs a retrial

	// The window is the sum of the periods between two measurements in which the queue ran
	// beside others with one slice. It may be interrupted: trials can be short and rare.
	slice  time.Duration
	window visitWindow
	since  sched.Time // when the queue began to run beside others with this slice; zero: it does not
	waited bool       // it was stopped for some of the time since the last measurement
	read   reading    // the last measurement after since; at is zero if there was none

	presence        presence
	restedAtTurnEnd int      // overlaps in a row in which it had no work at the end of its turn: see giveway.restedAtTurnEnd
	use             meanTime // the part of its turns that it used since the last verdict, as a part of one second: see judgeByUse

	// The last verdict was at heldAt and holds until heldUntil, which is hold later. The retrial of
	// a suspected queue begins at heldUntil.
	heldAt, heldUntil sched.Time
	hold              time.Duration
}

// visitWindow is what was measured in a period.
type visitWindow struct {
	visits, full, cut uint64
	served, took      time.Duration
}

// counted returns how many visits count. Visits that a stop cut short do not.
func (w *visitWindow) counted() uint64 { return max(w.visits-min(w.cut, w.visits), w.full) }

// reading is a measurement of a queue.
type reading struct {
	at     sched.Time
	visits sched.Visits
	served time.Duration
	alone  time.Duration // for which other queues were alone
}

// watch updates the state from the visits of q.
//   - beside: q runs beside other batch or standard queues;
//   - online: there is online work;
//   - alone: how long those other queues have been alone on the device so far.
func (r *loadState) watch(q *sched.Queue, now sched.Time, beside, online bool, alone time.Duration) {
	switch {
	case !q.Visits.Known:
		r.since = 0 // a window that goes on later would count time that is estimated
		return
	case q.State != sched.Running:
		r.waited = true
		return // it makes no visits: the window goes on when it runs again
	case !beside:
		r.since = 0
		return
	}
	if r.slice != q.Slice {
		r.window = visitWindow{}
	}
	if r.since == 0 || r.slice != q.Slice {
		r.since, r.slice, r.read.at = now, q.Slice, 0
	}
	last := r.read
	if q.MeasuredAt < r.since || q.MeasuredAt == last.at {
		return
	}
	r.read = reading{q.MeasuredAt, q.Visits, q.Served, alone}
	if last.at == 0 {
		return
	}
	w := &r.window
	w.visits += q.Visits.Count - last.visits.Count
	w.full += q.Visits.Full - last.visits.Full
	w.cut += q.Visits.Cut - last.visits.Cut
	w.served += q.Served - last.served
	if took := q.MeasuredAt.Sub(last.at); !r.waited {
		w.took += took
		if !online { // online work has gaps of its own
			took -= q.Visits.Alone - last.visits.Alone
		}
		r.presence.add(took, alone-last.alone)
	}
	r.waited = false
	switch visits := w.counted(); {
	case r.verdict != lightLoad && r.presence.filled() == 0:
		r.judgedAt = now
		r.foundLight(now)
	case visits >= windowVisits && r.slice == 0:
		r.judge(min(float64(w.full)/float64(visits), r.presence.filled()), now)
	case visits >= windowVisits:
		r.suspect(w.served/time.Duration(visits), now)
	case w.took <= maxWindow:
		return
	case r.verdict == unknownLoad && w.served > 0 && w.served < w.took/8 && 2*w.full <= visits: // it makes few visits although the others are busy
		r.foundLight(now)
	}
	*w = visitWindow{}
}

// judge sets the load by full, the part of the visits with the default slice that were full. A
// light queue becomes heavy if two windows in a row show it, so that a short phase changes
// nothing. A heavy one becomes unknown first, and is then judged beside all light ones. A newcomer
// on the border counts as heavy after maxUnclear windows: another trial would show no more, and
// other newcomers wait for it.
func (r *loadState) judge(full float64, now sched.Time) {
	const heavyFrom, lightTo = 0.7, 0.4
	r.judgedAt = now
	was, tried, heavy := r.verdict, r.verdict == unknownLoad || r.suspected, full >= heavyFrom
	if r.unclear++; !tried || heavy || full <= lightTo {
		r.unclear = 0
	}
	switch held := now < r.heldUntil; {
	case heavy && was == unknownLoad, r.unclear >= maxUnclear, heavy && r.wasHeavy && !held:
		r.setVerdict(heavyLoad)
	case full <= lightTo && was == heavyLoad:
		r.doubt(now)
	case full <= lightTo && was == unknownLoad:
		r.setVerdict(lightLoad)
	}
	r.suspected = r.suspected && full > lightTo && r.verdict == lightLoad
	r.wasHeavy = heavy
	if r.verdict != unknownLoad && (r.verdict != was || tried && !r.suspected) {
		r.holdVerdict(now)
	}
}

// setVerdict changes the verdict. A heavy queue is expected to fill a short slice, and a light one not.
func (r *loadState) setVerdict(to load) {
	if r.verdict != to {
		r.verdict, r.filled, r.fills, r.unclear, r.use = to, 0, false, 0, meanTime{}
		if to == heavyLoad {
			r.filled = 1
		}
	}
}

// doubt makes a heavy queue unknown, so that it is judged anew.
func (r *loadState) doubt(now sched.Time) {
	if r.verdict == heavyLoad && now >= r.heldUntil {
		r.setVerdict(unknownLoad)
	}
}

// foundLight makes a queue light, unless it is heavy and its verdict still holds.
func (r *loadState) foundLight(now sched.Time) {
	if r.doubt(now); r.verdict == unknownLoad {
		r.setVerdict(lightLoad)
		r.holdVerdict(now)
	}
}

// suspect compares the mean visit with a slice that is shorter than the default one. Visits of a light
// queue that are much longer than the slice raise no suspicion: no other queue had work.
func (r *loadState) suspect(mean time.Duration, now sched.Time) {
	r.judgedAt = now
	before := r.fills
	r.updateFills(mean >= r.slice*85/100 && (mean <= 2*r.slice || r.verdict != lightLoad) && r.presence.filled() > 0)
	switch clearly := mean < r.slice*7/10; {
	case r.verdict == lightLoad:
		r.suspected = r.fills
		if r.fills && !before {
			r.heldUntil = max(min(r.heldUntil, r.heldAt.Add(holdTime)), now)
		}
	case r.fills && !clearly:
	case r.verdict == heavyLoad:
		r.doubt(now)
	case r.filled == 0 || clearly:
		r.foundLight(now)
	}
}

// updateFills updates fills, over several windows and with hysteresis, because the mean of a few
// visits varies.
func (r *loadState) updateFills(fills bool) {
	const weight, fillsFrom, fillsTo = 0.25, 0.7, 0.3
	r.filled -= weight * r.filled
	if fills {
		r.filled += weight
	}
	r.fills = r.filled > fillsFrom || r.fills && r.filled > fillsTo
}

// holdVerdict makes the present load hold for a while.
func (r *loadState) holdVerdict(now sched.Time) {
	if now.Sub(r.heldAt) > 8*r.hold {
		r.hold = 0
	}
	r.hold = min(max(2*r.hold, holdTime), maxHoldTime)
	r.heldAt, r.heldUntil = now, now.Add(r.hold)
}

// updateRetrial ends a retrial that takes too long: the verdict then holds for another while. It
// reports whether the queue, which is light and runs beside others, has the default slice now for a
// retrial, and when that changes without an event; zero: it does not.
func (r *loadState) updateRetrial(now sched.Time) (bool, sched.Time) {
	switch {
	case r.verdict != lightLoad || !r.suspected:
		return false, 0
	case now >= r.heldUntil.Add(trialLength):
		r.holdVerdict(now)
	}
	if now < r.heldUntil {
		return false, r.heldUntil
	}
	return true, r.heldUntil.Add(trialLength)
}
