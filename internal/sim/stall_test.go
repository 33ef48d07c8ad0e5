package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
)

// demoJobs are the three batch jobs of scenarios/demo.yaml, which fill the GPU.
func demoJobs() []sim.ClientConfig {
	job := func(name string, kernels ...sim.Kernels) sim.ClientConfig {
		c := training(name)
		c.Arrival.Depth, c.Kernels = 2, kernels
		return c
	}
	return []sim.ClientConfig{
		job("train", sim.Kernels{Count: 420, Time: lognormal(120*us, 0.6)}, sim.Kernels{Count: 40, Time: sim.Always(55 * us)}),
		job("finetune", sim.Kernels{Count: 200, Time: lognormal(90*us, 0.5)}),
		job("embed", sim.Kernels{Count: 60, Time: sim.Around(210*us, 0.1)}),
	}
}

// TestStallsOfTheHost has a daemon that often stands still for 1 to 20 ms and calls of which some take
// five times as long. Online requests are late then, but not later than natively, most of those that are
// regular are as fast as without the stalls, and batch work keeps 0.8 of what it does natively.
func TestStallsOfTheHost(t *testing.T) {
	long(t)
	stalls := sim.Faults{Stall: 100 * ms, StallFor: sim.Between(ms, 20*ms)}
	slow := sim.Faults{Late: 0.05, LateBy: 4 * ms}
	both := stalls
	both.Late, both.LateBy = slow.Late, slow.LateBy
	for _, m := range []struct {
		name  string
		batch []sim.ClientConfig
	}{
		{"four small", smalls(4, 37*us, 0, "")},
		{"three saturating", heavies(3)},
		{"demo", demoJobs()},
	} {
		for _, arrival := range []sim.Arrival{regular, random} {
			lc := graphEvery20(1200*us, 0)
			lc.Arrival = arrival
			run := func(policy string, faults sim.Faults) (sum float64, r sim.Result) {
				cfg := sloWorld(t, 1, policy, with(lc, m.batch...)...)
				cfg.Warmup, cfg.Faults = time.Second, faults
				r = sim.New(cfg).Run()
				for i := range m.batch {
					for _, k := range m.batch[i].Kernels {
						sum += r.Clients[1+i].Rate * float64(k.Count) * k.Time.Mean.Seconds()
					}
				}
				return sum, r
			}
			sum, r := run("native", sim.Faults{})
			native := r.Clients[0].Latency
			_, r = run("giveway", sim.Faults{})
			calm := r.Clients[0].Latency
			for _, faults := range []sim.Faults{stalls, slow, both} {
				got, r := run("giveway", faults)
				l := r.Clients[0].Latency
				name := fmt.Sprintf("%s, every %v at random: %v, late calls: %v, stalls: %v", m.name, lc.Arrival.Every, arrival.Kind == random.Kind, faults.Late > 0, faults.Stall > 0)
				t.Logf("%s: P50 %v, P90 %v, P99 %v, native %v, %v; batch sum %.3f, native %.3f", name, l.P50, l.P90, l.P99, native.P50, native.P99, got, sum)
				if l.P99 > native.P99 || got < 0.8*sum {
					t.Errorf("%s: P99 %v, native %v; batch sum %.3f, native %.3f", name, l.P99, native.P99, got, sum)
				}
				if arrival.Kind == regular.Kind && l.P90 > calm.P90*115/100 {
					t.Errorf("%s: P90 %v, without faults %v", name, l.P90, calm.P90)
				}
			}
		}
	}
}
