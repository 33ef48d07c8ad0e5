package live

import (
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// hintExpect is GW_HINT_EXPECT of shim/abi.h: the next launch is expected at a time of
// CLOCK_MONOTONIC.
const hintExpect = 7

// Poll implements hal.Poller.
func (b *Backend) Poll(_ sched.Time, f hal.Facts) {
	for _, report := range b.collect() {
		report(f)
	}
}

// collect returns what has happened since the last call, as calls of hal.Facts. They are
// made without b.mu, so that the daemon may call the backend from there.
func (b *Backend) collect() (reports []func(hal.Facts)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.host == nil {
		return nil // not started
	}
	b.advance()
	for _, q := range b.queues {
		b.applySettings(q)
	}
	for _, p := range b.processes {
		if report := b.progress(p); report != nil {
			reports = append(reports, report)
		}
	}
	for _, ev := range b.facts {
		if q := b.queues[ev.Queue]; q != nil && q.handle != nil {
			if report := b.fact(q, ev); report != nil {
				reports = append(reports, report)
			}
		}
	}
	b.facts = b.facts[:0]
	b.events = b.node.DeviceTimes(b.events[:0])
	for _, ev := range b.events {
		if q := b.queues[ev.Queue]; q != nil && q.handle != nil {
			handle, total := q.handle, b.clock.real(ev.Duration)
			reports = append(reports, func(f hal.Facts) { f.DeviceTime(handle, total) })
		}
	}
	return reports
}

// applySettings applies what the owner of a process ordered. b.mu is held.
func (b *Backend) applySettings(q *queue) {
	if s := b.settings(q.id); s != q.settings && q.handle != nil {
		q.settings = s
		b.node.SetDefaultBound(q.id, s.Bound.Commands)
	}
}

// progress returns the report of a process's counters, or nil if they have not changed or
// are not known. b.mu is held.
func (b *Backend) progress(p *process) func(hal.Facts) {
	c := sched.Counters{Submitted: p.closed, Launched: p.closed, Completed: p.closed}
	var handle hal.QueueHandle
	for _, q := range p.queues {
		if one := b.node.Counters(q.id); one.Known {
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
		return nil
	}
	p.counters = c
	record := handle.Process()
	report := hal.Progress{Launched: c.Launched, Completed: c.Completed, Waiting: c.Submitted > c.Launched}
	return func(f hal.Facts) { f.Progress(record, report) }
}

// fact returns the report of a request or a hint, or nil if it is not to be reported. b.mu
// is held.
func (b *Backend) fact(q *queue, ev sched.Event) func(hal.Facts) {
	record, p := q.handle.Process(), q.process
	s := record.Settings()
	wanted := !s.RequestsReported && (!q.info.Saturating || s.Attr.SLO > 0)
	switch {
	case ev.Kind == sched.AttrsChanged:
		at := monotonic() + max(b.clock.until(ev.Attr.Expect), 0)
		return func(f hal.Facts) { f.Hint(record, hintExpect, int64(at)) }
	case ev.Kind == sched.RequestStarted && wanted:
		p.requests++
		return func(f hal.Facts) { f.RequestStarted(record) }
	case ev.Kind == sched.RequestFinished && (wanted || p.requests > 0):
		p.requests = max(p.requests-1, 0)
		took := b.clock.real(ev.Duration)
		return func(f hal.Facts) { f.RequestFinished(record, took) }
	}
	return nil
}
