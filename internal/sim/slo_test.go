package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// The three kinds of online client that the slo policy must distinguish by itself. Each
// gets a request every 20 ms, which takes at most 9 ms alone.

// graph is ResNet-50 as a CUDA graph: 1.2 ms of dense work.
func graph(slo time.Duration) sim.ClientConfig {
	return withRequests(slo, sim.Kernels{Count: 160, Time: sim.Around(7300, 0.05)})
}

// eager is the same launched kernel by kernel, mostly before the GPU has switched away.
func eager(slo time.Duration) sim.ClientConfig {
	return withRequests(slo, sim.Kernels{Count: 160, Time: sim.Around(7*us, 0.05), Gap: sim.Dist{Kind: sim.LogNormal, Mean: 51 * us, Jitter: 0.5}})
}

// waiting waits for each kernel before it launches the next.
func waiting(slo, gap time.Duration) sim.ClientConfig {
	return withRequests(slo, sim.Kernels{Count: 20, Time: sim.Around(100*us, 0.05), Gap: sim.Around(gap, 0.1), Wait: true})
}

// noisy adds host delays, which do not depend on the GPU, to a client.
func noisy(c sim.ClientConfig) sim.ClientConfig {
	c.After = sim.Dist{Kind: sim.Exponential, Mean: 700 * us}
	return c
}

func withRequests(slo time.Duration, k sim.Kernels) sim.ClientConfig {
	return sim.ClientConfig{
		Name: "lc", Attr: sched.Attr{Class: sched.Online, SLO: slo},
		Arrival: sim.Arrival{Kind: sim.Periodic, Every: 20 * ms}, Kernels: []sim.Kernels{k},
		Before: sim.Around(20*us, 0.2), After: sim.Around(15*us, 0.3),
	}
}

func training(name string) sim.ClientConfig {
	return sim.ClientConfig{
		Name: name, Attr: sched.Attr{Class: sched.Batch}, Arrival: sim.Arrival{Kind: sim.Closed, Depth: 64},
		Kernels: []sim.Kernels{{Count: 1, Time: sim.Dist{Kind: sim.LogNormal, Mean: 119 * us, Jitter: 0.6}}},
	}
}

func sloWorld(t *testing.T, seed uint64, policy string, clients ...sim.ClientConfig) sim.Config {
	cfg := sim.Config{
		Seed: seed, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Clients: clients, Length: 30 * time.Second,
	}
	if policy != "native" {
		cfg.Policy = choose(t, policy, nil)
	}
	return cfg
}

// TestSLO checks that from the first request on 99 % meet the SLO, and that batch work gets
// at least 0.95 of its rate under the better of the two fixed settings, native slices and
// the minimum slice, that also meet it. Where neither does, slo still must.
func TestSLO(t *testing.T) {
	long(t)
	const bar = 0.99
	tests := []struct {
		name    string
		lc      sim.ClientConfig
		neither bool    // of the two fixed settings meets the SLO
		than    float64 // the rate of batch work is at least so many times that at the minimum slice
	}{
		{name: "graph, tight", lc: graph(1700 * us)},
		{name: "graph", lc: graph(2500 * us)},
		{name: "graph, easy", lc: graph(5 * ms)},
		{name: "eager, tight", lc: eager(9500 * us), than: 1.05},
		{name: "eager", lc: eager(10 * ms), than: 1.2},
		{name: "eager, easy", lc: eager(12 * ms), than: 1.4},
		{name: "eager, noisy", lc: noisy(eager(14 * ms)), than: 1.4},
		{name: "waiting, tight", lc: waiting(10*ms, 300*us), neither: true},
		{name: "waiting, short gaps, tight", lc: waiting(8*ms, 200*us), neither: true},
		{name: "waiting", lc: waiting(13*ms, 300*us)},
		{name: "waiting, short gaps", lc: waiting(13*ms, 200*us), than: 1.15}, // stopping batch work is better for both
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 3; seed++ {
				run := func(policy string) (met, batch float64) {
					r := sim.New(sloWorld(t, seed, policy, test.lc, training("be"))).Run()
					if r.Overruled != sched.NoMistake || len(r.Violations) > 0 {
						t.Errorf("seed %d: %s was overruled (%v), violations %v", seed, policy, r.Overruled, r.Violations)
					}
					return r.Clients[0].SLOMet, r.Clients[1].Rate
				}
				nativeMet, native := run("native")
				minMet, minimum := run("giveway")
				met, batch := run("slo")
				t.Logf("seed %d: SLO met and batch rate: native %.4f %.0f, minimum slice %.4f %.0f, slo %.4f %.0f", seed, nativeMet, native, minMet, minimum, met, batch)
				if met < bar {
					t.Errorf("seed %d: SLO met by %.4f, want 0.99", seed, met)
				}
				if test.neither != (nativeMet < bar && minMet < bar) {
					t.Errorf("seed %d: SLO met by %.4f under native slices and %.4f at the minimum slice, which is not what the test states", seed, nativeMet, minMet)
				}
				if nativeMet >= bar && batch < 0.95*native || minMet >= bar && batch < max(0.95, test.than)*minimum {
					t.Errorf("seed %d: batch rate %.0f/s, native %.0f/s, at the minimum slice %.0f/s", seed, batch, native, minimum)
				}
			}
		})
	}
}

// sliceRecorder records the slices that queues are given, and when.
type sliceRecorder struct {
	slices []sched.Action
	at     []time.Duration
}

func (s *sliceRecorder) Record(at sched.Time, _ []sched.Event, actions []sched.Action) {
	for _, a := range actions {
		if a.Verb == sched.SetSlice {
			s.slices, s.at = append(s.slices, a), append(s.at, time.Duration(at))
		}
	}
}

// changes counts the changes of one queue in a period.
func (s *sliceRecorder) changes(q sched.QueueID, from, to time.Duration) (n int) {
	for i, a := range s.slices {
		if a.Queue == q && s.at[i] >= from && s.at[i] < to {
			n++
		}
	}
	return n
}

// last returns the slice of a queue at a time.
func (s *sliceRecorder) last(q sched.QueueID, at time.Duration) (slice time.Duration) {
	for i, a := range s.slices {
		if a.Queue == q && s.at[i] <= at {
			slice = a.Slice
		}
	}
	return slice
}

// TestSLOConverges checks that slo finds its slice within seconds, and then tries others
// less and less often.
func TestSLOConverges(t *testing.T) {
	long(t)
	for _, test := range []struct {
		name  string
		lc    sim.ClientConfig
		slice time.Duration // after 5 s
	}{
		{"graph, easy", graph(5 * ms), sched.MinSlice}, // batch work would gain nothing
		{"eager, easy", eager(12 * ms), 0},
		{"eager, no room", eager(8900 * us), sched.MinSlice},
		{"waiting", waiting(10*ms, 300*us), sched.MinSlice},
	} {
		var s sliceRecorder
		cfg := sloWorld(t, 1, "slo", test.lc, training("be"))
		cfg.Recorder, cfg.Length = &s, 4*time.Minute
		sim.New(cfg).Run()
		if got := s.last(2, 5*time.Second); got != test.slice {
			t.Errorf("%s: after 5 s the slice is %v, want %v", test.name, got, test.slice)
		}
		first, last := s.changes(2, 0, 4*time.Second), s.changes(2, 2*time.Minute, 4*time.Minute)
		if first > 8 || last > 16 {
			t.Errorf("%s: %d changes in the first 4 s and %d in the last two minutes, want at most 8 and 16", test.name, first, last)
		}
	}
}

// TestSLORestoresSlicesWhenRequestsStop checks that slices are the vendor's again when no
// requests arrive, and that later requests meet the SLO again.
func TestSLORestoresSlicesWhenRequestsStop(t *testing.T) {
	long(t)
	const quiet, again = 5 * time.Second, 12 * time.Second
	lc := graph(1700 * us)
	lc.Arrival = sim.Arrival{Kind: sim.Trace}
	for at := time.Duration(0); at < 30*time.Second; at += 20 * ms {
		if at < quiet || at >= again {
			lc.Arrival.Trace = append(lc.Arrival.Trace, at)
		}
	}
	var s sliceRecorder
	cfg := sloWorld(t, 1, "slo", lc, training("be"))
	cfg.Recorder = &s
	r := sim.New(cfg).Run()
	for q := sched.QueueID(1); q <= 2; q++ {
		if got := s.last(q, quiet); got == 0 {
			t.Errorf("queue %d has the default slice while requests arrive", q)
		}
		if got := s.last(q, quiet+3*time.Second); got != 0 {
			t.Errorf("queue %d has slice %v without requests, want the default", q, got)
		}
		if got := s.last(q, again+10*ms); got == 0 {
			t.Errorf("queue %d has the default slice when requests arrive again", q)
		}
	}
	if met := r.Clients[0].SLOMet; met < 0.99 {
		t.Errorf("SLO met by %.4f, want 0.99", met)
	}
}

// TestSLOWithSeveralClients checks two different services, random arrivals, and several
// batch clients that take turns. Three seeds are counted together: one has too few requests
// of the rare service to tell 0.99 from 0.988.
func TestSLOWithSeveralClients(t *testing.T) {
	long(t)
	other := graph(4 * ms)
	other.Name, other.Arrival = "other", sim.Arrival{Kind: sim.Periodic, Every: 70 * ms, Offset: 3 * ms}
	random := graph(8 * ms)
	random.Arrival = sim.Arrival{Kind: sim.Poisson, Every: 20 * ms}
	for name, clients := range map[string][]sim.ClientConfig{
		"two services":  {eager(13 * ms), other, training("be")},
		"poisson":       {random, training("be")},
		"three batches": {eager(13 * ms), training("be"), training("be2"), training("be3")},
	} {
		met := make([]float64, len(clients))
		for seed := range uint64(3) {
			for i, c := range sim.New(sloWorld(t, seed, "slo", clients...)).Run().Clients {
				met[i] += c.SLOMet / 3
				t.Logf("%s: seed %d: %s met %.4f, %.0f/s", name, seed, c.Name, c.SLOMet, c.Rate)
			}
		}
		for i, c := range clients {
			if c.Attr.Class == sched.Online && met[i] < 0.99 {
				t.Errorf("%s: %s met its SLO by %.4f, want 0.99", name, c.Name, met[i])
			}
		}
	}
}

// TestSLOWithoutRequestsEqualsGiveway checks that slo treats a service without an SLO, whose
// requests are not reported, exactly as giveway does.
func TestSLOWithoutRequestsEqualsGiveway(t *testing.T) {
	long(t)
	lc := eager(0)
	run := func(policy string) string {
		r := sim.New(sloWorld(t, 1, policy, lc, training("be"))).Run()
		return fmt.Sprint(r.Clients[0].Latency, r.Clients[1].Rate)
	}
	if slo, giveway := run("slo"), run("giveway"); slo != giveway {
		t.Errorf("slo gives %s and giveway %s, want the same", slo, giveway)
	}
}

// long skips a test of minutes of virtual time in short mode. It has no goroutines for the
// race detector to check.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("minutes of virtual time")
	}
}

// TestSLOWithNewcomers checks that requests which meet newcomers in a trial say nothing about the
// setting, and that a batch job whose visits are cut short by stops does not count as light. On an
// H200 batch work was stopped for each request of 0.2 ms afterwards, for a quarter of a minute.
func TestSLOWithNewcomers(t *testing.T) {
	for start := time.Duration(0); start < 300*ms; start += 10 * ms {
		for _, n := range []int{2, 3} {
			lc := withRequests(2*ms, sim.Kernels{Count: 1, Time: sim.Around(28*us, 0.03)})
			lc.Arrival, lc.Start = sim.Arrival{Kind: sim.Closed, Every: 5 * ms}, 100*ms+start
			clients := []sim.ClientConfig{lc}
			for i := range n {
				job := saturating(i, kernel212, 0)
				job.Start = 100 * ms
				clients = append(clients, job)
			}
			cfg := sloWorld(t, 1, "slo", clients...)
			cfg.Length, cfg.Devices[0].Model.Gated = 10*time.Second, true
			r := sim.New(cfg).Run()
			name := fmt.Sprintf("%d jobs, requests from %v on", n, start)
			var sum, least float64
			for _, c := range r.Clients[1:] {
				sum += c.Rate
				if least == 0 || c.Rate < least {
					least = c.Rate
				}
			}
			if met := r.Clients[0].SLOMet; met < 0.99 {
				t.Errorf("%s: %.4f of the requests are in time, want 0.99", name, met)
			}
			if alone := 1 / kernel212.Seconds(); sum < 0.9*alone {
				t.Errorf("%s: the jobs do %.0f/s, want 0.9 of %.0f/s", name, sum, alone)
			}
			if least < 0.95*sum/float64(n) {
				t.Errorf("%s: one of the jobs does %.0f/s of %.0f/s, want its share", name, least, sum)
			}
		}
	}
}

// TestSLOSharesTheDeviceWithALoop checks that training beside requests that follow each other without a
// pause gets what it gets natively where the SLO permits it, and that a tight SLO is met all the same.
func TestSLOSharesTheDeviceWithALoop(t *testing.T) {
	long(t)
	for _, c := range []struct {
		slo   time.Duration
		least float64 // of the native rate of training
	}{{15 * ms, 0.95}, {6500 * us, 0.5}} { // alone a request takes 4.6 ms
		decode := withRequests(c.slo, sim.Kernels{Count: 60, Time: sim.Around(60*us, 0.1), Gap: sim.Around(8*us, 0)})
		decode.Arrival = sim.Arrival{Kind: sim.Closed, Every: 100 * us}
		decode.Before = sim.Around(400*us, 0.1)
		run := func(policy string) (met, batch float64) {
			cfg := sloWorld(t, 1, policy, decode, training("be"))
			cfg.Warmup = 5 * time.Second
			r := sim.New(cfg).Run()
			return r.Clients[0].SLOMet, r.Clients[1].Rate
		}
		_, native := run("native")
		met, batch := run("slo")
		t.Logf("SLO %v: met by %.4f, batch rate %.3f of native", c.slo, met, batch/native)
		if met < 0.99 || batch < c.least*native {
			t.Errorf("SLO %v: met by %.4f with %.3f of the native batch rate, want 0.99 and %.2f", c.slo, met, batch/native, c.least)
		}
	}
}
