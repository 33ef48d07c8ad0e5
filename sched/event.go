package sched

import "time"

// Kind says what an Event tells.
type Kind uint8

const (
	// DeviceOpened announces a device, or tells more about one already known.
	// Uses Device and About.
	DeviceOpened Kind = iota + 1
	// DeviceClosed withdraws a device and every queue on it. Uses Device.
	DeviceClosed
	// QueueOpened announces a queue, in state Running, so that a lone program
	// never waits for the daemon. For a queue already known it tells that
	// other things can be done to it now. Uses Queue, Process, Device, Can, Attr.
	QueueOpened
	// QueueClosed withdraws a queue. Uses Queue.
	QueueClosed
	// Progressed tells how far a queue has come. Counts never go back, so a
	// lost event is made good by the next. Uses Queue, Seen.
	Progressed
	// Dozed tells that a queue has nothing to do, Woke that it has again, where
	// there are no counters to tell. Uses Queue.
	Dozed
	Woke
	// Ran tells the time a queue has really had on the device since it was
	// opened. Uses Queue, Ran.
	DeviceTimeMeasured
	// Asked tells that a request to a program begins, Answered that one is over.
	// Uses Queue, and Answered Ran: how long it took. One that came and went
	// between two looks is told of by Answered alone.
	RequestStarted
	RequestFinished
	// Hinted replaces the attributes of a queue. Uses Queue, Attr.
	AttrsChanged
	// ActionDone is the outcome of an action that Step returned. Uses Queue,
	// Action, Failure.
	ActionDone
	// PolicyChosen puts another policy in charge of one device, or of all if
	// Device is empty. Uses Device, Choice.
	PolicyChosen
	// ParameterSet changes a parameter of the policy in charge. Uses Device
	// (empty for all), Name, Value.
	ParameterSet
	// PlanOffered is an answer from a policy that lives outside. Uses Device,
	// Number, Plan.
	PlanOffered
	// LetGo begins the end: every queue is started and every slice and window
	// put back, and no policy is asked again.
	ShutdownStarted
)

// Event is something that has happened. It is one struct, and not an interface
// with many, so that a batch of events costs no allocation.
type Event struct {
	Kind     Kind
	Can      Ability
	Outcome  Outcome
	Queue    QueueID
	Process  ProcessID
	Device   DeviceID
	Action   ActionID
	Duration time.Duration
	Counters Counters
	Attr     Attr
	About    Device
	Choice   PolicyChoice
	Name     string
	Value    string
	Number   uint64
	Plan     *Plan
}

// Failure is how an action came out.
type Outcome uint8

const (
	Done        Outcome = iota // it did what was asked
	Refused                    // it did not, and may another time
	Unsupported                // it did not, and never will
	Gone                       // the queue is no more: as good as QueueClosed
)
