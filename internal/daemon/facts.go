package daemon

import (
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// facts collects what backends report while the loop polls them. It implements hal.Facts.
//
// A report is only noted while backends are polled. All are taken in together, with d.mu
// held once a turn: a loop that took the lock for each report would wait as often, and the
// leases of held gates would lapse while users give orders.
type facts struct {
	d       *Daemon
	reports []report
	events  []sched.Event
	changed []*process // whose attributes changed by a hint
	spans   []deviceSpan
	again   int // turns in a row that took in hints: see takeIn
}

// maxAgain limits how many turns in a row follow each other at once because of hints. A process
// can write hints without end.
const maxAgain = 8

// deviceSpan is a span of a device.
type deviceSpan struct {
	device sched.DeviceID
	hal.Span
}

// report is one report of a backend.
type report struct {
	process  *process
	gate     *processGate // of the process when it was reported
	kind     reportKind
	progress hal.Progress
	took     time.Duration // of a request
	ended    sched.Time    // the same
	hint     uint32
	value    int64
}

type reportKind uint8

const (
	progressed reportKind = iota
	requestStarted
	requestFinished
	hinted
)

func (f *facts) reset() {
	f.reports, f.events, f.changed, f.spans = emptied(f.reports), emptied(f.events), emptied(f.changed), emptied(f.spans)
}

// maxBuffer is how many elements a buffer that is used again may have room for.
const maxBuffer = 8192

// emptied returns a buffer without its elements, to be used again. Memory that one turn with
// very many elements needed is not kept.
func emptied[T any](buf []T) []T {
	if cap(buf) > maxBuffer {
		return nil
	}
	clear(buf) // do not keep what the elements refer to
	return buf[:0]
}

// takeIn applies what was reported and appends it to buf. Attributes are read last, so that
// an order of the owner that came meanwhile is not undone. It reports whether backends
// should be polled again at once, because a hint has changed settings that they read
// before. d.mu is held.
func (f *facts) takeIn(buf []sched.Event) (_ []sched.Event, pollAgain bool) {
	for i := range f.reports {
		r := &f.reports[i]
		if r.gate != r.process.gate {
			continue // it is about a page that was withdrawn or replaced since
		}
		switch r.kind {
		case progressed:
			f.takeProgress(r.process, r.progress)
		case requestStarted:
			r.process.requests.reported++
			f.each(r.process, sched.Event{Kind: sched.RequestStarted})
		case requestFinished:
			f.takeRequest(r.process, r.took, r.ended)
		case hinted:
			if f.d.takeHint(r.process, r.hint, r.value) {
				f.changed = append(f.changed, r.process)
				f.d.publish(r.process)
			}
			f.d.noteReduced(r.process)
		}
	}
	for _, p := range f.changed {
		buf = p.appendAttrs(buf)
	}
	f.takeSpans()
	if f.again++; len(f.changed) == 0 {
		f.again = 0
	}
	return append(buf, f.events...), f.again > 0 && f.again <= maxAgain
}

// takeSpans adds the spans to the ledgers of their devices. d.mu is held.
func (f *facts) takeSpans() {
	var dev *device
	for i := range f.spans {
		s := &f.spans[i]
		if i == 0 || s.device != f.spans[i-1].device {
			dev = f.d.devices[s.device]
		}
		if dev != nil {
			dev.ledger.Add(s.Span)
			dev.switching.update(s.End, &dev.ledger)
		}
	}
}

// takeProgress notes how far a process has come. A hardware queue of which the gate has
// seen no launch yet may be used without the shim's knowledge, so nothing is concluded about
// it. d.mu is held.
func (f *facts) takeProgress(p *process, c hal.Progress) {
	var base, idled uint64
	if p.gate != nil {
		base, idled = p.gate.base, p.gate.idled
	}
	s := sched.Counters{Launched: base + c.Launched, Completed: base + c.Completed, Known: true}
	s.Launched = max(s.Launched, p.counters.Launched)
	s.Completed = min(max(s.Completed, p.counters.Completed), s.Launched)
	s.Submitted, s.Late, s.Idled = s.Launched, max(c.Late, p.counters.Late), max(idled+c.Idled, p.counters.Idled)
	if c.Waiting {
		s.Submitted++
	}
	if len(p.pool.queues) > 0 {
		p.counters = s
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

// takeRequest notes that a request of a process is over. d.mu is held.
func (f *facts) takeRequest(p *process, took time.Duration, ended sched.Time) {
	if p.requests.reported > 0 {
		p.requests.reported--
	}
	if took > 0 {
		p.requests.add(took, f.d.Now())
		f.d.recorder.request(p, took, ended)
	}
	f.each(p, sched.Event{Kind: sched.RequestFinished, Duration: took, At: ended})
}

// each appends an event for every queue of a process. d.mu is held.
func (f *facts) each(p *process, ev sched.Event) {
	for _, q := range p.queues {
		ev.Queue = q.id
		f.events = append(f.events, ev)
	}
}

func (f *facts) note(p hal.Process, r report) {
	r.process = p.(*process)
	r.gate = r.process.reporting.Load()
	f.reports = append(f.reports, r)
}

// DeviceTime implements hal.Facts.
func (f *facts) DeviceTime(q hal.QueueHandle, total time.Duration, visits sched.Visits) {
	measured := q.(*queue)
	measured.traced, measured.resident = visits.Known, total
	f.events = append(f.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: q.ID(), Duration: total, Visits: visits})
}

// MeasurementLost implements hal.Facts.
func (f *facts) MeasurementLost(q hal.QueueHandle) {
	q.(*queue).traced = false
	f.events = append(f.events, sched.Event{Kind: sched.MeasurementLost, Queue: q.ID()})
}

// Spans implements hal.Facts.
func (f *facts) Spans(d hal.Device, spans []hal.Span) {
	id := d.Info().Device.ID
	for _, s := range spans {
		f.spans = append(f.spans, deviceSpan{id, s})
	}
}

// Progress implements hal.Facts.
func (f *facts) Progress(p hal.Process, c hal.Progress) {
	f.note(p, report{kind: progressed, progress: c})
}

// RequestStarted implements hal.Facts.
func (f *facts) RequestStarted(p hal.Process) { f.note(p, report{kind: requestStarted}) }

// RequestFinished implements hal.Facts.
func (f *facts) RequestFinished(p hal.Process, took time.Duration, ended sched.Time) {
	f.note(p, report{kind: requestFinished, took: took, ended: ended})
}

// Hint implements hal.Facts.
func (f *facts) Hint(p hal.Process, kind uint32, value int64) {
	f.note(p, report{kind: hinted, hint: kind, value: value})
}
