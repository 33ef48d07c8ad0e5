package daemon

import (
	"sync"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// mailbox is the loop's transport: events from everywhere, questions that are
// answered in the loop, and what the eyes and the ear tell. The loop sleeps at the
// ear, so that a program that has something to say wakes it by itself.
type mailbox struct {
	ear  *shimpage.Doorbells
	look func([]sched.Event) []sched.Event

	mu     sync.Mutex
	events []sched.Event
	asks   []func()
	closed bool // nobody answers any more
}

func newMailbox(ear *shimpage.Doorbells, look func([]sched.Event) []sched.Event) *mailbox {
	return &mailbox{ear: ear, look: look}
}

// post puts events in, in order, and wakes the loop.
func (m *mailbox) post(evs ...sched.Event) {
	m.mu.Lock()
	m.events = append(m.events, evs...)
	m.mu.Unlock()
	m.Wake()
}

// ask has f called in the loop, after the events posted before it are taken in
// by the scheduler, and waits for that.
func (m *mailbox) ask(f func()) {
	done := make(chan struct{})
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.asks = append(m.asks, func() { f(); close(done) })
	m.mu.Unlock()
	m.Wake()
	<-done
}

// Wait implements loop.Sleeper.
func (m *mailbox) Wait(d time.Duration) { m.ear.Wait(d) }

// Wake implements loop.Sleeper.
func (m *mailbox) Wake() { m.ear.Wake() }

// Drain implements loop.Transport.
func (m *mailbox) Drain(buf []sched.Event) []sched.Event { return m.look(buf) }

// take appends what was posted.
func (m *mailbox) take(buf []sched.Event) []sched.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	buf = append(buf, m.events...)
	m.events = m.events[:0]
	return buf
}

// answer answers the questions, after a turn.
func (m *mailbox) answer() {
	m.mu.Lock()
	asks := m.asks
	m.asks = nil
	m.mu.Unlock()
	for _, f := range asks {
		f()
	}
}

// close answers what is left to answer. There is no loop any more to do so.
func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.answer()
}
