package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// stopCost decides whether to stop batch work for online work on a device without
// slices. A stop takes time, and on some devices it holds up every queue. On a device
// that serves queues side by side, a request that is shorter than a stop is often
// finished sooner without one, and batch work loses nothing.
//
// It learns how long online work is busy with batch work stopped. If that is more than
// three times the stop time, stops pay and nothing else is tried. Otherwise it lets batch
// work run on for a few busy periods, in each of them only for as long as one takes with
// a stop, and keeps to what takes less time. A stop must save at least a sixteenth of
// what it takes. From time to time stopCost tries the other way again.
//
// A busy period is the time in which online work is ready, with pauses up to linger.
type stopCost struct {
	// The length of a busy period with batch work stopped, and beside batch work.
	stopped, beside meanTime

	began, ended  sched.Time // of the current or last busy period; ended is zero while online work is ready
	counts        bool       // there was batch work to stop for it, so its length counts
	runsOn        bool       // batch work runs on in it
	usuallyRunsOn bool       // batch work usually runs on; otherwise it is usually stopped

	next int // busy periods until a probe of the other way begins; in a probe, until it ends
	wait int // the value of next after the last probe: firstWait, or four times the last wait if the other way was no better
}

const (
	probePeriods = 6
	firstWait    = 64
	longestWait  = 64 * firstWait // then probes are 0.15 % of the busy periods
)

// begin starts a busy period, and begins or ends a probe of the other way if one is due. stops: batch
// work would be stopped for the period.
func (c *stopCost) begin(now sched.Time, stopTime time.Duration, stops bool) {
	c.record(4 * stopTime)
	c.began, c.ended, c.counts = now, 0, stops
	if c.next > 0 {
		return
	}
	inProbe := c.runsOn != c.usuallyRunsOn
	switch short := c.stopped.mean <= 3*stopTime; {
	case !inProbe && !c.usuallyRunsOn && (!short || c.stopped.n < probePeriods):
		return
	case !inProbe:
		c.runsOn = !c.usuallyRunsOn
		c.next, *c.current() = probePeriods, meanTime{}
		return
	}
	better := c.beside.mean <= c.stopped.mean+stopTime/16
	c.wait = min(max(4*c.wait, firstWait), longestWait)
	if better != c.usuallyRunsOn {
		c.wait = firstWait
	}
	c.usuallyRunsOn, c.runsOn, c.next = better, better, c.wait
}

// current returns the mean of the way that is in use.
func (c *stopCost) current() *meanTime {
	if c.runsOn {
		return &c.beside
	}
	return &c.stopped
}

// end ends the busy period, unless online work continues within linger.
func (c *stopCost) end(now sched.Time) { c.ended = now }

// resume continues the busy period.
func (c *stopCost) resume() { c.ended = 0 }

// record adds the last busy period to its mean. One that is much too long counts as
// longest: the device may not be the reason.
func (c *stopCost) record(longest time.Duration) {
	if c.counts && c.ended != 0 {
		c.current().add(min(c.ended.Sub(c.began), longest))
		c.next--
	}
}

// runOn reports whether batch work runs on now, and when that changes; zero: not in this
// busy period.
func (c *stopCost) runOn(now sched.Time) (bool, sched.Time) {
	switch until := c.began.Add(c.stopped.mean * 9 / 8); {
	case !c.runsOn:
		return false, 0
	case c.ended != 0:
		return c.ended < until, 0
	default:
		return now < until, until
	}
}

// meanTime is a mean in which a new value has a weight of at least an eighth.
type meanTime struct {
	mean   time.Duration
	spread time.Duration // mean distance of a value from the mean
	n      int           // values so far
}

func (m *meanTime) add(d time.Duration) {
	m.n++
	weight := time.Duration(min(m.n, 8))
	if m.n > 1 {
		m.spread += ((d - m.mean).Abs() - m.spread) / weight
	}
	m.mean += (d - m.mean) / weight
}
