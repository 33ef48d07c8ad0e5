package scenario

import (
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Outcome is what came of running a scenario: every client alone, and all of
// them together under each policy that was asked for.
type Outcome struct {
	Name      string
	File      string // the scenario's, as it was named; empty if it came from none
	Doc       string
	Devices   []sim.DeviceConfig
	Seed      uint64
	Warmup    time.Duration
	Length    time.Duration      // counted, after the warm-up
	Groups    []Group            // the clients again, those that are alike together
	Alone     []sim.ClientResult // by client, in the order of the scenario
	Runs      []Run              // by policy, in the order asked
	Published []Published        // what others reported of such a case
	Wall      time.Duration      // what all of it took here
}

// Group is one client of the scenario file: as many programs as its count says.
type Group struct {
	Name  string
	First int // index of its first program
	Count int
}

// Run is a scenario under one policy; "native" is without any daemon.
type Run struct {
	Policy  string
	Result  sim.Result
	Actions []TimedAction // what the scheduler ordered, if it was recorded
}

// TimedAction is an order of the scheduler and when it was given.
type TimedAction struct {
	At     sched.Time
	Action sched.Action
}

// Published is a figure that somebody else reported.
type Published struct {
	Source string // paper or artifact, and section or figure
	What   string // what was measured, and how that differs from here
	Value  string
}
