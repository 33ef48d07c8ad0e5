package sim_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// runNode advances a Node to t and counts its events by queue and kind.
func runNode(n *sim.Node, t time.Duration) map[sched.QueueID]map[sched.Kind]int {
	n.AdvanceTo(sched.Time(t))
	counts := map[sched.QueueID]map[sched.Kind]int{}
	for _, ev := range n.Events(nil) {
		if counts[ev.Queue] == nil {
			counts[ev.Queue] = map[sched.Kind]int{}
		}
		counts[ev.Queue][ev.Kind]++
	}
	return counts
}

// node returns a Node of one H200 whose scenario takes one second.
func node(t *testing.T, clients ...sim.ClientConfig) *sim.Node {
	return sim.NewNode(sim.Config{
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Clients: clients, Length: time.Second,
	})
}

func TestNodeRepeatsTraces(t *testing.T) {
	c := open(0, sim.Kernels{Count: 1, Time: sim.Always(ms)})
	c.Arrival = sim.Arrival{Kind: sim.Trace, Trace: []time.Duration{100 * ms, 900 * ms}}
	if got := runNode(node(t, c), 10*time.Second)[1][sched.RequestFinished]; got != 20 {
		t.Errorf("%d requests in ten rounds of two, want 20", got)
	}
}

func TestNodeRestartsKilledClients(t *testing.T) {
	c := flatOut(0, ms, 1)
	c.Start, c.Kill = 200*ms, 500*ms
	counts := runNode(node(t, c), 3*time.Second)
	for id := sched.QueueID(1); id <= 3; id++ {
		got := counts[id]
		if got[sched.QueueOpened] != 1 || got[sched.QueueClosed] != 1 || got[sched.RequestFinished] < 290 {
			t.Errorf("round %d: %d opened, %d closed, %d requests, want 1, 1 and about 299", id,
				got[sched.QueueOpened], got[sched.QueueClosed], got[sched.RequestFinished])
		}
	}
	if len(counts) != 3 {
		t.Errorf("%d queues in 3 s, want 3", len(counts))
	}
}

func TestNodeRestartsClientsKilledByFaults(t *testing.T) {
	n := sim.NewNode(sim.Config{
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Clients: []sim.ClientConfig{flatOut(0, ms, 1)},
		Faults: sim.Faults{Kill: 2 * time.Second}, Length: time.Second,
	})
	if got := len(runNode(n, time.Minute)); got < 10 || got > 40 {
		t.Errorf("%d queues in a minute with a kill every 2 s and 1 s until the restart, want about 20", got)
	}
}

// TestNodeLimitsBacklog interrupts a queue for a minute: only some of the requests of that
// time are served afterwards.
func TestNodeLimitsBacklog(t *testing.T) {
	c := open(0, sim.Kernels{Count: 1, Time: sim.Always(us)})
	c.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 10 * ms}
	n := node(t, c)
	runNode(n, time.Second)
	if err := n.Apply(sched.Action{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt}); err != nil {
		t.Fatal(err)
	}
	if got := runNode(n, time.Minute)[1][sched.RequestFinished]; got != 0 {
		t.Errorf("%d requests finished while interrupted, want 0", got)
	}
	if err := n.Queue(1).Restore(); err != nil {
		t.Fatal(err)
	}
	if got := runNode(n, time.Minute+50*ms)[1][sched.RequestFinished]; got < 200 || got > 300 {
		t.Errorf("%d requests finished after an interrupt of a minute, want about 256", got)
	}
}

// TestTraceSkipsDowntime checks that arrivals of a trace are skipped while the client has no
// queue.
func TestTraceSkipsDowntime(t *testing.T) {
	c := open(0, sim.Kernels{Count: 1, Time: sim.Always(us)})
	c.Arrival = sim.Arrival{Kind: sim.Trace}
	for at := time.Duration(0); at < 10*time.Second; at += 10 * ms {
		c.Arrival.Trace = append(c.Arrival.Trace, at)
	}
	c.Lifetime, c.Downtime = sim.Always(300*ms), sim.Always(700*ms)
	r := sim.New(sim.Config{
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Clients: []sim.ClientConfig{c}, Length: 10 * time.Second,
	}).Run()
	if got := r.Clients[0].Requests; got < 290 || got > 310 {
		t.Errorf("%d requests finished with a queue for 30 %% of the time, want about 300 of 1000", got)
	}
}

func TestNodeCallsTakeTime(t *testing.T) {
	n := node(t, flatOut(0, ms, 1))
	runNode(n, 100*ms)
	began, returned := n.Now(), false
	end := n.Call([]sched.Action{
		{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt},
		{Queue: 99, Verb: sched.Stop, Level: sched.LevelInterrupt},
	}, func(errs []error) {
		returned = true
		if errs[0] != nil || errs[1] == nil {
			t.Errorf("errors %v, want one for the queue that does not exist", errs)
		}
	})
	if took := end.Sub(began); took < 570*us || took > 850*us {
		t.Errorf("an interrupt takes %v, want 570 to 850us", took)
	}
	n.AdvanceTo(end - 1)
	if returned {
		t.Error("the call returned early")
	}
	n.AdvanceTo(end)
	if !returned {
		t.Error("the call did not return in time")
	}
	before := n.Queue(1).Counters().Completed
	n.AdvanceTo(end.Add(time.Second))
	if got := n.Queue(1).Counters().Completed; got != before {
		t.Errorf("%d commands completed while interrupted, want none", got-before)
	}
}
