package sched

import "time"

// View is all that a policy may look at: the devices it is in charge of at one
// instant. The slices belong to the scheduler: a policy reads them during Plan
// and neither keeps nor changes them.
type View struct {
	Now     Time
	Devices []Device // one, unless the policy spans them; in order of ID
	Queues  []Queue  // in order of ID
}

// Least is the shortest slice a device has. A queue that holds it leaves the
// device the moment any other is ready.
const MinSlice time.Duration = 1

// Grant lets one queue use its device.
type Grant struct {
	Queue QueueID
	Slice time.Duration // its turn beside others; zero is the device's own
	Bound uint32        // its bound on commands in flight; zero is the device's own
}

// Plan is what a policy wants. It is valid until the policy is asked again.
type Plan struct {
	// Grants names the queues that may use the device from now on. All others
	// are stopped. A queue with nothing to do may be named: its next command
	// then starts at once. To grant a queue before its hinted arrival, and to
	// leave its rivals out, is to preempt ahead of time.
	Grants []Grant
	// Wake is when to ask again even if nothing happens; zero is never.
	Wake Time
	// Void says that the policy has no plan: it has lost its mind or its
	// process. It counts as a mistake at once.
	Invalid bool
}

// Policy says which queues should run.
//
// Plan must depend on nothing but its argument and what the policy has seen
// before. It is called once for each batch of events that touched its devices.
// It must give queues that wait for an outcome (Stopping, Starting) the same
// answer again unless something else has changed.
type Policy interface {
	Plan(*View) Plan
}

// Observer is implemented by policies with accounts of their own. Observe is
// called for every event about the policy's devices, in order, before Plan.
type Observer interface {
	Observe(Time, *Event)
}

// Tunable is implemented by policies with parameters. Set must leave all as it
// was when it returns an error.
type Tunable interface {
	Set(name, value string) error
}

// Choice is a policy to put in charge.
type PolicyChoice struct {
	Name       string
	Make       func() Policy // a new instance, with no memory
	AllDevices bool          // one instance looks at all devices at once
}
