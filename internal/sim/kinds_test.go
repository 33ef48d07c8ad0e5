package sim_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// kindsOfOnline returns one or two online programs of random kinds: dense requests, requests launched
// kernel by kernel, requests that wait for each kernel, and loops of both that never rest.
func kindsOfOnline(r *rand.Rand) (all []sim.ClientConfig) {
	for i := range 1 + r.IntN(2) {
		kind, every := r.IntN(5), time.Duration(10+r.IntN(90))*ms
		var c sim.ClientConfig
		switch kind {
		case 0:
			c = graph(0)
		case 1:
			c = eager(0)
		case 2:
			c = waiting(0, time.Duration(100+r.IntN(300))*us)
		case 3:
			c = syncLoop(time.Duration(20+r.IntN(500))*us, time.Duration(1+r.IntN(300))*us)
		case 4:
			c = withRequests(0, sim.Kernels{Count: 216, Time: sim.Around(8*us, 0.1), Gap: lognormal(30*us, 0.5)})
			c.Arrival = sim.Arrival{Kind: sim.Closed, Every: 5 * us}
		}
		if kind < 3 {
			c.Arrival = []sim.Arrival{regular, random}[r.IntN(2)]
			c.Arrival.Every = every
		}
		c.Name, c.Attr, c.Shim = fmt.Sprint("online", i), sched.Attr{Class: sched.Online}, r.IntN(2) == 0
		if c.Shim && (kind == 1 || kind == 4) && r.IntN(2) == 0 {
			c.LateEntry = 0.75
		}
		all = append(all, c)
	}
	return all
}

// kindsOfBatch returns one to five batch jobs: light ones, small networks, jobs that rest, and heavy ones.
func kindsOfBatch(r *rand.Rand) (all []sim.ClientConfig) {
	for i := range 1 + r.IntN(5) {
		c := light(i)
		c.Kernels[0].Time, c.Before = sim.Around(time.Duration(100+r.IntN(500))*us, 0.2), sim.Around(time.Duration(500+r.IntN(3000))*us, 0.2)
		switch r.IntN(4) {
		case 0:
			c = training("")
		case 1:
			c.Kernels[0].Time, c.Before = sim.Around(time.Duration(2+r.IntN(20))*ms, 0.2), sim.Around(time.Duration(10+r.IntN(190))*ms, 0.2)
		case 2:
			c = smalls(1, 27*us, 0, "")[0]
		}
		c.Name, c.Shim = fmt.Sprint("batch", i), r.IntN(3) == 0
		all = append(all, c)
	}
	return all
}

// TestKindsOfOnlineWork runs random mixtures of batch jobs beside all kinds of online programs under the
// default policy. No online P99 is above 1.1 times the native one. Batch jobs lose a fifth of their native
// work, and the device a fifth of its time in switches, only where an online program gains by it.
func TestKindsOfOnlineWork(t *testing.T) {
	seeds := uint64(16)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 99))
			online, batch := kindsOfOnline(r), kindsOfBatch(r)
			run := func(policy string, length time.Duration, clients ...sim.ClientConfig) sim.Result {
				cfg := sloWorld(t, seed, policy, clients...)
				cfg.Warmup, cfg.Length = time.Second, length
				return sim.New(cfg).Run()
			}
			all := append(append([]sim.ClientConfig(nil), online...), batch...)
			native, got := run("native", 20*time.Second, all...), run("slo", 20*time.Second, all...)
			var line strings.Builder
			worst, best := 0.0, 1.0 // of the online programs, relative to native
			for i := range online {
				n, g := native.Clients[i].Latency, got.Clients[i].Latency
				p50, p99 := g.P50.Seconds()/n.P50.Seconds(), g.P99.Seconds()/n.P99.Seconds()
				worst, best = max(worst, p99), min(best, p50, p99)
				fmt.Fprintf(&line, "P50 %.2f and P99 %.2f of native, ", p50, p99)
			}
			nativeWork, work := 0.0, 0.0 // as parts of what each job does alone
			for i, job := range batch {
				alone := run("native", 5*time.Second, job).Clients[0].Rate
				nativeWork += native.Clients[len(online)+i].Rate / alone
				work += got.Clients[len(online)+i].Rate / alone
			}
			lost := func(r *sim.Result) float64 { return r.Devices[0].Switching.Seconds() / r.Simulated.Seconds() }
			part := work / nativeWork
			t.Logf("%sbatch work %.2f, lost in switches %.2f, natively %.2f", line.String(), part, lost(&got), lost(&native))
			if worst > 1.1 {
				t.Errorf("a P99 is %.2f times the native one, want at most 1.1", worst)
			}
			if part < 0.8 && best > 0.9 {
				t.Errorf("batch work is %.2f of native, and no online program gains a tenth", part)
			}
			if lost(&got) > max(0.2, lost(&native)+0.05) && part < 0.95 && best > 0.95 {
				t.Errorf("%.2f of the time is lost in switches, natively %.2f, and nothing gains by it", lost(&got), lost(&native))
			}
		})
	}
}
