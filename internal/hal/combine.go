package hal

import (
	"errors"

	"github.com/giveway/giveway/sched"
)

// Gate is a queue that can be held and bounded: the gate of a process's shim.
type Gate interface {
	Queue
	Holder
	Bounder
}

// combined is a hardware queue whose process also has a gate.
type combined struct {
	Queue
	gate Gate
}

// Combine returns a queue that is sliced, deactivated and interrupted as q is, and held and
// bounded by gate. Closing it closes both.
func Combine(q Queue, gate Gate) Queue {
	c := &combined{q, gate}
	s, _ := q.(Slicer)
	d, _ := q.(Deactivator)
	i, _ := q.(Interrupter)
	// The type of the result claims what q can do, neither more nor less.
	switch Abilities(q) & (sched.CanSlice | sched.CanDeactivate | sched.CanInterrupt) {
	case sched.CanSlice:
		return struct {
			*combined
			Slicer
		}{c, s}
	case sched.CanDeactivate:
		return struct {
			*combined
			Deactivator
		}{c, d}
	case sched.CanInterrupt:
		return struct {
			*combined
			Interrupter
		}{c, i}
	case sched.CanSlice | sched.CanDeactivate:
		return struct {
			*combined
			Slicer
			Deactivator
		}{c, s, d}
	case sched.CanSlice | sched.CanInterrupt:
		return struct {
			*combined
			Slicer
			Interrupter
		}{c, s, i}
	case sched.CanDeactivate | sched.CanInterrupt:
		return struct {
			*combined
			Deactivator
			Interrupter
		}{c, d, i}
	case sched.CanSlice | sched.CanDeactivate | sched.CanInterrupt:
		return struct {
			*combined
			Slicer
			Deactivator
			Interrupter
		}{c, s, d, i}
	}
	return c
}

func (c *combined) Hold() error             { return c.gate.Hold() }
func (c *combined) Release() error          { return c.gate.Release() }
func (c *combined) SetBound(n uint32) error { return c.gate.SetBound(n) }
func (c *combined) Close() error            { return errors.Join(c.gate.Close(), c.Queue.Close()) }
func (c *combined) Abandon() error          { return errors.Join(c.gate.Close(), Abandon(c.Queue)) }
