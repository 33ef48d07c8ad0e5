package loop_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/giveway/giveway/internal/loop"
	"github.com/giveway/giveway/sched"
)

// mailbox is a Transport, a Sleeper and an Executor on Go's own clock.
type mailbox struct {
	news chan struct{}

	mu     sync.Mutex
	events []sched.Event
	done   []sched.Action
}

func (m *mailbox) Post(wake bool, evs ...sched.Event) {
	m.mu.Lock()
	m.events = append(m.events, evs...)
	m.mu.Unlock()
	if wake {
		m.news <- struct{}{}
	}
}

func (m *mailbox) Drain(b []sched.Event) []sched.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	b = append(b, m.events...)
	m.events = nil
	return b
}

func (m *mailbox) Wait(d time.Duration) {
	select {
	case <-m.news:
	case <-time.After(d):
	}
}

func (m *mailbox) Wake() { m.news <- struct{}{} }

func (m *mailbox) Execute(as []sched.Action) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = append(m.done, as...)
}

func (m *mailbox) Done() []sched.Action {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.done)
}

type clock struct{ start time.Time }

func (c clock) Now() sched.Time { return sched.Time(time.Since(c.start)) }

// appointment stops everything at one second.
type appointment struct{}

const at = sched.Time(time.Second)

func (appointment) Plan(v *sched.View) sched.Plan {
	if v.Now >= at {
		return sched.Plan{}
	}
	p := sched.Plan{Wake: at}
	for i := range v.Queues {
		p.Grants = append(p.Grants, sched.Grant{Queue: v.Queues[i].ID})
	}
	return p
}

// run starts a loop in a bubble of Go's fake time.
func run(t *testing.T, test func(*mailbox)) {
	synctest.Test(t, func(t *testing.T) {
		m := &mailbox{news: make(chan struct{}, 1)}
		choice := sched.PolicyChoice{Make: func() sched.Policy { return appointment{} }}
		l := loop.Loop{Sched: sched.New(sched.Config{}, choice), Transport: m, Executor: m}
		ctx, cancel := context.WithCancel(t.Context())
		go l.Run(ctx, clock{time.Now()}, m)
		test(m)
		cancel()
		synctest.Wait()
	})
}

var opened = sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "d", Can: sched.CanInterrupt}

// TestLoopKeepsAppointments: what a policy wants done at a time is done then,
// though nothing happens.
func TestLoopKeepsAppointments(t *testing.T) {
	run(t, func(m *mailbox) {
		m.Post(true, opened)
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if got := m.Done(); len(got) != 0 {
			t.Fatalf("acted too soon: %v", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := m.Done(); len(got) != 1 || got[0].Verb != sched.Stop {
			t.Fatalf("got %v, want one stop", got)
		}
	})
}

// TestHeartbeatHealsALostWakeUp: an event that nobody announced is taken in
// within a heartbeat.
func TestHeartbeatHealsALostWakeUp(t *testing.T) {
	run(t, func(m *mailbox) {
		time.Sleep(2 * time.Second)
		m.Post(false, opened)
		time.Sleep(loop.Heartbeat)
		synctest.Wait()
		if got := m.Done(); len(got) != 1 {
			t.Fatalf("got %v, want one stop", got)
		}
	})
}
