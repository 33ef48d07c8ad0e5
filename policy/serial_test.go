package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// serialRun has a device that runs one command at a time, and two queues that always have
// work. Queue 2 is held at the start and still has commands on the device.
type serialRun struct {
	s        *sched.Scheduler
	now      sched.Time
	wake     sched.Time
	counters [3]sched.Counters // of queues 1 and 2
	starts   []sched.Time      // of queue 2
}

func newSerialRun(t *testing.T, name string, params map[string]string, left uint64) *serialRun {
	t.Helper()
	choice, err := Choose(name, params)
	if err != nil {
		t.Fatal(err)
	}
	x := &serialRun{s: sched.New(sched.Config{Floor: -1, StallLimit: time.Hour}, choice)}
	events := []sched.Event{{Kind: sched.DeviceOpened, Device: "serial", About: sched.Device{Serial: true}}}
	for id := sched.QueueID(1); id <= 2; id++ {
		x.counters[id] = sched.Counters{Submitted: 1000, Launched: left, Known: true}
		events = append(events,
			sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "serial", Can: sched.CanHold, Attr: sched.Attr{Class: sched.Batch}},
			sched.Event{Kind: sched.Progressed, Queue: id, Counters: x.counters[id]})
	}
	x.step(events...)
	return x
}

// step passes events to the scheduler. Actions succeed at once.
func (x *serialRun) step(events ...sched.Event) {
	for {
		var actions []sched.Action
		actions, x.wake = x.s.Step(x.now, events)
		if len(actions) == 0 {
			return
		}
		events = events[:0]
		for _, a := range actions {
			if a.Queue == 2 && a.Verb == sched.Start {
				x.starts = append(x.starts, x.now)
			}
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
	}
}

// completeAt completes a command of a queue at a time, with all steps that the scheduler
// asks for until then. Queue 1 launches another.
func (x *serialRun) completeAt(at time.Duration, queue sched.QueueID) {
	for x.wake <= sched.Time(at) {
		x.now = x.wake
		x.step()
	}
	x.now = sched.Time(at)
	c := &x.counters[queue]
	if c.Completed++; queue == 1 {
		c.Launched++
	}
	x.step(sched.Event{Kind: sched.Progressed, Queue: queue, Counters: *c})
}

// TestTurnBeginsWhenTheQueueCanRun checks a turn on a device that runs one command at a
// time. It begins when the commands of the queue that was stopped are finished, but a
// queue that has run beside them gets no more than its turn.
func TestTurnBeginsWhenTheQueueCanRun(t *testing.T) {
	for _, c := range []struct {
		name     string
		params   map[string]string
		from, to time.Duration // when queue 2 starts, after its command of 30 ms
	}{
		{"rr", map[string]string{"quantum": "10ms"}, 40 * ms, 41 * ms},
		// Queue 1 has as much service as queue 2 first, or a turn more.
		{"wfq", map[string]string{"quantum": "10ms"}, 60 * ms, 71 * ms},
		{"giveway", map[string]string{"turn": "10ms"}, 60 * ms, 71 * ms},
	} {
		long := newSerialRun(t, c.name, c.params, 1)
		long.completeAt(30*ms, 2)
		for at := 31 * ms; at < 100*ms; at += ms {
			long.completeAt(at, 1)
		}
		if len(long.starts) == 0 || long.starts[0] < sched.Time(c.from) || long.starts[0] > sched.Time(c.to) {
			t.Errorf("%s: queue 2, whose command took 30 ms, starts at %v, want %v to %v", c.name, long.starts, c.from, c.to)
		}

		if c.name == "rr" { // one that ends between two looks
			long = newSerialRun(t, c.name, c.params, 1)
			long.completeAt(34*ms, 2)
			for at := 35 * ms; at < 100*ms; at += ms {
				long.completeAt(at, 1)
			}
			if len(long.starts) == 0 || long.starts[0] < sched.Time(44*ms) || long.starts[0] > sched.Time(45*ms) {
				t.Errorf("%s: queue 2, whose command took 34 ms, starts at %v, want 44 ms", c.name, long.starts)
			}
		}

		mixed := newSerialRun(t, c.name, c.params, 40)
		for at := 2 * ms; at < 60*ms && len(mixed.starts) == 0; at += 2 * ms {
			mixed.completeAt(at-ms, 1)
			mixed.completeAt(at, 2)
		}
		if len(mixed.starts) == 0 || mixed.starts[0] < sched.Time(10*ms) || mixed.starts[0] > sched.Time(15*ms) {
			t.Errorf("%s: commands of both queues run one after the other: queue 2 starts at %v, want 10 to 15 ms", c.name, mixed.starts)
		}
	}
}

// TestNoTurnEndsBeforeItsQueueCouldRun checks turns on a device that runs one command at a time,
// of queues that have had much service: a turn does not end while the commands of the queue
// that was held before, which take longer than a turn, keep the device.
func TestNoTurnEndsBeforeItsQueueCouldRun(t *testing.T) {
	for name, turn := range map[string]string{"giveway": "turn", "rr": "quantum"} {
		for _, work := range [][3]time.Duration{{1: 30 * ms, 2: 5 * ms}, {1: 5 * ms, 2: 30 * ms}} {
			t.Run(name+" "+work[1].String(), func(t *testing.T) {
				for head := range sched.QueueID(3) {
					x := newSerialRun(t, name, map[string]string{turn: "20ms"}, 0)
					x.runAlone(head)
					checkTurnsAreUsed(t, x, work)
				}
			})
		}
	}
}

// runAlone lets a queue run for a second before the other is opened; zero is neither.
func (x *serialRun) runAlone(id sched.QueueID) {
	if id == 0 {
		return
	}
	other := 3 - id
	x.step(sched.Event{Kind: sched.QueueClosed, Queue: other})
	c := &x.counters[id]
	for range 100 {
		c.Launched++
		x.step(sched.Event{Kind: sched.Progressed, Queue: id, Counters: *c})
		c.Completed++
		x.now = x.now.Add(10 * ms)
		x.step(sched.Event{Kind: sched.Progressed, Queue: id, Counters: *c})
	}
	x.step(
		sched.Event{Kind: sched.QueueOpened, Queue: other, Device: "serial", Can: sched.CanHold, Attr: sched.Attr{Class: sched.Batch}},
		sched.Event{Kind: sched.Progressed, Queue: other, Counters: x.counters[other]},
	)
}

// checkTurnsAreUsed runs both queues, whose commands take work, and checks that each uses the
// device for most of each of its turns, of 20 ms.
func checkTurnsAreUsed(t *testing.T, x *serialRun, work [3]time.Duration) {
	var launched []sched.QueueID // the first one runs
	left, turns := time.Duration(0), 0
	ran, was := [3]time.Duration{}, [3]bool{} // device time in the turn
	for end := x.now.Add(5 * time.Second); x.now < end; x.now = x.now.Add(ms) {
		var events []sched.Event
		if len(launched) > 0 {
			ran[launched[0]] += ms
			if left -= ms; left == 0 {
				x.counters[launched[0]].Completed++
				launched = launched[1:]
			}
		}
		for id := sched.QueueID(1); id <= 2; id++ {
			events = append(events, sched.Event{Kind: sched.Progressed, Queue: id, Counters: x.counters[id]})
		}
		x.step(events...)
		for _, q := range x.s.Queues(nil) {
			runs := q.State == sched.Running
			if was[q.ID] && !runs {
				if turns++; turns > 10 && ran[q.ID] < 15*ms {
					t.Fatalf("at %v: the turn of queue %d, of 20 ms, ends after it had the device for %v", time.Duration(x.now), q.ID, ran[q.ID])
				}
			}
			if !was[q.ID] && runs {
				ran[q.ID] = 0
			}
			was[q.ID] = runs
			for c := &x.counters[q.ID]; runs && c.Launched < c.Completed+2; c.Launched++ {
				launched = append(launched, q.ID)
			}
		}
		if len(launched) > 0 && left == 0 {
			left = work[launched[0]]
		}
	}
	if turns < 20 {
		t.Errorf("got %d turns in 5 s, want more", turns)
	}
}
