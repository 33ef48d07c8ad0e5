package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// spanReader reads the trace of a Node and checks that the spans follow each other.
type spanReader struct {
	t    *testing.T
	node *sim.Node

	end      sched.Time
	ledger   hal.Ledger
	held     map[int]time.Duration // by queue
	switches map[int]uint64        // to a queue
	reloads  map[int]uint64        // of those, from the same queue before its slice was over
	holder   int                   // queue of the last span if it was held, else 0
	onSince  sched.Time            // since when
	left     map[int]map[hal.Departure]int
	measured map[int]sched.Event // DeviceTimeMeasured of the last reading, by queue
}

func newSpanReader(t *testing.T, n *sim.Node) *spanReader {
	return &spanReader{
		t: t, node: n, held: map[int]time.Duration{}, switches: map[int]uint64{}, reloads: map[int]uint64{},
		left: map[int]map[hal.Departure]int{}, measured: map[int]sched.Event{},
	}
}

// advance advances the Node and reads its trace. A queue has its number as pid.
func (r *spanReader) advance(to sched.Time) {
	r.t.Helper()
	r.node.AdvanceTo(to)
	for _, ev := range r.node.Events(nil) {
		if q := r.node.Queue(ev.Queue); q != nil && ev.Kind == sched.QueueOpened {
			q.SetPID(int(ev.Queue))
		}
	}
	clear(r.measured)
	for _, ev := range r.node.DeviceTimes(nil) {
		if ev.Kind == sched.DeviceTimeMeasured {
			r.measured[int(ev.Queue)] = ev
		}
	}
	for _, s := range r.node.Spans(0, nil) {
		if s.Begin != r.end || s.End < s.Begin || s.End > to {
			r.t.Fatalf("at %v: span %+v after %v", to, s, r.end)
		}
		r.end = s.End
		r.ledger.Add(s)
		switch s.Kind {
		case hal.SpanHeld:
			r.held[s.PID] += s.Length()
			if r.holder != s.PID {
				r.onSince = s.Begin
			}
			r.holder = s.PID
			if r.left[s.PID] == nil {
				r.left[s.PID] = map[hal.Departure]int{}
			}
			r.left[s.PID][s.Left]++
		case hal.SpanSwitch:
			r.switches[s.PID]++
			if s.PID == r.holder && !sched.IsFull(s.Begin.Sub(r.onSince), 2048*us) {
				r.reloads[s.PID]++
			}
			r.holder = 0
		default:
			r.holder = 0
		}
	}
}

// TestSpansAreTheTime checks on random Nodes, whose queues are stopped, started, sliced and
// killed at random, and whose trace may fail, that the spans add up to the time that passed,
// and that they agree with the device time and the visits of each queue.
func TestSpansAreTheTime(t *testing.T) {
	for seed := range uint64(25) {
		rnd := rand.New(rand.NewPCG(seed, 17))
		var clients []sim.ClientConfig
		for range 1 + rnd.IntN(4) {
			c := flatOut(0, time.Duration(1+rnd.IntN(3000))*us, 1+rnd.IntN(4))
			if rnd.IntN(2) == 0 {
				c = open(0, sim.Kernels{Count: 1 + rnd.IntN(4), Time: sim.Always(time.Duration(1+rnd.IntN(1000)) * us)})
				c.Arrival = sim.Arrival{Kind: sim.Periodic, Every: time.Duration(1+rnd.IntN(20)) * ms}
			}
			if rnd.IntN(3) == 0 {
				c.Start, c.Kill = time.Duration(rnd.IntN(100))*ms, time.Duration(200+rnd.IntN(500))*ms
			}
			clients = append(clients, c)
		}
		faults := sim.Faults{Trace: pick(rnd, 0, 300*ms)}
		n := sim.NewNode(sim.Config{
			Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Clients: clients, Length: time.Second,
			Seed: seed, Faults: faults,
		})
		r := newSpanReader(t, n)
		for at := sched.Time(0); at < sched.Time(2*time.Second); {
			id := sched.QueueID(1 + rnd.IntN(len(clients)))
			switch rnd.IntN(8) {
			case 0:
				_ = n.Apply(sched.Action{Queue: id, Verb: sched.Stop, Level: sched.LevelInterrupt}) // it may not exist
			case 1:
				if q := n.Queue(id); q != nil {
					_ = q.Restore()
				}
			case 2:
				_ = n.Apply(sched.Action{Queue: id, Verb: sched.SetSlice, Slice: time.Duration(200+rnd.IntN(4000)) * us})
			}
			at = at.Add(time.Duration(1 + rnd.Int64N(int64(15*ms))))
			r.advance(at)
		}
		r.advance(n.Now().Add(time.Second))
		if open := n.Now().Sub(r.end); r.ledger.Wall() != time.Duration(r.end) || open > ms || (r.ledger.Unknown == 0) != (faults.Trace == 0) {
			t.Errorf("seed %d: got %+v, %v together, up to %v of %v", seed, r.ledger, r.ledger.Wall(), r.end, n.Now())
		}
		var held time.Duration
		for id, ev := range r.measured {
			if r.held[id] != ev.Duration || r.switches[id]-r.reloads[id] != ev.Visits.Count {
				t.Errorf("seed %d: queue %d: spans of %v and %d switches, %d from itself; measured %v and %+v", seed, id, r.held[id], r.switches[id], r.reloads[id], ev.Duration, ev.Visits)
			}
		}
		for _, d := range r.held {
			held += d
		}
		if held != r.ledger.Held {
			t.Errorf("seed %d: %v held by queues, want %v", seed, held, r.ledger.Held)
		}
	}
}

// TestSpansSayHowQueuesLeave checks that a queue which fills the GPU is preempted, one which
// does not leaves by itself, and one which is stopped is preempted.
func TestSpansSayHowQueuesLeave(t *testing.T) {
	light := open(0, sim.Kernels{Count: 1, Time: sim.Always(100 * us)})
	light.Arrival = sim.Arrival{Kind: sim.Periodic, Every: 10 * ms}
	n := node(t, flatOut(0, 200*us, 8), light)
	r := newSpanReader(t, n)
	for at := sched.Time(0); at < sched.Time(time.Second); at = at.Add(10 * ms) {
		r.advance(at)
	}
	if got := r.left[1]; got[hal.Preempted] < 90 || got[hal.LeftItself] > 1 {
		t.Errorf("queue that fills the GPU: got %v, want about 100 times preempted", got)
	}
	if got := r.left[2]; got[hal.LeftItself] < 90 || got[hal.Preempted] > 0 {
		t.Errorf("light queue: got %v, want about 100 times left by itself", got)
	}
	alone := node(t, flatOut(0, 200*us, 8))
	r = newSpanReader(t, alone)
	r.advance(sched.Time(100 * ms))
	if err := alone.Apply(sched.Action{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt}); err != nil {
		t.Fatal(err)
	}
	r.advance(sched.Time(200 * ms))
	if got := r.left[1]; got[hal.Preempted] != 1 || r.ledger.Idle != 100*ms {
		t.Errorf("stopped queue: got %v and %v idle, want once preempted, and 100 ms", got, r.ledger.Idle)
	}
}

// TestStopInterruptsTheRunningQueue checks that the stop of a queue costs the one on the device a
// switch, and that starting it again and its slice cost nothing.
func TestStopInterruptsTheRunningQueue(t *testing.T) {
	n := sim.NewNode(sim.Config{
		Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Length: time.Second, Seed: 1,
		Clients: []sim.ClientConfig{flatOut(0, 50*ms, 1), open(time.Hour, sim.Kernels{Count: 1, Time: sim.Always(us)})},
	})
	r := newSpanReader(t, n)
	r.advance(sched.Time(100 * ms))
	for i, c := range []struct {
		name     string
		action   sched.Action
		switches uint64
	}{
		{"slice", sched.Action{Verb: sched.SetSlice, Slice: ms}, 0},
		{"stop", sched.Action{Verb: sched.Stop, Level: sched.LevelInterrupt}, 1},
		{"second stop", sched.Action{Verb: sched.Stop, Level: sched.LevelInterrupt}, 0},
		{"start", sched.Action{Verb: sched.Start, Level: sched.LevelInterrupt}, 0},
	} {
		before := r.switches[1]
		c.action.Queue = 2
		if err := n.Apply(c.action); err != nil {
			t.Fatal(err)
		}
		r.advance(sched.Time(100*ms + time.Duration(i+1)*5*ms))
		if got := r.switches[1] - before; got != c.switches {
			t.Errorf("%s of another queue: got %d switches of the running one, want %d", c.name, got, c.switches)
		}
	}
}

// TestSpansAreBounded checks that a trace which is not read for long takes no more memory, and
// that what was lost is unknown.
func TestSpansAreBounded(t *testing.T) {
	n := node(t, flatOut(0, 200*us, 8), flatOut(0, 200*us, 8))
	r := newSpanReader(t, n)
	var events []sched.Event
	for at := sched.Time(0); at < sched.Time(time.Minute); at = at.Add(time.Second) { // about 26,000 switches
		n.AdvanceTo(at)
		events = n.Events(events[:0])
	}
	spans := 0
	r.advance(sched.Time(time.Minute))
	for _, left := range r.left {
		for _, n := range left {
			spans += n
		}
	}
	if r.ledger.Unknown == 0 || r.ledger.Wall() != time.Duration(r.end) || spans > 1<<14 {
		t.Errorf("got %+v, %d visits", r.ledger, spans)
	}
	known := r.ledger.Unknown
	r.advance(sched.Time(time.Minute + time.Second))
	if r.ledger.Unknown != known || r.ledger.Wall() != time.Duration(r.end) {
		t.Errorf("afterwards: got %+v, want no more unknown time", r.ledger)
	}
}

// TestSchedulerSurvivesFailingTraces runs the default policy while the trace fails again and
// again: two heavy jobs still share the device by their weights, and online work comes first.
func TestSchedulerSurvivesFailingTraces(t *testing.T) {
	online := open(20*ms, sim.Kernels{Count: 1, Time: sim.Always(ms)})
	clients := []sim.ClientConfig{online, flatOut(0, 212*us, 16), flatOut(1, 212*us, 16)}
	clients[1].Attr.Weight = 3
	run := func(faults sim.Faults) sim.Result {
		return sim.New(sim.Config{
			Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Clients: clients,
			Policy: choose(t, "giveway", nil), Warmup: time.Second, Length: 20 * time.Second, Seed: 5, Faults: faults,
		}).Run()
	}
	calm, failing := run(sim.Faults{}), run(sim.Faults{Trace: 200 * ms})
	for i := range clients {
		got, want := failing.Clients[i].DeviceTime.Seconds(), calm.Clients[i].DeviceTime.Seconds()
		if got < 0.85*want || got > 1.15*want {
			t.Errorf("client %d: %.2f s of device time, want about %.2f as without failures", i, got, want)
		}
	}
	if got, want := failing.Clients[0].Latency.P99, calm.Clients[0].Latency.P99; got > 2*want {
		t.Errorf("P99 of the online client: got %v, want about %v as without failures", got, want)
	}
}

// TestQueueStoppedDuringAReload checks that a queue which is stopped while its context is loaded again,
// because another was stopped, leaves the device, and that its visit counts as cut short, if its
// slice was not over before.
func TestQueueStoppedDuringAReload(t *testing.T) {
	for _, order := range [][]sched.QueueID{{2, 1}, {1, 2}} {
		n := sim.NewNode(sim.Config{
			Devices: []sim.DeviceConfig{{ID: "gpu0", Model: model(t, "nvidia-h200")}}, Length: time.Second, Seed: 1,
			Clients: []sim.ClientConfig{flatOut(0, 50*ms, 1), open(time.Hour, sim.Kernels{Count: 1, Time: sim.Always(us)})},
		})
		r := newSpanReader(t, n)
		r.advance(sched.Time(ms))
		for _, q := range order {
			if err := n.Apply(sched.Action{Queue: q, Verb: sched.Stop, Level: sched.LevelInterrupt}); err != nil {
				t.Fatal(err)
			}
		}
		r.advance(sched.Time(20 * ms))
		before := r.held[1]
		r.advance(sched.Time(200 * ms))
		if got := r.measured[1].Visits; got.Count != 1 || got.Cut != 1 {
			t.Errorf("stopped in the order %v: got %+v, want one visit, cut short", order, got)
		}
		if got := r.held[1] - before; got > 0 {
			t.Errorf("stopped in the order %v: the queue held the device for %v more", order, got)
		}
	}
}
