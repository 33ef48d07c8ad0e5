package sim_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

var (
	seeds = flag.Int("seeds", 300, "number of seeds that TestSeeds runs")
	seed  = flag.Uint64("seed", 0, "run only this seed")
)

// TestSeeds runs many small random Worlds with faults: calls fail, come late, or fail and
// take effect, or report success and have no effect; wake-ups are lost; the daemon stands still; processes are killed; the daemon crashes and restarts.
// In each of them every command of a living process runs exactly once and in order, no
// stopped queue makes progress, two running groups never both have slices too short unless the
// driver claims to have stopped one, every command completes, and at the end every change is undone. Each seed also runs a calm
// World, in which what each queue must get is known: see fairness_test.go.
func TestSeeds(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 100)
	}
	first, last := uint64(1), uint64(n)
	if *seed > 0 {
		first, last = *seed, *seed
	}
	var next, events, crashes, inversions atomic.Uint64
	next.Store(first)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for s := next.Add(1) - 1; s <= last && !t.Failed(); s = next.Add(1) - 1 {
				cfg := randomConfig(t, s)
				r := sim.New(cfg).Run()
				events.Add(r.Events)
				crashes.Add(uint64(r.Crashes))
				inversions.Add(uint64(r.Inversions.Count))
				calm := calmConfig(t, s)
				r2, broken := checkCalm(calm)
				events.Add(r2.Events)
				report(t, s, "with faults", &cfg, r.Violations)
				report(t, s, "calm", &calm, broken)
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds, %d events, %d crashes of the daemon, %d priority inversions", last-first+1, events.Load(), crashes.Load(), inversions.Load())
}

// report fails the test with what is wrong in the World of a seed.
func report(t *testing.T, seed uint64, kind string, cfg *sim.Config, broken []string) {
	for _, v := range broken {
		t.Errorf("%s\n(%s, policy %s on %s: go test ./internal/sim -run TestSeeds -args -seed %d)",
			v, kind, cfg.Policy.Name, cfg.Devices[0].Model.Name, seed)
	}
}

// randomConfig returns the World of a seed.
func randomConfig(t testing.TB, seed uint64) sim.Config {
	r := rand.New(rand.NewPCG(seed, 99))
	names, models := policy.Names(), sim.ModelNames()
	cfg := sim.Config{
		Seed: seed, Policy: choose(t, names[int(seed)%len(names)], nil),
		Length: 2 * time.Second, Drain: time.Hour,
		Faults: sim.Faults{
			Fail: pick(r, 0, 0.02, 0.3), FailApplied: pick(r, 0, 0.1), Permanent: pick(r, 0, 0.2),
			Late: pick(r, 0, 0.05), LateBy: 50 * ms, LostWake: pick(r, 0, 0.1, 0.5),
			Crash: pick(r, 0, 300*ms, time.Second), Kill: pick(r, 0, 500*ms),
		},
	}
	for i := range 1 + r.IntN(2) {
		cfg.Devices = append(cfg.Devices, sim.DeviceConfig{
			ID: sched.DeviceID(fmt.Sprint("gpu", i)), Model: model(t, models[r.IntN(len(models))]),
		})
	}
	for i := range 1 + r.IntN(8) {
		cfg.Clients = append(cfg.Clients, randomClient(r, i, len(cfg.Devices)))
	}
	for i := range cfg.Clients {
		enterLateOrPool(&cfg, i)
	}
	cfg.Faults.Trace = pick(r, 0, 200*ms)
	r = rand.New(rand.NewPCG(seed, 97))
	cfg.Faults.Ignored, cfg.Faults.IgnoredAt = pick(r, 0, 0, 0.1, 1), sched.Level(r.IntN(4))
	cfg.Faults.Stall, cfg.Faults.StallFor = pick(r, 0, 0, 50*ms), sim.Between(ms, 20*ms)
	return cfg
}

// enterLateOrPool gives one of two clients late entry, and puts one of two that are not of
// class online into a pool, if their device has channel groups.
func enterLateOrPool(cfg *sim.Config, i int) {
	r := rand.New(rand.NewPCG(cfg.Seed, 1000+uint64(i)))
	c := &cfg.Clients[i]
	c.LateEntry = pick(r, 0, 0, 0.5, 1)
	if cfg.Devices[c.Device].Model.Runlist == nil || c.Attr.Class == sched.Online || r.IntN(2) == 0 {
		return
	}
	c.Pool, c.Kernels[0].Occupancy = "jobs", pick(r, 1, 0.6, 0.3)
	c.Process, c.Shim, c.Attr.SLO, c.Attr.Deadline = "", false, 0, 0
	c.Hint, c.Announce, c.Park, c.LateEntry = false, 0, 0, 0
}

func randomClient(r *rand.Rand, i, devices int) sim.ClientConfig {
	c := sim.ClientConfig{
		Name: fmt.Sprint("c", i), Device: r.IntN(devices), Shim: r.IntN(2) == 0,
		Attr: sched.Attr{
			Class: sched.Class(r.IntN(4)), Priority: int32(r.IntN(3)), Weight: uint32(r.IntN(4)), Share: uint8(r.IntN(50)),
			Deadline: pick(r, 0, 5*ms, 20*ms), Laxity: pick(r, 0, 2*ms), Nice: int8(r.IntN(40) - 20), Focus: r.IntN(4) == 0,
			SLO: pick(r, 0, ms, 10*ms),
		},
		Arrival: sim.Arrival{Kind: sim.ArrivalKind(r.IntN(3)), Every: pick(r, ms, 5*ms, 20*ms)},
		Kernels: []sim.Kernels{{
			Count: 1 + r.IntN(4), Time: sim.Dist{Kind: sim.LogNormal, Mean: pick(r, 20*us, 200*us, 2*ms), Jitter: 1},
			Gap: sim.Always(pick(r, 0, 30*us, 300*us)), Wait: r.IntN(4) == 0,
		}},
		Before: sim.Always(5 * us), After: sim.Always(pick(r, 0, 5*us)),
		Prepare: pick(r, 0, 200*us), Hint: r.IntN(2) == 0, Announce: pick(r, 0, 500*us),
		Park: r.IntN(3), Lead: pick(r, 50*us, 200*us, 400*us), Start: pick(r, 0, 0, 300*ms),
	}
	c.Process = pick(r, "", "p", "q")
	if r.IntN(4) == 0 {
		c.Lifetime, c.Downtime = sim.Around(400*ms, 0.5), sim.Around(100*ms, 0.5)
	}
	if c.Arrival.Kind == sim.Closed && r.IntN(2) == 0 {
		c.Arrival.Every, c.Arrival.Depth, c.Park = 0, 1+r.IntN(32), 0
	}
	return c
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// hashRecorder writes every step of the daemon to a hash.
type hashRecorder struct{ w io.Writer }

func (h hashRecorder) Record(now sched.Time, evs []sched.Event, acts []sched.Action) {
	fmt.Fprintln(h.w, now, acts)
	for i := range evs {
		fmt.Fprintln(h.w, evs[i].Kind, evs[i].Queue, evs[i].Counters, evs[i].Duration, evs[i].Action, evs[i].Outcome)
	}
}

// TestSameSeedSameTrace checks that a run depends only on its seed.
func TestSameSeedSameTrace(t *testing.T) {
	trace := func(s uint64) uint64 {
		sum := fnv.New64a()
		cfg := randomConfig(t, s)
		cfg.Recorder = hashRecorder{sum}
		sim.New(cfg).Run()
		return sum.Sum64()
	}
	different := map[uint64]bool{}
	for s := range uint64(30) {
		a, b := trace(s), trace(s)
		if a != b {
			t.Errorf("seed %d: trace %x, then %x, want the same", s, a, b)
		}
		different[a] = true
	}
	if len(different) < 25 {
		t.Errorf("30 seeds gave %d different traces, want at least 25", len(different))
	}
}
