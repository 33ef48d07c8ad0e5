package amd

import (
	"fmt"
	"sync"
	"time"
)

// callStats are totals of one kind of call.
type callStats struct {
	calls   uint64
	queues  uint64 // in all calls
	failed  uint64 // queues
	total   time.Duration
	longest time.Duration
}

func (c callStats) describe(verb string) string {
	mean := time.Duration(0)
	if c.calls > 0 {
		mean = c.total / time.Duration(c.calls)
	}
	return fmt.Sprintf("%d calls to %s %d queues (%d failed), mean %v, longest %v", c.calls, verb, c.queues, c.failed, mean, c.longest)
}

// stats are the totals of a driver.
type stats struct {
	mu            sync.Mutex
	stops, starts callStats
	fallbacks     uint64 // stops by another method after one failed
}

// add adds a call to c, which is one of s.
func (s *stats) add(c *callStats, began time.Time, results []error, fallback bool) {
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.calls++
	c.queues += uint64(len(results))
	c.total += took
	c.longest = max(c.longest, took)
	for _, err := range results {
		if ignoreGone(err) != nil {
			c.failed++
		}
	}
	if fallback {
		s.fallbacks++
	}
}

// totals returns stops, starts and fallbacks so far.
func (s *stats) totals() (stops, starts callStats, fallbacks uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stops, s.starts, s.fallbacks
}
