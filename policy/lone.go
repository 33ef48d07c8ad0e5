package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// lone lets a light batch queue that is the only one keep a longer slice than the minimum, beside
// online work that comes onto the device again and again.
//
// A request of many short kernels, with host time between them, leaves the device many times. With the
// minimum slice the batch queue runs in each pause and is interrupted at its end, so each pause
// costs two switches in which neither makes progress. A light queue soon leaves by itself. It has the slice
// of queues that run side by side instead: requests take hardly longer, and it does up to 3.5 times as
// much (simulated, internal/sim/lone_test.go). A heavy queue keeps the minimum slice, because each pause would
// cost requests a whole slice.
//
// Whether the queue is light is found in a trial with that slice, which takes a few visits. It is not
// the load of load.go, for which a queue must run beside another batch queue.
type lone struct {
	phase  lonePhase
	since  sched.Time    // when the phase began
	queues uint64        // a checksum of the queues of the device, and their classes
	from   visitCount    // at the start of the window in which switches are counted
	window reading       // at the start of the window in which the visits of the batch queue are measured; at is zero: none
	heavy  int           // windows in a row that were those of a heavy queue
	next   sched.Time    // no trial begins before
	wait   time.Duration // between the last two trials of a queue that is not light
	wake   sched.Time    // when the phase may change without an event
}

type lonePhase uint8

const (
	loneOff     lonePhase = iota // the setting is in force
	loneTried                    // the queue has the longer slice in a trial
	loneLight                    // the queue is light and keeps it
	loneRecheck                  // the setting is in force for a window, to see whether there are still so many switches
)

const (
	loneTrial     = 400 * time.Millisecond // at most
	loneLength    = 5 * time.Second        // after which a recheck follows
	firstLoneWait = 10 * time.Second       // between trials
	maxLoneWait   = 2 * time.Minute
	loneHeavy     = 3  // windows in a row that show a heavy queue, after which a light one counts as heavy
	mixedVisits   = 40 // of a window in which the queue was alone at times
	loneSwitches  = 10 // trials begin if switches take more than the 10th part of a window
)

// update begins and ends trials, and sets the slice of the batch queue whose turn it is. inBursts: batch
// queues are stopped at times, so that switches cannot be counted.
func (l *lone) update(v *sched.View, states []queueState, set *setting, inBursts bool) {
	dev := &v.Devices[0]
	l.wake = 0
	allowed := set.bursts && set.slice > 0 && set.slice < dev.MinSharedSlice && set.sharedSlice > 0 && set.sharedSlice != sched.MinSlice
	q, alone := onlyBatchQueue(v, states)
	if !allowed || !alone {
		l.enter(loneOff, v.Now, visitCount{})
		return
	}
	count := countVisits(v)
	if count.queues != l.queues {
		l.queues, l.next, l.wait = count.queues, 0, 0
		l.enter(loneOff, v.Now, count)
	}
	switch {
	case !count.known:
		l.enter(loneOff, v.Now, visitCount{})
		return
	case inBursts || q == nil || l.from.at == 0:
		l.from, l.window = count, reading{}
	default:
		l.change(v.Now, dev, q, count)
	}
	switch l.phase {
	case loneOff, loneRecheck:
		if l.wake = l.from.at.Add(firstWindow); l.wake <= v.Now {
			l.wake = v.Now.Add(firstWindow)
		}
		set.bursts = set.bursts && l.phase == loneOff
		return
	case loneTried:
		l.wake = v.Now.Add(arrivalStep)
	case loneLight:
		l.wake = v.Now.Add(loadStep)
	}
	set.slice = max(set.sharedSlice, dev.MinSharedSlice)
}

// change enters the next phase if it is time.
func (l *lone) change(now sched.Time, dev *sched.Device, q *sched.Queue, count visitCount) {
	switch l.phase {
	case loneOff, loneRecheck:
		length := count.at.Sub(l.from.at)
		if length < firstWindow {
			return
		}
		switch many := times(count.online-l.from.online, 2*dev.SwitchTime) >= length/loneSwitches; {
		case many && l.phase == loneRecheck:
			l.enter(loneLight, now, count)
		case many && now >= l.next:
			l.enter(loneTried, now, count)
		default:
			l.enter(loneOff, now, count)
		}
	case loneTried:
		switch judged, light := l.measure(dev, q); {
		case judged && light:
			l.enter(loneLight, now, count)
		case judged, now.Sub(l.since) >= loneTrial:
			l.fail(now, count)
		}
	case loneLight:
		if judged, light := l.measure(dev, q); light {
			l.heavy = 0
		} else if judged {
			l.heavy++
		}
		switch {
		case l.heavy >= loneHeavy:
			l.fail(now, count)
		case now.Sub(l.since) >= loneLength:
			l.enter(loneRecheck, now, count)
		}
	}
}

// measure reports whether a window of the visits of q, with the longer slice, is complete, and whether
// they were those of a light queue: shorter than the slice. Those of a heavy one are as long as that, or
// longer. Visits as long as the default slice do not count, because no online queue had work in them. If
// there were such visits the window is longer: one that has not ended yet counts in part.
func (l *lone) measure(dev *sched.Device, q *sched.Queue) (judged, light bool) {
	if q.Slice < dev.MinSharedSlice || q.MeasuredAt <= l.window.at {
		return false, false
	}
	last := l.window
	if last.at == 0 {
		l.window = reading{at: q.MeasuredAt, visits: q.Visits, served: q.Served}
		return false, false
	}
	full, alone := q.Visits.Full-last.visits.Full, q.Visits.Alone-last.visits.Alone
	visits := q.Visits.Count - last.visits.Count - full
	if visits < windowVisits || alone > 0 && visits < mixedVisits {
		return false, false
	}
	l.window.at = 0
	used := q.Served - last.served - alone - times(full, dev.Slice)
	return true, used < times(visits, q.Slice*9/10)
}

func (l *lone) enter(phase lonePhase, now sched.Time, count visitCount) {
	l.phase, l.since, l.from, l.window, l.heavy = phase, now, count, reading{}, 0
}

// fail ends a trial, or the time in which the queue was light. The next trial has to wait, each time
// twice as long.
func (l *lone) fail(now sched.Time, count visitCount) {
	l.wait = min(max(2*l.wait, firstLoneWait), maxLoneWait)
	l.next = now.Add(l.wait)
	l.enter(loneOff, now, count)
}

// onlyBatchQueue returns the batch queue whose slice lone may choose: the only queue of those that give
// way that has work or had some just now; nil: none has. alone is not set if there are several, or if that
// one does not give way by its slice. A queue that cannot be stopped is a pool, which is seldom light.
func onlyBatchQueue(v *sched.View, states []queueState) (only *sched.Queue, alone bool) {
	for i := range v.Queues {
		q, st := &v.Queues[i], &states[i]
		if !givesWay(q) || !q.Runnable() && !st.recentlyReady(v.Now) {
			continue
		}
		if only != nil || q.Attr.Class != sched.Batch || !yieldsBySlice(&v.Devices[0], q) || q.Level() == sched.LevelNone {
			return nil, false
		}
		only = q
	}
	return only, true
}
