package hal

import "errors"

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

// Combine returns a queue that is sliced and interrupted as q is, and held and bounded
// by gate. Closing it closes both.
func Combine(q Queue, gate Gate) Queue {
	c := &combined{q, gate}
	s, slices := q.(Slicer)
	i, interrupts := q.(Interrupter)
	switch { // the result must claim neither more nor less than q
	case slices && interrupts:
		return struct {
			*combined
			Slicer
			Interrupter
		}{c, s, i}
	case slices:
		return struct {
			*combined
			Slicer
		}{c, s}
	case interrupts:
		return struct {
			*combined
			Interrupter
		}{c, i}
	}
	return c
}

func (c *combined) Hold() error             { return c.gate.Hold() }
func (c *combined) Release() error          { return c.gate.Release() }
func (c *combined) SetBound(n uint32) error { return c.gate.SetBound(n) }
func (c *combined) Close() error            { return errors.Join(c.gate.Close(), c.Queue.Close()) }
func (c *combined) Abandon() error          { return errors.Join(c.gate.Close(), Abandon(c.Queue)) }
