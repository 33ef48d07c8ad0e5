package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// runBeside runs clients for 10 s.
func runBeside(t *testing.T, policy string, clients ...sim.ClientConfig) sim.Result {
	t.Helper()
	cfg := sloWorld(t, 1, policy, clients...)
	cfg.Warmup, cfg.Length = time.Second, 10*time.Second
	r := sim.New(cfg).Run()
	if r.Overruled != sched.NoMistake || len(r.Violations) > 0 {
		t.Errorf("%s was overruled (%v), violations %v", policy, r.Overruled, r.Violations)
	}
	return r
}

// TestBatchBesideStandardWork checks that a batch job is not starved by a standard job that
// saturates the GPU when there is an online client too, and that the client gains.
func TestBatchBesideStandardWork(t *testing.T) {
	standard := training("standard")
	standard.Attr.Class = sched.Standard
	lc := graph(0)
	lc.Arrival = random
	native := runBeside(t, "native", lc, standard, training("be"))
	for _, policy := range []string{"giveway", "slo"} {
		got := runBeside(t, policy, lc, standard, training("be"))
		t.Logf("%s: P99 %v, native %v; batch %.0f/s, native %.0f/s", policy, got.Clients[0].Latency.P99, native.Clients[0].Latency.P99, got.Clients[2].Rate, native.Clients[2].Rate)
		if got.Clients[2].Rate < 0.3*native.Clients[2].Rate {
			t.Errorf("%s: batch rate %.0f/s, want 0.3 of the native %.0f/s", policy, got.Clients[2].Rate, native.Clients[2].Rate)
		}
		if got.Clients[0].Latency.P99 > native.Clients[0].Latency.P99*8/10 {
			t.Errorf("%s: P99 %v, want at most 0.8 of the native %v", policy, got.Clients[0].Latency.P99, native.Clients[0].Latency.P99)
		}
	}
}

// TestBatchBesideAPool checks that a batch job and a pool, which cannot be stopped, do most of the
// work that they do natively, and that the online client gains.
func TestBatchBesideAPool(t *testing.T) {
	clients := append(inPool(2, 1, 0), training("be"))
	lc := graph(0)
	lc.Arrival = random
	sum := func(r sim.Result) float64 {
		return (r.Clients[1].Rate+r.Clients[2].Rate)*100e-6 + r.Clients[3].Rate*119e-6
	}
	native := runBeside(t, "native", with(lc, clients...)...)
	for _, policy := range []string{"giveway", "slo"} {
		got := runBeside(t, policy, with(lc, clients...)...)
		t.Logf("%s: P99 %v, native %v; batch sum %.3f, native %.3f; rates %.0f, %.0f, %.0f", policy, got.Clients[0].Latency.P99, native.Clients[0].Latency.P99,
			sum(got), sum(native), got.Clients[1].Rate, got.Clients[2].Rate, got.Clients[3].Rate)
		if sum(got) < 0.7*sum(native) {
			t.Errorf("%s: batch sum %.3f, want 0.7 of the native %.3f", policy, sum(got), sum(native))
		}
		if got.Clients[0].Latency.P99 > native.Clients[0].Latency.P99*6/10 {
			t.Errorf("%s: P99 %v, want at most 0.6 of the native %v", policy, got.Clients[0].Latency.P99, native.Clients[0].Latency.P99)
		}
	}
}

// TestPoolBesideALoop checks that a pool, which cannot be stopped, makes progress beside an online
// process that waits for each of its kernels: in gaps, or by its floor where there are none.
func TestPoolBesideALoop(t *testing.T) {
	clients := with(syncLoop(100*us, us), inPool(2, 1, 0)...)
	rate := func(r sim.Result) float64 { return r.Clients[1].Rate + r.Clients[2].Rate }
	native := rate(runBeside(t, "native", clients...))
	for _, c := range []struct {
		burst string
		least float64
	}{{"72ms", 0.2}, {"0s", 0.015}} {
		cfg := sloWorld(t, 1, "giveway", clients...)
		cfg.Policy = choose(t, "giveway", map[string]string{"burst": c.burst})
		cfg.Warmup, cfg.Length = time.Second, 10*time.Second
		got := rate(sim.New(cfg).Run())
		t.Logf("burst=%s: the pool completes %.0f kernels/s, natively %.0f", c.burst, got, native)
		if got < c.least*native {
			t.Errorf("burst=%s: the pool completes %.0f kernels/s, want %.3f of the native %.0f", c.burst, got, c.least, native)
		}
	}
}
