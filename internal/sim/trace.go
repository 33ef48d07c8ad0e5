package sim

import (
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// traced is what the context-switch trace says of a queue.
type traced struct {
	measured bool // it was read, and has not failed since

	// What the queue had when the trace failed, and what it had while the trace could not
	// be read, which is never known.
	had, unseen counted
}

// counted is what a queue had on the device.
type counted struct {
	resident, alone   time.Duration
	visits, full, cut uint64
}

// aloneNow returns for how much of its present visit q was alone.
func (q *queue) aloneNow(d *device) time.Duration {
	if d.model.Runlist == nil || q.cameOnAt <= q.visits.Left {
		return 0
	}
	return sched.TimeAlone(d.world.now.Sub(q.cameOnAt), d.model.Runlist.Slice)
}

func (q *queue) counted() counted {
	return counted{q.resident, q.visits.Alone, q.visits.Count, q.visits.Full, q.visits.Cut}
}

// readTrace appends the device time of every queue according to the context-switch trace,
// if the device has one and it may be read again.
func (d *device) readTrace(buf []sched.Event) []sched.Event {
	now := d.world.now
	if d.model.TraceInterval == 0 || now < d.traceReadAt.Add(d.model.TraceInterval) {
		return buf
	}
	d.traceReadAt = now
	d.engine.advance()
	for _, q := range d.queues {
		switch {
		case q.dead:
		case !d.traceFailed:
			q.trace.measured = true
			visits, unseen := q.visits, &q.trace.unseen
			visits.Count -= unseen.visits
			visits.Full -= unseen.full
			visits.Alone += q.aloneNow(d) - unseen.alone
			visits.Cut -= unseen.cut
			visits.Known = d.model.Runlist != nil
			buf = append(buf, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: q.id, Duration: q.resident - unseen.resident, Visits: visits})
		case q.trace.measured:
			q.trace.measured = false
			buf = append(buf, sched.Event{Kind: sched.MeasurementLost, Queue: q.id})
		}
	}
	return buf
}

// maxTraceFailure is how long a trace that has failed cannot be read, at most.
const maxTraceFailure = time.Second

// scheduleTraceFailures makes the trace of each device fail again and again.
func (w *World) scheduleTraceFailures() {
	for _, d := range w.devices {
		if d.model.TraceInterval > 0 {
			d.scheduleTraceFailure()
		}
	}
}

func (d *device) scheduleTraceFailure() {
	w := d.world
	w.afterFault(w.cfg.Faults.Trace, func() {
		d.failTrace()
		w.after(time.Duration(w.faultRand.Int64N(int64(maxTraceFailure))), func() {
			d.reopenTrace()
			d.scheduleTraceFailure()
		})
	})
}

func (d *device) failTrace() {
	d.engine.advance()
	d.traceFailed = true
	d.spans.setUnknown(true, d.world.now)
	for _, q := range d.queues {
		q.trace.had = q.counted()
	}
}

// reopenTrace makes the trace readable again. It goes on with what it had counted.
func (d *device) reopenTrace() {
	d.engine.advance()
	d.traceFailed = false
	d.spans.setUnknown(false, d.world.now)
	for _, q := range d.queues {
		now, had, unseen := q.counted(), &q.trace.had, &q.trace.unseen
		unseen.resident += now.resident - had.resident
		unseen.visits += now.visits - had.visits
		unseen.full += now.full - had.full
		unseen.alone += now.alone - had.alone
		unseen.cut += now.cut - had.cut
		*had = now
	}
}

// setUnknown makes what follows unknown, or known again.
func (l *spanLog) setUnknown(unknown bool, now sched.Time) {
	if l != nil {
		l.add(hal.SpanUnknown, nil, now, hal.Stays) // of a switch that is under way
		l.unknown = unknown
	}
}
