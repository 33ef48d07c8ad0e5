package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// inPool returns clients of a pool whose kernels of 100 us each use so much of the device.
func inPool(n int, occupancy, bandwidth float64) []sim.ClientConfig {
	all := bes(n, 0)
	for i := range all {
		all[i].Pool = "p"
		all[i].Kernels = []sim.Kernels{{Count: 1, Time: sim.Always(100 * us), Occupancy: occupancy, Bandwidth: bandwidth}}
	}
	return all
}

// TestPoolSharesInSpace checks the rate of three clients side by side: what one has alone
// three times, as far as processors and bandwidth suffice for all.
func TestPoolSharesInSpace(t *testing.T) {
	for _, tt := range []struct{ occupancy, bandwidth, want float64 }{
		{1, 0, 1},
		{0.3, 0, 3},
		{0.5, 0, 2},
		{0.3, 0.6, 3 / 1.8},
	} {
		sum := 0.0
		for _, c := range one(t, model(t, "nvidia-h200"), sched.PolicyChoice{}, inPool(3, tt.occupancy, tt.bandwidth)...).Clients {
			sum += c.Rate
		}
		near(t, "sum of the pool", sum, tt.want*10_000, 0.01)
	}
}

// TestPoolIsOneQueue checks that the daemon has one queue for a pool, which can be given a
// slice and not be stopped, and that the pool gives way to online work.
func TestPoolIsOneQueue(t *testing.T) {
	lc := open(20*ms, sim.Kernels{Count: 1, Time: sim.Always(50 * us)})
	var queues []sched.QueueID
	record := func(_ sched.Time, events []sched.Event, _ []sched.Action) {
		for _, ev := range events {
			if ev.Kind == sched.QueueOpened {
				queues = append(queues, ev.Queue)
				if pool := ev.Queue == 2; pool != (ev.Can == sched.CanSlice) {
					t.Errorf("queue %d can %v", ev.Queue, ev.Can)
				}
			}
		}
	}
	r := sim.New(sim.Config{
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Policy: choose(t, "giveway", nil),
		Clients: with(lc, inPool(4, 0.3, 0)...), Warmup: time.Second, Length: 5 * time.Second, Recorder: recorderFunc(record),
	}).Run()
	if len(queues) != 2 {
		t.Errorf("the daemon has queues %v, want that of the client and that of the pool", queues)
	}
	if p99 := r.Clients[0].Latency.P99; p99 > 500*us {
		t.Errorf("P99 %v beside a pool, want at most 500us", p99)
	}
}

// TestPoolHasItsShare checks that a pool, which cannot be stopped while others have their turns,
// gets no more of the device than its weight says, with more or less weight than the others
// together, and that all do most of their native work.
func TestPoolHasItsShare(t *testing.T) {
	for _, policy := range []string{"giveway", "slo"} {
		for _, tt := range []struct {
			jobs   int
			weight uint32 // of the pool
			share  float64
			sum    float64 // of the native one, at least
		}{
			{1, 1, 0.5, 0.98},
			{2, 1, 1.0 / 3, 0.95},
			{6, 1, 1.0 / 7, 0.9},
			{10, 1, 1.0 / 11, 0.9},
			{2, 4, 2.0 / 3, 0.98},
		} {
			clients := inPool(1, 1, 0)
			clients[0].Attr.Weight = tt.weight
			for range tt.jobs {
				clients = append(clients, flatOut(0, 100*us, 8))
			}
			rates := func(policy string) (pool, sum float64) {
				r := one(t, model(t, "nvidia-h200"), choose(t, policy, nil), clients...)
				for _, c := range r.Clients {
					sum += c.Rate
				}
				return r.Clients[0].Rate, sum
			}
			_, native := rates("native")
			pool, sum := rates(policy)
			if share := pool / sum; share > 1.1*tt.share || share < 0.75*tt.share || sum < tt.sum*native {
				t.Errorf("%s: weight %d beside %d jobs: got a share of %.3f, sum %.3f of the native one; want %.3f, %.2f", policy, tt.weight, tt.jobs, share, sum/native, tt.share, tt.sum)
			} else {
				t.Logf("%s: weight %d beside %d jobs: share %.3f, sum %.3f", policy, tt.weight, tt.jobs, share, sum/native)
			}
		}
	}
}

// TestPoolMembersComeAndGo kills members, all at once and one by one. The others go on, and
// the pool is closed with its last member.
func TestPoolMembersComeAndGo(t *testing.T) {
	members := inPool(3, 0.5, 0)
	members[0].Kill, members[1].Kill = 2*time.Second, 4*time.Second
	members[2].Lifetime, members[2].Downtime = sim.Always(300*ms), sim.Always(100*ms)
	open := map[sched.QueueID]bool{}
	closed := 0
	r := sim.New(sim.Config{
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Policy: choose(t, "giveway", nil),
		Clients: members, Length: 6 * time.Second, Drain: 5 * time.Second,
		Recorder: recorderFunc(func(now sched.Time, events []sched.Event, _ []sched.Action) {
			for _, ev := range events {
				switch ev.Kind {
				case sched.QueueOpened:
					open[ev.Queue] = true
				case sched.QueueClosed:
					if !open[ev.Queue] {
						t.Errorf("queue %d closed, and was not open", ev.Queue)
					}
					delete(open, ev.Queue)
					closed++
					if now < sched.Time(4*time.Second) {
						t.Errorf("the pool was closed at %v, while a member was left", time.Duration(now))
					}
				}
			}
			if len(open) > 1 {
				t.Errorf("queues %v are open, want one", open)
			}
		}),
	}).Run()
	for _, v := range r.Violations {
		t.Error(v)
	}
	if closed < 3 {
		t.Errorf("the pool was closed %d times, want once for each end of its last member", closed)
	}
	near(t, "rate of the member that was killed last", r.Clients[1].Rate*6/4, 10_000, 0.15)
}

// recorderFunc is a loop.Recorder.
type recorderFunc func(sched.Time, []sched.Event, []sched.Action)

func (f recorderFunc) Record(now sched.Time, events []sched.Event, actions []sched.Action) {
	f(now, events, actions)
}

// TestLateEntryReleasesAtAWait checks that a request whose host waits for its kernels, or
// that has one kernel, is never left behind its wait.
func TestLateEntryReleasesAtAWait(t *testing.T) {
	for _, k := range []sim.Kernels{
		{Count: 20, Time: sim.Always(10 * us), Gap: sim.Always(5 * us), Wait: true},
		{Count: 1, Time: sim.Always(10 * us)},
	} {
		lc := open(40*ms, k)
		lc.LateEntry = 1
		got := one(t, model(t, "nvidia-h200"), choose(t, "giveway", nil), lc, flatOut(0, 100*us, 8)).Clients[0]
		if got.Unfinished > 2 || got.Latency.Count < 200 {
			t.Errorf("%d kernels: %d unfinished of %d requests", k.Count, got.Unfinished, got.Latency.Count)
		}
	}
}
