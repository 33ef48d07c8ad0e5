package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Faults says what goes wrong, and how often. The zero value is a good day.
type Faults struct {
	Fail        float64 // chance that a control call fails and does nothing
	FailApplied float64 // chance that setting a slice or window fails and yet does it
	Permanent   float64 // of the failures, the part that says it never will work
	Late        float64 // chance that a control call takes up to LateBy longer
	LateBy      time.Duration
	LostWake    float64       // chance that a wake-up of the daemon is lost
	Crash       time.Duration // mean time between crashes of the daemon; zero: it does not
	Kill        time.Duration // mean time between deaths of programs; zero: they do not

	rng      *rand.Rand
	disarmed bool
}

var errApplied = errors.New("the call failed, and what it did nobody knows")

func (f *Faults) random(w *World) *rand.Rand {
	if f.rng == nil {
		f.rng = w.rand("faults")
	}
	return f.rng
}

func (f *Faults) chance(w *World, p float64) bool {
	return p > 0 && !f.disarmed && f.random(w).Float64() < p
}

// strike decides whether an action fails.
func (f *Faults) fail(w *World, a sched.Action) error {
	switch {
	case f.chance(w, f.Fail):
		// What cannot be undone for ever is lost whoever tries: no driver that
		// does a thing is made so that it never undoes it.
		undoes := a.Verb == sched.Start || a.Verb != sched.Stop && a.Slice == 0 && a.Bound == 0
		if !undoes && f.chance(w, f.Permanent) {
			return fmt.Errorf("%w: %w", errInjected, hal.ErrNotSupported)
		}
		return errInjected
	case a.Verb == sched.SetSlice || a.Verb == sched.SetBound:
		if f.chance(w, f.FailApplied) {
			return errApplied
		}
	}
	return nil
}

// delay is how much longer a call takes than it should.
func (f *Faults) delay(w *World) time.Duration {
	if f.LateBy > 0 && f.chance(w, f.Late) {
		return time.Duration(f.random(w).Int64N(int64(f.LateBy)))
	}
	return 0
}

// loses decides whether a wake-up is lost.
func (f *Faults) loseWake(w *World) bool { return f.chance(w, f.LostWake) }

// arm sets the crashes and deaths to come.
func (f *Faults) arm(w *World) {
	f.armCrash(w)
	if f.Kill > 0 {
		var next func()
		next = func() {
			if f.disarmed {
				return
			}
			w.clients[f.random(w).IntN(len(w.clients))].kill()
			w.after(time.Duration(f.random(w).ExpFloat64()*float64(f.Kill)), next)
		}
		w.after(time.Duration(f.random(w).ExpFloat64()*float64(f.Kill)), next)
	}
}

func (f *Faults) armCrash(w *World) {
	if f.Crash > 0 && !f.disarmed {
		w.after(time.Duration(f.random(w).ExpFloat64()*float64(f.Crash)), func() {
			if !f.disarmed {
				w.daemon.crash()
			}
		})
	}
}

// disarm ends the faults, so that the world can wind up.
func (f *Faults) disarm() { f.disarmed = true }

// crash is SIGKILL: the daemon is gone in the middle of whatever it was doing.
// Calls that are inside the kernel come to their end there.
func (d *daemon) crash() {
	if !d.up {
		return
	}
	d.up, d.crashed = false, true
	d.crashes++
	d.w.timeline.cancel(&d.wake)
	d.inbox, d.countersOf = d.inbox[:0], d.countersOf[:0]
	for _, q := range d.w.alive() {
		q.unreported = false
	}
	d.w.after(d.randomDelay(100*ms), d.runGuardian)
}

func (d *daemon) randomDelay(most time.Duration) time.Duration {
	return time.Duration(d.w.cfg.Faults.random(d.w).Int64N(int64(most)))
}

// guard is the guardian: it waits until the dead daemon's last calls are over,
// undoes what the journal says, and only then is there a daemon again.
func (d *daemon) runGuardian() {
	if d.inflight > 0 {
		d.w.after(ms, d.runGuardian)
		return
	}
	d.undo(d.journal.Undo())
}

func (d *daemon) undo(todo []sched.Action) {
	for len(todo) > 0 && d.w.queues[todo[0].Queue].dead {
		todo = todo[1:]
	}
	if len(todo) == 0 {
		d.restart()
		return
	}
	a := todo[0]
	d.perform(d.w.queues[a.Queue].device, todo[:1], func(outcomes []sched.Outcome) {
		d.journal.End(a, outcomes[0])
		if o := outcomes[0]; o == sched.Refused {
			d.w.after(ms, func() { d.undo(todo) }) // until it works
			return
		}
		d.undo(todo[1:])
	})
}

// back checks that the guardian left nothing changed, and starts a new daemon.
func (d *daemon) restart() {
	for _, q := range d.w.alive() {
		if !q.unchanged() {
			d.w.violation("after the guardian, queue %d is not as it was found: %s", q.id, q.changes())
		}
	}
	d.w.after(d.randomDelay(200*ms), func() {
		d.start()
		d.w.cfg.Faults.armCrash(d.w)
	})
}
