package kfdtest

import (
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Harness is a driver with a simulated GPU, on which time passes only through Advance. A
// backend uses it to run the conformance suite of internal/hal/haltest. Its processes
// belong to a World.
type Harness struct {
	World *World

	kfd *KFD
	gpu *simulated
}

// NewHarness returns a Harness with a GPU of one of the simulator's models that have
// slots: amd-hws, amd-mes. It sets Engine, Host and Sleep of cfg.
func NewHarness(model string, cfg Config) (*Harness, error) {
	m, err := sim.NewModel(model)
	if err != nil {
		return nil, err
	}
	if m.Slots == nil {
		return nil, fmt.Errorf("model %s has no slots", model)
	}
	m.Gated = false // processes have no shim
	h := &Harness{World: NewWorld(), gpu: &simulated{bench: sim.NewBench(m), queues: make(map[QueueID]sched.QueueID)}}
	cfg.Engine, cfg.Host, cfg.Sleep = h.gpu, h.World, h.Advance
	h.kfd = New(cfg)
	return h, nil
}

// KFD returns the driver.
func (h *Harness) KFD() *KFD { return h.kfd }

// Open starts a process with one queue on the first GPU.
func (h *Harness) Open(pid int) (QueueID, error) {
	h.World.Start(pid, 1000)
	f := h.kfd.Open(pid)
	if err := SetRuntime(f, true); err != nil {
		return QueueID{}, err
	}
	id, err := CreateQueue(f, NewQueue{
		GPU: h.kfd.cfg.GPUs[0].GPU, Type: TypeComputeAQL, Ring: 0x7f0000000000, RingSize: 4096, Priority: 7,
	})
	return QueueID{pid, id}, err
}

// Submit adds a command to a queue that takes the given time when it runs alone.
func (h *Harness) Submit(id QueueID, work time.Duration) {
	h.gpu.with(id, func(q sched.QueueID) error { h.gpu.bench.Submit(q, work); return nil })
}

// Completed returns how many commands are done.
func (h *Harness) Completed(id QueueID) (n uint64) {
	h.gpu.with(id, func(q sched.QueueID) error { n = h.gpu.bench.Completed(q); return nil })
	return n
}

// Advance lets time pass on the GPU.
func (h *Harness) Advance(d time.Duration) {
	h.gpu.mu.Lock()
	defer h.gpu.mu.Unlock()
	h.gpu.bench.Advance(d)
}

// Unit returns a command length that is much longer than any call takes.
func (h *Harness) Unit() time.Duration { return h.gpu.bench.Unit() }

// Violations returns the rules of the simulator that were broken.
func (h *Harness) Violations() []string {
	h.gpu.mu.Lock()
	defer h.gpu.mu.Unlock()
	return h.gpu.bench.Violations()
}

// simulated is a GPU of the simulator. It implements Engine.
type simulated struct {
	mu     sync.Mutex
	bench  *sim.Bench
	queues map[QueueID]sched.QueueID
}

// with calls do for a queue, which must succeed.
func (s *simulated) with(id QueueID, do func(sched.QueueID) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := do(s.queues[id]); err != nil {
		panic(fmt.Sprintf("kfdtest: queue %v: %v", id, err))
	}
}

// Opened implements Engine.
func (s *simulated) Opened(id QueueID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[id] = s.bench.Open()
}

// Closed implements Engine.
func (s *simulated) Closed(id QueueID) {
	s.with(id, func(q sched.QueueID) error { s.bench.Kill(q); return nil })
}

// Stop implements Engine.
func (s *simulated) Stop(id QueueID) { s.with(id, s.bench.Interrupt) }

// Run implements Engine.
func (s *simulated) Run(id QueueID) { s.with(id, s.bench.Restore) }

var (
	_ kfd.Ioctler = (*File)(nil)
	_ kfd.Ioctler = (*Program)(nil)
	_ Engine      = (*simulated)(nil)
)
