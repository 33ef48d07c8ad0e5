package sim_test

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// runLoop runs clients for 5 s and returns the result and the part of the time that the GPU
// spent on context switches.
func runLoop(t *testing.T, policy string, clients ...sim.ClientConfig) (sim.Result, float64) {
	t.Helper()
	cfg := sloWorld(t, 1, policy, clients...)
	cfg.Warmup, cfg.Length = time.Second, 5*time.Second
	r := sim.New(cfg).Run()
	if r.Overruled != sched.NoMistake || len(r.Violations) > 0 {
		t.Errorf("%s was overruled (%v), violations %v", policy, r.Overruled, r.Violations)
	}
	return r, r.Devices[0].Switching.Seconds() / r.Simulated.Seconds()
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
// pauses: there the minimum slice serves both sides better, and no call is made but for the slices, and
// for one trial of the batch queue.
func TestRequestsWithPausesKeepTheMinimumSlice(t *testing.T) {
	for _, pause := range []time.Duration{ms, 5 * ms, 20 * ms} {
		with, _ := runLoop(t, "giveway", syncLoop(100*us, pause), saturating(1, kernel212, 0))
		if with.Calls > 6 {
			t.Errorf("a request every %v: got %d calls in 6 s, want the slices to be set once, and one trial", pause, with.Calls)
		}
	}
}

// TestSwitchingIsWorthIt runs random mixtures of an online process that waits for each of its
// kernels and batch jobs. More than a fifth of the time may be lost in context switches only
// if it gains something: requests are as fast as alone, or batch work gets at least a quarter of
// what it gets natively.
func TestSwitchingIsWorthIt(t *testing.T) {
	const seed = 11
	random := rand.New(rand.NewPCG(seed, 0))
	between := func(lo, hi time.Duration) time.Duration { // as many short ones as long ones
		return time.Duration(float64(lo) * math.Pow(float64(hi)/float64(lo), random.Float64()))
	}
	batchRate := func(r sim.Result) (sum float64) {
		for _, c := range r.Clients[1:] {
			sum += c.Rate
		}
		return sum
	}
	n := 24
	if testing.Short() {
		n = 6
	}
	for i := range n {
		lc := syncLoop(between(10*us, 4*ms), between(us, 10*ms))
		lc.Shim = random.IntN(2) == 0
		clients := []sim.ClientConfig{lc}
		for j := range 1 + random.IntN(3) {
			be := saturating(j, between(50*us, 5*ms), 0)
			be.Shim = random.IntN(4) == 0
			clients = append(clients, be)
		}
		alone, _ := runLoop(t, "native", lc)
		native, _ := runLoop(t, "native", clients...)
		r, lost := runLoop(t, "slo", clients...)
		p50, p50Alone := r.Clients[0].Latency.P50, alone.Clients[0].Latency.P50
		kept := batchRate(r) / batchRate(native)
		t.Logf("seed %d, mixture %d: kernels of %v every %v beside %d jobs: %.3f lost, P50 %v, alone %v; batch work keeps %.2f of native",
			seed, i, lc.Kernels[0].Time.Mean, lc.Arrival.Every, len(clients)-1, lost, p50, p50Alone, kept)
		if lost > 0.20 && p50 > p50Alone*115/100 && kept < 0.25 {
			t.Errorf("seed %d, mixture %d: %.3f of the time lost in switches, and neither side gains", seed, i, lost)
		}
	}
}

// TestNoPingPongWithAnSLOThatCannotBeMet checks that bursts also serve a loop whose SLO is shorter
// than what its requests take beside a batch job with the minimum slice.
func TestNoPingPongWithAnSLOThatCannotBeMet(t *testing.T) {
	lc, be := syncLoop(100*us, us), saturating(1, kernel212, 0)
	lc.Attr.SLO = 300 * us
	alone, _ := runLoop(t, "native", lc)
	native, _ := runLoop(t, "native", lc, be)
	r, lost := runLoop(t, "slo", lc, be)
	got := r.Clients[0]
	t.Logf("SLO met by %.3f, P50 %v, alone %v; batch %.0f/s, native %.0f/s; lost in switches %.3f", got.SLOMet, got.Latency.P50,
		alone.Clients[0].Latency.P50, r.Clients[1].Rate, native.Clients[1].Rate, lost)
	if got.Latency.P50 > alone.Clients[0].Latency.P50*115/100 || got.SLOMet < 0.9 {
		t.Errorf("P50 %v and %.3f in time, want at most 1.15 times %v, and 0.9", got.Latency.P50, got.SLOMet, alone.Clients[0].Latency.P50)
	}
	if r.Clients[1].Rate < 0.2*native.Clients[1].Rate || lost > 0.12 {
		t.Errorf("batch rate %.0f/s and %.3f lost in switches, want a fifth of %.0f/s and at most 0.12", r.Clients[1].Rate, lost, native.Clients[1].Rate)
	}
}

// TestLoopWithAnSLO checks that a loop whose SLO leaves room leaves batch work what the SLO
// permits: with the device's own slices requests take 2.5 ms, with a quarter of them 1 ms.
func TestLoopWithAnSLO(t *testing.T) {
	for _, c := range []struct {
		slo   time.Duration
		least float64 // of native's batch rate, from the first request on
	}{{5 * ms, 0.8}, {ms, 0.5}} {
		for _, pause := range []time.Duration{us, 60 * us, 200 * us} {
			lc, be := syncLoop(100*us, pause), saturating(1, kernel212, 0)
			lc.Attr.SLO = c.slo
			native, _ := runLoop(t, "native", lc, be)
			r, lost := runLoop(t, "slo", lc, be)
			got, kept := r.Clients[0], r.Clients[1].Rate/native.Clients[1].Rate
			t.Logf("SLO %v, pauses of %v: met by %.4f, P50 %v; batch work keeps %.3f of native; lost in switches %.3f", c.slo, pause, got.SLOMet, got.Latency.P50, kept, lost)
			if got.SLOMet < 0.99 || kept < c.least {
				t.Errorf("SLO %v, pauses of %v: met by %.4f, and batch work keeps %.3f of native, want 0.99 and %.2f", c.slo, pause, got.SLOMet, kept, c.least)
			}
		}
	}
}
