package live

import (
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/sched"
)

// Poll implements hal.Poller.
func (b *Backend) Poll(now sched.Time, f hal.Facts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.host == nil {
		return // not started
	}
	b.advance()
	for _, q := range b.queues {
		b.applySettings(q)
	}
	for _, p := range b.processes {
		b.reportProgress(p, f)
	}
	b.facts = b.node.DeviceTimes(b.facts)
	for i := range b.devices {
		b.reportSpans(i, now, f)
	}
	for _, ev := range b.facts {
		if q := b.queues[ev.Queue]; q != nil && q.handle != nil {
			for _, t := range []*sched.Time{&ev.Visits.Arrived, &ev.Visits.Left} {
				if *t > 0 {
					*t = now.Add(b.clock.until(*t))
				}
			}
			ev.At = max(b.began(now).Add(b.clock.real(time.Duration(ev.At))), 1)
			b.reportFact(q, ev, f)
		}
	}
	b.facts = b.facts[:0]
}

// reportSpans reports what a device did, in the time of the scheduler. Each span begins where
// the last one ended. The time by which the clock of the Node is delayed, because the machine
// is too slow, is unknown.
func (b *Backend) reportSpans(i int, now sched.Time, f hal.Facts) {
	if b.spans = b.node.Spans(i, b.spans[:0]); len(b.spans) == 0 {
		return
	}
	began := b.began(now)
	at := func(t sched.Time) sched.Time { return max(began.Add(b.clock.real(time.Duration(t))), 0) }
	end := &b.reported[i]
	if b.spans[0].Begin == 0 {
		*end = at(0)
	}
	for j := range b.spans {
		s := &b.spans[j]
		s.Begin, s.End = max(at(s.Begin), *end), max(at(s.End), *end)
	}
	if delayed := b.spans[0].Begin; delayed > *end {
		b.spans = slices.Insert(b.spans, 0, hal.Span{Begin: *end, End: delayed})
	}
	*end = b.spans[len(b.spans)-1].End
	f.Spans(b.devices[i], b.spans)
}

// began returns when the Node's clock was zero, in the time of the scheduler, which is now.
func (b *Backend) began(now sched.Time) sched.Time {
	// The present time is later than now by as long as other backends took. The smallest
	// difference seen tells when the scheduler's clock was zero.
	if o := time.Now().Add(-time.Duration(now)); b.origin.IsZero() || o.Before(b.origin) {
		b.origin = o
	}
	return sched.Time(b.clock.began.Sub(b.origin))
}

// applySettings applies the bound that is in force for the process of q.
func (b *Backend) applySettings(q *queue) {
	if q.handle == nil {
		return
	}
	if s := q.handle.Process().Settings(); s != q.settings {
		q.settings = s
		q.node.SetDefaultBound(s.Bound.Commands)
	}
}

// reportProgress reports the counters of a process if they are known and have changed.
func (b *Backend) reportProgress(p *process, f hal.Facts) {
	c := sched.Counters{Submitted: p.closed, Launched: p.closed, Completed: p.closed}
	var handle hal.QueueHandle
	for _, q := range p.queues {
		if one := q.node.Counters(); one.Known {
			c.Submitted += one.Submitted
			c.Launched += one.Launched
			c.Completed += one.Completed
			c.Idled += one.Idled
			c.Known = true
		}
		if q.handle != nil {
			handle = q.handle
		}
	}
	if handle == nil || !c.Known || c == p.counters {
		return
	}
	p.counters = c
	f.Progress(handle.Process(), hal.Progress{Launched: c.Launched, Completed: c.Completed, Idled: c.Idled, Waiting: c.Submitted > c.Launched})
}

// reportFact reports a request, a hint or a device time. Requests are not reported if the
// API reports them, or if they follow each other without a pause and have no SLO.
func (b *Backend) reportFact(q *queue, ev sched.Event, f hal.Facts) {
	record, p := q.handle.Process(), q.process
	s := record.Settings()
	wanted := !s.RequestsReported && (!q.node.Saturating || s.Attr.SLO > 0)
	switch {
	case ev.Kind == sched.DeviceTimeMeasured:
		ev.Visits.Alone = b.clock.real(ev.Visits.Alone)
		f.DeviceTime(q.handle, b.clock.real(ev.Duration), ev.Visits)
	case ev.Kind == sched.MeasurementLost:
		f.MeasurementLost(q.handle)
	case ev.Kind == sched.AttrsChanged:
		at := pageabi.Now() + uint64(max(b.clock.until(ev.Attr.Expect), 0))
		f.Hint(record, uint32(pageabi.HintExpect), int64(at))
	case ev.Kind == sched.RequestStarted && wanted:
		p.requests++
		f.RequestStarted(record)
	case ev.Kind == sched.RequestFinished && (wanted || p.requests > 0):
		p.requests = max(p.requests-1, 0)
		f.RequestFinished(record, b.clock.real(ev.Duration), ev.At)
	}
}
