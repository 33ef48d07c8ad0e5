package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestLoneLightJob checks that one light job does nearly its native work beside online programs that come
// onto the device again and again, and that these are no slower than natively. Before, it had the minimum
// slice and did 0.28 to 0.63 of it. Nothing changes for a heavy job: it keeps the minimum slice.
func TestLoneLightJob(t *testing.T) {
	eagerly := func(name string, a sim.Arrival) sim.ClientConfig {
		c := eager(0)
		c.Name, c.Arrival = name, a
		return c
	}
	decode := func(name string) sim.ClientConfig {
		c := withRequests(0, sim.Kernels{Count: 216, Time: sim.Around(8*us, 0.1), Gap: lognormal(30*us, 0.5)})
		c.Name, c.Arrival = name, sim.Arrival{Kind: sim.Closed, Every: 5 * us}
		return c
	}
	waits := waiting(0, 300*us)
	waits.Name, waits.Arrival = "waits", sim.Arrival{Kind: sim.Periodic, Every: 40 * ms}
	regularly, randomly := eagerly("regularly", regular), eagerly("randomly", random)
	for _, tt := range []struct {
		name   string
		online []sim.ClientConfig
		batch  []sim.ClientConfig
		keeps  float64 // least part of the native batch work
		most   float64 // largest part of it
	}{
		{"regular eager requests", []sim.ClientConfig{regularly}, lights(1), 0.95, 1.05},
		{"random eager requests", []sim.ClientConfig{randomly}, lights(1), 0.93, 1.05},
		{"regular eager requests, a small network", []sim.ClientConfig{regularly}, smalls(1, 27*us, 0, ""), 0.95, 1.05},
		{"a decoding loop", []sim.ClientConfig{decode("decode")}, lights(1), 0.95, 1.05},
		{"two decoding loops", []sim.ClientConfig{decode("one"), decode("two")}, lights(1), 0.93, 1.05},
		{"requests that wait for each kernel", []sim.ClientConfig{waits}, lights(1), 0.95, 1.05},
		{"regular eager requests, a heavy job", []sim.ClientConfig{regularly}, heavies(1), 0.6, 0.7},
		{"a decoding loop, a heavy job", []sim.ClientConfig{decode("decode")}, heavies(1), 0.25, 0.32}, // in bursts
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := func(policy string) (work float64, tails []time.Duration) {
				cfg := sloWorld(t, 1, policy, append(append([]sim.ClientConfig(nil), tt.online...), tt.batch...)...)
				cfg.Warmup, cfg.Length = 2*time.Second, 20*time.Second
				for _, c := range sim.New(cfg).Run().Clients {
					if c.Class == sched.Online {
						tails = append(tails, c.Latency.P99)
					} else {
						work += c.Rate
					}
				}
				return work, tails
			}
			native, nativeTails := run("native")
			for _, policy := range []string{"giveway", "slo"} {
				work, tails := run(policy)
				if part := work / native; part < tt.keeps || part > tt.most {
					t.Errorf("policy %s: the job does %.2f of its native work, want %.2f to %.2f", policy, part, tt.keeps, tt.most)
				}
				for i, tail := range tails {
					if float64(tail) > 1.02*float64(nativeTails[i]) {
						t.Errorf("policy %s: P99 of %s is %v, natively %v", policy, tt.online[i].Name, tail, nativeTails[i])
					}
				}
			}
		})
	}
}
