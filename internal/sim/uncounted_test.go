package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestUncountedProcessDoesNotBlock has an important process without the shim, of which nothing
// is known, beside a batch job. While it is idle batch work must get the device, under
// every policy that stops queues for others; while it works it must still go ahead.
func TestUncountedProcessDoesNotBlock(t *testing.T) {
	run := func(policy string, idle, shim bool) (p50 time.Duration, rate float64) {
		batch := pipelined("batch", 4, 250*us)
		batch.Shim = shim
		lc := pipelined("lc", 1, 300*us)
		lc.Shim, lc.Arrival = false, sim.Arrival{Kind: sim.Periodic, Every: 10 * ms}
		if idle {
			lc.Arrival = sim.Arrival{Kind: sim.Trace, Trace: []time.Duration{ms}}
		}
		lc.Attr = sched.Attr{Class: sched.Online, Priority: 5, RealTime: 10, Focus: true, Deadline: 5 * ms}
		cfg := sim.Config{
			Seed: 2, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}},
			Clients: []sim.ClientConfig{lc, batch}, Warmup: time.Second, Length: 10 * time.Second,
		}
		if policy != "native" {
			cfg.Policy = choose(t, policy, nil)
		}
		r := sim.New(cfg).Run()
		return r.Clients[0].Latency.P50, r.Clients[1].Rate
	}
	for _, shim := range []bool{false, true} { // of the batch job
		_, native := run("native", true, shim)
		fast, _ := run("giveway", false, shim)
		for _, policy := range []string{"hpf", "hpf-global", "nice", "window", "fifo", "edf", "kedf", "llf"} {
			if _, rate := run(policy, true, shim); rate < 0.9*native {
				t.Errorf("%s, batch with shim %v: beside an idle process batch work did %.0f/s, without the daemon %.0f/s", policy, shim, rate, native)
			}
			switch policy {
			case "hpf", "hpf-global", "nice", "window":
				if p50, _ := run(policy, false, shim); p50 > 2*fast {
					t.Errorf("%s, batch with shim %v: got a P50 of %v, under giveway %v", policy, shim, p50, fast)
				}
			}
		}
	}
}
