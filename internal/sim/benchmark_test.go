package sim_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
)

// BenchmarkWorld counts simulated events on two cores, one World each: an online service
// and four batch jobs under the giveway policy. The target is ten million per minute.
func BenchmarkWorld(b *testing.B) {
	cfg := sim.Config{
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(b, "nvidia-h200")}},
		Policy:  choose(b, "giveway", nil), Length: 10 * time.Second,
		Clients: with(lone(), bes(4, 0)...),
	}
	for i := range cfg.Clients {
		cfg.Clients[i].Shim = true // the daemon sees every request begin and end
	}
	var events uint64
	var simulated time.Duration
	for i := 0; b.Loop(); i++ {
		var wg sync.WaitGroup
		var results [2]sim.Result
		for j := range results {
			wg.Go(func() {
				c := cfg
				c.Seed = uint64(2*i + j)
				results[j] = sim.New(c).Run()
			})
		}
		wg.Wait()
		for _, r := range results {
			events += r.Events
			simulated += r.Simulated
		}
	}
	wall := b.Elapsed()
	b.ReportMetric(float64(events)/wall.Minutes()/1e6, "Mevents/min")
	b.ReportMetric(float64(simulated)/float64(wall), "simulated/wall")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkQueues measures one simulated second of many queues.
func BenchmarkQueues(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				sim.New(sim.Config{
					Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(b, "nvidia-h200")}},
					Policy:  choose(b, "giveway", nil), Length: time.Second, Clients: with(lone(), bes(n, 0)...),
				}).Run()
			}
		})
	}
}
