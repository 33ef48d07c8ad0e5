package live

import (
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
	for i, d := range b.devices {
		if lost, switches := b.node.Switching(i); d.tracing {
			f.Switching(d, b.clock.real(lost), switches)
		}
	}
	for _, ev := range b.facts {
		if q := b.queues[ev.Queue]; q != nil && q.handle != nil {
			if ev.Visits.Arrived > 0 {
				ev.Visits.Arrived = now.Add(b.clock.until(ev.Visits.Arrived))
			}
			b.reportFact(q, ev, f)
		}
	}
	b.facts = b.facts[:0]
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
	f.Progress(handle.Process(), hal.Progress{Launched: c.Launched, Completed: c.Completed, Waiting: c.Submitted > c.Launched})
}

// reportFact reports a request, a hint or a device time. Requests are not reported if the
// API reports them, or if they follow each other without a pause and have no SLO.
func (b *Backend) reportFact(q *queue, ev sched.Event, f hal.Facts) {
	record, p := q.handle.Process(), q.process
	s := record.Settings()
	wanted := !s.RequestsReported && (!q.node.Saturating || s.Attr.SLO > 0)
	switch {
	case ev.Kind == sched.DeviceTimeMeasured:
		f.DeviceTime(q.handle, b.clock.real(ev.Duration), ev.Visits)
	case ev.Kind == sched.AttrsChanged:
		at := pageabi.Now() + uint64(max(b.clock.until(ev.Attr.Expect), 0))
		f.Hint(record, uint32(pageabi.HintExpect), int64(at))
	case ev.Kind == sched.RequestStarted && wanted:
		p.requests++
		f.RequestStarted(record)
	case ev.Kind == sched.RequestFinished && (wanted || p.requests > 0):
		p.requests = max(p.requests-1, 0)
		f.RequestFinished(record, b.clock.real(ev.Duration))
	}
}
