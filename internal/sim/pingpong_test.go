package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// syncLoop is an online client that launches a kernel, waits for it, and launches the next
// after a pause: 110 us from launch to answer when alone with kernels of 100 us.
func syncLoop(kernel, pause time.Duration) sim.ClientConfig {
	return sim.ClientConfig{
		Name: "lc", Attr: sched.Attr{Class: sched.Online},
		Arrival: sim.Arrival{Kind: sim.Closed, Every: pause},
		Kernels: []sim.Kernels{{Count: 1, Time: sim.Around(kernel, 0.02)}},
		Before:  sim.Around(4*us, 0.1), After: sim.Around(6*us, 0.2),
	}
}

// runLoop runs clients for 5 s and returns the result and the part of the time that the
// GPU spent on context switches.
func runLoop(t *testing.T, policy string, clients ...sim.ClientConfig) (sim.Result, float64) {
	t.Helper()
	cfg := sloWorld(t, 1, policy, clients...)
	cfg.Warmup, cfg.Length, cfg.Segments = time.Second, 5*time.Second, 1<<20
	r := sim.New(cfg).Run()
	if r.Overruled != sched.NoMistake || len(r.Violations) > 0 {
		t.Errorf("%s was overruled (%v), violations %v", policy, r.Overruled, r.Violations)
	}
	lost := time.Duration(0)
	for _, s := range r.Segments {
		if s.Queue == 0 {
			lost += s.To.Sub(s.From)
		}
	}
	return r, lost.Seconds() / r.Simulated.Seconds()
}

// TestNoPingPong checks that an online process that waits for each of its kernels runs as
// fast as alone most of the time, that a job which fills the GPU gets a quarter of what it
// gets natively, and that few context switches are left.
func TestNoPingPong(t *testing.T) {
	for _, kernel := range []time.Duration{20 * us, 100 * us, ms} {
		for _, pause := range []time.Duration{us, 60 * us, 200 * us} {
			t.Run(fmt.Sprintf("%v every %v", kernel, pause), func(t *testing.T) {
				t.Parallel()
				lc, be := syncLoop(kernel, pause), saturating(1, kernel212, 0)
				alone, _ := runLoop(t, "native", lc)
				native, _ := runLoop(t, "native", lc, be)
				for _, policy := range []string{"giveway", "slo"} {
					r, lost := runLoop(t, policy, lc, be)
					got, want := r.Clients[0].Latency, alone.Clients[0].Latency
					t.Logf("%s: P50 %v, P99 %v, alone %v, native %v; batch %.0f/s, native %.0f/s; lost in switches %.3f", policy, got.P50, got.P99,
						want.P50, native.Clients[0].Latency.P50, r.Clients[1].Rate, native.Clients[1].Rate, lost)
					if got.P50 > want.P50*115/100 {
						t.Errorf("%s: P50 %v, want at most 1.15 times %v", policy, got.P50, want.P50)
					}
					if r.Clients[1].Rate < 0.25*native.Clients[1].Rate {
						t.Errorf("%s: batch rate %.0f/s, want a quarter of %.0f/s", policy, r.Clients[1].Rate, native.Clients[1].Rate)
					}
					if lost > 0.10 {
						t.Errorf("%s: %.3f of the time lost in switches, want less than 0.10", policy, lost)
					}
				}
			})
		}
	}
}

// TestRequestsWithPausesKeepTheMinimumSlice checks that bursts are not for requests with
// pauses: there the minimum slice serves both sides better, and no call is made.
func TestRequestsWithPausesKeepTheMinimumSlice(t *testing.T) {
	for _, pause := range []time.Duration{ms, 5 * ms, 20 * ms} {
		with, _ := runLoop(t, "giveway", syncLoop(100*us, pause), saturating(1, kernel212, 0))
		if with.Calls > 4 {
			t.Errorf("a request every %v: got %d calls in 6 s, want the slices to be set once", pause, with.Calls)
		}
	}
}
