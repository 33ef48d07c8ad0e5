package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// harness is a Bench as the conformance suite needs it. Attaching a queue and the calls of
// its methods take no time; Switch takes the time of the model.
type harness struct{ *sim.Bench }

func (h harness) Device() hal.Device                         { return h }
func (h harness) Attach(id sched.QueueID) (hal.Queue, error) { return h.Queue(id), nil }
func (h harness) Unit() time.Duration                        { return 10 * ms }

// Switch implements hal.Batcher.
func (h harness) Switch(off, on []hal.Queue) (errs []error) {
	for _, q := range off {
		errs = append(errs, h.Call(sched.Stop, sim.QueueID(q)))
	}
	for _, q := range on {
		errs = append(errs, h.Call(sched.Start, sim.QueueID(q)))
	}
	return errs
}

// TestConformance runs the suite that all backends run on every device model.
func TestConformance(t *testing.T) {
	for _, name := range sim.ModelNames() {
		t.Run(name, func(t *testing.T) {
			haltest.Run(t, func(t *testing.T) haltest.Harness {
				h := harness{sim.NewBench(model(t, name), 0)}
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
