package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestVisitsNeverDecrease checks that visits are kept, whatever is reported: counts never
// decrease, no more visits are full than there are, and a report without visits is none.
func TestVisitsNeverDecrease(t *testing.T) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return plans{"": grants(1)} }})
	s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}})
	for i, c := range []struct{ report, want sched.Visits }{
		{sched.Visits{Count: 9}, sched.Visits{}},
		{sched.Visits{Count: 5, Full: 3, Arrived: 7, Known: true}, sched.Visits{Count: 5, Full: 3, Arrived: 7, Known: true}},
		{sched.Visits{Count: 4, Full: 2, Arrived: 6, Known: true}, sched.Visits{Count: 5, Full: 3, Arrived: 7, Known: true}},
		{sched.Visits{Count: 6, Full: 8, Arrived: 8, Known: true}, sched.Visits{Count: 6, Full: 6, Arrived: 8, Known: true}},
		{sched.Visits{}, sched.Visits{Count: 6, Full: 6, Arrived: 8, Known: true}},
		{sched.Visits{Count: 6, Cut: 2, Known: true}, sched.Visits{Count: 6, Full: 6, Cut: 2, Arrived: 8, Known: true}},
		{sched.Visits{Count: 6, Cut: 1, Known: true}, sched.Visits{Count: 6, Full: 6, Cut: 2, Arrived: 8, Known: true}},
		{sched.Visits{Count: 6, Cut: 9, Known: true}, sched.Visits{Count: 6, Full: 6, Cut: 6, Arrived: 8, Known: true}},
		{sched.Visits{Count: 6, Alone: 3, Known: true}, sched.Visits{Count: 6, Full: 6, Alone: 3, Cut: 6, Arrived: 8, Known: true}},
		{sched.Visits{Count: 6, Alone: 2, Known: true}, sched.Visits{Count: 6, Full: 6, Alone: 3, Cut: 6, Arrived: 8, Known: true}},
	} {
		s.Step(sched.Time(i), []sched.Event{{Kind: sched.DeviceTimeMeasured, Queue: 1, Visits: c.report}})
		if got := queueOf(s, 1).Visits; got != c.want {
			t.Errorf("after %+v: got %+v, want %+v", c.report, got, c.want)
		}
	}
}

// TestMeasuredTimeCountsWhileAStartIsPending checks that a queue is charged for what the
// hardware measures between the order to start it and the report that it has started: it
// may run as soon as the order is given.
func TestMeasuredTimeCountsWhileAStartIsPending(t *testing.T) {
	p := plans{"": grants(1)}
	s := sched.New(sched.Config{Floor: -1}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
	measured := sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1}
	done := func(actions []sched.Action) sched.Event {
		if len(actions) != 1 {
			t.Fatalf("got actions %v, want one", actions)
		}
		return sched.Event{Kind: sched.ActionDone, Queue: 1, Action: actions[0].ID}
	}
	s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt}, measured})
	p[""] = sched.Plan{}
	stop, _ := s.Step(sched.Time(ms), []sched.Event{{Kind: sched.PlanOffered}})
	s.Step(sched.Time(ms), []sched.Event{done(stop), measured})
	p[""] = grants(1)
	start, _ := s.Step(sched.Time(100*ms), []sched.Event{{Kind: sched.PlanOffered}})
	before := queueOf(s, 1).Served
	measured.Duration = 40 * ms
	s.Step(sched.Time(150*ms), []sched.Event{done(start), measured})
	if got := queueOf(s, 1).Served - before; got != 40*ms {
		t.Errorf("charged for %v, want the 40 ms that were measured", got)
	}
}

// TestLostMeasurementIsEstimated checks that a queue whose measurement is lost is charged by
// estimate and has no known visits, and that it is charged by measurement again afterwards:
// once for each moment, whether the new measurement goes on from the old one or begins at
// zero.
func TestLostMeasurementIsEstimated(t *testing.T) {
	for _, c := range []struct {
		name  string
		again time.Duration // the first measurement afterwards
	}{
		{"the count goes on", 12 * ms},
		{"the count begins anew", 0},
		{"the count includes time in which the queue was loaded and stopped", time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sched.New(sched.Config{Floor: -1}, sched.PolicyChoice{Make: func() sched.Policy { return plans{"": grants(1, 2)} }})
			measured := func(total time.Duration) sched.Event {
				return sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: total, Visits: sched.Visits{Count: 3, Full: 1, Arrived: 1, Known: true}}
			}
			step := func(at time.Duration, ev sched.Event, served time.Duration, known bool) {
				t.Helper()
				s.Step(sched.Time(at), []sched.Event{ev})
				if q := queueOf(s, 1); q.Served != served || q.Measured != known || q.Visits != (sched.Visits{Count: 3, Full: 1, Arrived: 1, Known: known}) {
					t.Errorf("at %v: got %v served, measured %v and visits %+v; want %v and %v", at, q.Served, q.Measured, q.Visits, served, known)
				}
			}
			s.Step(0, []sched.Event{
				{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"},
				{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0"},
			})
			step(0, measured(0), 0, true)
			step(100*ms, measured(10*ms), 10*ms, true)
			step(110*ms, sched.Event{Kind: sched.MeasurementLost, Queue: 1}, 10*ms, false)
			step(150*ms, sched.Event{Kind: sched.MeasurementLost, Queue: 1}, 30*ms, false) // half of the time passed
			step(210*ms, measured(c.again), 60*ms, true)
			step(310*ms, measured(c.again+30*ms), 90*ms, true)
			if q := queueOf(s, 2); q.Measured || q.Served == 0 {
				t.Errorf("the other queue: got %v served, measured %v; want an estimate", q.Served, q.Measured)
			}
		})
	}
}

// TestStoppedQueueIsChargedForALateReading checks that of what the hardware measures of a
// stopped queue 10 ms count, by which a reading may be late: its context stays on the device
// while no other queue needs it.
func TestStoppedQueueIsChargedForALateReading(t *testing.T) {
	p := plans{"": grants(1)}
	s := sched.New(sched.Config{Floor: -1, StallLimit: time.Hour}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
	s.Step(0, []sched.Event{
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt},
		{Kind: sched.DeviceTimeMeasured, Queue: 1},
	})
	s.Step(sched.Time(100*ms), []sched.Event{{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: 40 * ms}})
	if got := queueOf(s, 1).Served; got != 40*ms {
		t.Fatalf("charged for %v while it ran, want 40 ms", got)
	}
	p[""] = sched.Plan{}
	stop, _ := s.Step(sched.Time(100*ms), []sched.Event{{Kind: sched.PlanOffered}})
	s.Step(sched.Time(100*ms), []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: stop[0].ID}})
	for i := range 5 {
		total := 40*ms + time.Duration(i+1)*15*ms
		s.Step(sched.Time(100*ms+time.Duration(i+1)*20*ms), []sched.Event{{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: total}})
	}
	if got := queueOf(s, 1).Served; got != 50*ms {
		t.Errorf("charged for %v in all, want 50 ms", got)
	}
}

// TestEndOfVisit checks that a visit is full from a sixteenth less than the slice on, alone for what
// is above the slice if that is more than a quarter, and cut only if it is short.
func TestEndOfVisit(t *testing.T) {
	const slice = 2048 * time.Microsecond
	for visit, want := range map[time.Duration]sched.Visits{
		0: {}, slice*15/16 - 1: {}, slice * 15 / 16: {Full: 1}, slice: {Full: 1}, 2217 * time.Microsecond: {Full: 1},
		slice * 5 / 4: {Full: 1}, slice*5/4 + 1: {Full: 1, Alone: slice/4 + 1}, 4 * slice: {Full: 1, Alone: 3 * slice},
	} {
		for _, cut := range []bool{false, true} {
			var v sched.Visits
			if cut && want.Full == 0 {
				want.Cut = 1
			}
			if v.End(visit, slice, cut); v != want {
				t.Errorf("a visit of %v with a slice of %v, cut %v: got %+v, want %+v", visit, slice, cut, v, want)
			}
		}
	}
}

// TestFirstMeasurementMayBeMore checks that the first measurement of a queue counts if it is more than
// the estimate, which is half of the device here, up to the time in which the queue could run.
func TestFirstMeasurementMayBeMore(t *testing.T) {
	for measured, want := range map[time.Duration]time.Duration{20 * ms: 50 * ms, 80 * ms: 80 * ms, time.Hour: 100 * ms} {
		plan := grants(1, 2)
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return plan }) }})
		s.Step(0, []sched.Event{
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt},
			{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanInterrupt},
		})
		s.Step(sched.Time(100*ms), []sched.Event{{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: measured}})
		if got := queueOf(s, 1).Served; got != want {
			t.Errorf("measured %v: got %v of service, want %v", measured, got, want)
		}
	}
}
