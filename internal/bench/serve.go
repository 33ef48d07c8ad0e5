package bench

import (
	"math"
	"math/rand/v2"
	"time"
)

// Clock is the time of an online client.
type Clock interface {
	Now() time.Duration
	Until(time.Duration) // waits until that time; returns at once if it has passed
}

// Arrivals is a sequence of arrival times of requests.
type Arrivals struct {
	// next returns the arrival after a request that arrived at last and was answered
	// at done.
	next func(last, done time.Duration) time.Duration
	// closed marks a closed loop. It has no schedule: a request arrives when the
	// client sends it, so a late timer of the client is not part of the latency.
	closed bool
}

// After is a closed loop: each request is sent that long after the last answer.
func After(pause time.Duration) Arrivals {
	return Arrivals{closed: true, next: func(_, done time.Duration) time.Duration { return done + pause }}
}

// Every is an open loop: requests arrive at fixed times, answered or not.
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

// Job is the work of a request.
type Job struct {
	Do func() error // returns when the request is answered
	// Hint, if not nil, is called Lead before each request.
	Hint func() error
	Lead time.Duration
}

// Serve answers the requests that arrive within length, one at a time and in order.
// A request that arrives while another is served waits, and its latency includes
// the wait. Requests that still wait when grace has passed after the end are
// counted as unanswered.
func Serve(clock Clock, arrivals Arrivals, job Job, length, grace time.Duration) (*Answered, error) {
	a := &Answered{SamplesUs: []float64{}}
	start := clock.Now()
	end := start + length
	arrival := arrivals.next(start, start)
	for ; arrival < end; arrival = arrivals.next(arrival, clock.Now()) {
		if clock.Now() > end+grace {
			a.Unanswered++
			continue
		}
		if job.Hint != nil {
			clock.Until(arrival - job.Lead)
			if err := job.Hint(); err != nil {
				return a, err
			}
		}
		clock.Until(arrival)
		from := arrival
		if arrivals.closed {
			from = clock.Now()
		}
		if err := job.Do(); err != nil {
			return a, err
		}
		a.SamplesUs = append(a.SamplesUs, us(clock.Now()-from))
	}
	a.Took = clock.Now() - start
	return a, nil
}

// spinWithin is how long before a time the clock stops sleeping and spins. Go's
// timers may be a millisecond late, many times the length of a request.
const spinWithin = 1500 * time.Microsecond

// WallClock is the machine's monotonic clock.
type WallClock struct {
	start time.Time
	// awake makes Until spin and never sleep. A CPU that slept for a few milliseconds
	// takes about 15 us longer to launch a kernel, which is not the GPU's time.
	awake bool
}

// NewWallClock returns a clock that is zero now.
func NewWallClock(awake bool) WallClock { return WallClock{time.Now(), awake} }

// Now returns the time since the clock's start.
func (c WallClock) Now() time.Duration { return time.Since(c.start) }

// Until sleeps, unless the clock is awake, and spins for the last spinWithin.
func (c WallClock) Until(t time.Duration) {
	if rest := t - c.Now(); rest > spinWithin && !c.awake {
		time.Sleep(rest - spinWithin)
	}
	for c.Now() < t { // spin: see spinWithin
	}
}
