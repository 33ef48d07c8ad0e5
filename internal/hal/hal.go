// Package hal is the contract between the daemon and the backends.
//
// A Backend finds queues and offers each of them to a Host, the daemon. The Go type of an
// attached Queue claims what can be done to it: only a queue that implements Interrupter
// can be interrupted. If the driver of this machine does not permit that, the backend
// attaches the queue as a type without Interrupt. No method does nothing silently.
//
// The package decides nothing: actions come from the scheduler, and Do carries them out.
package hal

import (
	"errors"
	"fmt"
	"time"

	"github.com/giveway/giveway/sched"
)

var (
	// ErrNotSupported is wrapped by errors that mean that the kernel, the driver or the
	// hardware cannot do this. A second attempt fails too.
	ErrNotSupported = errors.New("not supported")
	// ErrPartial is wrapped by the error of a stop that failed and could not be rolled back:
	// the queue, or a part of it, may be stopped.
	ErrPartial = errors.New("the queue may be stopped in part")
	// ErrGone is wrapped by errors that mean that the queue no longer exists.
	ErrGone = errors.New("queue is gone")
)

// Info describes a device. It does not change while the device is open.
type Info struct {
	Device  sched.Device
	Backend string // nvidia, amd, shim, sim
	Model   string
	Index   int // as the vendor's tools number it; -1: unknown
}

// Queue is one attached queue. It implements those of the interfaces below whose methods
// work on it.
type Queue interface {
	// Close undoes all changes of the queue and releases it.
	Close() error
}

// The three levels of stopping. A second call of the same method changes nothing. A call that
// stops and fails changes nothing, or its error wraps ErrPartial.
type (
	// Holder is level 1: after Hold no further command is launched until Release.
	// Commands that are launched already finish.
	Holder interface {
		Hold() error
		Release() error
	}
	// Deactivator is level 2: after Deactivate no further command begins until
	// Reactivate. The running one finishes. None is lost or run twice.
	Deactivator interface {
		Deactivate() error
		Reactivate() error
	}
	// Interrupter is level 3: after Interrupt nothing of the queue makes progress until
	// Restore, the running command included.
	Interrupter interface {
		Interrupt() error
		Restore() error
	}
)

// Settings of a queue that hold until they are changed.
type (
	// Slicer has a slice. Zero restores the one it was found with. A slice that is
	// shorter than the minimum slice is the minimum slice.
	Slicer interface{ SetSlice(time.Duration) error }
	// Bounder has a bound on commands in flight. Zero removes it.
	Bounder interface{ SetBound(uint32) error }
)

// Batcher stops and starts many queues in one call. Switch interrupts off and restores
// on. It returns the errors of off, then those of on.
type Batcher interface {
	Switch(off, on []Queue) []error
}

// Abandoner is a Queue that can be released without a call to its driver.
type Abandoner interface{ Abandon() error }

// Abandon releases a queue whose process has exited, so that nothing is left to undo.
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
			return describe("set bound", b.SetBound(a.Bound))
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

// Outcome returns what err means to the scheduler.
func Outcome(err error) sched.Outcome {
	switch {
	case err == nil:
		return sched.Done
	case errors.Is(err, ErrGone):
		return sched.Gone
	case errors.Is(err, ErrPartial):
		return sched.Partial
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
