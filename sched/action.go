package sched

import (
	"fmt"
	"time"
)

// Verb is what an Action asks for.
type Verb uint8

const (
	Stop Verb = iota + 1
	Start
	SetSlice
	SetBound
)

// Action is an order for the device side. Its outcome comes back as an
// ActionDone event, however long that takes, exactly once, unless the queue is
// closed first. A queue has at most one action under way.
type Action struct {
	ID    ActionID
	Queue QueueID
	Verb  Verb
	Level Level         // how hard to stop it, or how hard it was stopped
	Bound uint32        // for SetBound; zero is the device's own
	Slice time.Duration // for SetSlice; zero is the device's own
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
		return "least"
	}
	return d.String()
}
