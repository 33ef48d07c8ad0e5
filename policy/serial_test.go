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

// TestLaterTurnBeginsWhenTheQueueCanRun checks the same for a turn of queues that have had much
// service before.
func TestLaterTurnBeginsWhenTheQueueCanRun(t *testing.T) {
	x := newSerialRun(t, "giveway", map[string]string{"turn": "10ms"}, 40)
	// In turn, commands of 1 ms: each queue completes what it has launched.
	at := time.Duration(0)
	for ; at < 300*ms; at += 2 * ms {
		x.completeAt(at+ms, 1)
		x.counters[2].Launched++
		x.completeAt(at+2*ms, 2)
	}
	// Queue 2 has the turn, and one command of 30 ms of queue 1 is still on the device.
	for n := len(x.starts); len(x.starts) == n && at < 400*ms; at += ms {
		x.completeAt(at+ms, 1)
	}
	began := time.Duration(x.starts[len(x.starts)-1])
	x.counters[1].Launched = x.counters[1].Completed + 1
	end := began + 30*ms
	for x.wake <= sched.Time(end) {
		if x.now = x.wake; x.now > sched.Time(began) {
			for _, q := range x.s.Queues(nil) {
				if q.ID == 2 && q.State != sched.Running {
					t.Fatalf("the turn of queue 2 ended %v after it began, before it could run", time.Duration(x.now)-began)
				}
			}
		}
		x.step()
	}
}
