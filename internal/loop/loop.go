// Package loop joins the scheduler to the world: it brings it events, and has
// its actions carried out. The daemon and the simulator run the same loop.
package loop

import (
	"context"
	"time"

	"github.com/giveway/giveway/sched"
)

// Transport carries facts from the devices, the programs and their owners.
type Transport interface {
	// Drain appends the events that have arrived since the last call.
	Drain([]sched.Event) []sched.Event
}

// Sleeper is how a loop on the real clock waits.
type Sleeper interface {
	// Wait returns when Drain may have something to give, and after d at the
	// latest. A wake-up that is lost is made good by the heartbeat.
	Wait(d time.Duration)
	// Wake has Wait return, the one under way or the next.
	Wake()
}

// Executor carries out actions. Execute returns at once; each outcome arrives
// later by way of the Transport. The actions of one call were decided together,
// so an executor may batch those of one device. It must carry out those for one
// queue in order. The slice is valid only during the call.
type Executor interface {
	Execute([]sched.Action)
}

// Clock tells the time.
type Clock interface {
	Now() sched.Time
}

// Recorder is told of every turn, so that it can be looked at or played again.
type Recorder interface {
	Record(sched.Time, []sched.Event, []sched.Action)
}

// Heartbeat is the longest the loop sleeps.
const Heartbeat = 100 * time.Millisecond

// Loop is the heart of the daemon.
type Loop struct {
	Sched     *sched.Scheduler
	Transport Transport
	Executor  Executor
	Recorder  Recorder // may be nil

	events []sched.Event
}

// Turn takes in what has happened, decides, and sets the decisions going. It
// returns when the next turn is due.
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

// Run takes turns until ctx is done.
func (l *Loop) Run(ctx context.Context, clock Clock, sleeper Sleeper) error {
	defer context.AfterFunc(ctx, sleeper.Wake)()
	for ctx.Err() == nil {
		now := clock.Now()
		next := l.Turn(now)
		sleeper.Wait(next.Sub(now))
	}
	return ctx.Err()
}
