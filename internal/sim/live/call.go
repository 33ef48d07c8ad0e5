package live

import (
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// attach returns a queue as the daemon controls it.
func (b *Backend) attach(q *sim.NodeQueue) hal.Queue {
	return q.Attach(b.do, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.advance()
		return q.Restore()
	})
}

// do carries out one action on a queue. A call to the driver returns after the time that
// it takes on the simulated device; the gate is memory and takes none.
func (b *Backend) do(a sched.Action) error {
	if a.Level == sched.LevelHold || a.Verb == sched.SetBound {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.advance()
		return b.node.Apply(a)
	}
	if a.Verb == sched.SetSlice {
		a.Slice = b.clock.simulated(a.Slice)
	}
	return b.call([]sched.Action{a})[0]
}

// Switch implements hal.Batcher.
func (b *Backend) Switch(off, on []hal.Queue) []error {
	var actions []sched.Action
	for _, q := range off {
		actions = append(actions, sched.Action{Queue: sim.QueueID(q), Verb: sched.Stop, Level: sched.LevelInterrupt})
	}
	for _, q := range on {
		actions = append(actions, sched.Action{Queue: sim.QueueID(q), Verb: sched.Start, Level: sched.LevelInterrupt})
	}
	return b.call(actions)
}

// call makes control calls and waits for the time that they take.
func (b *Backend) call(actions []sched.Action) (errs []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance()
	returned := false
	end := b.node.Call(actions, func(results []error) { errs, returned = results, true })
	for !returned {
		wait := b.clock.until(end)
		b.mu.Unlock()
		sleep(max(wait, minTick/10))
		b.mu.Lock()
		b.advance()
	}
	return errs
}
