package bench

import (
	"math"
	"math/rand/v2"
	"time"
)

// Clock tells an online client the time since some start, and waits.
type Clock interface {
	Now() time.Duration
	Until(time.Duration) // returns at once when that is past
}

// Arrivals says when requests come.
type Arrivals struct {
	// next is the arrival after one that came at last and was answered at done.
	next func(last, done time.Duration) time.Duration
	// A closed loop has no schedule: a request comes when the client sends it, so
	// a late timer of the client's own is not counted.
	closed bool
}

// After is a closed loop: each request comes that long after the last answer.
func After(pause time.Duration) Arrivals {
	return Arrivals{closed: true, next: func(_, done time.Duration) time.Duration { return done + pause }}
}

// Every is an open loop: requests come at fixed times, answered or not.
func Every(period time.Duration) Arrivals {
	return Arrivals{next: func(last, _ time.Duration) time.Duration { return last + period }}
}

// Poisson is an open loop of independent arrivals, the same for the same seed.
func Poisson(perSecond float64, seed uint64) Arrivals {
	rng := rand.New(rand.NewPCG(seed, 0x6769766577617921))
	return Arrivals{next: func(last, _ time.Duration) time.Duration {
		gap := -math.Log(1-rng.Float64()) / perSecond
		return last + max(time.Duration(gap*float64(time.Second)), 1)
	}}
}

// Job is what is done for a request.
type Job struct {
	Do func() error // returns when the request is answered
	// Hint, if any, is called that much before a request.
	Hint func() error
	Lead time.Duration
}

// Served is what came of a run.
type Served struct {
	Latencies  []time.Duration
	Unfinished int
	Took       time.Duration
}

// Serve answers the requests that arrive within length, one at a time and in
// order. One that arrives while another is served waits, and its wait counts: it is
// not dropped. What still waits when grace has passed after the end is given up and
// counted as unfinished.
func Serve(clock Clock, arrivals Arrivals, job Job, length, grace time.Duration) (Served, error) {
	var s Served
	start := clock.Now()
	end := start + length
	arrival := arrivals.next(start, start)
	for ; arrival < end; arrival = arrivals.next(arrival, clock.Now()) {
		if clock.Now() > end+grace {
			s.Unfinished++
			continue
		}
		if job.Hint != nil {
			clock.Until(arrival - job.Lead)
			if err := job.Hint(); err != nil {
				return s, err
			}
		}
		clock.Until(arrival)
		from := arrival
		if arrivals.closed {
			from = clock.Now()
		}
		if err := job.Do(); err != nil {
			return s, err
		}
		s.Latencies = append(s.Latencies, clock.Now()-from)
	}
	s.Took = clock.Now() - start
	return s, nil
}

// spinWithin is how near to a time the clock stops sleeping. Go's timers may be a
// millisecond late, many times what a request takes.
const spinWithin = 1500 * time.Microsecond

// WallClock is the machine's monotonic clock.
type WallClock struct {
	start time.Time
	// Awake: never sleep. A CPU that has slept for a few milliseconds takes some 15 us
	// more to launch, which is not the GPU's time.
	Awake bool
}

// NewWallClock starts at zero now.
func NewWallClock() WallClock { return WallClock{start: time.Now()} }

// Now is the time since the start.
func (c WallClock) Now() time.Duration { return time.Since(c.start) }

// Until sleeps if it may, then spins for the last of the way.
func (c WallClock) Until(t time.Duration) {
	if rest := t - c.Now(); rest > spinWithin && !c.Awake {
		time.Sleep(rest - spinWithin)
	}
	for c.Now() < t { // on purpose: see spinWithin
	}
}
