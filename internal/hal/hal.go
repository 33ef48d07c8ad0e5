// Package hal is the contract between the daemon and the device backends.
//
// A backend offers a Device. What can be done to a queue of that device it says
// by the type that Attach returns: *the type is the claim*. A backend that finds
// that the driver here will not let it interrupt returns a queue that is not an
// Interrupter. There is no method that quietly does nothing.
//
// The package refuses to know policies, processes' names, or when to act.
package hal

import (
	"errors"
	"fmt"
	"time"

	"github.com/giveway/giveway/sched"
)

var (
	// ErrNotSupported is wrapped by errors that mean the kernel, the driver or
	// the hardware here cannot do what was asked, and will not on a second try.
	ErrNotSupported = errors.New("not supported")
	// ErrGone is wrapped by errors that mean the queue is no more.
	ErrGone = errors.New("queue is gone")
)

// Info describes a device. It does not change while the device is open.
type Info struct {
	Device  sched.Device
	Backend string // nvidia, amd, shim, sim
	Model   string
	Index   int // as the vendor's tools number it; -1: unknown
}

// Attacher is a Device whose queues are attached by their number. The simulator and
// the conformance suite use it; the daemon attaches through Offer.Attach.
type Attacher interface {
	Device
	Attach(Spec) (Queue, error)
}

// Spec says which queue to attach.
type Spec struct {
	Queue  sched.QueueID
	Native uint64 // what the vendor calls it: a channel group's handle, a KFD queue's id
}

// Queue is one queue of a Device. What else it can do the interfaces below tell.
type Queue interface {
	// Close gives the queue up with everything undone.
	Close() error
}

// The three levels of stopping. Each verb done twice equals once.
type (
	// Holder is level 1: when Hold returns no further command is launched until
	// Release. Those already launched finish.
	Holder interface {
		Hold() error
		Release() error
	}
	// Deactivator is level 2: when Deactivate returns no further command begins
	// until Reactivate. The running one finishes. None is lost or run twice.
	Deactivator interface {
		Deactivate() error
		Reactivate() error
	}
	// Interrupter is level 3: when Interrupt returns nothing of the queue makes
	// progress until Restore, the running command included.
	Interrupter interface {
		Interrupt() error
		Restore() error
	}
)

// Standing preferences, which need no call per request.
type (
	// Slicer has a time slice. Zero puts back the one it was found with;
	// anything shorter than the hardware has is the shortest it has.
	Slicer interface{ SetSlice(time.Duration) error }
	// Bounder has a bound on commands in flight. Zero takes it away.
	Bounder interface{ SetBound(uint32) error }
)

// Batcher is a Device that stops and starts many queues in one call. It
// interrupts off and restores on; the errors are those of off, then of on.
type Batcher interface {
	Switch(off, on []Queue) []error
}

// Abandoner is a Queue that can be given up without being asked for anything,
// because its program has gone.
type Abandoner interface{ Abandon() error }

// Abandon gives up a queue whose program has gone.
func Abandon(q Queue) error {
	if a, ok := q.(Abandoner); ok {
		return a.Abandon()
	}
	return q.Close()
}

// Abilities returns what q claims by its type.
func Abilities(q Queue) sched.Ability {
	var a sched.Ability
	if _, ok := q.(Holder); ok {
		a |= sched.CanHold
	}
	if _, ok := q.(Deactivator); ok {
		a |= sched.CanDeactivate
	}
	if _, ok := q.(Interrupter); ok {
		a |= sched.CanInterrupt
	}
	if _, ok := q.(Slicer); ok {
		a |= sched.CanSlice
	}
	if _, ok := q.(Bounder); ok {
		a |= sched.CanBound
	}
	return a
}

// Do carries out an action on q.
func Do(q Queue, a sched.Action) error {
	switch a.Verb {
	case sched.Stop:
		return Stop(q, a.Level)
	case sched.Start:
		return Start(q, a.Level)
	case sched.SetSlice:
		if s, ok := q.(Slicer); ok {
			return describe("set slice", s.SetSlice(a.Slice))
		}
	case sched.SetBound:
		if b, ok := q.(Bounder); ok {
			return describe("set window", b.SetBound(a.Bound))
		}
	}
	return fmt.Errorf("%v: %w", a.Verb, ErrNotSupported)
}

// Stop stops q at the given level.
func Stop(q Queue, level sched.Level) error {
	switch level {
	case sched.LevelHold:
		if h, ok := q.(Holder); ok {
			return describe("hold", h.Hold())
		}
	case sched.LevelDeactivate:
		if d, ok := q.(Deactivator); ok {
			return describe("deactivate", d.Deactivate())
		}
	case sched.LevelInterrupt:
		if i, ok := q.(Interrupter); ok {
			return describe("interrupt", i.Interrupt())
		}
	}
	return fmt.Errorf("stop at level %d: %w", level, ErrNotSupported)
}

// Start undoes Stop.
func Start(q Queue, level sched.Level) error {
	switch level {
	case sched.LevelHold:
		if h, ok := q.(Holder); ok {
			return describe("release", h.Release())
		}
	case sched.LevelDeactivate:
		if d, ok := q.(Deactivator); ok {
			return describe("reactivate", d.Reactivate())
		}
	case sched.LevelInterrupt:
		if i, ok := q.(Interrupter); ok {
			return describe("restore", i.Restore())
		}
	}
	return fmt.Errorf("start from level %d: %w", level, ErrNotSupported)
}

// Outcome says what err means to the scheduler.
func Outcome(err error) sched.Outcome {
	switch {
	case err == nil:
		return sched.Done
	case errors.Is(err, ErrGone):
		return sched.Gone
	case errors.Is(err, ErrNotSupported):
		return sched.Unsupported
	}
	return sched.Refused
}

func describe(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
