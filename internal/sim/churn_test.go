package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestResidentBesideShortLivedJobs runs one batch job that stays beside eight that are
// replaced all the time. Each of those is there for two thirds of the time, so a fair
// part is at least one in 1+8x2/3.
func TestResidentBesideShortLivedJobs(t *testing.T) {
	const fair = 1 / (1 + 8*2./3)
	for _, device := range []string{"nvidia-h200", "level1-npu", "amd-mes"} {
		for _, policy := range []string{"giveway", "slo", "cfs", "wfq", "share"} {
			cfg := sim.Config{
				Seed: 4, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}}, Policy: choose(t, policy, nil), Length: 20 * time.Second,
				Clients: []sim.ClientConfig{{Name: "resident"}},
			}
			for i := range 8 {
				cfg.Clients = append(cfg.Clients, sim.ClientConfig{
					Name: fmt.Sprintf("visitor%d", i), Lifetime: sim.Between(50*ms, 150*ms), Downtime: sim.Between(25*ms, 75*ms),
				})
			}
			for i := range cfg.Clients {
				c := &cfg.Clients[i]
				c.Attr.Class, c.Shim = sched.Batch, true
				c.Arrival.Depth = 4
				c.Kernels = []sim.Kernels{{Count: 1, Time: sim.Around(200*us, 0.1)}}
			}
			r := sim.New(cfg).Run()
			used := time.Duration(0)
			for _, c := range r.Clients {
				used += c.DeviceTime
			}
			got := float64(r.Clients[0].DeviceTime) / float64(used)
			if got < 0.8*fair {
				t.Errorf("%s, %s: the resident got %.3f of the device time, want about %.3f", device, policy, got, fair)
			}
		}
	}
}
