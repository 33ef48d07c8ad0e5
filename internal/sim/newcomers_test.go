package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
)

// TestManyNewcomersBesideRequests checks that eight saturating jobs, which become batch work one after
// another beside regular requests, are all judged in their first trial. On an H200 it ended before three
// of the eight were judged, and the next one, two seconds later, made requests take up to 7 ms.
func TestManyNewcomersBesideRequests(t *testing.T) {
	for step := 0 * ms; step <= 12*ms; step += 500 * us {
		lc := withRequests(0, sim.Kernels{Count: 1, Time: sim.Around(28*us, 0.03)})
		lc.Arrival = sim.Arrival{Kind: sim.Trace}
		for at := 0 * ms; at < 8*time.Second; at += 5 * ms {
			if at < 100*ms || at >= 2*time.Second {
				lc.Arrival.Trace = append(lc.Arrival.Trace, at)
			}
		}
		clients := []sim.ClientConfig{lc}
		for i := range 8 {
			job := saturating(i, kernel212, 0)
			job.Start = 200*ms + time.Duration(i)*step
			clients = append(clients, job)
		}
		cfg := sloWorld(t, 1, "giveway", clients...)
		cfg.Warmup, cfg.Length, cfg.Devices[0].Model.Gated = time.Second, 6*time.Second, true
		r := sim.New(cfg).Run()
		if l := r.Clients[0].Latency; l.Count < 700 || l.Max > time.Millisecond {
			t.Errorf("jobs start %v apart: %d requests, P99 %v, max %v, want 700 and 1ms", step, l.Count, l.P99, l.Max)
		}
	}
}
