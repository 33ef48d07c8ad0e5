package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// Outcome is the result of running a scenario: every client alone, and all
// clients together under each policy.
type Outcome struct {
	Name    string
	File    string // path of the scenario file; empty if there is none
	Doc     string
	Policy  string // the scenario's own, as in Run.Policy
	Devices []sim.DeviceConfig
	Seed    uint64
	Warmup  time.Duration
	Length  time.Duration      // of the time that counts, after the warm-up
	Groups  []Group            // the entries of the file's list of clients
	Alone   []sim.ClientResult // by client, in the order of the file
	Runs    []Run              // in the order requested; each has the same clients as Alone
	// NotApplicable lists the policies that were requested and not run: see Options.Compare.
	NotApplicable []NotApplicable
	Published     []Published
	Wall          time.Duration // real time that all simulations took
}

// Group is one entry of the file's list of clients: Count clients that are alike.
type Group struct {
	Name  string
	First int // index of its first client
	Count int
}

// Run is the result under one policy. Native is without a daemon.
type Run struct {
	Policy    string
	Result    sim.Result
	Actions   []TimedAction // of the scheduler, if Options asks for them
	Decisions []TimedDecision
	// Derived says which attribute of the clients was derived for this policy; empty: none.
	Derived string
	// RecordedUntil is when a limit of Options was reached: segments, requests, actions and
	// decisions after that were not recorded. Zero: all were.
	RecordedUntil sched.Time
}

// TimedAction is an action of the scheduler, when it was issued, and its outcome.
type TimedAction struct {
	At        sched.Time
	Action    sched.Action
	Decision  uint64     // number of the last decision about the queue; zero: none
	Completed sched.Time // zero: the outcome is not known
	Outcome   sched.Outcome
}

// TimedDecision is a decision of the scheduler and when it was made.
type TimedDecision struct {
	At       sched.Time
	Decision sched.Decision
}

// Published is a figure that others published for a similar case.
type Published struct {
	Source string `json:"source"`         // paper or artifact, with section or figure
	What   string `json:"what,omitempty"` // what was measured, and how it differs from the scenario
	Value  string `json:"value"`
}

// SideBySide reports whether a device ran several queues at a time. It sorts the
// segments, all of one device, by time.
func SideBySide(segments []sim.Segment) bool {
	slices.SortStableFunc(segments, func(a, b sim.Segment) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	for i := 1; i < len(segments); i++ {
		if segments[i].From < segments[i-1].To {
			return true
		}
	}
	return false
}

// Violations lists the simulator's rules that were broken, each with the policy.
func (o *Outcome) Violations() []string {
	var all []string
	for _, r := range o.Runs {
		for _, v := range r.Result.Violations {
			all = append(all, fmt.Sprintf("%s: %s", r.Policy, v))
		}
	}
	return all
}
