package sched

import (
	"fmt"
	"time"
)

// Verb says what an Action does.
type Verb uint8

const (
	Stop Verb = iota + 1
	Start
	SetSlice
	SetBound
)

// Action is an order to a backend. Its outcome comes back exactly once as an
// ActionDone event, however long that takes, unless the queue is closed first.
// A queue has at most one pending action.
type Action struct {
	ID    ActionID
	Queue QueueID
	Verb  Verb
	Level Level         // for Stop, the level to stop at; for Start, the level the queue is stopped at
	Bound uint32        // for SetBound; zero is the device's default
	Slice time.Duration // for SetSlice; zero is the device's default
}

func (a Action) String() string {
	switch a.Verb {
	case Stop, Start:
		return fmt.Sprintf("#%d %v %d at level %d", a.ID, a.Verb, a.Queue, a.Level)
	case SetSlice:
		return fmt.Sprintf("#%d %v %d to %s", a.ID, a.Verb, a.Queue, sliceName(a.Slice))
	}
	return fmt.Sprintf("#%d %v %d to %d", a.ID, a.Verb, a.Queue, a.Bound)
}

func sliceName(d time.Duration) string {
	switch d {
	case 0:
		return "default"
	case MinSlice:
		return "min"
	}
	return d.String()
}
