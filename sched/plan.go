package sched

import "time"

// View is what a policy reads: the devices that it schedules, at one instant.
// The slices belong to the scheduler. A policy reads them during Plan and
// neither keeps nor changes them.
type View struct {
	Now     Time
	Devices []Device // in order of ID; one, unless the policy schedules all devices together
	Queues  []Queue  // in order of ID
}

// MinSlice is the minimum slice of a device. A queue with the minimum slice
// leaves the device as soon as any other queue is ready.
const MinSlice time.Duration = 1

// Grant lets one queue use its device.
type Grant struct {
	Queue QueueID
	Slice time.Duration // zero is the device's default
	Bound uint32        // on commands in flight; zero is the device's default
	// SideBySide says that the queue runs beside others of its class instead of taking
	// turns with them. It is shown to users and changes nothing.
	SideBySide bool
	Reason     Reason // why the queue runs
}

// Plan is the decision of a policy. It holds until the next plan.
type Plan struct {
	// Grants lists the queues that may use the device from now on. All others
	// are stopped. An idle queue may be granted, so that its next command starts
	// at once. A policy that grants a queue before its expected request, and
	// leaves out the other queues, preempts ahead of time.
	Grants []Grant
	// Waiting is why the queues that are not granted wait, by their class.
	Waiting [classes]Reason
	// Wake is when the policy must be called again even without an event; zero
	// is never.
	Wake Time
	// Invalid says that the policy returned no valid plan, for example because
	// its process exited. It counts as a mistake at once.
	Invalid bool
}

// Policy decides which queues run.
//
// Plan must depend only on its argument and on what the policy has seen before.
// It is called once for each batch of events about its devices. For a queue in
// state Stopping or Starting it must repeat its last decision unless something
// else has changed.
type Policy interface {
	Plan(*View) Plan
}

// Observer is implemented by policies that keep state from events. Observe is
// called for every event about the policy's devices, in order, before Plan.
type Observer interface {
	Observe(Time, *Event)
}

// PolicyChoice names a policy and makes instances of it.
type PolicyChoice struct {
	Name       string
	Make       func() Policy // returns a new instance without state
	AllDevices bool          // one instance schedules all devices together
	// Update gives a running policy of this name the parameters of this choice.
	// The policy keeps its state. Nil if only a new instance can have them.
	Update func(Policy)
}
