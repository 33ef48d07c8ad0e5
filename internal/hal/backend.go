package hal

import (
	"context"
	"encoding/json"
	"time"

	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// Backend finds the devices, processes and queues of one kind of accelerator and
// offers each queue to a Host, which is the daemon. Each vendor is one Backend in a
// package tree of its own; so are the shim and the simulator.
//
//	discovery (any goroutine)   Host.DeviceFound, Host.QueueFound, QueueHandle.Withdraw
//	facts (the loop's thread)   Poller.Poll -> Facts
//	actions (an executor)       the methods of the Queue that Offer.Attach returned
//
// Locks: the daemon holds none of its own when it calls a Backend, a Queue or
// Offer.Attach. A backend may therefore hold its lock while it calls a Host, a
// QueueHandle or a Facts: the order is always the backend's lock, then the daemon's.
// The exceptions are Holder and Bounder: they are called on the loop's thread with the
// executor's lock held, so they only touch memory and take no lock that is held during
// a call of the Host other than Wake.
//
// For what else it can do, a backend implements the optional interfaces below.
type Backend interface {
	// Name is a short name such as nvidia, amd, shim or sim.
	Name() string
	// Start begins discovery and returns. Discovery reports to h until ctx is done. An
	// error that wraps ErrNotSupported means that this machine has no such device. Any
	// other error is shown by giveway doctor. In both cases the daemon goes on without
	// the backend. Start is called once.
	Start(ctx context.Context, h Host) error
	// Checks returns what works and what does not, for giveway doctor.
	Checks() []Check
	// Close releases everything that the backend holds. The daemon calls it once, after
	// ctx is done and after every queue was closed or abandoned.
	Close() error
}

// Optional interfaces of a Backend.
type (
	// Poller has facts to report. Poll is called in every turn of the loop, on the
	// loop's thread: it must not wait for anything. A backend that has urgent facts
	// calls Host.Wake, and the loop polls at once; otherwise it polls at least every
	// loop.Heartbeat.
	Poller interface {
		Poll(now sched.Time, f Facts)
	}
	// Finder can look for the queues of one process now, before its next regular scan.
	Finder interface {
		Find(pid int) Found
	}
	// Sleeper lets the loop sleep in the backend, whose events then wake the loop without
	// a detour through Go's scheduler. At most one backend is a Sleeper.
	Sleeper interface {
		// Wait returns after d at the latest, and at once when an event is there.
		Wait(d time.Duration)
		// Wake makes Wait return: the call under way, or the next.
		Wake()
	}
	// Adopter restores queues in the guardian process, in which the backend is not
	// started. Adopt takes the State of an Offer's Handoff and the copied descriptor. The
	// queue owns the descriptor and calls the driver only to undo changes.
	Adopter interface {
		Adopt(state json.RawMessage, fd int) (Queue, error)
	}
	// Reopener finds a queue again that a daemon left changed, when its guardian died too.
	// Reopen takes the process of the queue and the State of its Handoff, and returns a
	// queue that calls the driver only to undo changes. The backend is not started. The
	// error wraps ErrGone if the process or the queue no longer exists.
	Reopener interface {
		Reopen(p proc.ID, state json.RawMessage) (Queue, error)
	}
	// Restorer restores every queue of the machine to the vendor's state, without a
	// daemon and without a journal. The backend is not started.
	Restorer interface {
		RestoreAll(ctx context.Context) (Restored, error)
	}
	// Prober returns what a backend would find on this machine if it were started.
	Prober interface {
		Probe(ctx context.Context) []Check
	}
	// KernelLogger counts the lines that the backend has caused in the kernel's log.
	KernelLogger interface {
		KernelLogLines() uint64
	}
)

// Found is what a Finder knows of a process that has no queue yet.
type Found struct {
	// Pending is the process if a queue of it will be offered soon: attributes can be set
	// already. Otherwise it is nil.
	Pending *proc.Process
	// Note is added to the error "process is not known", for example that another process
	// holds its queues.
	Note string
}

// Restored counts what a Restorer did.
type Restored struct {
	Queues int // queues that run again
	Slices int // of those, queues that had a slice other than the vendor's
}

// Check is one thing that works or does not.
type Check struct {
	Name   string
	OK     bool
	Detail string
	Fix    string // what to do if not OK
}

// Host receives the discoveries of backends. The daemon implements it. All methods may be
// called from any goroutine.
type Host interface {
	// DeviceFound announces a device. A second call for the same ID has no effect.
	DeviceFound(Device)
	// ProcessFound announces a process of which a queue will be offered at once. It reads
	// the files that describe the process, so that QueueFound need not. If Poll takes a lock
	// that the backend holds while it offers queues, the backend calls ProcessFound before
	// it takes that lock, so that the loop does not wait for files.
	ProcessFound(proc.Process)
	// QueueFound offers a queue. It calls o.Attach on the caller's goroutine and returns
	// its error. After a nil error the queue is scheduled until it is withdrawn.
	QueueFound(o Offer) (QueueHandle, error)
	// Wake makes the loop take a turn, and so call Poll, at once. It takes no lock.
	Wake()
	// IsGuardian reports whether a process is a guardian of the daemon. A guardian holds
	// copies of other processes' descriptors and is not their owner.
	IsGuardian(pid int) bool
	// Account returns the user that a uid counts for in limits of users, such as the owner of
	// a subordinate uid.
	Account(uid uint32) uint32
	// Ready reports whether a process has work that waits for or runs on a device, and
	// its class. known is false for a process without queues.
	Ready(pid int) (class sched.Class, ready, known bool)
}

// Facts receives the reports of a backend in Poll. Its methods are called only during
// Poll, on the same goroutine.
type Facts interface {
	// DeviceTime reports how long a queue has been on its device since it was opened,
	// as measured by the hardware, and its visits if they are known.
	DeviceTime(q QueueHandle, total time.Duration, visits sched.Visits)
	// MeasurementLost reports that the device time of a queue is no longer measured. It is
	// measured again from the next DeviceTime on.
	MeasurementLost(q QueueHandle)
	// Spans reports what a device did, from where the last report on it ended. Spans that
	// are long or not over are reported in parts. The slice is valid during the call. A
	// device that runs several processes at the same time reports none.
	Spans(d Device, spans []Span)
	// Progress reports how far a process has come since its gate or its queue was
	// offered. It applies to all queues of the process.
	Progress(p Process, c Progress)
	// RequestStarted reports that a request began, RequestFinished that one is over, how
	// long it took and when it ended; zero if that is unknown. A request that began and ended between
	// two polls is reported by RequestFinished alone.
	RequestStarted(p Process)
	RequestFinished(p Process, took time.Duration, ended sched.Time)
	// Hint reports that a process set one of its own attributes. Kinds and values are
	// those of shim/abi.h; an invalid one is counted and changes nothing.
	Hint(p Process, kind uint32, value int64)
}

// Progress is how many commands a process has handed to the device, how many of those
// are done, how many requests entered late, and how often the process ran out of work. Counts never
// go back.
type Progress struct {
	Launched  uint64
	Completed uint64
	Late      uint64
	Idled     uint64
	Waiting   bool // a further command waits at the gate
}

// Device is one accelerator. It may implement Batcher, Tracing, Reserving and
// MemoryReader.
type Device interface {
	Info() Info
}

// Tracing is a Device that reports whether its context-switch trace is being read.
type Tracing interface {
	Tracing() bool
}

// MemoryReader is a Device that knows how much of its memory processes have. Memory returns the
// bytes of those asked for, by pid; a process that has none, or of which it is not known, is left
// out. It may take long: the driver may visit every allocation.
type MemoryReader interface {
	Memory(pids []int) (map[int]uint64, error)
}

// Reserving is a Device that can keep hardware slots free for online processes. ReservedSlots
// returns how many are kept free, and how many there are.
type Reserving interface {
	ReservedSlots() (reserved, total int)
}

// Process is the daemon's record of a process. It is valid until the last queue of the
// process is withdrawn.
type Process interface {
	Info() proc.Process
	// Settings returns the settings in force. The value is never nil and never changes:
	// each change, and each order of the owner even if it changes nothing, publishes a
	// new one. A backend notices changes by comparing pointers.
	Settings() *Settings
}

// Settings are the settings in force for a process, merged from its rule, its run, its
// hints and the orders of its owner.
type Settings struct {
	Attr    sched.Attr
	Managed bool // a rule, run, hint or order gave the process at least one attribute

	// TakesTurns means that the policy makes the process take turns with others. Its
	// device time is then read more often.
	TakesTurns bool
	// WatchReady and WatchRequests ask for a wake-up when the process gets work or runs
	// out of it, and when a request begins or ends. They cost the process a few
	// microseconds each, so they are set only if the policy acts on them at once.
	WatchReady    bool
	WatchRequests bool
	TimeRequests  bool // measure how long requests take
	// RequestsReported means that requests are reported through the API. A backend that
	// infers requests from activity then stops doing so.
	RequestsReported bool

	Bound         Bound // on commands in flight, where the policy sets none
	GateOnly      bool  // the process has no queue but its gate
	Predict       bool  // take the device ahead of requests that arrive at a regular interval
	LateEntry     LateEntry
	StreamClasses bool // streams of lower priority give way to those of higher priority
	Idempotent    bool // commands may be run twice
	// ExpectAt is when the next request arrives, by order of the owner; zero: unknown.
	ExpectAt time.Time
}

// LateEntry says when the requests of a process enter the device: at once, or when the process
// has launched enough to keep it busy. The numbers are those of shim/abi.h.
type LateEntry uint32

// The values of LateEntry.
const (
	LateOff  LateEntry = iota // at once
	LateAuto                  // late where the shim has measured that it pays
	LateOn                    // late wherever it is possible
)

// Bound limits the commands in flight of a process.
type Bound struct {
	Commands uint32 // zero: no limit
	Batch    uint32 // look for completed commands after so many launches; zero: adapt
}

// Offer is a queue that a backend has found, ready to be attached.
type Offer struct {
	Process proc.Process
	// Device is the device of the queue. It need not have been announced before.
	Device Device
	// Attach finds out what can be done to the queue and returns a Queue of a type that
	// claims it. It changes nothing that the process could notice. prev is nil, or the
	// queue of an earlier gate of the same process: the new queue is then held and
	// bounded as prev was.
	Attach func(prev Queue) (Queue, error)

	// Gate means that the offer is the gate of a process and no hardware queue. Attach is
	// called once for each hardware queue of the process, and the result is combined with
	// that queue: together they can do what either can. While the process has no hardware
	// queue, the gate is a queue of its own, on Device. Device may be nil until the
	// process has used one: QueueHandle.SetDevice then announces it.
	//
	// Attach and GateStats of a gate only touch memory. Attach is called with the daemon's
	// lock held. GateStats is called without it, and so perhaps after Withdraw.
	Gate      bool
	GateStats func() GateStats
	// Batcher, if not nil, stops and starts the queue together with others.
	Batcher Batcher
	// Handoff is what the guardian needs to undo changes of the queue. nil: changes undo
	// themselves when the daemon dies, and no journal is kept.
	Handoff *Handoff
	// After, if not nil, is closed when the queue may be changed: until then an earlier
	// offer of the same queue is still being restored.
	After <-chan struct{}
	// Attr holds attributes that the backend knows of the process. Rules, runs, hints
	// and orders override them.
	Attr   sched.Attr
	Detail Detail
}

// Handoff lets the guardian undo changes of a queue.
type Handoff struct {
	State any // for Adopter.Adopt, encoded as JSON after Attach has returned
	FD    int // is copied; the backend keeps it
}

// Detail is shown by giveway ps.
type Detail struct {
	FoundSlice   time.Duration  // the slice that the queue had when it was attached
	SharedBy     string         // mps: the queue serves all clients of an MPS server
	Pool         string         // the label of the pool that the queue is; empty: it is none
	Members      []proc.Process // the clients of the MPS server, as far as they are known
	Settling     bool           // nothing can be done to it yet; it will be offered again soon
	NativeQueues int            // how many hardware queues it stands for; zero: one
	StopMethod   string         // how it is interrupted, if there are several ways
	// ReservedSlots is how many hardware slots of its device are reserved for online processes,
	// of which this is one.
	ReservedSlots int
}

// GateStats are the counts of a gate.
type GateStats struct {
	Runtime   string // cuda, hip, opencl, levelzero, queue; empty: not known yet
	Launched  uint64
	Completed uint64
	Holds     uint64 // how often a launch had to wait
	HeldFor   time.Duration
	Overruns  uint64 // how often a launch passed over the bound
	Parked    uint64 // times the device was taken ahead of an arrival
	Hits      uint64 // of those, times the arrival came
	ParkedFor time.Duration
	Saved     time.Duration // by parking, as the process estimates it
	// Late entry: requests that entered late, those of them that the program waited for before
	// the planned moment, and how long the device was left to others.
	LateRequests uint64
	LateEarly    uint64
	LateFor      time.Duration
	LateRatios   []stats.Bin // pairs of requests by latency of the one that entered late over the other's; in order
	LateGivenUp  uint64      // how often late entry was given up for a while
	// Stream classes: launches that waited for streams of higher priority, for how long, and
	// launches that did not wait any longer although those were busy.
	ClassHolds   uint64
	ClassHeldFor time.Duration
	ClassLetGo   uint64
	Invalid      uint64 // entries of the page that made no sense
}

// QueueHandle is a queue that was offered and accepted.
type QueueHandle interface {
	// ID is the number of the queue; zero for a gate.
	ID() sched.QueueID
	Process() Process
	// Replace puts q in the place of the attached queue, because what can be done to it
	// has changed.
	Replace(q Queue)
	SetDetail(Detail)
	// SetDevice announces the device of a gate that was offered without one.
	SetDevice(Device)
	// Withdraw ends the scheduling of the queue, which is gone or will be offered again.
	// If its process has exited, the queue is abandoned, because nothing is left to undo.
	// Otherwise it is closed, which restores it. The channel is closed when that is done.
	Withdraw(exited bool) (done <-chan struct{})
}
