package sim

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/sched"
)

// harness is a world with one device, no daemon, and programs that do as they
// are told.
type harness struct {
	*World
	queues []*queue
}

func newHarness(m Model) *harness {
	return &harness{World: New(Config{Devices: []DeviceConfig{{ID: "d0", Model: m}}, AllowLivelock: true})}
}

func (h *harness) Device() hal.Device {
	d := h.devices[0]
	if d.model.Slots != nil && d.model.Slots.Batch {
		return d
	}
	return struct{ hal.Device }{d} // no Batcher
}

func (h *harness) Open() hal.Spec {
	q := h.devices[0].open(sched.QueueID(len(h.queues)+1), nil, false)
	h.queues = append(h.queues, q)
	return hal.Spec{Queue: q.id}
}

func (h *harness) Submit(s hal.Spec, d time.Duration) { h.queues[s.Queue-1].submit(d, false) }
func (h *harness) Completed(s hal.Spec) uint64        { return h.queues[s.Queue-1].completed }
func (h *harness) Settle(d time.Duration)             { h.runUntil(h.now.Add(d), nil) }
func (h *harness) Unit() time.Duration                { return 10 * ms }

// TestConformance: the simulated devices keep the promises that real ones must.
func TestConformance(t *testing.T) {
	for _, name := range ModelNames() {
		t.Run(name, func(t *testing.T) {
			haltest.Run(t, func(t *testing.T) haltest.Harness {
				m, err := NewModel(name)
				if err != nil {
					t.Fatal(err)
				}
				h := newHarness(m)
				t.Cleanup(func() {
					for _, v := range h.violations {
						t.Error(v)
					}
				})
				return h
			})
		})
	}
}
