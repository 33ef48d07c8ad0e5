package nvrmtest

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/sim"
)

// Harness is an RM with a simulated GPU, for the conformance suite. Time passes on the GPU
// only in Advance, and while a call has an injected latency.
type Harness struct {
	rm *RM
	*drivertest.GPU[GroupID]
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
	gpu := drivertest.NewGPU[GroupID](m)
	return &Harness{New(Config{GPU: gpu, Sleep: gpu.Advance}), gpu}, nil
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
func (h *Harness) Submit(c Context, work time.Duration) { h.GPU.Submit(h.group(c), work) }

// Completed returns how many commands of a context are done.
func (h *Harness) Completed(c Context) uint64 { return h.GPU.Completed(h.group(c)) }

// group returns the compute group of a context. It panics if the context was freed.
func (h *Harness) group(c Context) GroupID {
	h.rm.mu.Lock()
	defer h.rm.mu.Unlock()
	if cl := h.rm.clients[c.Client]; cl != nil && cl.objects[c.Compute.Group] != nil {
		return cl.objects[c.Compute.Group].group.id
	}
	panic(fmt.Sprintf("nvrmtest: client %v has no compute group", c.Client))
}

var (
	_ nvrm.Ioctler = (*File)(nil)
	_ GPU          = (*drivertest.GPU[GroupID])(nil)
)
