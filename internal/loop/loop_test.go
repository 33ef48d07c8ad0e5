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

// mailbox is a Transport, a Sleeper and an Executor.
type mailbox struct {
	arrived chan struct{}

	mu     sync.Mutex
	events []sched.Event
	done   []sched.Action
}

func (m *mailbox) Post(wake bool, evs ...sched.Event) {
	m.mu.Lock()
	m.events = append(m.events, evs...)
	m.mu.Unlock()
	if wake {
		m.arrived <- struct{}{}
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
	case <-m.arrived:
	case <-time.After(d):
	}
}

func (m *mailbox) Wake() { m.arrived <- struct{}{} }

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

// stopAtOneSecond is a policy that grants all queues until one second.
type stopAtOneSecond struct{}

const at = sched.Time(time.Second)

func (stopAtOneSecond) Plan(v *sched.View) sched.Plan {
	if v.Now >= at {
		return sched.Plan{}
	}
	p := sched.Plan{Wake: at}
	for i := range v.Queues {
		p.Grants = append(p.Grants, sched.Grant{Queue: v.Queues[i].ID})
	}
	return p
}

// run runs a loop on the fake clock of synctest.
func run(t *testing.T, test func(*mailbox)) {
	synctest.Test(t, func(t *testing.T) {
		m := &mailbox{arrived: make(chan struct{}, 1)}
		choice := sched.PolicyChoice{Make: func() sched.Policy { return stopAtOneSecond{} }}
		l := loop.Loop{Sched: sched.New(sched.Config{}, choice), Transport: m, Executor: m}
		ctx, cancel := context.WithCancel(t.Context())
		go l.Run(ctx, clock{time.Now()}, m)
		test(m)
		cancel()
		synctest.Wait()
	})
}

var opened = sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "d", Can: sched.CanInterrupt}

// TestLoopWakesAtThePlannedTime checks that the policy is called at Plan.Wake
// without an event.
func TestLoopWakesAtThePlannedTime(t *testing.T) {
	run(t, func(m *mailbox) {
		m.Post(true, opened)
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if got := m.Done(); len(got) != 0 {
			t.Fatalf("before Wake: got %v, want no action", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := m.Done(); len(got) != 1 || got[0].Verb != sched.Stop {
			t.Fatalf("got %v, want one stop", got)
		}
	})
}

// TestHeartbeatMakesUpForALostWakeUp checks that an event without a wake-up is
// handled within a heartbeat.
func TestHeartbeatMakesUpForALostWakeUp(t *testing.T) {
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
