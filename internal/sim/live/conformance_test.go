package live

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// harness runs the conformance suite on queues as the daemon gets them: offered to a host,
// in real time. Its clients are idle: the suite submits the commands.
type harness struct {
	*Backend
	host  *haltest.Host
	t     *testing.T
	opens int
}

// slowMotion is the maxLag of the clock except in Advance. It nearly stops the simulation,
// so that a test that is delayed on a busy machine finds the device as Advance left it.
const slowMotion = 10 * us

const idleClients = `
name: idle
devices: [{model: %s}]
clients:
  - {name: a, arrival: {periodic: 1h, offset: 1h}, kernels: {time: 1ms}}
  - {name: b, arrival: {periodic: 1h, offset: 1h}, kernels: {time: 1ms}}
`

func newHarness(t *testing.T, model string) *harness {
	b, h := start(t, fmt.Sprintf(idleClients, model), 1)
	eventually(t, "queues are offered", func() bool { return len(h.Queues()) == 2 })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock.maxLag = slowMotion
	return &harness{Backend: b, host: h, t: t}
}

// Device implements haltest.Harness.
func (h *harness) Device() hal.Device {
	o := h.host.Queues()[0].Offer
	if o.Batcher != nil {
		return struct {
			hal.Device
			hal.Batcher
		}{o.Device, h.Backend}
	}
	return o.Device
}

// Attach implements haltest.Harness. It returns a queue that was offered.
func (h *harness) Attach(id sched.QueueID) (hal.Queue, error) {
	for _, q := range h.host.Queues() {
		if sim.QueueID(q.Attached()) == id {
			return q.Attached(), nil
		}
	}
	return nil, hal.ErrGone
}

func (h *harness) Open() sched.QueueID {
	h.opens++
	return sched.QueueID(h.opens)
}

func (h *harness) Submit(id sched.QueueID, work time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advance()
	h.node.Queue(id).Submit(h.clock.simulated(work))
}

func (h *harness) Completed(id sched.QueueID) uint64 { return h.completed(id) }

// Advance waits until so much simulated time has passed, in real units.
func (h *harness) Advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock.maxLag = 2 * ms // if this machine stands still, so does the simulation
	defer func() { h.clock.maxLag = slowMotion }()
	for end := h.node.Now().Add(h.clock.simulated(d)); h.node.Now() < end; h.advance() {
		h.mu.Unlock()
		time.Sleep(ms)
		h.mu.Lock()
	}
}

func (h *harness) Unit() time.Duration { return 20 * ms }

// TestConformance runs the suite that all backends run.
func TestConformance(t *testing.T) {
	for _, name := range sim.ModelNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly sleeps
			haltest.Run(t, func(t *testing.T) haltest.Harness { return newHarness(t, name) })
		})
	}
}
