// Package drivertest has what the doubles of vendors' drivers, and their tests, share:
// injected faults, a simulated GPU, and child processes.
package drivertest

import "sync"

// Faults counts the calls of a double by their kind and holds the faults that a test has
// injected. The zero value has none. Its methods may be called from any goroutine.
type Faults[Call, Fault comparable] struct {
	mu     sync.Mutex
	calls  map[Call]int
	faults map[Call]*injected[Fault]
}

type injected[Fault any] struct {
	fault       Fault
	skip, times int
}

// Set injects a fault into the calls of a kind. It replaces an earlier one; the zero Fault
// removes it. The fault skips some calls and then affects as many as times; zero: all.
func (s *Faults[Call, Fault]) Set(c Call, f Fault, skip, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f == *new(Fault) {
		delete(s.faults, c)
		return
	}
	if s.faults == nil {
		s.faults = make(map[Call]*injected[Fault])
	}
	s.faults[c] = &injected[Fault]{f, skip, times}
}

// Arrive counts a call and returns the fault that affects it; the zero Fault: none.
func (s *Faults[Call, Fault]) Arrive(c Call) (f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[Call]int)
	}
	s.calls[c]++
	i := s.faults[c]
	if i == nil {
		return f
	}
	if i.skip > 0 {
		i.skip--
		return f
	}
	if i.times--; i.times == 0 {
		delete(s.faults, c)
	}
	return i.fault
}

// Calls returns how many calls of a kind have arrived, failed ones included.
func (s *Faults[Call, Fault]) Calls(c Call) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[c]
}
