package sched

import "time"

// Kind says what an Event reports.
type Kind uint8

const (
	// DeviceOpened adds a device, or replaces the description of a known one.
	// Uses Device and About.
	DeviceOpened Kind = iota + 1
	// DeviceClosed removes a device and every queue on it. Uses Device.
	DeviceClosed
	// QueueOpened adds a queue, in state Running, so that a process that is
	// alone on the device never waits for the daemon. For a known queue it
	// replaces the abilities. Uses Queue, Process, Device, Can, Attr. Without Device it
	// is about a known queue only.
	QueueOpened
	// QueueClosed removes a queue. Uses Queue.
	QueueClosed
	// Progressed reports the counters of a queue. Counters never decrease, so
	// the next event makes up for a lost one. Uses Queue, Counters.
	Progressed
	// DeviceTimeMeasured reports the device time that the hardware has measured
	// for a queue since the queue was opened, and its visits to the device if they
	// are known. Uses Queue, Duration, Visits.
	DeviceTimeMeasured
	// MeasurementLost reports that the hardware no longer measures the device time
	// and the visits of a queue, for example because its trace cannot be read. The
	// scheduler estimates the device time until the next DeviceTimeMeasured. Uses
	// Queue.
	MeasurementLost
	// RequestStarted reports that a request has begun, RequestFinished that one
	// has ended. Both use Queue. RequestFinished uses Duration, how long the request
	// took, and for the record At, when it ended; each is zero if it is unknown. A
	// request that begins and ends between two readings of the shim's page is
	// reported by RequestFinished alone.
	RequestStarted
	RequestFinished
	// AttrsChanged replaces the attributes of a queue. Uses Queue, Attr.
	AttrsChanged
	// ActionDone is the outcome of an action that Step returned. Uses Queue,
	// Action, Outcome. Duration, for the record, is how long the call took.
	ActionDone
	// PolicyChosen puts a policy in force on one device, or on all devices if
	// Device is empty. If the same policy is in force already and can change
	// its parameters, it does so and keeps its state. Uses Device, Choice.
	PolicyChosen
	// PlanOffered carries a plan from a policy in another process: the answer
	// to question Number, nil if the process exited. Uses Device, Number, Plan.
	PlanOffered
	// ShutdownStarted begins the shutdown: every queue is started, every slice
	// and bound is restored, and no policy is called again.
	ShutdownStarted
)

// Event reports something that has happened. It is one struct, not an interface
// with many implementations, so that a batch of events costs no allocation.
type Event struct {
	Kind     Kind
	Can      Ability
	Outcome  Outcome
	Queue    QueueID
	Process  ProcessID
	Device   DeviceID
	Action   ActionID
	Duration time.Duration
	At       Time
	Counters Counters
	Attr     Attr
	About    Device
	Choice   PolicyChoice
	Number   uint64
	Plan     *Plan
	Visits   Visits
}

// Outcome is the result of an action.
type Outcome uint8

const (
	Done        Outcome = iota // the action took effect
	Refused                    // the action failed; a later attempt may succeed
	Unsupported                // the action failed, and every later attempt will
	Gone                       // the queue no longer exists: same as QueueClosed
	Partial                    // a stop failed and may have stopped a part of the queue
)
