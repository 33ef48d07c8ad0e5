package sched

import (
	"math"
	"time"
)

// Time is a reading of the node's monotonic clock, in nanoseconds.
type Time int64

// Never is later than any other Time.
const Never Time = math.MaxInt64

// Add returns t+d, or Never if the sum is later than Never.
func (t Time) Add(d time.Duration) Time {
	if d > 0 && t > Never-Time(d) {
		return Never
	}
	return t + Time(d)
}

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// The daemon assigns IDs and never reuses one. The zero value is no ID.
type (
	DeviceID  string
	ProcessID uint64
	QueueID   uint64
	ActionID  uint64
)

// Class is the kind of work of a queue.
type Class uint8

const (
	Standard Class = iota // scheduled by the device as without Giveway
	Online                // latency-critical: preempts batch and idle
	Batch                 // gives way to online; batch queues share the rest by weight
	Idle                  // runs when no other queue is ready; has no floor
)

// Ability is the set of actions that a queue supports. A backend sets a bit only
// if the action works on this machine, with this driver, as this user.
type Ability uint8

const (
	CanHold       Ability = 1 << iota // level 1: launch no more commands
	CanDeactivate                     // level 2: begin no more launched commands
	CanInterrupt                      // level 3: interrupt the running command
	CanSlice                          // the time slice can be set
	CanBound                          // the bound on commands in flight can be set

	canStop = CanHold | CanDeactivate | CanInterrupt
)

// Level is a way of stopping a queue. A higher level stops it sooner.
type Level uint8

const (
	LevelNone       Level = iota // the queue cannot be stopped
	LevelHold                    // stops when the launched commands have finished
	LevelDeactivate              // stops when the running command has finished
	LevelInterrupt               // stops inside the running command
)

func (l Level) ability() Ability { return Ability(1) << (l - 1) }

// Level returns the highest level in a.
func (a Ability) Level() Level {
	switch {
	case a&CanInterrupt != 0:
		return LevelInterrupt
	case a&CanDeactivate != 0:
		return LevelDeactivate
	case a&CanHold != 0:
		return LevelHold
	}
	return LevelNone
}

// Attr holds the attributes of a queue's process, from rules, the command line
// and hints. The zero value sets none.
type Attr struct {
	Deadline time.Duration // from ready to done; zero means none
	SLO      time.Duration // how long a request may take, in nearly all cases; zero means none
	Laxity   time.Duration // how long the work can wait and still meet its deadline; zero means unknown
	Work     time.Duration // device time of one request; zero means unknown
	Expect   Time          // when the next request is expected; zero means unknown
	Priority int32         // higher runs first
	Weight   uint32        // share under weighted policies; zero means 1
	Share    uint8         // percent of the device; zero means an equal part of the rest
	Nice     int8          // nice value of the process on the CPU, -20 to 19, lower runs first
	RealTime uint8         // real-time priority of the process on the CPU, 1 to 99, higher runs first; zero means none
	Class    Class
	Focus    bool // a window of the process has the focus
	Paused   bool // stopped by the user, whatever a policy decides
}

// Counters count the commands of a queue since it was opened.
type Counters struct {
	Submitted uint64 // commands that the process has submitted
	Launched  uint64 // of those, handed to the device
	Completed uint64 // of those, finished
	Late      uint64 // requests that entered the device late, when most of their commands were launched
	Idled     uint64 // times that the queue ran out of work; the shim notices it when the process waits for its work
	Known     bool   // false if no backend can read them; the queue then counts as ready
}

// Visits are the periods in which the context of a queue was on the device, from one
// context switch to the next. A queue that fills the device leaves when its slice is over,
// and one that does not leaves earlier, by itself, if another queue waits. A queue that is
// alone makes no visits: its context stays. If a context is only saved and loaded again, because
// another queue is stopped, its visit goes on.
type Visits struct {
	Count uint64 // visits so far
	Full  uint64 // of those, the visits that took the queue's default slice or longer
	Cut   uint64 // of those, shorter ones that ended because the queue was stopped
	// Alone is by how much visits, with the present one, were longer than the slice. No other queue had
	// work then. The queue itself may have had some or not.
	Alone time.Duration
	// Arrived is when the last visit began that followed an absence of at least
	// MinAbsence; zero if there was none. For an online queue that is the arrival of a
	// request, late by as long as the queue waited for the device.
	Arrived Time
	Left    Time // when the last visit ended; zero if none has
	Known   bool // false if no backend can read them
}

// MinAbsence is how long a queue must have been off its device for its next visit to
// count as an arrival. Shorter absences occur within a request that waits for others.
const MinAbsence = 5 * time.Millisecond

// End counts the end of a visit that took this long, of a queue with this default slice. Cut says
// that it ended because the queue was stopped. A full visit takes as long as the slice and a context
// switch: measured on an H200 with a slice of 2048 us, 2158 to 2217 us in nine of ten visits of jobs
// that fill the GPU. If it takes much longer, no other queue had work when the slice was over.
func (v *Visits) End(took, slice time.Duration, cut bool) {
	switch {
	case IsFull(took, slice):
		v.Full++
	case cut:
		v.Cut++
	}
	v.Alone += TimeAlone(took, slice)
}

// IsFull reports whether a visit took the whole slice.
func IsFull(took, slice time.Duration) bool { return took >= slice-slice/16 }

// TimeAlone returns for how much of a visit no other queue had work.
func TimeAlone(took, slice time.Duration) time.Duration {
	if took <= slice+slice/4 {
		return 0
	}
	return took - slice
}

// State is the state of a queue.
type State uint8

const (
	Running  State = iota // may use the device
	Stopping              // a stop is pending
	Stopped               // may not use the device
	Starting              // a start is pending
)

// Queue is the unit that is scheduled: a channel group, all KFD queues of a process on one
// GPU, or the gate of a process with the shim.
type Queue struct {
	ID       QueueID
	Process  ProcessID
	Device   DeviceID
	Attr     Attr
	Counters Counters

	ReadySince    Time          // since when the oldest unfinished work has waited, as far as the counters tell
	Served        time.Duration // time on the device
	MeasuredAt    Time          // when the hardware last measured Served
	ServedAtReady time.Duration // Served when ReadySince was set
	Slice         time.Duration // as last set; zero is the device's default
	Bound         uint32        // on commands in flight, as last set; zero is the device's default
	OpenRequests  uint32        // requests started and not finished, where requests are reported
	RequestSince  Time          // when the oldest of those started; zero if there is none
	NewestRequest Time          // when the newest of those started; zero if there is none
	Can           Ability       // abilities, without those that proved unsupported
	State         State
	OnFloor       bool   // its device time comes from floor turns, because the policy gives it less than its share
	SideBySide    bool   // Grant.SideBySide of the last grant
	Measured      bool   // Served is measured by the hardware, not estimated by the scheduler
	Visits        Visits // as the hardware last measured them; not Known while the measurement is lost
	Decided       Decided
	WaitsBehind   QueueID // the holder of an inversion that lasts, of which this queue is the victim; zero: none

	act          actionState   // pending action and retries: reconcile.go
	floor        floorMark     // recent service: floor.go
	wasted       time.Duration // part of Served without progress: floor.go
	pace         requestPace   // of its requests: floor.go
	heldSince    Time          // when a plan first left the ready queue without a grant; Never: the last plan grants it
	readyMark    uint64        // Submitted when ReadySince was set
	requests     []Time        // when the open requests started, the oldest first; at most maxRequestTimes
	lastMeasured time.Duration // the last DeviceTimeMeasured
	wasMeasured  bool          // Served was measured at least once
	watched      watched       // inversion.go
}

// Ready reports whether q has unfinished work. A queue without counters counts
// as ready.
func (q *Queue) Ready() bool {
	return !q.Counters.Known || q.Counters.Submitted > q.Counters.Completed
}

// Runnable reports whether q is ready and not paused.
func (q *Queue) Runnable() bool { return q.Ready() && !q.Attr.Paused }

// Weight returns the weight of q, at least 1.
func (q *Queue) Weight() int64 { return max(int64(q.Attr.Weight), 1) }

// Level returns the highest level at which q can be stopped.
func (q *Queue) Level() Level { return q.Can.Level() }

// Draining reports whether q is stopped and, as far as is known, still has commands
// on the device that it began before.
func (q *Queue) Draining() bool { return q.act.use == drains }

// off reports whether no command of q can be on the device. Commands that have
// begun when a queue is held or deactivated run on, for an unknown time.
func (q *Queue) off() bool { return q.State == Stopped && q.act.stoppedAt == LevelInterrupt }

// Device describes an accelerator to a policy.
type Device struct {
	ID DeviceID
	// Slice is the default time slice; zero if the device has no time slices.
	Slice time.Duration
	// MinSharedSlice is the shortest slice with which two ready queues both make
	// progress. At most one running queue may have a shorter one. Zero means
	// that any slice is safe.
	MinSharedSlice time.Duration
	// SwitchTime is about how long a context switch takes. Zero if the device has no time slices.
	SwitchTime time.Duration
	// StopTime is about how long it takes from the decision to stop a queue until
	// it is off the device. A policy that clears the device for an expected
	// request begins this much earlier.
	StopTime time.Duration
	// Serial says that the device runs one command at a time, to its end, and of
	// two queues the command that was launched first. While a stopped queue still
	// has commands there, the other queues wait.
	Serial bool
}

// Sliced reports whether the device has time slices.
func (d *Device) Sliced() bool { return d.Slice > 0 }
