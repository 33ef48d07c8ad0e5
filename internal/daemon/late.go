package daemon

import (
	"time"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Late entry leaves a device to batch and idle work while an online process launches the
// commands of a request. Without such work it would only delay the request, so a process is
// told to enter at once then.

const (
	// backgroundCheck is how often, at most, the loop looks for batch and idle work.
	backgroundCheck = 20 * time.Millisecond
	// backgroundLinger is how long a device counts as having such work after it was last
	// seen. A batch process with short pauses does not change the settings of others.
	backgroundLinger = 100 * time.Millisecond
)

// checkBackground looks for batch and idle work on all devices and publishes the settings of
// the processes that it matters to. It reports whether any settings have changed. d.mu is held.
func (d *Daemon) checkBackground(now sched.Time) (changed bool) {
	if now < d.nextBackgroundCheck {
		return false
	}
	d.nextBackgroundCheck = now.Add(backgroundCheck)
	for _, p := range d.processes { //shape:unordered each notes the same time
		for _, q := range p.queues {
			if q.background() {
				q.device.backgroundUntil = now.Add(backgroundLinger)
			}
		}
	}
	for _, p := range d.processes { //shape:unordered each changes only itself
		if beside := d.besideBackground(p, now); beside != p.besideBackground {
			p.besideBackground = beside
			d.publish(p)
			changed = true
		}
	}
	return changed
}

// background reports whether the queue has batch or idle work that may run, or has had some
// since the last call. Without a shim that is known only from the context-switch trace: a context
// that was on the device since then may have work. One that was not has none, or is stopped, and
// would not use the device either. d.mu is held, by the loop.
func (q *queue) background() bool {
	a := &q.process.attr
	if a.Class != sched.Batch && a.Class != sched.Idle || a.Paused {
		return false
	}
	c := &q.counters
	launched, ran := c.Launched != q.launchedAtCheck, q.resident != q.residentThen
	q.launchedAtCheck, q.residentThen = c.Launched, q.resident
	if !c.Known {
		return ran || !q.traced
	}
	return c.Submitted > c.Completed || launched
}

// besideBackground reports whether an online process with a shim shares a device with batch or
// idle work that gives way to it. d.mu is held.
func (d *Daemon) besideBackground(p *process, now sched.Time) bool {
	if p.gate == nil || p.attr.Class != sched.Online {
		return false
	}
	for _, q := range p.queues {
		if now < q.device.backgroundUntil && d.policyOf(q.device) != "native" {
			return true
		}
	}
	return false
}

// lateEntry returns when the requests of a process are to enter its devices. d.mu is held.
func (p *process) lateEntry() hal.LateEntry {
	if !p.besideBackground || p.attr.Class != sched.Online {
		return hal.LateOff
	}
	return hal.LateEntry(p.attrs.Int(attr.LateEntry))
}
