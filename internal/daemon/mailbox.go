package daemon

import (
	"sync"

	"github.com/giveway/giveway/sched"
)

// mailbox is the loop's transport: events from everywhere, questions that are
// answered in the loop, and what the eyes see.
type mailbox struct {
	news chan struct{}
	eyes func([]sched.Event) []sched.Event

	mu     sync.Mutex
	events []sched.Event
	asks   []func()
	closed bool // nobody answers any more
}

func newMailbox(eyes func([]sched.Event) []sched.Event) *mailbox {
	return &mailbox{news: make(chan struct{}, 1), eyes: eyes}
}

// post puts events in, in order, and wakes the loop.
func (m *mailbox) post(evs ...sched.Event) {
	m.mu.Lock()
	m.events = append(m.events, evs...)
	m.mu.Unlock()
	m.wake()
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
	m.wake()
	<-done
}

func (m *mailbox) wake() {
	select {
	case m.news <- struct{}{}:
	default:
	}
}

// News implements node.Transport.
func (m *mailbox) News() <-chan struct{} { return m.news }

// Drain implements node.Transport.
func (m *mailbox) Drain(buf []sched.Event) []sched.Event {
	m.mu.Lock()
	buf = append(buf, m.events...)
	m.events = m.events[:0]
	m.mu.Unlock()
	return m.eyes(buf)
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
