package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestSLOTrialThatStopsAnswers has batch kernels of 20 ms on devices that cannot interrupt
// them. In a trial without stops a request that waits for each of its 20 kernels takes
// seconds, so no answer tells that the trial goes wrong.
func TestSLOTrialThatStopsAnswers(t *testing.T) {
	for _, device := range []string{"level2-hardware", "level2-guardian", "level2-flush"} {
		for seed := range uint64(8) {
			waits := seed%4 > 0
			lc := pipelined("lc", 1, 300*us)
			lc.Attr = sched.Attr{Class: sched.Online, SLO: 50 * ms}
			lc.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 40 * ms}
			lc.Kernels[0].Count, lc.Kernels[0].Wait = 20, waits
			r := sim.New(sim.Config{
				Seed: seed, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}}, Policy: choose(t, "slo", nil),
				Clients: []sim.ClientConfig{pipelined("batch", 8, 20*ms), lc}, Length: 25 * time.Second,
			}).Run()
			got := r.Clients[1]
			if got.SLOMet < 0.975 || got.Latency.Max > 500*ms {
				t.Errorf("%s, seed %d, waits %v: got %.3f in time and a maximum of %v, want at least 0.975 and at most 500ms", device, seed, waits, got.SLOMet, got.Latency.Max)
			}
		}
	}
}
