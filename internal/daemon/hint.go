package daemon

import (
	"fmt"
	"math"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// takeHint takes in what a program says of itself on its page. It reports whether
// that changes anything; what makes no sense changes nothing and is counted. d.mu is
// held.
func (d *Daemon) takeHint(p *process, h shimpage.Hint, now sched.Time) bool {
	was, ok := p.attr, true
	var said api.Change
	switch h.Kind {
	case shimpage.HintClass:
		ok = h.Value >= int64(sched.Standard) && h.Value <= int64(sched.Idle)
		if class := sched.Class(h.Value).String(); ok && !p.classed { // or its owner has had his say
			said.Class, p.from = &class, "hint"
		}
	case shimpage.HintPriority:
		ok = h.Value >= math.MinInt32 && h.Value <= math.MaxInt32
		said.Priority = ptr(int32(h.Value))
	case shimpage.HintWeight:
		ok = h.Value >= 1 && h.Value <= api.MostWeight
		said.Weight = ptr(uint32(h.Value))
	case shimpage.HintDeadline:
		said.Deadline, ok = ptr(time.Duration(h.Value)), isSpan(h.Value)
	case shimpage.HintSLO:
		said.SLO, ok = ptr(time.Duration(h.Value)), isSpan(h.Value)
	case shimpage.HintLaxity:
		if ok = isSpan(h.Value); ok {
			p.attr.Laxity = time.Duration(h.Value)
		}
	case shimpage.HintWork:
		if ok = isSpan(h.Value); ok {
			p.attr.Work = time.Duration(h.Value)
		}
	case shimpage.HintExpect:
		var at sched.Time
		if at, ok = d.moment(h.Value, now); ok {
			p.attr.Expect = at
		}
	case shimpage.HintBegin, shimpage.HintEnd: // the page has them as requests
	case shimpage.HintIdempotent: // to be told of: the program goes by it by itself
		p.repeats = ptr(h.Value != 0)
	default:
		ok = false
	}
	if !ok {
		p.ignored++
		return false
	}
	p.said = p.said.And(said)
	p.apply(said)
	return p.attr != was
}

func ptr[T any](v T) *T { return &v }

// isSpan reports whether a hint's value can be a time.
func isSpan(ns int64) bool { return ns >= 0 && ns <= int64(api.MostDeadline) }

// moment is a time on the machine's clock as the scheduler has it. One that is long
// past or far ahead is none.
func (d *Daemon) moment(mono int64, now sched.Time) (sched.Time, bool) {
	if mono == 0 {
		return 0, true
	}
	const late = time.Second
	at := sched.Time(mono - int64(shimpage.Monotonic(d.start)))
	return at, at > 0 && at > now.Add(-late) && at <= now.Add(api.MostDeadline)
}

// mostNumbers is how many requests of a process may be open that were told of through
// the API.
const mostNumbers = 1024

// Hint implements server.Node.
func (d *Daemon) Hint(pid int, h api.Hint) (api.Process, error) {
	d.mu.Lock()
	p, err := d.known(pid)
	if err == nil {
		err = d.hint(p, h)
	}
	d.mu.Unlock()
	if err != nil {
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
		at, mono := sched.Time(0), uint64(0) // not known
		if *h.Expect > 0 {
			at, mono = d.Now().Add(*h.Expect), shimpage.Monotonic(time.Now().Add(*h.Expect))
		}
		p.attr.Expect = at
		if p.guest != nil {
			p.guest.page.SetExpectedArrival(mono)
		}
	}
	set(&p.idempotent, h.Idempotent)
	p.setIdempotent()
	if p.attr != was {
		d.box.post(p.hinted(nil)...)
	}
	return nil
}

// request takes in that a request begins or ends. d.mu is held.
func (d *Daemon) request(p *process, h api.Hint) error {
	a, ev := &p.asked, sched.Event{}
	switch {
	case h.Begin != nil && len(a.open) >= mostNumbers:
		return fmt.Errorf("%d requests are open: %w", len(a.open), server.ErrConflict)
	case h.Begin != nil:
		if a.open == nil {
			a.open = make(map[int64]sched.Time)
		}
		if a.told = true; p.guest != nil {
			d.setWatch(p.guest)
		}
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
		d.box.post(ev)
	}
	return nil
}
