package sim_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

const (
	ordersEnd    = 9 * time.Second
	ordersWarmup = ordersEnd + 3*time.Second
	ordersLength = ordersWarmup + 8*time.Second
)

// TestOrders gives random orders in calm Worlds: they change attributes, pause queues and choose
// policies. Meanwhile no queue is without service for long, and after them each gets again what it
// must get: orders leave no debts.
func TestOrders(t *testing.T) {
	n := uint64(*seeds)
	if testing.Short() {
		n = min(n, 100)
	}
	first, last := uint64(1), n
	if *seed > 0 {
		first, last = *seed, *seed
	}
	var next atomic.Uint64
	next.Store(first)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for s := next.Add(1) - 1; s <= last && !t.Failed(); s = next.Add(1) - 1 {
				cfg := calmConfig(t, s)
				for _, v := range checkOrders(t, cfg) {
					t.Errorf("%s\n(policy %s on %s: go test ./internal/sim -run TestOrders -args -seed %d)", v, cfg.Policy.Name, cfg.Devices[0].Model.Name, s)
				}
			}
		})
	}
	wg.Wait()
}

// checkOrders runs a calm World with random orders and returns what is wrong with it.
func checkOrders(t testing.TB, cfg sim.Config) []string {
	cfg.Length = ordersLength
	final := cfg
	final.Clients = slices.Clone(cfg.Clients)
	c := newCalmRun(&final, ordersWarmup)
	r := rand.New(rand.NewPCG(cfg.Seed, 96))
	often := pick(r, 0.02, 0.2, 0.7)
	var w *sim.World
	over := false
	cfg.SampleInterval = 20 * ms
	cfg.Sample = func(now sched.Time, queues []sim.QueueSample) {
		if now < sched.Time(ordersEnd) {
			for r.Float64() < often {
				randomOrder(t, r, w, &cfg, final.Policy)
			}
		} else if !over {
			over = true
			for i := range final.Clients {
				w.SetAttr(i, final.Clients[i].Attr)
			}
			w.ChoosePolicy("", final.Policy)
		}
		for i := range cfg.Clients {
			if a := cfg.Clients[i].Attr; a.Paused || a.Class == sched.Idle {
				c.progress[i] = now // it has no floor
			}
		}
		c.sample(now, queues)
	}
	w = sim.New(cfg)
	res := w.Run()
	return c.check(&res)
}

func randomOrder(t testing.TB, r *rand.Rand, w *sim.World, cfg *sim.Config, chosen sched.PolicyChoice) {
	i := r.IntN(len(cfg.Clients))
	a := cfg.Clients[i].Attr
	switch r.IntN(8) {
	case 0:
		a.Paused = !a.Paused
	case 1:
		a.Class = sched.Class(r.IntN(4))
	case 2:
		a.Weight = pick[uint32](r, 0, 1, 3, 8, 100, 10000)
	case 3:
		a.Priority = int32(r.IntN(5) - 2)
	case 4:
		a.Share, a.Nice = uint8(r.IntN(101)), int8(r.IntN(40)-20)
	case 5:
		a.SLO, a.Deadline = pick(r, 0, ms, 10*ms), pick(r, 0, 5*ms, 50*ms)
	case 6:
		a.Focus, a.Laxity, a.Work = !a.Focus, pick(r, 0, 2*ms), pick(r, 0, ms)
	case 7:
		if names := policy.Names(); r.IntN(2) == 0 {
			chosen = choose(t, names[r.IntN(len(names))], nil)
		}
		on := sched.DeviceID("")
		if r.IntN(3) == 0 && !chosen.AllDevices {
			on = cfg.Devices[0].ID
		}
		w.ChoosePolicy(on, chosen)
		return
	}
	w.SetAttr(i, a)
}
