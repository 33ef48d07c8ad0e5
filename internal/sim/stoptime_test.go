package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestShortRequestsPayNoStop checks on AMD's devices, where a stop takes 0.3 to 0.5 ms and
// queues run side by side, that a request is never slower than without the daemon, that
// long ones are faster, and that batch work loses nothing where a stop gains nothing.
func TestShortRequestsPayNoStop(t *testing.T) {
	run := func(device, policy string, work time.Duration, batch int) (p50 time.Duration, rate float64) {
		cfg := sim.Config{
			Seed: 5, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}}, Warmup: time.Second, Length: 10 * time.Second,
		}
		if policy != "native" {
			cfg.Policy = choose(t, policy, nil)
		}
		lc := pipelined("lc", 1, work)
		lc.Attr.Class = sched.Online
		lc.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 10 * ms}
		cfg.Clients = []sim.ClientConfig{lc}
		for i := range batch {
			cfg.Clients = append(cfg.Clients, pipelined(fmt.Sprint("batch", i), 16, 300*us))
		}
		r := sim.New(cfg).Run()
		for _, c := range r.Clients[1:] {
			rate += c.Rate
		}
		return r.Clients[0].Latency.P50, rate
	}
	for _, device := range []string{"amd-hws", "amd-mes"} {
		for _, batch := range []int{1, 4} {
			for _, work := range []time.Duration{50 * us, 100 * us, 200 * us, 400 * us, 800 * us, 2 * ms} {
				native, alone := run(device, "native", work, batch)
				for _, policy := range []string{"giveway", "slo"} {
					p50, rate := run(device, policy, work, batch)
					at := fmt.Sprintf("%s, %s, requests of %v beside %d", device, policy, work, batch)
					if p50 > native*103/100 || work >= 800*us && p50 > native*3/4 {
						t.Errorf("%s: got a P50 of %v, without the daemon %v", at, p50, native)
					}
					if work <= 200*us && device == "amd-hws" && rate < 0.97*alone {
						t.Errorf("%s: batch work did %.0f/s, without the daemon %.0f/s", at, rate, alone)
					}
				}
			}
		}
	}
}
