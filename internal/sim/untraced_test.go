package sim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestLightJobsWithoutTrace checks that on devices without a context-switch trace light jobs get what
// they get natively, with and without the shim. Beside online work, with the shim, they get most of
// that, and the P99 is about the native one or much less.
func TestLightJobsWithoutTrace(t *testing.T) {
	long(t)
	untraced := model(t, "nvidia-h200")
	untraced.TraceInterval = 0
	for _, d := range []struct {
		name  string
		model sim.Model
		batch float64 // of native's, at least, beside online work
		p99   float64 // of native's, at most
	}{
		{"amd-hws", model(t, "amd-hws"), 0.85, 0.6},
		{"amd-mes", model(t, "amd-mes"), 0.93, 0.45},
		{"level1-npu", model(t, "level1-npu"), 0.95, 0.2},
		{"level2-hardware", model(t, "level2-hardware"), 0.95, 0.2},
		{"nvidia-h200 without a trace", untraced, 0.97, 1.07},
	} {
		for _, c := range []struct {
			name    string
			shim    bool
			batch   []sim.ClientConfig
			arrival sim.Arrival
		}{
			{"four light", true, lights(4), sim.Arrival{}},
			{"four light without the shim", false, lights(4), sim.Arrival{}},
			{"one heavy, two light", true, with(training("heavy"), lights(2)...), sim.Arrival{}},
			{"one heavy, two light without the shim", false, with(training("heavy"), lights(2)...), sim.Arrival{}},
			{"four light, random", true, lights(4), random},
			{"one heavy, two light, random", true, with(training("heavy"), lights(2)...), random},
		} {
			m := mixture{c.batch, c.arrival}
			d.model.Gated = c.shim
			native, got := m.runOn(t, d.model, 1, "native"), m.runOn(t, d.model, 1, "giveway")
			least, calls := 0.97, uint64(100)
			if c.arrival.Every > 0 {
				least, calls = d.batch, 50_000
			}
			t.Logf("%s, %s: sum and P99: native %.2f %v, giveway %.2f %v with %d calls", d.name, c.name, native.sum, native.p99, got.sum, got.p99, got.calls)
			if got.sum < least*native.sum || got.calls > calls {
				t.Errorf("%s, %s: batch sum %.2f with %d calls, want %.2f of the native %.2f with at most %d", d.name, c.name, got.sum, got.calls, least, native.sum, calls)
			}
			if float64(got.p99) > d.p99*float64(native.p99) {
				t.Errorf("%s, %s: P99 %v, want at most %.2f of the native %v", d.name, c.name, got.p99, d.p99, native.p99)
			}
		}
	}
}

// TestHeavyJobsBesideLightOnes checks that on devices without a trace jobs that fill the device get a
// fair part beside those that run out of work often: by weight if weights differ, and at least about
// half of it if the other job does fill the device and only waits now and then. Where the device runs
// several commands at a time, a job that needs less than its share costs the others nothing.
func TestHeavyJobsBesideLightOnes(t *testing.T) {
	long(t)
	for _, device := range []string{"amd-hws", "amd-mes", "level1-npu", "level2-hardware"} {
		for _, c := range []struct {
			name       string
			other      sim.ClientConfig
			weight     uint32 // of the other
			heavy      int    // jobs, of weight 2 if weights differ
			leastHeavy float64
			leastOther float64
		}{
			{"weights 4 and 2", resting(350*us, 4*ms), 4, 1, 0.28, 0.4},
			{"weights 1 and 2", resting(350*us, 4*ms), 1, 1, 0.55, 0.2},
			{"weights 1 and 2, it fills the device", resting(20*ms, 50*us), 1, 1, 0.55, 0.25},
			{"weights 1 and 2, the heavy one waits after each step", resting(20*ms, 50*us), 1, 0, 0.52, 0.25},
			{"equal weights", resting(20*ms, 50*us), 0, 4, 0.1, 0.18},
		} {
			clients := with(c.other, heavies(c.heavy)...)
			if c.heavy == 0 {
				clients = append(clients, resting(120*ms, 100*us))
				clients[1].Kernels[0] = sim.Kernels{Count: 120, Time: sim.Around(ms, 0.05)}
			}
			clients[0].Attr.Weight = c.weight
			for i := 1; i < len(clients) && c.weight > 0; i++ {
				clients[i].Attr.Weight = 2
			}
			m, serial := model(t, device), strings.HasPrefix(device, "level")
			m.Gated = true
			cfg := sloWorld(t, 1, "giveway", clients...)
			cfg.Devices[0].Model, cfg.Warmup, cfg.Length = m, time.Second, 20*time.Second
			r := sim.New(cfg).Run()
			part := func(i int) float64 {
				k := clients[i].Kernels[0]
				return r.Clients[i].Rate * (time.Duration(k.Count)*k.Time.Mean + clients[i].Before.Mean).Seconds()
			}
			least := part(1)
			for i := 2; i < len(clients); i++ {
				least = min(least, part(i))
			}
			t.Logf("%s, %s: the other job does %.3f of its work, the heavy ones at least %.3f", device, c.name, part(0), least)
			if !serial && c.weight > 0 && c.other.Before.Mean > c.other.Kernels[0].Time.Mean { // it needs less than its share
				c.leastHeavy, c.leastOther = 0.9, 0.9
			}
			if least < c.leastHeavy || part(0) < c.leastOther {
				t.Errorf("%s, %s: the other job does %.3f of its work and the heavy ones at least %.3f, want %.2f and %.2f", device, c.name, part(0), least, c.leastOther, c.leastHeavy)
			}
		}
	}
}

// resting is a batch client that computes for some time and then rests.
func resting(work, rest time.Duration) sim.ClientConfig {
	return sim.ClientConfig{
		Name: "other", Attr: sched.Attr{Class: sched.Batch}, Arrival: sim.Arrival{Kind: sim.Closed},
		Kernels: []sim.Kernels{{Count: 1, Time: sim.Around(work, 0.05)}}, Before: sim.Around(rest, 0.2),
	}
}

// TestLongCommandsOnASerialDevice checks that a job with long commands has no more than its share of a
// device that runs one command at a time, and delays only some of the requests, although the jobs beside
// it run out of work often.
func TestLongCommandsOnASerialDevice(t *testing.T) {
	long(t)
	for _, device := range []string{"level1-npu", "level2-hardware"} {
		for _, beside := range []bool{false, true} {
			clients := []sim.ClientConfig{resting(100*ms, 10*us), resting(2400*us, 10*us)}
			if beside {
				clients = append(clients, graph(0))
			}
			cfg := sloWorld(t, 1, "giveway", clients...)
			cfg.Devices[0].Model, cfg.Warmup, cfg.Length = model(t, device), 5*time.Second, 20*time.Second
			cfg.Devices[0].Model.Gated = true
			r := sim.New(cfg).Run()
			long, short := r.Clients[0].Rate*0.1, r.Clients[1].Rate*0.0024
			t.Logf("%s, beside requests %v: shares %.3f and %.3f", device, beside, long, short)
			if long > 0.6 || short < 0.4 {
				t.Errorf("%s, beside requests %v: the job with long commands has %.3f, the other %.3f; want about half each", device, beside, long, short)
			}
			if p50 := r.Clients[len(clients)-1].Latency.P50; beside && p50 > 5*ms {
				t.Errorf("%s: P50 %v, want at most 5 ms", device, p50)
			}
		}
	}
}
