package sched_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// busyDevice is a device under a policy with n queues, every fourth online and
// the rest batch, all with work to do and every order carried out.
func busyDevice(tb testing.TB, name string, n int) (*sched.Scheduler, sched.Time) {
	tb.Helper()
	choice, err := policy.Choose(name, nil)
	if err != nil {
		tb.Fatal(err)
	}
	s := sched.New(sched.Config{}, choice)
	events := []sched.Event{{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{
		Slice: 2048 * time.Microsecond, MinSharedSlice: 200 * time.Microsecond, StopTime: 700 * time.Microsecond,
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

// TestStepDoesNotAllocate covers what happens all the time: progress, service,
// requests, hints, and turns with the outcomes of their stops, starts and slices.
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
		t.Errorf("%v allocations a step, %d actions in all", got, acted)
	}
}

// BenchmarkStep is the cost of one event. The bars: 1 us with 32 queues and
// 50 us with 1,000, and no allocation. Under native it is nearly all the core's.
func BenchmarkStep(b *testing.B) {
	for _, size := range []struct {
		policy string
		queues int
	}{{"giveway", 32}, {"giveway", 1000}, {"native", 32}} {
		name := fmt.Sprint(size.policy, "/", size.queues)
		b.Run(name+"/progress", func(b *testing.B) { // nobody is stopped or started for it
			s, now := busyDevice(b, size.policy, size.queues)
			ev := []sched.Event{{Kind: sched.Progressed, Queue: 1}}
			seen := &ev[0].Counters
			seen.Submitted = 20
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				seen.Submitted++
				seen.Launched++
				seen.Completed++
				s.Step(now, ev)
			}
		})
		b.Run(name+"/flip", func(b *testing.B) { // an online queue comes and goes
			s, now := busyDevice(b, size.policy, size.queues)
			ev := []sched.Event{{Kind: sched.Progressed, Queue: 1}}
			seen := &ev[0].Counters
			seen.Submitted, seen.Launched, seen.Completed = 20, 20, 20
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				if seen.Submitted == seen.Completed {
					seen.Submitted++
					seen.Launched++
				} else {
					seen.Completed++
				}
				s.Step(now, ev)
			}
		})
	}
}
