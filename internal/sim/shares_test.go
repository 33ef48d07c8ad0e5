package sim_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// sharingPolicies are the policies that divide a device among saturating batch queues, with
// the attributes of four queues and the shares that they should get.
var sharingPolicies = []struct {
	name   string
	weight [4]uint32
	share  [4]uint8
	want   [4]float64
}{
	{"rr", [4]uint32{}, [4]uint8{}, [4]float64{0.25, 0.25, 0.25, 0.25}},
	{"wfq", [4]uint32{1, 2, 4, 8}, [4]uint8{}, [4]float64{1. / 15, 2. / 15, 4. / 15, 8. / 15}},
	{"cfs", [4]uint32{1, 2, 4, 8}, [4]uint8{}, [4]float64{1. / 15, 2. / 15, 4. / 15, 8. / 15}},
	{"giveway", [4]uint32{1, 2, 4, 8}, [4]uint8{}, [4]float64{1. / 15, 2. / 15, 4. / 15, 8. / 15}},
	{"slo", [4]uint32{1, 2, 4, 8}, [4]uint8{}, [4]float64{1. / 15, 2. / 15, 4. / 15, 8. / 15}},
	{"share", [4]uint32{}, [4]uint8{7, 13, 27, 53}, [4]float64{0.07, 0.13, 0.27, 0.53}},
	{"share-process", [4]uint32{}, [4]uint8{7, 13, 27, 53}, [4]float64{0.07, 0.13, 0.27, 0.53}},
}

// TestShares: with kernels that are longer than turns, and at every level of stopping, each
// queue gets the share of the device that its attributes ask for.
func TestShares(t *testing.T) {
	for _, p := range sharingPolicies {
		for _, device := range []string{"level1-npu", "level2-guardian", "level2-hardware", "level2-flush", "amd-hws", "amd-mes"} {
			for _, kernel := range []time.Duration{ms, 20 * ms, 100 * ms} {
				t.Run(fmt.Sprint(p.name, "/", device, "/", kernel), func(t *testing.T) {
					t.Parallel()
					cfg := sim.Config{
						Seed: 1, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, device)}},
						Policy: choose(t, p.name, nil), Length: max(20*time.Second, 2000*kernel),
					}
					for i := range p.want {
						cfg.Clients = append(cfg.Clients, sim.ClientConfig{
							Name: fmt.Sprint(i), Attr: sched.Attr{Class: sched.Batch, Weight: p.weight[i], Share: p.share[i]},
							Arrival: sim.Arrival{Kind: sim.Closed, Depth: 64}, Kernels: []sim.Kernels{{Count: 1, Time: sim.Around(kernel, 0.02)}},
						})
					}
					checkShares(t, sim.New(cfg).Run(), p.want[:])
				})
			}
		}
	}
}

// checkShares checks that the device time of each client is within 10 % of its share.
func checkShares(t *testing.T, r sim.Result, want []float64) {
	t.Helper()
	total := time.Duration(0)
	for _, c := range r.Clients {
		total += c.DeviceTime
	}
	got, bad := make([]float64, len(want)), false
	for i, c := range r.Clients {
		got[i] = float64(c.DeviceTime) / float64(total)
		bad = bad || math.Abs(got[i]-want[i]) > 0.1*want[i]
	}
	if busy := float64(total) / float64(r.Simulated); bad || busy < 0.9 || len(r.Violations) > 0 {
		t.Errorf("shares %.3f, want %.3f; device busy %.3f, want 0.9; %v", got, want, busy, r.Violations)
	}
}
