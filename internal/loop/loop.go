// Package loop passes events to the scheduler and its actions to an executor.
// The daemon and the simulator run the same loop.
package loop

import (
	"context"
	"time"

	"github.com/giveway/giveway/sched"
)

// Transport collects events from devices, processes and users.
type Transport interface {
	// Drain appends the events that have arrived since the last call.
	Drain([]sched.Event) []sched.Event
}

// Sleeper lets a loop on the real clock wait.
type Sleeper interface {
	// Wait returns when Drain may have an event, and after d at the latest. The
	// heartbeat makes up for a lost wake-up.
	Wait(d time.Duration)
	// Wake makes the current call of Wait, or the next one, return.
	Wake()
}

// Executor carries out actions. Execute returns at once; each outcome arrives
// later through the Transport. An executor may batch the actions of one call that
// are for one device. It must carry out the actions for one queue in order. The
// slice is valid only during the call.
type Executor interface {
	Execute([]sched.Action)
}

// Clock returns the current time.
type Clock interface {
	Now() sched.Time
}

// Recorder records the input and output of every Step.
type Recorder interface {
	Record(sched.Time, []sched.Event, []sched.Action)
}

// Heartbeat is the longest time between two turns of the loop.
const Heartbeat = 100 * time.Millisecond

// Loop connects a scheduler to its transport and executor.
type Loop struct {
	Sched     *sched.Scheduler
	Transport Transport
	Executor  Executor
	Recorder  Recorder // may be nil

	events []sched.Event
}

// Turn calls Step once with the events that have arrived and executes its
// actions. It returns when the next turn is due.
func (l *Loop) Turn(now sched.Time) (next sched.Time) {
	l.events = l.Transport.Drain(l.events[:0])
	actions, wake := l.Sched.Step(now, l.events)
	if l.Recorder != nil {
		l.Recorder.Record(now, l.events, actions)
	}
	if len(actions) > 0 {
		l.Executor.Execute(actions)
	}
	return min(wake, now.Add(Heartbeat))
}

// Run calls Turn until ctx is done.
func (l *Loop) Run(ctx context.Context, clock Clock, sleeper Sleeper) error {
	defer context.AfterFunc(ctx, sleeper.Wake)()
	for ctx.Err() == nil {
		now := clock.Now()
		next := l.Turn(now)
		sleeper.Wait(next.Sub(now))
	}
	return ctx.Err()
}
