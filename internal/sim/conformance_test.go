package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/sim"
)

// harness is a Bench whose queues are identified by a hal.Spec.
type harness struct{ *sim.Bench }

func (h harness) Open() hal.Spec                     { return hal.Spec{Queue: h.Bench.Open()} }
func (h harness) Submit(s hal.Spec, d time.Duration) { h.Bench.Submit(s.Queue, d) }
func (h harness) Completed(s hal.Spec) uint64        { return h.Bench.Completed(s.Queue) }

// TestConformance runs the suite that all backends run on every device model.
func TestConformance(t *testing.T) {
	for _, name := range sim.ModelNames() {
		t.Run(name, func(t *testing.T) {
			haltest.Run(t, func(t *testing.T) haltest.Harness {
				h := harness{sim.NewBench(model(t, name))}
				t.Cleanup(func() {
					for _, v := range h.Violations() {
						t.Error(v)
					}
				})
				return h
			})
		})
	}
}
