package daemon

import (
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// eventQueue collects events from all goroutines, and functions that are to run in the
// loop.
type eventQueue struct {
	sleeper hal.Sleeper // in which the loop sleeps

	mu     sync.Mutex
	events []sched.Event
	calls  []func()
	due    []func() // calls that were there when the turn began
	closed bool     // the loop has ended
}

// post adds events, in order, and wakes the loop.
func (e *eventQueue) post(evs ...sched.Event) {
	e.mu.Lock()
	e.events = append(e.events, evs...)
	e.mu.Unlock()
	e.sleeper.Wake()
}

// inLoop calls f in the loop and waits for it. By then the backends were polled again and
// the scheduler has taken in all events posted before the call. When the loop has ended
// it does nothing.
func (e *eventQueue) inLoop(f func()) {
	done := make(chan struct{})
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.calls = append(e.calls, func() { f(); close(done) })
	e.mu.Unlock()
	e.sleeper.Wake()
	<-done
}

// beginTurn marks the calls that runCalls runs at the end of the turn.
func (e *eventQueue) beginTurn() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.due, e.calls = append(e.due, e.calls...), e.calls[:0]
}

// take appends the posted events to buf.
func (e *eventQueue) take(buf []sched.Event) []sched.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	buf = append(buf, e.events...)
	e.events = emptied(e.events)
	return buf
}

// runCalls runs the functions given to inLoop before the turn began.
func (e *eventQueue) runCalls() {
	for _, f := range e.due {
		f()
	}
	e.due = e.due[:0]
}

// close runs the functions that are left, because the loop has ended.
func (e *eventQueue) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.beginTurn()
	e.runCalls()
}

// channelSleeper is for a daemon without a backend that is a hal.Sleeper. Its capacity is
// one.
type channelSleeper chan struct{}

// Wait implements hal.Sleeper.
func (c channelSleeper) Wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
	}
}

// Wake implements hal.Sleeper.
func (c channelSleeper) Wake() {
	select {
	case c <- struct{}{}:
	default: // a wake-up is pending already
	}
}
