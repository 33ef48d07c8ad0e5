package daemon

import (
	"fmt"
	"math"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// Kinds of hints on the page: GW_HINT_* of shim/abi.h.
const (
	hintClass      = 1
	hintPriority   = 2
	hintWeight     = 3
	hintDeadline   = 4
	hintLaxity     = 5
	hintWork       = 6
	hintExpect     = 7
	hintSLO        = 8
	hintIdempotent = 11
)

// takeHint takes in an attribute that a process gave itself through its page. It reports
// whether that changes anything; an invalid hint changes nothing and is counted. d.mu is
// held.
func (d *Daemon) takeHint(p *process, kind uint32, value int64) bool {
	was, ok := p.attr, true
	var said api.Change
	switch kind {
	case hintClass:
		ok = value >= int64(sched.Standard) && value <= int64(sched.Idle)
		if class := sched.Class(value).String(); ok && !p.classed { // or its owner has had his say
			said.Class, p.from = &class, "hint"
		}
	case hintPriority:
		ok = value >= math.MinInt32 && value <= math.MaxInt32
		said.Priority = ptr(int32(value))
	case hintWeight:
		ok = value >= 1 && value <= api.MostWeight
		said.Weight = ptr(uint32(value))
	case hintDeadline:
		said.Deadline, ok = ptr(time.Duration(value)), isSpan(value)
	case hintSLO:
		said.SLO, ok = ptr(time.Duration(value)), isSpan(value)
	case hintLaxity:
		if ok = isSpan(value); ok {
			p.attr.Laxity = time.Duration(value)
		}
	case hintWork:
		if ok = isSpan(value); ok {
			p.attr.Work = time.Duration(value)
		}
	case hintExpect:
		var at sched.Time
		if at, ok = d.moment(value); ok {
			p.attr.Expect = at
		}
	case hintIdempotent: // to be told of: the program goes by it by itself
		p.repeats = ptr(value != 0)
	default:
		ok = false
	}
	if !ok {
		p.invalid++
		return false
	}
	p.said = p.said.And(said)
	p.apply(said)
	return p.attr != was
}

func ptr[T any](v T) *T { return &v }

// isSpan reports whether a hint's value can be a time.
func isSpan(ns int64) bool { return ns >= 0 && ns <= int64(api.MostDeadline) }

// moment converts CLOCK_MONOTONIC nanoseconds to the scheduler's time. A time long past
// or far ahead is invalid.
func (d *Daemon) moment(mono int64) (sched.Time, bool) {
	if mono == 0 {
		return 0, true
	}
	const late = time.Second
	now := d.Now()
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0, false
	}
	at := now.Add(time.Duration(mono - ts.Nano()))
	return at, at > 0 && at > now.Add(-late) && at <= now.Add(api.MostDeadline)
}

// mostNumbers is how many requests of a process may be open that were told of through
// the API.
const mostNumbers = 1024

// Hint implements server.Node.
func (d *Daemon) Hint(pid int, h api.Hint) (api.Process, error) {
	var p *process
	if err := d.with(pid, func(known *process) error {
		p = known
		return d.hint(p, h)
	}); err != nil {
		return api.Process{}, err
	}
	return d.description(p), nil
}

// hint takes in what is said of a process. d.mu is held.
func (d *Daemon) hint(p *process, h api.Hint) error {
	if err := h.Check(); err != nil {
		return fmt.Errorf("%w: %w", server.ErrBadRequest, err)
	}
	if err := d.request(p, h); err != nil {
		return err
	}
	was := p.attr
	said := api.Change{Priority: h.Priority, Deadline: h.Deadline}
	p.said = p.said.And(said)
	p.apply(said)
	set(&p.attr.Laxity, h.Laxity)
	set(&p.attr.Work, h.Work)
	if h.Expect != nil {
		p.attr.Expect, p.expectAt = 0, time.Time{} // unknown
		if *h.Expect > 0 {
			p.attr.Expect, p.expectAt = d.Now().Add(*h.Expect), time.Now().Add(*h.Expect)
		}
	}
	set(&p.idempotent, h.Idempotent)
	d.publish(p)
	if p.attr != was {
		d.events.post(p.appendAttrs(nil)...)
	}
	return nil
}

// request takes in that a request begins or ends. d.mu is held.
func (d *Daemon) request(p *process, h api.Hint) error {
	a, ev := &p.requests, sched.Event{}
	switch {
	case h.Begin != nil && len(a.open) >= mostNumbers:
		return fmt.Errorf("%d requests are open: %w", len(a.open), server.ErrConflict)
	case h.Begin != nil:
		if a.open == nil {
			a.open = make(map[int64]sched.Time)
		}
		a.byAPI = true
		d.publish(p)
		_, again := a.open[*h.Begin]
		a.open[*h.Begin] = d.Now()
		if again {
			return nil
		}
		ev.Kind = sched.RequestStarted
	case h.End != nil:
		began, there := a.open[*h.End]
		if !there {
			return fmt.Errorf("%w: no request %d has begun", server.ErrBadRequest, *h.End)
		}
		delete(a.open, *h.End)
		ev.Kind, ev.Duration = sched.RequestFinished, d.Now().Sub(began)
		a.add(ev.Duration)
	default:
		return nil
	}
	for _, q := range p.queues {
		ev.Queue = q.id
		d.events.post(ev)
	}
	return nil
}
