package sim_test

import (
	"testing"

	"github.com/giveway/giveway/internal/sim"
)

// TestLightJobsWithoutTrace checks that on devices without a context-switch trace light jobs get what
// they get natively, with and without the shim. Beside online work, with the shim, they get most of
// that, and the P99 is at most the native one.
func TestLightJobsWithoutTrace(t *testing.T) {
	long(t)
	untraced := model(t, "nvidia-h200")
	untraced.TraceInterval = 0
	for _, d := range []struct {
		name  string
		model sim.Model
		batch float64 // of native's, at least, beside online work
		p99   float64 // of native's, at most
	}{
		{"amd-hws", model(t, "amd-hws"), 0.85, 0.6},
		{"amd-mes", model(t, "amd-mes"), 0.93, 0.45},
		{"level1-npu", model(t, "level1-npu"), 0.95, 0.2},
		{"level2-hardware", model(t, "level2-hardware"), 0.95, 0.2},
		{"nvidia-h200 without a trace", untraced, 0.97, 1},
	} {
		for _, c := range []struct {
			name    string
			shim    bool
			batch   []sim.ClientConfig
			arrival sim.Arrival
		}{
			{"four light", true, lights(4), sim.Arrival{}},
			{"four light without the shim", false, lights(4), sim.Arrival{}},
			{"one heavy, two light", true, with(training("heavy"), lights(2)...), sim.Arrival{}},
			{"one heavy, two light without the shim", false, with(training("heavy"), lights(2)...), sim.Arrival{}},
			{"four light, random", true, lights(4), random},
			{"one heavy, two light, random", true, with(training("heavy"), lights(2)...), random},
		} {
			m := mixture{c.batch, c.arrival}
			d.model.Gated = c.shim
			native, got := m.runOn(t, d.model, 1, "native"), m.runOn(t, d.model, 1, "giveway")
			least, calls := 0.97, uint64(100)
			if c.arrival.Every > 0 {
				least, calls = d.batch, 50_000
			}
			t.Logf("%s, %s: sum and P99: native %.2f %v, giveway %.2f %v with %d calls", d.name, c.name, native.sum, native.p99, got.sum, got.p99, got.calls)
			if got.sum < least*native.sum || got.calls > calls {
				t.Errorf("%s, %s: batch sum %.2f with %d calls, want %.2f of the native %.2f with at most %d", d.name, c.name, got.sum, got.calls, least, native.sum, calls)
			}
			if float64(got.p99) > d.p99*float64(native.p99) {
				t.Errorf("%s, %s: P99 %v, want at most %.2f of the native %v", d.name, c.name, got.p99, d.p99, native.p99)
			}
		}
	}
}
