package amdbench

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// experiment is a simulated device with its queues, and the measured times so far.
type experiment struct {
	*sim.Bench
	offline  []sched.QueueID
	online   sched.QueueID
	rng      *rand.Rand
	calls    int    // so far
	perStop  int    // calls that stop all offline queues; as many start them
	atStart  uint64 // updates before the first request
	requests int

	// One time for each request; see Row.
	exclusive, answer, unmap, remap, hiccup []time.Duration
}

// newExperiment makes n offline queues with work, and an online queue without, in a
// process of its own.
func newExperiment(m sim.Model, n int, c *Config) *experiment {
	const forever = 1000 * time.Hour
	e := &experiment{Bench: sim.NewBench(m, c.Seed), rng: rand.New(rand.NewPCG(c.Seed, uint64(n))), perStop: n}
	for i := range n {
		id := e.OpenIn(sched.ProcessID(1 + i%c.Processes))
		e.Submit(id, forever)
		e.offline = append(e.offline, id)
	}
	if m.Slots.Batch {
		e.perStop = min(n, c.Processes)
	}
	e.online = e.OpenIn(sched.ProcessID(1 + c.Processes))
	e.atStart = e.Occupancy().Updates
	return e
}

func (e *experiment) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(e.rng.Int64N(int64(hi-lo)+1))
}

// request makes one online request: its work is submitted, the offline queues are
// unmapped, and when it is answered they are mapped again.
func (e *experiment) request(way Way) error {
	arrival := e.Now()
	e.requests++
	e.Submit(e.online, onlineWork)
	delay := e.between(minDelay, maxDelay)
	if way == Native {
		return e.await(arrival)
	}
	e.Advance(delay)
	stalled := e.Occupancy().Stalled
	if err := e.call(sched.Stop, &e.unmap); err != nil {
		return err
	}
	if left := e.UpdatesDone() - e.Now(); left > 0 {
		e.Advance(left)
	}
	e.exclusive = append(e.exclusive, e.UpdatesDone()-arrival)
	e.hiccup = append(e.hiccup, e.Occupancy().Stalled-stalled)
	if err := e.await(arrival); err != nil {
		return err
	}
	return e.call(sched.Start, &e.remap)
}

// call stops or starts all offline queues, and adds how long the caller waited.
func (e *experiment) call(verb sched.Verb, waits *[]time.Duration) error {
	start := e.Now()
	e.calls += e.perStop
	err := e.Call(verb, e.offline...)
	*waits = append(*waits, e.Now()-start)
	return err
}

// await waits for the answer to the request that arrived then.
func (e *experiment) await(arrival time.Duration) error {
	if !e.Await(e.online, uint64(e.requests), time.Minute) {
		return errors.New("a request had no answer for a minute")
	}
	e.answer = append(e.answer, e.LastCompletion(e.online)-arrival)
	return nil
}

func (e *experiment) row(way Way) Row {
	o, requests := e.Occupancy(), float64(e.requests)
	span := float64(o.Span)
	var offline time.Duration
	for _, id := range e.offline {
		offline += e.DeviceTime(id)
	}
	row := Row{
		Queues: len(e.offline), Way: way, Answer: stats.Summarize(e.answer),
		Calls: float64(e.calls) / requests, Updates: round(float64(o.Updates-e.atStart) / requests),
		Utilisation: round(o.Utilisation()), Mapped: round(float64(o.Mapped) / (float64(o.Slots) * span)),
		Stalled: round(float64(o.Stalled) / span), OfflineKept: round(float64(offline) / span),
	}
	if way != Native {
		row.Exclusive, row.Unmap, row.Remap, row.Hiccup = summary(e.exclusive), summary(e.unmap), summary(e.remap), summary(e.hiccup)
	}
	return row
}

func summary(times []time.Duration) *stats.Summary {
	s := stats.Summarize(times)
	return &s
}
