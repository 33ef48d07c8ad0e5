package bench

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// fakeClock moves only when someone waits or works.
type fakeClock struct {
	now  time.Duration
	late time.Duration // by which every wait is too long
}

func (c *fakeClock) Now() time.Duration { return c.now }

func (c *fakeClock) Until(t time.Duration) {
	if t > c.now {
		c.now = t + c.late
	}
}

// works takes the given times, one a request, the last for all that follow.
func (c *fakeClock) works(times ...time.Duration) func() error {
	return func() error {
		c.now += times[0]
		if len(times) > 1 {
			times = times[1:]
		}
		return nil
	}
}

func TestLateArrivalsQueue(t *testing.T) {
	c := &fakeClock{now: 7 * time.Second}
	// Requests at 10, 20, 30, 40 ms; the first takes 25, the others 2: the second
	// waits 15 ms, the third 7, the fourth not at all.
	s, err := Serve(c, Every(10*ms), Job{Do: c.works(25*ms, 2*ms)}, 50*ms, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := []time.Duration{25 * ms, 17 * ms, 9 * ms, 2 * ms}; !slices.Equal(s.Latencies, want) || s.Unfinished != 0 {
		t.Errorf("latencies %v, want %v; %d unfinished", s.Latencies, want, s.Unfinished)
	}
}

func TestClosedLoop(t *testing.T) {
	c := &fakeClock{late: ms}
	// The timer's lateness is not latency: the client sends when it wakes.
	s, _ := Serve(c, After(5*ms), Job{Do: c.works(4 * ms)}, 31*ms, time.Second)
	if want := []time.Duration{4 * ms, 4 * ms, 4 * ms}; !slices.Equal(s.Latencies, want) {
		t.Errorf("latencies %v, want %v", s.Latencies, want)
	}
	c = &fakeClock{late: ms}
	s, _ = Serve(c, Every(5*ms), Job{Do: c.works(2 * ms)}, 11*ms, time.Second)
	if want := []time.Duration{3 * ms, 3 * ms}; !slices.Equal(s.Latencies, want) {
		t.Errorf("open loop: latencies %v, want %v: its arrivals have a time of their own", s.Latencies, want)
	}
}

func TestOverloadIsBounded(t *testing.T) {
	c := &fakeClock{}
	s, _ := Serve(c, Every(ms), Job{Do: c.works(10 * ms)}, 100*ms, 100*ms)
	if len(s.Latencies) != 20 || s.Unfinished != 79 {
		t.Errorf("%d answered, %d unfinished of 99", len(s.Latencies), s.Unfinished)
	}
	if !slices.IsSorted(s.Latencies) {
		t.Error("the queue grows, but the wait does not")
	}
}

func TestHintComesBefore(t *testing.T) {
	c := &fakeClock{}
	var hints []time.Duration
	hint := func() error { hints = append(hints, c.now); return nil }
	_, _ = Serve(c, Every(10*ms), Job{Do: c.works(ms), Hint: hint, Lead: 3 * ms}, 35*ms, 0)
	if want := []time.Duration{7 * ms, 17 * ms, 27 * ms}; !slices.Equal(hints, want) {
		t.Errorf("hints at %v, want %v", hints, want)
	}
}

func TestServeStopsAtAnError(t *testing.T) {
	broken := errors.New("broken")
	if _, err := Serve(&fakeClock{}, Every(ms), Job{Do: func() error { return broken }}, time.Second, 0); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestPoisson(t *testing.T) {
	run := func(seed uint64) Served {
		c := &fakeClock{}
		s, _ := Serve(c, Poisson(1000, seed), Job{Do: c.works(0)}, 20*time.Second, 0)
		return s
	}
	n := float64(len(run(1).Latencies))
	if math.Abs(n-20000) > 4*math.Sqrt(20000) {
		t.Errorf("%g arrivals in 20 s at 1000/s", n)
	}
	if len(run(1).Latencies) != int(n) || len(run(2).Latencies) == int(n) {
		t.Error("arrivals do not follow from the seed")
	}
}

func TestWallClock(t *testing.T) {
	c := NewWallClock()
	c.Until(3 * ms)
	if c.Now() < 3*ms {
		t.Errorf("back at %v", c.Now())
	}
	c.Until(0)
}
