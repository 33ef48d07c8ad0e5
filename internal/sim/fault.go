package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Faults says which faults are injected, and how often. The zero value injects none.
type Faults struct {
	Fail        float64     // probability that a control call fails and has no effect
	FailApplied float64     // probability that setting a slice or bound takes effect and yet fails
	Permanent   float64     // fraction of the failures that report ErrNotSupported
	Ignored     float64     // probability that a stop is reported as done and has no effect
	IgnoredAt   sched.Level // the level at which that happens; zero: all levels
	Late        float64     // probability that a control call takes up to LateBy longer
	LateBy      time.Duration
	LostWake    float64       // probability that a wake-up of the daemon is lost
	Stall       time.Duration // mean time between stalls of the daemon's loop; zero: none
	StallFor    Dist          // how long a stall takes
	Crash       time.Duration // mean time between crashes of the daemon; zero: none
	Kill        time.Duration // mean time between kills of clients; zero: none
	Trace       time.Duration // mean time until the context-switch trace of a device fails; zero: it does not
}

var (
	errInjected = errors.New("injected fault")
	errApplied  = errors.New("injected fault: the call took effect and failed")
)

// chance reports whether a fault of probability p strikes.
func (w *World) chance(p float64) bool {
	return p > 0 && !w.faultsOver && w.faultRand.Float64() < p
}

// faultOf returns the injected error of an action, or nil.
func (w *World) faultOf(a sched.Action) error {
	f := &w.cfg.Faults
	switch {
	case w.chance(f.Fail):
		// An undo never fails permanently: then nothing could restore the queue. No
		// driver applies a change that it can never undo.
		undoes := a.Verb == sched.Start || a.Verb != sched.Stop && a.Slice == 0 && a.Bound == 0
		if !undoes && w.chance(f.Permanent) {
			return fmt.Errorf("%w: %w", errInjected, hal.ErrNotSupported)
		}
		return errInjected
	case (a.Verb == sched.SetSlice || a.Verb == sched.SetBound) && w.chance(f.FailApplied):
		return errApplied
	}
	return nil
}

// ignores reports whether an action is reported as done and yet has no effect.
func (w *World) ignores(a sched.Action) bool {
	f := &w.cfg.Faults
	return a.Verb == sched.Stop && (f.IgnoredAt == sched.LevelNone || f.IgnoredAt == a.Level) && w.chance(f.Ignored)
}

// lateness returns how much longer a call takes than the model says.
func (w *World) lateness() time.Duration {
	if by := w.cfg.Faults.LateBy; by > 0 && w.chance(w.cfg.Faults.Late) {
		return time.Duration(w.faultRand.Int64N(int64(by)))
	}
	return 0
}

// scheduleCrash makes the daemon crash once, after a random time.
func (w *World) scheduleCrash() { w.afterFault(w.cfg.Faults.Crash, w.daemon.crash) }

// scheduleStalls makes the daemon's loop stand still for a while, again and again, as on a host
// whose CPUs have other work. Calls that are under way go on.
func (w *World) scheduleStalls() {
	w.afterFault(w.cfg.Faults.Stall, func() {
		w.daemon.stall(w.cfg.Faults.StallFor.draw(w.faultRand))
		w.scheduleStalls()
	})
}

// stall lets the daemon make no step for a time.
func (d *daemon) stall(by time.Duration) {
	d.stalledUntil = max(d.stalledUntil, d.w.now.Add(by))
	if d.wake.isSet() {
		d.w.timeline.set(&d.wake, max(d.wake.at, d.stalledUntil))
	}
}

// scheduleKills kills a random client again and again.
func (w *World) scheduleKills() {
	w.afterFault(w.cfg.Faults.Kill, func() {
		w.clients[w.faultRand.IntN(len(w.clients))].crash()
		w.scheduleKills()
	})
}

// afterFault calls strike after an exponentially distributed time, unless the faults are
// over by then. Zero mean: never.
func (w *World) afterFault(mean time.Duration, strike func()) {
	if mean == 0 || w.faultsOver {
		return
	}
	w.after(Dist{Kind: Exponential, Mean: mean}.draw(w.faultRand), func() {
		if !w.faultsOver {
			strike()
		}
	})
}

// restartDelay is after how long a client killed by a fault starts again, if the World
// repeats.
const restartDelay = time.Second

// crash kills the client's process by a fault. Clients with Lifetime or Kill start again
// by themselves.
func (c *client) crash() {
	c.kill()
	if c.w.cfg.repeat > 0 && c.cfg.Lifetime == (Dist{}) && c.cfg.Kill == 0 {
		c.w.after(restartDelay, func() {
			if c.q != nil && c.q.dead {
				c.open(c.w.newQueueID())
			}
		})
	}
}

// crash does what SIGKILL of the daemon does. Calls that are inside the kernel end there.
func (d *daemon) crash() {
	if !d.up {
		return
	}
	d.up, d.crashed = false, true
	d.crashes++
	d.w.timeline.cancel(&d.wake)
	d.clearInbox()
	d.unreported = d.unreported[:0]
	for _, q := range d.w.alive() {
		q.unreported = false
	}
	d.w.after(d.randomDelay(100*ms), d.runGuardian)
}

func (d *daemon) randomDelay(most time.Duration) time.Duration {
	return time.Duration(d.w.faultRand.Int64N(int64(most)))
}

// runGuardian waits until the last calls of the crashed daemon are over, undoes what the
// journal lists, and restarts the daemon.
func (d *daemon) runGuardian() {
	if d.inflight > 0 {
		d.w.after(ms, d.runGuardian)
		return
	}
	d.undo(d.journal.Undo())
}

func (d *daemon) undo(todo []sched.Action) {
	for len(todo) > 0 && d.w.queues[todo[0].Queue] == nil {
		todo = todo[1:]
	}
	if len(todo) == 0 {
		d.restart()
		return
	}
	a := todo[0]
	d.perform(todo[:1], func(outcomes []sched.Outcome) {
		d.journal.End(a, outcomes[0])
		if outcomes[0] == sched.Refused {
			d.w.after(ms, func() { d.undo(todo) }) // until it works
			return
		}
		d.undo(todo[1:])
	})
}

// restart checks that the guardian left nothing changed, and starts a new daemon.
func (d *daemon) restart() {
	d.w.checkRestored("the guardian's work")
	d.w.after(d.randomDelay(200*ms), func() {
		d.start()
		d.w.scheduleCrash()
	})
}
