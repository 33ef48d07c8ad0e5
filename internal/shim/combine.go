package shim

import (
	"errors"

	"github.com/giveway/giveway/internal/hal"
)

// both is a queue of some other backend whose program has a gate as well.
type both struct {
	hal.Queue
	gate *Queue
}

// Combine returns a queue that can be sliced and interrupted as q can, and held and
// bounded by the gate. Closing it closes both.
func Combine(q hal.Queue, gate *Queue) hal.Queue {
	b := &both{q, gate}
	s, slices := q.(hal.Slicer)
	i, interrupts := q.(hal.Interrupter)
	switch { // the type is the claim
	case slices && interrupts:
		return struct {
			*both
			hal.Slicer
			hal.Interrupter
		}{b, s, i}
	case slices:
		return struct {
			*both
			hal.Slicer
		}{b, s}
	case interrupts:
		return struct {
			*both
			hal.Interrupter
		}{b, i}
	}
	return b
}

func (b *both) Hold() error             { return b.gate.Hold() }
func (b *both) Release() error          { return b.gate.Release() }
func (b *both) SetBound(n uint32) error { return b.gate.SetBound(n) }
func (b *both) Close() error            { return errors.Join(b.gate.Close(), b.Queue.Close()) }
func (b *both) Abandon() error          { return errors.Join(b.gate.Close(), hal.Abandon(b.Queue)) }
