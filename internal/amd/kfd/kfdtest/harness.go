package kfdtest

import (
	"fmt"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/sim"
)

// Harness is a driver with a simulated GPU, on which time passes only through Advance. A
// backend uses it to run the conformance suite of internal/hal/haltest. Its processes
// belong to a World.
type Harness struct {
	*drivertest.GPU[QueueID]
	World *World
	kfd   *KFD
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
	h := &Harness{GPU: drivertest.NewGPU[QueueID](m), World: NewWorld()}
	cfg.Engine, cfg.Host, cfg.Sleep = h.GPU, h.World, h.Advance
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
