package nvrmtest

import (
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Harness is an RM with a simulated GPU, for the conformance suite. Time passes on the GPU
// only in Advance, and while a call has an injected latency.
type Harness struct {
	rm  *RM
	gpu *simulated
}

// NewHarness returns a Harness with a GPU of a simulator model that has a runlist, such as
// nvidia-h200.
func NewHarness(model string) (*Harness, error) {
	m, err := sim.NewModel(model)
	if err != nil {
		return nil, err
	}
	if m.Runlist == nil {
		return nil, fmt.Errorf("model %s has no runlist", model)
	}
	h := &Harness{gpu: &simulated{bench: sim.NewBench(m), queues: make(map[GroupID]sched.QueueID)}}
	h.rm = New(Config{GPU: h.gpu, Sleep: h.Advance})
	return h, nil
}

// RM returns the resource manager.
func (h *Harness) RM() *RM { return h.rm }

// Process is a simulated process with a CUDA context, inside the test's own process.
type Process struct {
	File *File
	Context
}

// Open makes a Process.
func (h *Harness) Open() (Process, error) {
	f := h.rm.Open()
	c, err := NewContext(f)
	return Process{File: f, Context: c}, err
}

// Submit gives the compute group of a context one command that takes the time work when it
// runs alone.
func (h *Harness) Submit(c Context, work time.Duration) { h.gpu.submit(h.group(c), work) }

// Completed returns how many commands of a context are done.
func (h *Harness) Completed(c Context) uint64 { return h.gpu.completed(h.group(c)) }

// Advance lets time pass on the GPU.
func (h *Harness) Advance(d time.Duration) { h.gpu.settle(d) }

// Unit is a command length that is much longer than any call.
func (h *Harness) Unit() time.Duration { return h.gpu.bench.Unit() }

// Violations lists what the GPU did wrong.
func (h *Harness) Violations() []string {
	h.gpu.mu.Lock()
	defer h.gpu.mu.Unlock()
	return h.gpu.bench.Violations()
}

// group returns the compute group of a context. It panics if the context was freed.
func (h *Harness) group(c Context) GroupID {
	h.rm.mu.Lock()
	defer h.rm.mu.Unlock()
	if cl := h.rm.clients[c.Client]; cl != nil && cl.objects[c.Compute.Group] != nil {
		return cl.objects[c.Compute.Group].group.id
	}
	panic(fmt.Sprintf("nvrmtest: client %v has no compute group", c.Client))
}

// simulated is a GPU of the simulator. It implements GPU.
type simulated struct {
	mu     sync.Mutex
	bench  *sim.Bench
	queues map[GroupID]sched.QueueID
}

func (s *simulated) submit(id GroupID, work time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bench.Submit(s.queues[id], work)
}

func (s *simulated) completed(id GroupID) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bench.Completed(s.queues[id])
}

func (s *simulated) settle(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bench.Advance(d)
}

// Opened implements GPU.
func (s *simulated) Opened(id GroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[id] = s.bench.Open()
}

// Closed implements GPU.
func (s *simulated) Closed(id GroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bench.Kill(s.queues[id])
}

// SetSlice implements GPU.
func (s *simulated) SetSlice(id GroupID, d time.Duration) {
	s.mustDo(id, func(q sched.QueueID) error { return s.bench.SetSlice(q, d) })
}

// Interrupt implements GPU.
func (s *simulated) Interrupt(id GroupID) { s.mustDo(id, s.bench.Interrupt) }

// Restore implements GPU.
func (s *simulated) Restore(id GroupID) { s.mustDo(id, s.bench.Restore) }

// mustDo panics on an error: a model with a runlist refuses none of these for a live queue.
func (s *simulated) mustDo(id GroupID, do func(sched.QueueID) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := do(s.queues[id]); err != nil {
		panic(fmt.Sprintf("nvrmtest: group %d: %v", id, err))
	}
}

var (
	_ nvrm.Ioctler = (*File)(nil)
	_ GPU          = (*simulated)(nil)
)
