package hal

import (
	"context"
	"encoding/json"
	"time"

	"github.com/giveway/giveway/internal/proc"
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
// a call of the Host.
//
// What else a backend can do is said by the optional interfaces below.
type Backend interface {
	// Name is a short name such as nvidia, amd, shim or sim.
	Name() string
	// Start begins discovery and returns. What is found is reported to h until ctx is
	// done. An error that wraps ErrNotSupported means that this machine has no such
	// device; the daemon then goes on without the backend. Any other error is shown by
	// giveway doctor, and the daemon goes on as well. Start is called once.
	Start(ctx context.Context, h Host) error
	// Checks says what works and what does not, for giveway doctor.
	Checks() []Check
	// Close gives up everything that the backend holds. The daemon calls it once, after
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
	// Finder can look for the queues of one process at once, instead of at its next
	// regular look.
	Finder interface {
		Find(pid int) Found
	}
	// Sleeper is what the loop sleeps in, so that an event of the backend wakes it
	// without a detour through Go's scheduler. At most one backend is a Sleeper.
	Sleeper interface {
		// Wait returns after d at the latest, and at once when an event is there.
		Wait(d time.Duration)
		// Wake makes Wait return: the call under way, or the next.
		Wake()
	}
	// Adopter restores queues in the guardian process, in which the backend is not
	// started. Adopt takes the State of an Offer's Handoff and the copied descriptor,
	// which becomes the queue's. It calls the driver only to undo.
	Adopter interface {
		Adopt(state json.RawMessage, fd int) (Queue, error)
	}
	// Restorer puts every queue of the machine back as the vendor made it, without a
	// daemon and without a journal. The backend is not started.
	Restorer interface {
		RestoreAll(ctx context.Context) (Restored, error)
	}
	// Prober says what a started backend would find on this machine. The backend is not
	// started.
	Prober interface {
		Probe(ctx context.Context) []Check
	}
	// KernelLogger counts the lines that the backend caused in the kernel's log.
	KernelLogger interface {
		KernelLogLines() uint64
	}
)

// Found is what a Finder knows of a process that has no queue yet.
type Found struct {
	// Pending is not nil if a queue of the process was seen and will be offered soon:
	// the process can be given attributes already.
	Pending *proc.Process
	// Note is added to the error "process is not known", for example to say that
	// another process holds its queues.
	Note string
}

// Restored counts what a Restorer did.
type Restored struct {
	Queues int // that it let run
	Slices int // of those, how many had a slice other than the vendor's
}

// Check is one thing that works or does not.
type Check struct {
	Name   string
	OK     bool
	Detail string
	Fix    string // what to do if not OK
}

// Host receives what backends discover. The daemon implements it. All methods may be
// called from any goroutine.
type Host interface {
	// DeviceFound announces a device. A second call for the same ID has no effect.
	DeviceFound(Device)
	// QueueFound offers a queue. It calls o.Attach on the caller's goroutine and returns
	// its error. After a nil error the queue is scheduled until it is withdrawn.
	QueueFound(o Offer) (QueueHandle, error)
	// Wake makes the loop take a turn, and so call Poll, at once.
	Wake()
	// IsGuardian reports whether a process is the daemon's guardian, which holds copies
	// of other processes' descriptors.
	IsGuardian(pid int) bool
	// Ready reports whether a process has work that waits for or runs on a device, and
	// its class. known is false for a process without queues.
	Ready(pid int) (class sched.Class, ready, known bool)
}

// Facts receives what a backend reports in Poll. Its methods are called only during
// Poll, on the same goroutine.
type Facts interface {
	// DeviceTime reports how long a queue has been on its device since it was opened,
	// as measured by the hardware.
	DeviceTime(q QueueHandle, total time.Duration)
	// Progress reports how far a process has come since its gate or its queue was offered. It applies
	// to all queues of the process.
	Progress(p Process, c Progress)
	// RequestStarted reports that a request began, RequestFinished that one is over and
	// how long it took; zero if that is unknown. A request that began and ended between
	// two polls is reported by RequestFinished alone.
	RequestStarted(p Process)
	RequestFinished(p Process, took time.Duration)
	// Hint reports that a process set one of its own attributes. Kinds and values are
	// those of shim/abi.h; an invalid one is counted and changes nothing.
	Hint(p Process, kind uint32, value int64)
}

// Progress is how many commands a process has handed to the device and how many of
// those are done. Counts never go back.
type Progress struct {
	Launched  uint64
	Completed uint64
	Waiting   bool // a further command waits at the gate
}

// Device is one accelerator. A Device that also implements Batcher stops and starts
// several queues in one call; one that implements Tracing says whether the hardware's
// context-switch trace is being read.
type Device interface {
	Info() Info
}

// Tracing is a Device whose driver can record which context ran.
type Tracing interface {
	Tracing() bool
}

// Process is the daemon's record of a process. It is valid until the last queue of the
// process is withdrawn.
type Process interface {
	Info() proc.Process
	// Settings returns what is in force for the process. The value is never nil and
	// never changes: each change, and each order of the owner even if it changes
	// nothing, publishes a new one. A backend compares pointers to notice.
	Settings() *Settings
}

// Settings is what is in force for a process, merged from its rule, its run, its hints
// and its owner's orders.
type Settings struct {
	Attr    sched.Attr
	Managed bool // a rule, run, hint or order gave the process at least one attribute

	// TakesTurns reports that the policy in force makes the process take turns with
	// others: its device time is then worth reading more often.
	TakesTurns bool
	// WatchReady and WatchRequests ask for a wake-up when the process gets work or runs
	// out of it, and when a request begins or ends. They cost the process a few
	// microseconds each, so they are set only if the policy acts on them at once.
	WatchReady    bool
	WatchRequests bool
	TimeRequests  bool // measure how long requests take
	// RequestsReported says that requests are reported through the API: a backend that
	// infers requests from activity stops doing so.
	RequestsReported bool

	Bound      Bound // on commands in flight, where the policy sets none
	GateOnly   bool  // the process has no queue but its gate
	Predict    bool  // take the device ahead of requests that arrive at a regular interval
	Idempotent bool  // commands may be run twice
	// ExpectAt is when the owner said that the next request arrives; zero: not said.
	ExpectAt time.Time
}

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
	// Attach takes charge of the queue, having proved what can be done to it: the type
	// of the Queue is the claim. It changes nothing that the process could notice. prev
	// is nil, or the queue of an earlier gate of the same process: the new queue is then
	// held and bounded as prev was.
	Attach func(prev Queue) (Queue, error)

	// Gate says that the offer stands for the whole process rather than for a hardware
	// queue. Attach is called once for each other queue of the process, and the result
	// is combined with that queue: together they can do what either can. Only while the
	// process has no other queue does the gate stand alone, on Device. Device may be nil
	// until the process has used one: QueueHandle.SetDevice then announces it.
	//
	// Attach and GateStats of a gate only touch memory: they are called with the
	// daemon's lock held.
	Gate      bool
	GateStats func() GateStats
	// Batcher, if not nil, stops and starts the queue together with others.
	Batcher Batcher
	// Handoff is what the guardian needs to undo changes of the queue. If it is nil,
	// changes undo themselves when the daemon dies, and no journal is kept.
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
	FD    int // is copied, and stays the backend's
}

// Detail is shown by giveway ps.
type Detail struct {
	FoundSlice   time.Duration // the slice that the queue had when it was attached
	SharedBy     string        // mps: the queue serves all clients of an MPS server
	NativeQueues int           // how many hardware queues it stands for; zero: one
	StopMethod   string        // in which way it is interrupted, if there are several
}

// GateStats is what the gate of a process counts.
type GateStats struct {
	Runtime   string // cuda, hip, opencl, queue; empty: not known yet
	Launched  uint64
	Completed uint64
	Holds     uint64 // how often a launch had to wait
	HeldFor   time.Duration
	Overruns  uint64 // how often a launch passed over the bound
	Parked    uint64 // times the device was taken ahead of an arrival
	Hits      uint64 // of those, times the arrival came
	ParkedFor time.Duration
	Saved     time.Duration // by parking, as the process estimates it
	Invalid   uint64        // entries of the page that made no sense
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
	// Withdraw gives the queue up: it is gone, or about to be offered again. exited says
	// that its process has exited, so that nothing is left to undo; otherwise the queue
	// is closed, which restores it. The channel is closed when that is done.
	Withdraw(exited bool) (done <-chan struct{})
}
