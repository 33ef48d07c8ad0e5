package sched

import "time"

// Reason says why a queue runs or waits. It is shown to users and changes nothing.
type Reason uint8

const (
	NoReason Reason = iota // the policy gives none

	// Reasons to run.
	ByDefault   // the policy leaves the queue to the device's own scheduling
	IsOnline    // it is online work, which is not stopped
	ItsTurn     // it is its turn
	Beside      // it runs side by side with others, because it does not fill the device
	Shared      // it shares the device with the others, by slices in proportion to the weights
	InGap       // it runs in the gap between two bursts of online work
	NoWork      // it has no work, so that letting it run costs nothing
	Unstoppable // it cannot be stopped
	IsFirst     // it goes before all others in the policy's order

	// Reasons to wait.
	OtherTurn       // it is the turn of another queue
	OnlineWork      // online work is ready, or was until a moment ago
	RequestExpected // an online request is expected
	InBurst         // a burst of online work, which waits for each of its kernels
	OtherWork       // a queue of class idle waits until no other queue is ready
	NotFirst        // others go before it in the policy's order

	// Reasons of the scheduler itself.
	UserPaused      // a user has paused the process
	FloorTurn       // it runs to get its minimum share
	PolicyOverruled // the policy makes mistakes, so all queues run
	ShuttingDown    // the daemon ends, so all queues run

	reasons
)

var reasonNames = [reasons]string{
	"", "default", "online", "turn", "side by side", "shared", "gap", "no work", "unstoppable", "first",
	"other turn", "online work", "expected request", "burst", "other work", "others first",
	"paused", "floor", "policy overruled", "shutdown",
}

func (r Reason) String() string {
	if r >= reasons {
		return ""
	}
	return reasonNames[r]
}

// Reasons lists all reasons.
func Reasons() (all []Reason) {
	for r := NoReason + 1; r < reasons; r++ {
		all = append(all, r)
	}
	return all
}

// classes is the number of classes.
const classes = 4

// Decided is how a queue is scheduled, and why.
type Decided struct {
	Since  Time          // when the fields below last changed
	Slice  time.Duration // zero if the queue waits, or has the device's default
	Bound  uint32        // the same
	Run    bool          // the queue may run; its State follows when the actions are done
	Reason Reason
}

// Decision is a change of how a queue is scheduled.
type Decision struct {
	Decided
	Number  uint64 // of the plan: the same for all changes that were decided together
	Queue   QueueID
	Process ProcessID
	Device  DeviceID
	Policy  string // the name of the policy in force
}

// Decisions returns what the last Step decided differently from before. It is valid until
// the next Step.
func (s *Scheduler) Decisions() []Decision { return s.decisions }

// decided notes a change of how q is scheduled.
func (s *Scheduler) decided(d *device, q *Queue, run bool, want *Grant, reason Reason) {
	if run != q.Decided.Run {
		q.watched.runSince = s.now
	}
	q.Decided = Decided{Since: s.now, Run: run, Reason: reason}
	if run {
		q.Decided.Slice, q.Decided.Bound = want.Slice, want.Bound
	}
	s.decisions = append(s.decisions, Decision{
		Decided: q.Decided, Number: s.epoch, Queue: q.ID, Process: q.Process, Device: d.ID, Policy: d.domain.choice.Name,
	})
}
