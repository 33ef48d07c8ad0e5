package kfdtest

import (
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Harness is a driver with a simulated GPU behind it, on which time passes only
// when it is told to: what a backend needs to run the conformance suite. Its
// processes are of a World.
type Harness struct {
	World *World

	kfd *KFD
	gpu *simulated
}

// NewHarness returns a Harness with a GPU of one of the simulator's models that
// have slots: amd-hws, amd-mes. cfg's Engine, Host and Sleep are the Harness's own.
func NewHarness(model string, cfg Config) (*Harness, error) {
	m, err := sim.NewModel(model)
	if err != nil {
		return nil, err
	}
	if m.Slots == nil {
		return nil, fmt.Errorf("model %s has no slots", model)
	}
	m.Gated = false // there is no shim here
	h := &Harness{World: NewWorld(), gpu: &simulated{bench: sim.NewBench(m), queues: make(map[QueueID]sched.QueueID)}}
	cfg.Engine, cfg.Host, cfg.Sleep = h.gpu, h.World, h.Advance
	h.kfd = New(cfg)
	return h, nil
}

// KFD is the driver, to open and to inject faults into.
func (h *Harness) KFD() *KFD { return h.kfd }

// Open makes a process with one queue on the first GPU.
func (h *Harness) Open(pid int) (QueueID, error) {
	h.World.Start(pid, 1000)
	f := h.kfd.Open(pid)
	if err := kfd.SetRuntime(f, true); err != nil {
		return QueueID{}, err
	}
	id, err := kfd.CreateQueue(f, kfd.NewQueue{
		GPU: h.kfd.cfg.GPUs[0].GPU, Type: kfd.TypeComputeAQL, Ring: 0x7f0000000000, RingSize: 4096, Priority: 7,
	})
	return QueueID{pid, id}, err
}

// Submit gives a queue one command that takes so long alone.
func (h *Harness) Submit(id QueueID, work time.Duration) {
	h.gpu.with(id, func(q sched.QueueID) error { h.gpu.bench.Submit(q, work); return nil })
}

// Completed counts the commands that are done.
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

// Unit is a command length much longer than any call takes here.
func (h *Harness) Unit() time.Duration { return h.gpu.bench.Unit() }

// Violations says what the GPU did that it must not.
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

// with does what a model that interrupts does not refuse for a live queue.
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
