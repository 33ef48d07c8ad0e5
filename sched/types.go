package sched

import (
	"math"
	"time"
)

// Time is a reading of the node's monotonic clock, in nanoseconds.
type Time int64

// Never is later than any other Time.
const Never Time = math.MaxInt64

// Add returns t+d, or Never if t is Never or the sum lies beyond it.
func (t Time) Add(d time.Duration) Time {
	if d > 0 && t > Never-Time(d) {
		return Never
	}
	return t + Time(d)
}

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// IDs are handed out by the daemon and never used twice. Zero names nothing.
type (
	DeviceID  string
	ProcessID uint64
	QueueID   uint64
	ActionID  uint64
)

// Class is what kind of work a queue does, and so who gives way to whom.
type Class uint8

const (
	Standard Class = iota // left exactly as the vendor has it
	Online                // latency-critical: preempts batch and idle
	Batch                 // gives way to online, shares the rest by weight
	Idle                  // runs when nothing else is ready; has no floor
)

// Ability is a set of things that can be done to a queue. A bit is set only
// when the backend proved it on this machine, with this driver, as this user.
type Ability uint8

const (
	CanHold       Ability = 1 << iota // level 1: launch no more
	CanDeactivate                     // level 2: begin no more
	CanInterrupt                      // level 3: stop inside the running kernel
	CanSlice                          // has a time slice that can be set
	CanBound                          // has a bound on commands in flight that can be set

	canStop = CanHold | CanDeactivate | CanInterrupt
)

// Level says how soon a queue can be made to stop.
type Level uint8

const (
	LevelNone       Level = iota // not at all
	LevelHold                    // once the launched commands have finished
	LevelDeactivate              // once the running command has finished
	LevelInterrupt               // in the middle of the running command
)

func (l Level) ability() Ability { return Ability(1) << (l - 1) }

// Level returns the best way of stopping in a.
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

// Attr is what the owner of a queue has asked for, by command line, rule or
// hint. The zero value asks for nothing.
type Attr struct {
	Deadline time.Duration // from ready to done; zero means none
	SLO      time.Duration // how long a request may take, nearly always; zero means none
	Laxity   time.Duration // how long its work can wait and still be in time; zero means unknown
	Work     time.Duration // device time one request needs; zero means unknown
	Expect   Time          // when the next request is due; zero means unknown
	Priority int32         // higher runs first
	Weight   uint32        // share under weighted policies; zero means 1
	Share    uint8         // percent of the device; zero means an equal part of what is left
	Nice     int8          // of the process on the CPU, -20 to 19, lower runs first
	RealTime uint8         // of the process on the CPU, 1 to 99, higher runs first; zero means not real-time
	Class    Class
	Focus    bool // its window has the user's eye
	Paused   bool // stopped by its owner until further notice, whatever a policy says
}

// Counters tell how far a queue has come. Known is false where nobody looks
// inside the program; then the queue is taken to be ready.
type Counters struct {
	Submitted uint64 // commands the program has submitted so far
	Launched  uint64 // of those, handed to the device
	Completed uint64 // of those, done
	Known     bool
}

// State is where a queue stands between running and stopped.
type State uint8

const (
	Running  State = iota // may use the device
	Stopping              // told to stop, not yet stopped
	Stopped               // may not use the device
	Starting              // told to start, not yet started
)

// Queue is one thing the hardware can schedule: a channel group, a KFD queue,
// a shim's gate.
type Queue struct {
	ID       QueueID
	Process  ProcessID
	Device   DeviceID
	Attr     Attr
	Counters Counters

	ReadySince    Time          // since when its oldest work has waited, as near as the counters tell
	Served        time.Duration // time on the device
	MeasuredAt    Time          // when the hardware last said so
	ServedAtReady time.Duration // Served when ReadySince was set
	Slice         time.Duration // as last set; zero is the device's own
	Bound         uint32        // bound on commands in flight as last set; zero is the device's own
	OpenRequests  uint32        // requests asked and not answered, where there is somebody to tell
	Can           Ability       // what works; what failed for good is taken out
	State         State
	Idle          bool // somebody who can tell says that it has nothing to do
	Measured      bool // Served is what the hardware says, not what the core guesses

	act   acting        // what is being done to it: steer.go
	floor lowWater      // what it has had of late: floor.go
	held  Time          // since when the policy has withheld the device from its work; Never if it has not
	mark  uint64        // Submitted when ReadySince was set
	ran   time.Duration // the last reading of the hardware
}

// Ready reports whether q has work to do. A queue that nobody can look into is
// taken to have some.
func (q *Queue) Ready() bool {
	if q.Counters.Known {
		return q.Counters.Submitted > q.Counters.Completed
	}
	return !q.Idle
}

// mayRun reports whether q has work to do and its owner lets it.
func (q *Queue) mayRun() bool { return q.Ready() && !q.Attr.Paused }

// Weight returns the weight of q, at least 1.
func (q *Queue) Weight() int64 { return max(int64(q.Attr.Weight), 1) }

// Level returns the best way of stopping q.
func (q *Queue) Level() Level { return q.Can.Level() }

// onDevice reports whether q takes device time: a held queue does until what
// it has launched drains, unless it was stopped harder than that.
func (q *Queue) onDevice() bool {
	if q.State == Running || q.State == Stopping {
		return q.Ready()
	}
	return q.act.level == LevelHold && q.Counters.Launched > q.Counters.Completed
}

// off reports whether nothing of q can be on the device. What has begun when a
// queue is held or deactivated goes on, and only its own program says for how long.
func (q *Queue) off() bool { return q.State == Stopped && q.act.level == LevelInterrupt }

// Device is what a policy may want to know of an accelerator. It does not
// change while the device is open.
type Device struct {
	ID DeviceID
	// Slice is what a queue gets in one turn by default; zero if the device
	// does not share its time in slices.
	Slice time.Duration
	// MinTurn is the shortest slice with which two ready queues both make
	// progress. At most one running queue may have less. Zero: any slice is safe.
	MinSharedSlice time.Duration
	// StopTime is about how long it takes from deciding to stop a queue until
	// it is off the device, and so how far ahead of a request to begin.
	StopTime time.Duration
}

// Sliced reports whether the device shares its time in slices.
func (d *Device) Sliced() bool { return d.Slice > 0 }
