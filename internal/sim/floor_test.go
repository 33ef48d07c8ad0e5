package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestFloorBesideOnlineWorkThatNeverRests checks that a batch job gets its floor of 2 % in
// any 5 s beside an online process whose requests follow each other without a pause, and
// that this delays less than one request in a hundred where there are hundreds a second.
func TestFloorBesideOnlineWorkThatNeverRests(t *testing.T) {
	for _, tt := range []struct {
		request  time.Duration
		slo      time.Duration // with one, requests are reported
		within   float64       // P99, relative to the P50
		untraced bool          // all have the shim, and the device no context-switch trace
	}{
		{request: 2 * ms, within: 1.1},
		{request: 2 * ms, slo: 10 * ms, within: 2.2}, // short pieces: later by one, but not late
		{request: 5 * ms, within: 1.1},
		{request: 40 * ms, slo: 50 * ms, within: 1.2},
		{request: 5 * ms, within: 3.3, untraced: true}, // when the slice of a floor turn ends is not known
	} {
		t.Run(fmt.Sprintf("%v, SLO %v, untraced %v", tt.request, tt.slo, tt.untraced), func(t *testing.T) {
			online := sim.ClientConfig{
				Name: "lc", Attr: sched.Attr{Class: sched.Online, SLO: tt.slo}, Arrival: sim.Arrival{Kind: sim.Closed, Every: us},
				Kernels: []sim.Kernels{{Count: 20, Time: sim.Around(tt.request/20, 0.05)}},
			}
			cfg := sloWorld(t, 1, "giveway", online, training("be"))
			cfg.Warmup, cfg.SampleInterval = time.Second, 100*ms
			if tt.untraced {
				cfg.Devices[0].Model.TraceInterval, cfg.Devices[0].Model.Gated = 0, true
			}
			var had []time.Duration // device time of the batch job at each sample
			cfg.Sample = func(_ sched.Time, queues []sim.QueueSample) {
				for _, q := range queues {
					if q.Client == 1 {
						had = append(had, q.DeviceTime)
					}
				}
			}
			r := sim.New(cfg).Run()
			least := time.Hour
			for i := 50; i < len(had); i++ {
				least = min(least, had[i]-had[i-50])
			}
			latency := r.Clients[0].Latency
			t.Logf("P50 %v, P99 %v, max %v; batch work gets at least %v in 5 s, %.0f kernels/s", latency.P50, latency.P99, latency.Max, least, r.Clients[1].Rate)
			if least < 100*ms {
				t.Errorf("batch work got %v in 5 s, want at least 100 ms", least)
			}
			if ratio := latency.P99.Seconds() / latency.P50.Seconds(); ratio > tt.within {
				t.Errorf("P99 %v is %.2f times the P50, want at most %.2f", latency.P99, ratio, tt.within)
			}
			if tt.slo > 0 && r.Clients[0].SLOMet < 0.99 {
				t.Errorf("%.4f of the requests meet the SLO, want 0.99", r.Clients[0].SLOMet)
			}
			if r.Clients[1].Rate < 100 {
				t.Errorf("batch work completed %.0f kernels/s, want at least 100", r.Clients[1].Rate)
			}
		})
	}
}
