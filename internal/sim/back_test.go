package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// stepping is a batch client with the shim that computes for some time and then rests.
func stepping(i int, computes, rests time.Duration) sim.ClientConfig {
	return sim.ClientConfig{
		Name: fmt.Sprint("steps", i), Attr: sched.Attr{Class: sched.Batch}, Shim: true, Before: sim.Around(rests, 0.2),
		Arrival: sim.Arrival{Kind: sim.Closed}, Kernels: []sim.Kernels{{Count: int(computes / (200 * us)), Time: sim.Around(200*us, 0.05)}},
	}
}

// longestWait returns for how long a queue that had work made no progress at most, after the warm-up.
func longestWait(cfg *sim.Config) (longest time.Duration) {
	last, since := map[int]uint64{}, map[int]sched.Time{}
	cfg.SampleInterval = 10 * ms
	cfg.Sample = func(now sched.Time, queues []sim.QueueSample) {
		for _, q := range queues {
			if !q.Ready() || q.Completed != last[q.Client] || now < sched.Time(cfg.Warmup) {
				last[q.Client], since[q.Client] = q.Completed, now
			}
			longest = max(longest, now.Sub(since[q.Client]))
		}
	}
	sim.New(*cfg).Run()
	return longest
}

// TestJobsThatComeBackByTurns checks that two jobs of which one comes back from its rest while the other
// has its turn do not keep a third one waiting, whatever the weights are.
func TestJobsThatComeBackByTurns(t *testing.T) {
	for _, device := range []string{"nvidia-h200", "amd-hws", "level1-npu"} {
		for _, weight := range []uint32{1, 100} {
			for _, rests := range []time.Duration{6 * ms, 7 * ms} {
				for _, computes := range []time.Duration{9 * ms, 30 * ms} {
					heavy := training("heavy")
					heavy.Shim, heavy.Attr.Weight = true, weight
					clients := []sim.ClientConfig{heavy}
					for i := range 2 {
						job := stepping(i, computes, rests)
						job.Before, job.Kernels[0].Time, job.Attr.Weight = sim.Always(rests), sim.Always(200*us), weight
						clients = append(clients, job)
					}
					cfg := sloWorld(t, 1, "giveway", clients...)
					cfg.Devices[0].Model = model(t, device)
					cfg.Warmup, cfg.Length = 2*time.Second, 20*time.Second
					if got := longestWait(&cfg); got > 500*ms {
						t.Errorf("%s, weight %d, %v of work and %v of rest: a job waits for %v, want 500ms at most", device, weight, computes, rests, got)
					}
				}
			}
		}
	}
}

// TestJobsWithShortRests checks that a job that rests for less than 5 ms between its steps has a fair part
// of the device beside a job that fills it, and that the two together lose little.
func TestJobsWithShortRests(t *testing.T) {
	for _, computes := range []time.Duration{4 * ms, 8 * ms, 16 * ms} {
		for _, rests := range []time.Duration{100 * us, ms, 2 * ms, 4 * ms} {
			rates := func(policy string) (heavy, steps float64) {
				cfg := sloWorld(t, 1, policy, training("heavy"), stepping(0, computes, rests))
				cfg.Warmup, cfg.Length = 2*time.Second, 20*time.Second
				r := sim.New(cfg).Run()
				return r.Clients[0].Rate / 8403, r.Clients[1].Rate * (computes + rests).Seconds()
			}
			heavyNative, stepsNative := rates("native")
			heavy, steps := rates("giveway")
			sum := (heavy + steps) / (heavyNative + stepsNative)
			t.Logf("%v, then %v of rest: %.3f of native, the other job %.3f, both %.3f", computes, rests, steps/stepsNative, heavy/heavyNative, sum)
			if steps < 0.55*stepsNative || heavy < 0.9*heavyNative || sum < 0.92 {
				t.Errorf("%v, then %v of rest: %.3f of native, the other job %.3f, both %.3f; want 0.55, 0.9 and 0.92", computes, rests, steps/stepsNative, heavy/heavyNative, sum)
			}
		}
	}
}

// TestRestsBesideLightJobs checks that a job which fills the GPU and rests for moments, beside light jobs,
// does not make the slices of all of them change with each rest.
func TestRestsBesideLightJobs(t *testing.T) {
	for _, computes := range []time.Duration{5 * ms, 20 * ms} {
		for _, rests := range []time.Duration{500 * us, 2 * ms} {
			m := mixture{append(lights(2), stepping(0, computes, rests)), random}
			native, got := m.run(t, 1, "native"), m.run(t, 1, "giveway")
			t.Logf("%v, then %v of rest: %d calls, P99 %.2f of native", computes, rests, got.calls, float64(got.p99)/float64(native.p99))
			if got.calls > 1000 || got.p99 > native.p99 {
				t.Errorf("%v, then %v of rest: %d calls and a P99 of %v in 31 s, want at most 1000 and the native %v", computes, rests, got.calls, got.p99, native.p99)
			}
		}
	}
}

// TestLightJobsBesideALoop checks that there are no bursts while light jobs run side by side beside an
// online process that waits for each of its kernels: they keep nearly all of their work.
func TestLightJobsBesideALoop(t *testing.T) {
	for n := 2; n <= 4; n++ {
		clients := with(syncLoop(100*us, 60*us), lights(n)...)
		native, _ := runLoop(t, "native", clients...)
		got, _ := runLoop(t, "giveway", clients...)
		sum, nativeSum := 0.0, 0.0
		for i := range got.Clients[1:] {
			sum, nativeSum = sum+got.Clients[i+1].Rate, nativeSum+native.Clients[i+1].Rate
		}
		p99, nativeP99 := got.Clients[0].Latency.P99, native.Clients[0].Latency.P99
		t.Logf("%d light jobs: %.3f of native, P99 %v, native %v", n, sum/nativeSum, p99, nativeP99)
		if sum < 0.95*nativeSum || p99 > nativeP99*105/100 {
			t.Errorf("%d light jobs: %.3f of native, P99 %v; want 0.95 and about the native %v", n, sum/nativeSum, p99, nativeP99)
		}
	}
}
