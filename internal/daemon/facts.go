package daemon

import (
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// facts collects what backends report while the loop polls them. It implements
// hal.Facts.
type facts struct {
	d       *Daemon
	events  []sched.Event
	changed []*process // whose attributes changed by a hint
}

func (f *facts) reset() { f.events, f.changed = f.events[:0], f.changed[:0] }

// appendTo appends what was collected to buf. Attributes are read last, so that an
// order of the owner that came meanwhile is not undone. d.mu is held.
func (f *facts) appendTo(buf []sched.Event) []sched.Event {
	for _, p := range f.changed {
		buf = p.appendAttrs(buf)
	}
	return append(buf, f.events...)
}

// DeviceTime implements hal.Facts.
func (f *facts) DeviceTime(q hal.QueueHandle, total time.Duration) {
	f.events = append(f.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: q.ID(), Duration: total})
}

// Progress implements hal.Facts. A hardware queue of which the gate has seen no launch
// yet may be used without the shim's knowledge, so nothing is concluded about it.
func (f *facts) Progress(hp hal.Process, c hal.Progress) {
	p := hp.(*process)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	base := uint64(0)
	if p.gate != nil {
		base = p.gate.base
	}
	s := sched.Counters{Launched: base + c.Launched, Completed: base + c.Completed, Known: true}
	s.Launched = max(s.Launched, p.counters.Launched)
	s.Completed = min(max(s.Completed, p.counters.Completed), s.Launched)
	s.Submitted = s.Launched
	if c.Waiting {
		s.Submitted++
	}
	unused := p.gate != nil && c.Launched == 0 && !c.Waiting
	for _, q := range p.queues {
		if q.counters == s || q.hardware != nil && unused {
			continue
		}
		q.counters, p.counters = s, s
		f.events = append(f.events, sched.Event{Kind: sched.Progressed, Queue: q.id, Counters: s})
	}
}

// RequestStarted implements hal.Facts.
func (f *facts) RequestStarted(hp hal.Process) {
	p := hp.(*process)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	p.requests.reported++
	f.each(p, sched.Event{Kind: sched.RequestStarted})
}

// RequestFinished implements hal.Facts.
func (f *facts) RequestFinished(hp hal.Process, took time.Duration) {
	p := hp.(*process)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if p.requests.reported > 0 {
		p.requests.reported--
	}
	if took > 0 {
		p.requests.add(took)
	}
	f.each(p, sched.Event{Kind: sched.RequestFinished, Duration: took})
}

// each appends an event for every queue of a process. d.mu is held.
func (f *facts) each(p *process, ev sched.Event) {
	for _, q := range p.queues {
		ev.Queue = q.id
		f.events = append(f.events, ev)
	}
}

// Hint implements hal.Facts.
func (f *facts) Hint(hp hal.Process, kind uint32, value int64) {
	p := hp.(*process)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.takeHint(p, kind, value) {
		f.changed = append(f.changed, p)
		f.d.publish(p)
	}
}
