package daemon

import (
	"context"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

// Requests that callers mark through the API. While marks come, only marked requests of the
// process count. A caller may forget the end of a request, or stop marking, so marks expire:
// otherwise no request of the process would ever be counted again.

const (
	// maxMarked is how many marked requests of a process may be open.
	maxMarked = 1024
	// markExpiry is how long after the last mark, with no marked request open, requests are
	// inferred again. A marked request is closed when the process has had no work for as long.
	markExpiry = 10 * time.Second
	// maxMarkedTime is how long a marked request may be open, if twice the SLO is not longer.
	maxMarkedTime = time.Minute
	// markCheckTime is how often marks are checked.
	markCheckTime = time.Second
)

// marks are the marked requests of a process.
type marks struct {
	inForce bool                 // only marked requests count, so backends infer none
	open    map[int64]sched.Time // when each began, by its number
	last    sched.Time           // when the last mark came
	// Since when the process is known to have had no work, and what it had launched then.
	idleSince sched.Time
	launched  uint64
}

// applyMark applies the begin or the end of a request. d.mu is held.
func (d *Daemon) applyMark(p *process, h api.Hint) error {
	switch m := &p.requests.marked; {
	case h.Begin != nil:
		return d.beginMarked(p, m, *h.Begin)
	case h.End != nil:
		return d.endMarked(p, m, *h.End)
	}
	return nil
}

func (d *Daemon) beginMarked(p *process, m *marks, number int64) error {
	if _, open := m.open[number]; open {
		return server.Conflict("begin request %d of process %d: it is open already; end it first, or give this one another number", number, p.info.PID)
	}
	if len(m.open) >= maxMarked {
		return server.TooMany("begin a request of process %d: %d are open, and no more are allowed; end some", p.info.PID, len(m.open))
	}
	if m.open == nil {
		m.open = make(map[int64]sched.Time)
	}
	now := d.Now()
	m.inForce, m.last, m.idleSince, m.open[number] = true, now, now, now
	d.publish(p)
	d.postRequest(p, sched.Event{Kind: sched.RequestStarted})
	return nil
}

func (d *Daemon) endMarked(p *process, m *marks, number int64) error {
	began, open := m.open[number]
	if !open {
		return server.BadRequest("end request %d of process %d: it is not open. It has not begun, has ended, or has expired", number, p.info.PID)
	}
	delete(m.open, number)
	m.last = d.Now()
	took := m.last.Sub(began)
	p.requests.add(took, m.last)
	d.recorder.request(p, took, m.last)
	d.postRequest(p, sched.Event{Kind: sched.RequestFinished, At: m.last, Duration: took})
	return nil
}

// postRequest posts the event for every queue of a process. d.mu is held.
func (d *Daemon) postRequest(p *process, ev sched.Event) {
	for _, q := range p.queues {
		ev.Queue = q.id
		d.events.post(ev)
	}
}

// closeMarked closes a marked request that is not counted. d.mu is held.
func (d *Daemon) closeMarked(p *process, number int64) {
	delete(p.requests.marked.open, number)
	d.postRequest(p, sched.Event{Kind: sched.RequestFinished})
}

// dropMarks closes all marked requests of a process, and lets backends infer requests again.
// d.mu is held.
func (d *Daemon) dropMarks(p *process) {
	for number := range p.requests.marked.open { //shape:unordered all are closed
		d.closeMarked(p, number)
	}
	p.requests.marked = marks{}
}

// followMarks expires marks until ctx is done.
func (d *Daemon) followMarks(ctx context.Context) {
	every := time.NewTicker(d.markCheck)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			d.expireMarks(d.Now())
		}
	}
}

// expireMarks closes the marked requests that have expired, and ends the marking of processes
// whose last mark is old.
func (d *Daemon) expireMarks(now sched.Time) {
	d.eachProcess(d.allProcesses(), func(p *process) {
		m := &p.requests.marked
		if !m.inForce {
			return
		}
		idle := p.idleFor(now) >= markExpiry
		for number, began := range m.open { //shape:unordered each is judged alone
			if idle && now.Sub(began) >= markExpiry || now.Sub(began) >= max(maxMarkedTime, 2*p.attr.SLO) {
				d.closeMarked(p, number)
			}
		}
		if len(m.open) == 0 && now.Sub(m.last) >= markExpiry {
			d.dropMarks(p)
			d.publish(p)
			d.Wake() // backends read settings when they are polled
		}
	})
}

// idleFor returns how long a process with marked requests is known to have had no work. d.mu
// is held.
func (p *process) idleFor(now sched.Time) time.Duration {
	m, c := &p.requests.marked, &p.counters
	if !c.Known || c.Submitted > c.Completed || c.Launched != m.launched {
		m.idleSince, m.launched = now, c.Launched
	}
	return now.Sub(m.idleSince)
}
