package sim

import (
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// control is a queue as a backend offers it: each method turns one call into one action.
// The type that newControl returns embeds exactly what the queue can do, because the type
// of a hal.Queue is its claim.
type control struct {
	id      sched.QueueID
	do      func(sched.Action) error
	restore func() error
}

type (
	gate        struct{ control }
	deactivator struct{ control }
	interrupter struct{ control }
	slicer      struct{ control }

	gatedDeactivator struct {
		control
		gate
		deactivator
	}
	gatedInterrupter struct {
		control
		gate
		interrupter
	}
	group struct { // an NVIDIA channel group
		control
		interrupter
		slicer
	}
	gatedGroup struct {
		control
		gate
		interrupter
		slicer
	}
)

func newControl(can sched.Ability, c control) hal.Queue {
	const gated = sched.CanHold | sched.CanBound
	switch can {
	case 0:
		return c
	case gated:
		return gate{c}
	case gated | sched.CanDeactivate:
		return gatedDeactivator{c, gate{c}, deactivator{c}}
	case gated | sched.CanInterrupt:
		return gatedInterrupter{c, gate{c}, interrupter{c}}
	case gated | sched.CanInterrupt | sched.CanSlice:
		return gatedGroup{c, gate{c}, interrupter{c}, slicer{c}}
	case sched.CanInterrupt:
		return interrupter{c}
	case sched.CanSlice: // a pool
		return slicer{c}
	case sched.CanInterrupt | sched.CanSlice:
		return group{c, interrupter{c}, slicer{c}}
	}
	panic("sim: no type of queue can do " + can.String())
}

func (c control) queueID() sched.QueueID { return c.id }

// Close implements hal.Queue.
func (c control) Close() error { return c.restore() }

func (c control) stop(level sched.Level) error {
	return c.do(sched.Action{Queue: c.id, Verb: sched.Stop, Level: level})
}

func (c control) start(level sched.Level) error {
	return c.do(sched.Action{Queue: c.id, Verb: sched.Start, Level: level})
}

func (g gate) Hold() error    { return g.stop(sched.LevelHold) }
func (g gate) Release() error { return g.start(sched.LevelHold) }

func (g gate) SetBound(n uint32) error {
	return g.do(sched.Action{Queue: g.id, Verb: sched.SetBound, Bound: n})
}

func (d deactivator) Deactivate() error { return d.stop(sched.LevelDeactivate) }
func (d deactivator) Reactivate() error { return d.start(sched.LevelDeactivate) }

func (i interrupter) Interrupt() error { return i.stop(sched.LevelInterrupt) }
func (i interrupter) Restore() error   { return i.start(sched.LevelInterrupt) }

func (s slicer) SetSlice(d time.Duration) error {
	return s.do(sched.Action{Queue: s.id, Verb: sched.SetSlice, Slice: d})
}
