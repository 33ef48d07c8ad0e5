package sim_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// one runs clients on one device of a model and returns the result.
func one(t *testing.T, m sim.Model, choice sched.PolicyChoice, clients ...sim.ClientConfig) sim.Result {
	t.Helper()
	r := sim.New(sim.Config{
		Seed: 3, Devices: []sim.DeviceConfig{{ID: "d0", Model: m}}, Policy: choice, Clients: clients,
		Warmup: 500 * ms, Length: 10 * time.Second,
	}).Run()
	for _, v := range r.Violations {
		t.Error(v)
	}
	return r
}

func open(every time.Duration, kernels ...sim.Kernels) sim.ClientConfig {
	return sim.ClientConfig{
		Name: "lc", Attr: sched.Attr{Class: sched.Online, Priority: 1},
		Arrival: sim.Arrival{Kind: sim.Poisson, Every: every}, Kernels: kernels,
	}
}

func flatOut(i int, kernel time.Duration, depth int) sim.ClientConfig {
	c := saturating(i, kernel, 0)
	c.Arrival.Depth = depth
	return c
}

// TestResNet compares the model with PyTorch on the H200: ResNet-50 every 20 ms beside a
// training job, as a CUDA graph and launched kernel by kernel. Only the division of the host
// time into launches and the rest was fitted, to section 8.
func TestResNet(t *testing.T) {
	m := model(t, "nvidia-h200")
	graph := graphEvery20(1190*us, 0)
	eager := open(0, eagerKernels(5300*us)...)
	eager.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 20 * ms}
	eager.Before, eager.After, eager.Jitter = sim.Always(1900*us), sim.Always(15*us), exponential(1100*us)
	train := flatOut(0, 100*us, 256)
	alone := one(t, m, sched.PolicyChoice{}, train).Clients[0].Rate
	for _, tt := range []struct {
		name     string
		lc       sim.ClientConfig
		choice   sched.PolicyChoice
		p50, p99 float64 // measured, ms
		kept     float64 // measured fraction of BE's rate alone
	}{
		{"graph native", graph, sched.PolicyChoice{}, 2.11, 3.07, 17.96 / 19.0},
		{"graph giveway", graph, choose(t, "giveway", nil), 1.18, 1.23, 17.91 / 19.0},
		{"eager native", eager, sched.PolicyChoice{}, 8.86, 12.10, 17.45 / 19.0},
		{"eager giveway", eager, choose(t, "giveway", nil), 8.21, 12.73, 13.54 / 19.0},
	} {
		r := one(t, m, tt.choice, tt.lc, train)
		got, kept := r.Clients[0].Latency, r.Clients[1].Rate/alone
		t.Logf("%-14s P50 measured %.2f model %.2f, P99 %.2f / %.2f ms, BE kept %.2f / %.2f", tt.name,
			tt.p50, got.P50.Seconds()*1e3, tt.p99, got.P99.Seconds()*1e3, tt.kept, kept)
		near(t, tt.name+" P50", got.P50.Seconds()*1e3, tt.p50, 0.2)
		near(t, tt.name+" P99", got.P99.Seconds()*1e3, tt.p99, 0.2)
		near(t, tt.name+" BE", kept, tt.kept, 0.1)
	}
}

// TestLevelsDifferAsPublished checks how long urgent work waits behind commands of length
// T: about the bound times T at level 1, T at level 2, independent of T at level 3.
func TestLevelsDifferAsPublished(t *testing.T) {
	p99 := func(name string, T time.Duration) float64 {
		m := model(t, name)
		m.Gated = true
		m.Bound, m.Grain = 8, 0
		lc := open(20*ms, sim.Kernels{Count: 1, Time: sim.Always(50 * us)})
		r := one(t, m, choose(t, "hpf", nil), lc, flatOut(0, T, 64))
		return r.Clients[0].Latency.P99.Seconds() / T.Seconds()
	}
	const T = 500 * us
	one, guard, hard, flush, three := p99("level1-npu", T), p99("level2-guardian", T), p99("level2-hardware", T),
		p99("level2-flush", T), p99("amd-mes", 40*T)
	t.Logf("P99 in units of T: level 1 %.1f, level 2 %.2f %.2f %.2f, level 3 with T forty times as long %.3f",
		one, guard, hard, flush, three)
	if one < 6 || one > 10 {
		t.Errorf("level 1 with a bound of 8 waits %.1f T, want about 8", one)
	}
	for _, l2 := range []float64{guard, hard, flush} {
		if l2 < 0.8 || l2 > 2.2 {
			t.Errorf("level 2 waits %.2f T, want about 1", l2)
		}
	}
	if three > 0.1 {
		t.Errorf("level 3 waits %.3f of a command of 20 ms, want at most 0.1", three)
	}
}

// TestRunlistUpdateStallsAllQueues checks that on AMD's hardware scheduler stopping one
// queue stalls the others for a save and a restore, and that under MES it does not.
func TestRunlistUpdateStallsAllQueues(t *testing.T) {
	// Two batch jobs that a rotation switches every 2 ms, and a standard job that is not
	// part of it.
	lost := func(name string) float64 {
		other := flatOut(9, 100*us, 8)
		other.Name, other.Attr.Class = "other", sched.Standard
		clients := []sim.ClientConfig{other, flatOut(0, 100*us, 8), flatOut(1, 100*us, 8)}
		m := model(t, name)
		rare := one(t, m, choose(t, "giveway", map[string]string{"turn": "10s"}), clients...).Clients[0].Rate
		often := one(t, m, choose(t, "giveway", map[string]string{"turn": "2ms"}), clients...).Clients[0].Rate
		return 1 - often/rare
	}
	hws, mes := lost("amd-hws"), lost("amd-mes")
	t.Logf("the standard job loses %.1f %% under HWS, %.1f %% under MES", 100*hws, 100*mes)
	if hws < 0.05 || mes > 0.05 {
		t.Errorf("the standard job loses %.3f under HWS and %.3f under MES, want at least 0.05 and at most 0.05", hws, mes)
	}
}

// TestMoreQueuesThanSlots checks that one queue more than there are slots costs 2 to 20 %
// of the total rate, because the set of queues then changes every quantum.
func TestMoreQueuesThanSlots(t *testing.T) {
	sum := func(n int) float64 {
		var clients []sim.ClientConfig
		for i := range n {
			clients = append(clients, flatOut(i, 100*us, 4))
		}
		total := 0.0
		for _, c := range one(t, model(t, "amd-hws"), sched.PolicyChoice{}, clients...).Clients {
			total += c.Rate
		}
		return total
	}
	fits, over := sum(24), sum(25)
	t.Logf("24 queues in 24 slots: %.0f commands/s; 25: %.0f", fits, over)
	if over > 0.98*fits || over < 0.8*fits {
		t.Errorf("25 queues complete %.0f commands/s, want 0.8 to 0.98 of the %.0f/s of 24 queues", over, fits)
	}
}

// TestContextCosts adds the techniques of the research proposals one by one: 10 ms for a
// full save, then 2, 1, 0.5 and 0.04 ms.
func TestContextCosts(t *testing.T) {
	c := sim.Context{Bytes: 10e9, Bandwidth: 1e12}
	for _, step := range []struct {
		name string
		add  func()
		want time.Duration
	}{
		{"full", func() {}, 10 * ms},
		{"selective", func() { c.Selective = 0.2 }, 2 * ms},
		{"asynchronous", func() { c.Async = 0.5 }, ms},
		{"compressed", func() { c.Compress = 0.5 }, 500 * us},
		{"lazy", func() { c.Lazy = 0.08 }, 40 * us},
	} {
		step.add()
		got := c.Restore()
		if math.Abs(float64(got-step.want)) > 1000 {
			t.Errorf("%s: restore takes %v, want %v", step.name, got, step.want)
		}
		if step.name != "lazy" && got != c.Save() {
			t.Errorf("%s: save takes %v and restore %v, want the same", step.name, c.Save(), got)
		}
	}
}

// TestLargerContextSlowsOnlineRequests checks that P50 grows with the size of the context.
func TestLargerContextSlowsOnlineRequests(t *testing.T) {
	var last time.Duration
	for _, bytes := range []float64{1e6, 1e9, 5e9} {
		m := model(t, "amd-mes")
		m.Slots.Slots = 1
		m.Slots.Context = sim.Context{Bytes: bytes, Bandwidth: 1e12}
		lc := open(20*ms, sim.Kernels{Count: 1, Time: sim.Always(100 * us)})
		got := one(t, m, choose(t, "giveway", nil), lc, flatOut(0, 10*ms, 8)).Clients[0].Latency.P50
		t.Logf("%4.0f MB: P50 %v", bytes/1e6, got)
		if got <= last {
			t.Errorf("P50 %v with %.0f MB, want more than the %v with fewer", got, bytes/1e6, last)
		}
		last = got
	}
}

// TestHintClearsTheDevice checks, on devices without slices, that an announced request
// finds the device free and an unannounced one waits.
func TestHintClearsTheDevice(t *testing.T) {
	for _, name := range []string{"amd-mes", "level1-npu", "level2-hardware"} {
		p50 := func(announce time.Duration) time.Duration {
			lc := open(0, sim.Kernels{Count: 1, Time: sim.Always(100 * us)})
			lc.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 20 * ms}
			lc.Announce = announce
			return one(t, model(t, name), choose(t, "giveway", map[string]string{"lead": "5ms"}), lc, flatOut(0, time.Millisecond, 4)).Clients[0].Latency.P50
		}
		without, with := p50(0), p50(8*ms)
		t.Logf("%s: P50 %v without a hint, %v with", name, without, with)
		if with > 110*us || without < with+50*us {
			t.Errorf("%s: P50 %v without a hint and %v with, want at most 110us with and 50us more without", name, without, with)
		}
	}
}

// TestArrivals checks the number of requests of each kind of arrival.
func TestArrivals(t *testing.T) {
	trace := []time.Duration{600 * ms, 601 * ms, 5 * time.Second}
	for _, tt := range []struct {
		name string
		a    sim.Arrival
		want float64 // in 10 s
		slop float64
	}{
		{"periodic", sim.Arrival{Kind: sim.Periodic, Every: 10 * ms}, 1000, 1},
		{"poisson", sim.Arrival{Kind: sim.Poisson, Every: 10 * ms}, 1000, 120},
		{"trace", sim.Arrival{Kind: sim.Trace, Trace: trace}, 3, 0},
		{"closed", sim.Arrival{Kind: sim.Closed, Every: 9 * ms}, 1000, 2},
	} {
		c := open(0, sim.Kernels{Count: 1, Time: sim.Always(ms)})
		c.Arrival = tt.a
		got := one(t, model(t, "nvidia-h200"), sched.PolicyChoice{}, c).Clients[0]
		if math.Abs(float64(got.Requests)-tt.want) > tt.slop {
			t.Errorf("%s: %d requests, want %.0f", tt.name, got.Requests, tt.want)
		}
	}
}

// TestUnfinishedRequestsCount checks that requests that never finish are in the latencies.
func TestUnfinishedRequestsCount(t *testing.T) {
	c := open(0, sim.Kernels{Count: 1, Time: sim.Always(30 * ms)})
	c.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 20 * ms} // more than it can serve
	got := one(t, model(t, "nvidia-h200"), sched.PolicyChoice{}, c).Clients[0]
	if got.Unfinished < 100 || got.Latency.Max < 3*time.Second {
		t.Errorf("%d unfinished, longest latency %v, want at least 100 and 3s: %s", got.Unfinished, got.Latency.Max, fmt.Sprint(got.Latency))
	}
}

// TestDists checks that each distribution has its stated mean.
func TestDists(t *testing.T) {
	for _, d := range []sim.Dist{
		sim.Always(ms), sim.Between(0, 2*ms), sim.Around(ms, 0.2),
		{Kind: sim.LogNormal, Mean: ms, Jitter: 0.5},
		{Kind: sim.Exponential, Mean: ms},
	} {
		c := open(0, sim.Kernels{Count: 1, Time: d})
		c.Arrival = sim.Arrival{Kind: sim.Closed}
		got := one(t, model(t, "nvidia-h200"), sched.PolicyChoice{}, c).Clients[0]
		near(t, fmt.Sprint("rate with ", d), got.Rate, 1000, 0.03)
	}
}

// TestPoliciesSeeTheSameArrivals checks that the policy does not change when requests
// arrive.
func TestPoliciesSeeTheSameArrivals(t *testing.T) {
	count := func(choice sched.PolicyChoice) int {
		lc := open(10*ms, sim.Kernels{Count: 3, Time: sim.Around(200*us, 0.5)})
		r := one(t, model(t, "nvidia-h200"), choice, lc, flatOut(0, 300*us, 16), flatOut(1, 300*us, 16)).Clients[0]
		return r.Latency.Count
	}
	native, giveway := count(sched.PolicyChoice{}), count(choose(t, "giveway", nil))
	if native != giveway {
		t.Errorf("%d requests arrived under native sharing and %d under giveway, want the same", native, giveway)
	}
}

// TestSegmentsCoverTheDevice checks that the Segments of a busy device do not overlap and
// leave hardly any gap.
func TestSegmentsCoverTheDevice(t *testing.T) {
	for _, name := range []string{"nvidia-h200", "level1-npu"} {
		r := sim.New(sim.Config{
			Devices: []sim.DeviceConfig{{ID: "d0", Model: model(t, name)}}, Policy: choose(t, "rr", nil),
			Clients: []sim.ClientConfig{flatOut(0, 300*us, 16), flatOut(1, 500*us, 16)}, Length: time.Second, Segments: 1 << 20,
		}).Run()
		var end sched.Time
		gaps := time.Duration(0)
		for _, s := range r.Segments {
			if s.From < end {
				t.Fatalf("%s: a segment begins at %d, before the end of the last at %d", name, s.From, end)
			}
			gaps += s.From.Sub(end)
			end = s.To
		}
		if gaps += sched.Time(time.Second).Sub(end); gaps > 100*ms { // rotation sometimes leaves the device idle
			t.Errorf("%s: %v of a busy second are in no segment, want at most 100ms", name, gaps)
		}
	}
}

// TestBatchGetsFloorBesideSaturatingWork checks that a batch job gets its floor of 2 %
// beside saturating work of class online, or of class standard, which is never stopped.
func TestBatchGetsFloorBesideSaturatingWork(t *testing.T) {
	for _, name := range []string{"nvidia-h200", "amd-hws", "amd-mes", "level1-npu", "level2-hardware"} {
		for _, class := range []sched.Class{sched.Online, sched.Standard} {
			hog := flatOut(0, 300*us, 16)
			hog.Name, hog.Attr.Class = "hog", class
			online := open(time.Second, sim.Kernels{Count: 1, Time: sim.Always(50 * us)}) // so that batch gives way
			r := sim.New(sim.Config{
				Devices: []sim.DeviceConfig{{ID: "d0", Model: model(t, name)}}, Policy: choose(t, "giveway", nil),
				Clients: []sim.ClientConfig{hog, online, flatOut(1, 300*us, 16)}, Length: 60 * time.Second,
			}).Run()
			got := r.Clients[2].DeviceTime.Seconds() / 60
			t.Logf("%-16s batch gets %.1f %% beside a saturating %v job", name, 100*got, class)
			if got < 0.02 {
				t.Errorf("%s: batch gets %.3f of the device beside a saturating %v job, want at least 0.02", name, got, class)
			}
		}
	}
}

// TestIdleClass checks idle work beside a standard process without the shim: it gets the
// device while that process is idle, and costs that process at most 5 % otherwise.
func TestIdleClass(t *testing.T) {
	m := model(t, "nvidia-h200")
	spare := flatOut(1, 300*us, 16)
	spare.Attr.Class = sched.Idle
	notebook := open(5*time.Second, sim.Kernels{Count: 1, Time: sim.Always(50 * us)})
	notebook.Attr = sched.Attr{}
	hog := flatOut(0, 300*us, 16)
	hog.Name, hog.Attr = "hog", sched.Attr{}
	alone := one(t, m, sched.PolicyChoice{}, spare).Clients[0].Rate
	beside := one(t, m, choose(t, "giveway", nil), notebook, spare).Clients[1].Rate / alone
	busy := one(t, m, choose(t, "giveway", nil), hog, spare).Clients[0].Rate / alone
	t.Logf("idle work gets %.2f of its rate alone beside an idle process; a busy process keeps %.2f", beside, busy)
	if beside < 0.95 || busy < 0.95 {
		t.Errorf("idle work gets %.2f of its rate alone beside an idle process, and a busy process keeps %.2f: want 0.95 of both", beside, busy)
	}
}
