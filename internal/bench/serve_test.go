package bench

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// fakeClock advances only when Until or a job is called.
type fakeClock struct {
	now  time.Duration
	late time.Duration // added to every wait
}

func (c *fakeClock) Now() time.Duration { return c.now }

func (c *fakeClock) Until(t time.Duration) {
	if t > c.now {
		c.now = t + c.late
	}
}

// job returns a job that takes the given times, one for each request; the last is for
// all that follow.
func (c *fakeClock) job(times ...time.Duration) func() error {
	return func() error {
		c.now += times[0]
		if len(times) > 1 {
			times = times[1:]
		}
		return nil
	}
}

func TestRequestsWaitForEarlierOnes(t *testing.T) {
	c := &fakeClock{now: 7 * time.Second}
	// Requests at 10, 20, 30, 40 ms; the first takes 25, the others 2: the second
	// waits 15 ms, the third 7, the fourth not at all.
	s, err := Serve(c, Every(10*ms), Job{Do: c.job(25*ms, 2*ms)}, 50*ms, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := []float64{25e3, 17e3, 9e3, 2e3}; !slices.Equal(s.SamplesUs, want) || s.Unanswered != 0 {
		t.Errorf("got latencies %v, want %v; %d unanswered", s.SamplesUs, want, s.Unanswered)
	}
}

func TestClosedLoopExcludesTimerDelay(t *testing.T) {
	c := &fakeClock{late: ms}
	// A late timer is not latency: the client sends the request when it wakes.
	s, _ := Serve(c, After(5*ms), Job{Do: c.job(4 * ms)}, 31*ms, time.Second)
	if want := []float64{4e3, 4e3, 4e3}; !slices.Equal(s.SamplesUs, want) {
		t.Errorf("got latencies %v, want %v", s.SamplesUs, want)
	}
	c = &fakeClock{late: ms}
	s, _ = Serve(c, Every(5*ms), Job{Do: c.job(2 * ms)}, 11*ms, time.Second)
	if want := []float64{3e3, 3e3}; !slices.Equal(s.SamplesUs, want) {
		t.Errorf("open loop: got latencies %v, want %v: arrivals have a schedule", s.SamplesUs, want)
	}
}

func TestOverloadEndsAfterGrace(t *testing.T) {
	c := &fakeClock{}
	s, _ := Serve(c, Every(ms), Job{Do: c.job(10 * ms)}, 100*ms, 100*ms)
	if len(s.SamplesUs) != 20 || s.Unanswered != 79 {
		t.Errorf("got %d answered, %d unanswered; want 20 and 79", len(s.SamplesUs), s.Unanswered)
	}
	if !slices.IsSorted(s.SamplesUs) {
		t.Error("got latencies that do not grow, want them to grow with the queue")
	}
}

func TestHintPrecedesRequestByLead(t *testing.T) {
	c := &fakeClock{}
	var hints []time.Duration
	hint := func() error { hints = append(hints, c.now); return nil }
	_, _ = Serve(c, Every(10*ms), Job{Do: c.job(ms), Hint: hint, Lead: 3 * ms}, 35*ms, 0)
	if want := []time.Duration{7 * ms, 17 * ms, 27 * ms}; !slices.Equal(hints, want) {
		t.Errorf("got hints at %v, want %v", hints, want)
	}
}

func TestServeReturnsTheJobsError(t *testing.T) {
	broken := errors.New("broken")
	if _, err := Serve(&fakeClock{}, Every(ms), Job{Do: func() error { return broken }}, time.Second, 0); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}

func TestPoissonFollowsItsSeed(t *testing.T) {
	run := func(seed uint64) *Answered {
		c := &fakeClock{}
		s, _ := Serve(c, Poisson(1000, seed), Job{Do: c.job(0)}, 20*time.Second, 0)
		return s
	}
	n := float64(len(run(1).SamplesUs))
	if math.Abs(n-20000) > 4*math.Sqrt(20000) {
		t.Errorf("got %g arrivals in 20 s at 1000/s, want about 20000", n)
	}
	if len(run(1).SamplesUs) != int(n) || len(run(2).SamplesUs) == int(n) {
		t.Error("want the same arrivals for the same seed, and others for another")
	}
}

func TestWallClock(t *testing.T) {
	c := NewWallClock(false)
	c.Until(3 * ms)
	if c.Now() < 3*ms {
		t.Errorf("returned at %v, want 3ms or later", c.Now())
	}
	c.Until(0)
}
