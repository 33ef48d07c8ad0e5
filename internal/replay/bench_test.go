package replay

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// busy returns a scheduler with queues that have run for a while, and events of one step.
func busy(b *testing.B, queues int) (*sched.Scheduler, []sched.Event) {
	choice, err := policy.Choose("slo", nil)
	if err != nil {
		b.Fatal(err)
	}
	s := sched.New(sched.Config{}, choice)
	events := []sched.Event{{Kind: sched.DeviceOpened, Device: "g", About: sched.Device{ID: "g"}}}
	for q := range queues {
		events = append(events, sched.Event{
			Kind: sched.QueueOpened, Device: "g", Queue: sched.QueueID(q + 1), Can: sched.CanInterrupt | sched.CanSlice,
			Attr: sched.Attr{Class: sched.Class(1 + q%2), SLO: time.Duration(1-q%2) * 10 * ms},
		})
	}
	s.Step(0, events)
	events = events[:0]
	for q := range 10 {
		events = append(events, sched.Event{Kind: sched.Progressed, Queue: sched.QueueID(q + 1), Counters: sched.Counters{Submitted: 9, Launched: 8, Completed: 7, Known: true}})
	}
	for i := range 100 {
		s.Step(sched.Time(i)*sched.Time(ms), events)
	}
	return s, events
}

// BenchmarkBegin is how long the daemon's loop stands still when a recording begins.
func BenchmarkBegin(b *testing.B) {
	for _, queues := range []int{4, 64, 256} {
		b.Run(fmt.Sprint(queues, "queues"), func(b *testing.B) {
			s, _ := busy(b, queues)
			for b.Loop() {
				r, err := Begin(s, "bench")
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(r.Len()), "B/state")
			}
		})
	}
}

// BenchmarkStep is what recording adds to a step with ten events.
func BenchmarkStep(b *testing.B) {
	s, events := busy(b, 64)
	r, err := Begin(s, "bench")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := r.Step(1, events, nil); err != nil {
			b.Fatal(err)
		}
		r.out = r.out[:0]
	}
}
