package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// longRequests returns an online client with a request of 300 ms each second.
func longRequests() sim.ClientConfig {
	c := pipelined("online", 1, 10*ms)
	c.Attr = sched.Attr{Class: sched.Online, Priority: 1}
	c.Kernels[0].Count = 30
	c.Arrival = sim.Arrival{Kind: sim.Periodic, Every: time.Second}
	return c
}

// inverted runs longRequests beside a batch client on a device
// whose stops at some level report success and have no effect.
func inverted(t *testing.T, device, policy string, at sched.Level, limit time.Duration) sim.Result {
	t.Helper()
	online, batch := longRequests(), pipelined("batch", 8, 4*ms)
	r := sim.New(sim.Config{
		Seed: 3, Policy: choose(t, policy, nil), Length: 10 * time.Second, Drain: time.Hour,
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}},
		Clients: []sim.ClientConfig{online, batch}, Sched: sched.Config{InversionLimit: limit},
		Faults: sim.Faults{Ignored: 1, IgnoredAt: at},
	}).Run()
	for _, v := range r.Violations {
		t.Errorf("%s, %s, level %d: %s", device, policy, at, v)
	}
	return r
}

// TestIgnoredStopIsFound checks, for every level and with and without measured device time,
// that a stop without effect is found and answered, at a bounded rate, and that the online
// client is better off for it where another level works.
func TestIgnoredStopIsFound(t *testing.T) {
	for _, c := range []struct {
		device, policy string
		at             sched.Level
		helps          bool
	}{
		{"nvidia-h200", "hpf", sched.LevelInterrupt, true}, // by the trace; the gate works
		{"nvidia-h200", "fifo", sched.LevelNone, false},    // no level works
		{"amd-hws", "giveway", sched.LevelInterrupt, true}, // by the counters
		{"amd-mes", "slo", sched.LevelInterrupt, true},
		{"level2-hardware", "giveway", sched.LevelDeactivate, false}, // the bound leaves little to gain
		{"level1-npu", "giveway", sched.LevelHold, false},
		{"level1-npu", "edf", sched.LevelHold, false},
	} {
		name := fmt.Sprint(c.device, " ", c.policy, " level ", c.at)
		found := inverted(t, c.device, c.policy, c.at, 0)
		if n := found.Inversions; n.Count == 0 || n.First.Victim != 1 || n.First.Holder != 2 || n.Time < 100*ms || n.Time > 10*time.Second {
			t.Errorf("%s: got %+v, want inversions of client 1 behind client 2", name, n)
		}
		if n := found.Inversions; n.Remedies < 1 || n.Remedies > 10 {
			t.Errorf("%s: got %d remedies in 10 s, want 1 to 10", name, n.Remedies)
		}
		unwatched := inverted(t, c.device, c.policy, c.at, -1)
		if unwatched.Inversions.Count != 0 {
			t.Errorf("%s: got %d inversions without the monitor, want none", name, unwatched.Inversions.Count)
		}
		with, without := found.Clients[0].Latency.P50, unwatched.Clients[0].Latency.P50
		if c.helps && with > without*9/10 || with > without*11/10 {
			t.Errorf("%s: got a P50 of %v, without the monitor %v", name, with, without)
		}
	}
}

// TestObeyedStopIsNoInversion checks that the same clients are no inversion on devices whose
// stops work, nor under a policy that stops no queue.
func TestObeyedStopIsNoInversion(t *testing.T) {
	for _, device := range sim.ModelNames() {
		for _, policy := range []string{"giveway", "slo", "hpf", "fifo", "rr", "edf", "native"} {
			online, batch := longRequests(), pipelined("batch", 8, 4*ms)
			r := sim.New(sim.Config{
				Seed: 3, Policy: choose(t, policy, nil), Length: 5 * time.Second,
				Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}}, Clients: []sim.ClientConfig{online, batch},
			}).Run()
			if n := r.Inversions; n.Count > 0 {
				t.Errorf("%s, %s: got %+v, want no inversion", device, policy, n)
			}
		}
	}
}
