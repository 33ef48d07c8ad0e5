package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
)

// waits is an online client with the shim that waits for each of n kernels of 200 us.
func waits(n int, slo time.Duration, arrival sim.Arrival) sim.ClientConfig {
	lc := withRequests(slo, sim.Kernels{Count: n, Time: sim.Around(200*us, 0.05), Gap: sim.Around(100*us, 0.1), Wait: true})
	lc.Shim, lc.Arrival = true, arrival
	return lc
}

// runWaits returns the result of the online client lc and the sum over the batch clients of the rate
// relative to that alone.
func runWaits(t *testing.T, policy string, lc sim.ClientConfig, batch []sim.ClientConfig) (sim.ClientResult, float64) {
	t.Helper()
	cfg := sloWorld(t, 1, policy, with(lc, batch...)...)
	cfg.Warmup, cfg.Length = 5*time.Second, 40*time.Second
	r, sum := sim.New(cfg).Run(), 0.0
	for i, c := range r.Clients[1:] {
		sum += c.Rate * (batch[i].Kernels[0].Time.Mean + batch[i].Before.Mean).Seconds()
	}
	return r.Clients[0], sum
}

// TestRegularRequestsThatWait checks that regular requests of a client that waits for each kernel find the
// device clear to their end: with few kernels and with many.
func TestRegularRequestsThatWait(t *testing.T) {
	long(t)
	for _, kernels := range []int{3, 20} {
		lc := waits(kernels, 0, sim.Arrival{Kind: sim.Periodic, Every: time.Duration(kernels) * 7 * ms})
		alone := time.Duration(kernels) * 300 * us
		native, nativeSum := runWaits(t, "native", lc, lights(4))
		got, sum := runWaits(t, "giveway", lc, lights(4))
		t.Logf("%d kernels: P99 and sum: native %v %.2f, giveway %v %.2f", kernels, native.Latency.P99, nativeSum, got.Latency.P99, sum)
		if got.Latency.P99 > 2*alone+ms {
			t.Errorf("%d kernels: P99 %v, want at most twice the %v that they take alone", kernels, got.Latency.P99, alone)
		}
		if sum < 0.85*nativeSum {
			t.Errorf("%d kernels: batch sum %.2f, want 0.85 of the native %.2f", kernels, sum, nativeSum)
		}
	}
}

// TestSLOLetsBatchWorkRunInRequests checks that under slo the device is not cleared for whole requests where
// the SLO leaves time: batch work gets nearly what it gets natively, and the SLO is met.
func TestSLOLetsBatchWorkRunInRequests(t *testing.T) {
	long(t)
	for _, slo := range []time.Duration{60 * ms, 100 * ms} {
		lc, batch := waits(20, slo, sim.Arrival{Kind: sim.Periodic, Every: 60 * ms}), append(heavies(1), lights(2)...)
		_, native := runWaits(t, "native", lc, batch)
		got, sum := runWaits(t, "slo", lc, batch)
		t.Logf("SLO %v: met by %.4f, batch sum %.2f, native %.2f", slo, got.SLOMet, sum, native)
		if got.SLOMet < 0.99 || sum < 0.95*native {
			t.Errorf("SLO %v: met by %.4f with a batch sum of %.2f, want 0.99 and 0.95 of the native %.2f", slo, got.SLOMet, sum, native)
		}
	}
}
