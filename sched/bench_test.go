package sched_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// busyDevice returns a scheduler with one device and n ready queues, every fourth
// online and the rest batch, after all actions are done.
func busyDevice(tb testing.TB, name string, n int) (*sched.Scheduler, sched.Time) {
	tb.Helper()
	choice, err := policy.Choose(name, nil)
	if err != nil {
		tb.Fatal(err)
	}
	s := sched.New(sched.Config{}, choice)
	events := []sched.Event{{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{
		Slice: 2048 * time.Microsecond, MinSharedSlice: 200 * time.Microsecond, SwitchTime: 165 * time.Microsecond, StopTime: 700 * time.Microsecond,
	}}}
	for i := range n {
		id := sched.QueueID(i + 1)
		q := sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "gpu0", Can: sched.CanInterrupt | sched.CanSlice}
		q.Attr.Class = sched.Batch
		if i%4 == 0 {
			q.Attr.Class, q.Attr.SLO = sched.Online, 10*time.Millisecond
		}
		events = append(events, q, sched.Event{Kind: sched.Progressed, Queue: id, Counters: sched.Counters{Submitted: 10, Launched: 10}})
	}
	now := sched.Time(0)
	for {
		actions, _ := s.Step(now, events)
		if len(actions) == 0 {
			return s, now
		}
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
		now++
	}
}

// TestStepDoesNotAllocate covers the frequent events: progress, device time,
// requests, attributes, and turns with the outcomes of their actions.
func TestStepDoesNotAllocate(t *testing.T) {
	for _, name := range []string{"giveway", "slo"} {
		t.Run(name, func(t *testing.T) { stepDoesNotAllocate(t, name) })
	}
}

func stepDoesNotAllocate(t *testing.T, name string) {
	s, now := busyDevice(t, name, 32)
	events := make([]sched.Event, 0, 64)
	acted, n := 0, uint64(20)
	got := testing.AllocsPerRun(2000, func() {
		n++
		now = now.Add(time.Millisecond)
		id := sched.QueueID(1 + n%32)
		events = append(events,
			sched.Event{Kind: sched.Progressed, Queue: id, Counters: sched.Counters{Submitted: n, Launched: n, Completed: n - 1 + n/32%2}},
			sched.Event{Kind: sched.DeviceTimeMeasured, Queue: id, Duration: time.Duration(n) * time.Millisecond},
			sched.Event{Kind: sched.RequestStarted + sched.Kind(n%2), Queue: 1, Duration: time.Duration(n%16) * time.Millisecond},
			sched.Event{Kind: sched.AttrsChanged, Queue: 2, Attr: sched.Attr{Class: sched.Batch, Weight: uint32(n)}})
		actions, _ := s.Step(now, events)
		acted += len(actions)
		events = events[:0]
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
	})
	if got != 0 || acted < 100 {
		t.Errorf("got %v allocations a step with %d actions in total, want 0 with at least 100", got, acted)
	}
}

// BenchmarkStep measures the cost of one event. The targets are 1 us with 32 queues, 50 us
// with 1,000, and no allocation; docs/RESULTS.md has what was measured. Under native nearly
// all of it is the core's own cost.
func BenchmarkStep(b *testing.B) {
	for _, size := range []struct {
		policy string
		queues int
	}{{"slo", 32}, {"giveway", 32}, {"giveway", 1000}, {"native", 32}} {
		name := fmt.Sprint(size.policy, "/", size.queues)
		b.Run(name+"/progress", func(b *testing.B) { // progress that leads to no action
			s, now := busyDevice(b, size.policy, size.queues)
			ev := []sched.Event{{Kind: sched.Progressed, Queue: 1}}
			counters := &ev[0].Counters
			counters.Submitted = 20
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				counters.Submitted++
				counters.Launched++
				counters.Completed++
				s.Step(now, ev)
			}
		})
		b.Run(name+"/floor", func(b *testing.B) { // the floor searches the queues in each step
			s, now := busyDevice(b, size.policy, size.queues)
			ev := []sched.Event{{Kind: sched.AttrsChanged, Queue: 2, Attr: sched.Attr{Class: sched.Batch}}}
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Second)
				s.Step(now, ev)
			}
		})
		b.Run(name+"/flip", func(b *testing.B) { // an online queue becomes ready and idle
			s, now := busyDevice(b, size.policy, size.queues)
			ev := []sched.Event{{Kind: sched.Progressed, Queue: 1}}
			counters := &ev[0].Counters
			counters.Submitted, counters.Launched, counters.Completed = 20, 20, 20
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				if counters.Submitted == counters.Completed {
					counters.Submitted++
					counters.Launched++
				} else {
					counters.Completed++
				}
				s.Step(now, ev)
			}
		})
	}
}
