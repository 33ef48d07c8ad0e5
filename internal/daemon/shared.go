package daemon

import "sync"

// shared computes a value for all callers that ask for it at the same time. One
// computation runs at a time, and each caller gets one that began after it asked. So a
// thousand callers cost two computations, and none sees what was before its own call.
type shared[T any] struct {
	compute func() T

	turn sync.Mutex // held during a computation
	mu   sync.Mutex
	next *computation[T] // not begun yet; nil: none
}

type computation[T any] struct {
	done  chan struct{}
	value T
}

// get returns a value that was computed after the call. The callers that share it must
// not change it.
func (s *shared[T]) get() T {
	s.mu.Lock()
	c := s.next
	first := c == nil
	if first {
		c = &computation[T]{done: make(chan struct{})}
		s.next = c
	}
	s.mu.Unlock()
	if first {
		s.run(c)
	}
	<-c.done
	return c.value
}

func (s *shared[T]) run(c *computation[T]) {
	s.turn.Lock()
	defer s.turn.Unlock()
	defer close(c.done)
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	c.value = s.compute()
}
