package drivertest

import (
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// GPU is a simulated GPU behind a double of a driver, which names its queues by IDs of its
// own. Time passes on it only in Advance. Its methods may be called from any goroutine.
// They panic if the model refuses an action on a live queue.
type GPU[ID comparable] struct {
	mu     sync.Mutex
	bench  *sim.Bench
	queues map[ID]sched.QueueID
}

// NewGPU returns a GPU of a model, without queues.
func NewGPU[ID comparable](m sim.Model) *GPU[ID] {
	return &GPU[ID]{bench: sim.NewBench(m, 0), queues: make(map[ID]sched.QueueID)}
}

// Opened adds a queue.
func (g *GPU[ID]) Opened(id ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queues[id] = g.bench.Open()
}

// Closed destroys a queue with all its commands.
func (g *GPU[ID]) Closed(id ID) {
	g.do(id, func(q sched.QueueID) error { g.bench.Kill(q); return nil })
}

// SetSlice sets the slice of a queue.
func (g *GPU[ID]) SetSlice(id ID, d time.Duration) {
	g.do(id, func(q sched.QueueID) error { return g.bench.SetSlice(q, d) })
}

// Interrupt stops a queue until Restore.
func (g *GPU[ID]) Interrupt(id ID) { g.do(id, g.bench.Interrupt) }

// Restore undoes Interrupt.
func (g *GPU[ID]) Restore(id ID) { g.do(id, g.bench.Restore) }

// Submit adds a command that takes the time work when it runs alone.
func (g *GPU[ID]) Submit(id ID, work time.Duration) {
	g.do(id, func(q sched.QueueID) error { g.bench.Submit(q, work); return nil })
}

// Completed returns how many commands of a queue are done.
func (g *GPU[ID]) Completed(id ID) (n uint64) {
	g.do(id, func(q sched.QueueID) error { n = g.bench.Completed(q); return nil })
	return n
}

// Advance lets time pass.
func (g *GPU[ID]) Advance(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bench.Advance(d)
}

// Unit returns a command length that is much longer than any call.
func (g *GPU[ID]) Unit() time.Duration { return 10 * time.Millisecond }

// Violations lists the invariants that the GPU broke.
func (g *GPU[ID]) Violations() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bench.Violations()
}

func (g *GPU[ID]) do(id ID, do func(sched.QueueID) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := do(g.queues[id]); err != nil {
		panic(fmt.Sprintf("drivertest: queue %v: %v", id, err))
	}
}
