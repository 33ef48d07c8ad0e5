package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// pipelined always has several commands submitted, so its queue never becomes idle and
// the shim never wakes the daemon for it.
func pipelined(name string, depth int, work time.Duration) sim.ClientConfig {
	return sim.ClientConfig{
		Name: name, Shim: true, Attr: sched.Attr{Class: sched.Batch}, Arrival: sim.Arrival{Kind: sim.Closed, Depth: depth},
		Kernels: []sim.Kernels{{Count: 1, Time: sim.Around(work, 0.1)}},
	}
}

// TestOrderedPoliciesBesideAPipelinedQueue checks that a request beside a queue that never
// becomes idle waits for about the commands that were there before it, under the policies
// that let one queue finish its work before the next.
func TestOrderedPoliciesBesideAPipelinedQueue(t *testing.T) {
	for _, device := range []string{"nvidia-h200", "level1-npu", "amd-mes"} {
		for _, policy := range []string{"fifo", "edf", "kedf", "llf"} {
			for _, deadlines := range []bool{false, true} {
				batch, lc := pipelined("batch", 8, 250*us), pipelined("lc", 1, 300*us)
				lc.Attr.Class = sched.Online
				lc.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 20 * ms}
				if deadlines {
					batch.Attr.Deadline, lc.Attr.Deadline = 20*ms, 20*ms
				}
				r := sim.New(sim.Config{
					Seed: 3, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}}, Policy: choose(t, policy, nil),
					Clients: []sim.ClientConfig{batch, lc}, Length: 10 * time.Second,
				}).Run()
				// 2 ms of earlier work, a stop and a start.
				if got := r.Clients[1].Latency; got.P50 > 5*ms || got.P99 > 8*ms {
					t.Errorf("%s, %s, deadlines %v: got a P50 of %v and a P99 of %v, want at most 5ms and 8ms", device, policy, deadlines, got.P50, got.P99)
				}
				if got := r.Clients[0].Rate; got < 3500 {
					t.Errorf("%s, %s, deadlines %v: batch work did %.0f commands/s, want at least 3500 of 4000", device, policy, deadlines, got)
				}
			}
		}
	}
}

// TestDepthKeepsHostTimes checks that the host times of a request count when the client has
// several requests in progress: After is part of each latency and keeps its place of the
// depth, and Every passes before each next request.
func TestDepthKeepsHostTimes(t *testing.T) {
	for _, depth := range []int{1, 4} {
		for _, every := range []time.Duration{0, 5 * ms} {
			c := pipelined("c", depth, 100*us)
			c.Kernels[0].Time = sim.Dist{Mean: 100 * us}
			c.After, c.Arrival.Every = sim.Dist{Mean: 10 * ms}, every
			r := sim.New(sim.Config{
				Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "level1-npu")}}, Clients: []sim.ClientConfig{c}, Warmup: time.Second, Length: 10 * time.Second,
			}).Run().Clients[0]
			if want := float64(depth) / (every + 10*ms + 100*us).Seconds(); r.Rate < 0.95*want || r.Rate > 1.05*want {
				t.Errorf("depth %d, every %v: got %.0f requests/s, want %.0f", depth, every, r.Rate, want)
			}
			if every > 0 && (r.Latency.P50 < 10*ms || r.Latency.P50 > 11*ms) {
				t.Errorf("depth %d, every %v: got a P50 of %v, want 10.1ms", depth, every, r.Latency.P50)
			}
		}
	}
}
