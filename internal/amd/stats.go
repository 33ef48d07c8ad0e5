package amd

import (
	"sync"
	"time"
)

// Calls sums up calls of one kind.
type Calls struct {
	Calls   uint64
	Queues  uint64 // that they were about
	Failed  uint64 // queues
	Total   time.Duration
	Longest time.Duration
}

// Mean is how long a call took on average.
func (c Calls) Mean() time.Duration {
	if c.Calls == 0 {
		return 0
	}
	return c.Total / time.Duration(c.Calls)
}

// Stats sums up what was done.
type Stats struct {
	Stops, Starts Calls
	Fallbacks     uint64 // stops that were tried in another way after one failed
}

type stats struct {
	mu sync.Mutex
	Stats
}

// called notes a call and what became of its queues.
func (s *stats) called(c *Calls, began time.Time, errs []error, fallback bool) {
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Calls++
	c.Queues += uint64(len(errs))
	c.Total += took
	c.Longest = max(c.Longest, took)
	for _, err := range errs {
		if err != nil {
			c.Failed++
		}
	}
	if fallback {
		s.Fallbacks++
	}
}

// Stats returns what was done so far.
func (d *Driver) Stats() Stats {
	d.stats.mu.Lock()
	defer d.stats.mu.Unlock()
	return d.stats.Stats
}
