package api

import (
	"fmt"
	"time"
)

// RecordVersion is the version of the JSON of Record, Delays and Pressure. Within a version
// fields are only added, and so are kinds, reasons and other words: a reader skips those
// that it does not know.
const RecordVersion = 1

// Clock relates the times of entries to the wall clock. All times in a Record, in Delays
// and in Pressure are durations since the daemon was started, by the monotonic clock.
type Clock struct {
	Began time.Time     `json:"began"`  // the wall clock when the daemon was started
	Wall  time.Time     `json:"wall"`   // the wall clock when the answer was made
	Now   time.Duration `json:"now_ns"` // the same moment, since the start
}

// Record is a part of the daemon's record: what was decided, done and measured. The record
// is a ring of fixed size. Old entries are overwritten; those of the kinds order, state and
// note are kept longer than the others.
type Record struct {
	Version int `json:"version"` // RecordVersion
	Clock
	Entries []Entry `json:"entries"` // in order of Seq; those that the caller may not see are left out
	// Lost is how many entries, of any kind, behind the one that was asked for are
	// overwritten.
	Lost uint64 `json:"lost"`
	// Next continues: the next call asks for what is after it. It is also the ID of an event
	// in the stream.
	Next uint64 `json:"next"`
	// KeptLost says that entries of the kinds that are kept longer were overwritten since the
	// daemon was started.
	KeptLost bool `json:"kept_lost,omitempty"`
	// More says that entries were left out because of the limit.
	More bool `json:"more,omitempty"`
}

// RecordQuery selects entries of the record.
type RecordQuery struct {
	After uint64      // entries with a larger Seq; zero: all that are there
	Kinds []EntryKind // empty: all
	Limit int         // at most so many entries, the oldest first; zero: DefaultRecordLimit
	// Last asks for the newest entries instead of the oldest, if there are more than Limit.
	Last bool
}

// Limits of a RecordQuery.
const (
	DefaultRecordLimit = 1000
	MaxRecordLimit     = 5000
)

// EntryKind says what an Entry records. One field of the Entry has its name.
type EntryKind string

// The kinds of entries.
const (
	KindDecision EntryKind = "decision" // a queue may run, or must wait, from now on
	KindAction   EntryKind = "action"   // an action is over
	KindSpan     EntryKind = "span"     // what a device did, by the context-switch trace
	KindRequest  EntryKind = "request"  // a request is over
	KindWait     EntryKind = "wait"     // an online queue no longer waits for the device
	KindState    EntryKind = "state"    // a device, process or queue appeared, changed or is gone
	KindOrder    EntryKind = "order"    // an order was carried out or refused
	KindNote     EntryKind = "note"     // a policy was overruled, the guardian died, ...
)

// EntryKinds lists all kinds.
func EntryKinds() []EntryKind {
	return []EntryKind{KindDecision, KindAction, KindSpan, KindRequest, KindWait, KindState, KindOrder, KindNote}
}

// ParseEntryKind returns the kind with a name.
func ParseEntryKind(name string) (EntryKind, error) {
	for _, k := range EntryKinds() {
		if string(k) == name {
			return k, nil
		}
	}
	return "", fmt.Errorf("%.40q is not a kind of entry; there are: %v", name, EntryKinds())
}

// Entry is one entry of the record. The field that Kind names is set, the others of them
// are nil. Processes are named by pid and queues by id; Process has the rest, as far as the
// caller may see it. A pid may be reused: a state entry says that its process is gone.
type Entry struct {
	Seq  uint64    `json:"seq"` // counts the entries of all kinds from 1; never reused
	Kind EntryKind `json:"kind"`
	// At is when the entry was made. The other times of an entry are not later than At, but
	// those of an earlier entry may be: spans are read every few milliseconds.
	At     time.Duration `json:"at_ns"`
	Device string        `json:"device,omitempty"` // the ID
	PID    int           `json:"pid,omitempty"`
	Queue  uint64        `json:"queue,omitempty"`

	Decision *Decision    `json:"decision,omitempty"`
	Action   *Action      `json:"action,omitempty"`
	Span     *Span        `json:"span,omitempty"`
	Request  *RequestSpan `json:"request,omitempty"`
	Wait     *Wait        `json:"wait,omitempty"`
	State    *StateChange `json:"state,omitempty"`
	Order    *Order       `json:"order,omitempty"`
	Note     *Note        `json:"note,omitempty"`
}

// Decision says how one queue is scheduled from At on. There is one entry for each queue
// for which something changed; Number is the same for those that were decided together.
type Decision struct {
	Number uint64        `json:"number"`
	Policy string        `json:"policy"`             // the name of the policy in force
	Run    bool          `json:"run"`                // false: the queue is stopped, or must not run
	Reason string        `json:"reason"`             // a name of sched.Reason, such as "turn"
	Slice  time.Duration `json:"slice_ns,omitempty"` // zero: the device's default; 1: the minimum slice
	Bound  uint32        `json:"bound,omitempty"`    // on commands in flight; zero: the device's default
}

// Action is an order of the scheduler to a backend, with its outcome.
type Action struct {
	Number    uint64        `json:"number"`
	Verb      string        `json:"verb"`               // stop, start, slice, bound
	Level     string        `json:"level,omitempty"`    // of stop and start: hold, deactivate, interrupt
	Slice     time.Duration `json:"slice_ns,omitempty"` // of slice; zero: the device's default; 1: the minimum slice
	Bound     uint32        `json:"bound,omitempty"`    // of bound; zero: the device's default
	Decision  uint64        `json:"decision,omitempty"` // Number of the last decision before it
	Ordered   time.Duration `json:"ordered_ns"`
	Completed time.Duration `json:"completed_ns"` // when the daemon learned the outcome
	// Cost is how long the call to the driver took, of Completed - Ordered. Zero: it is not
	// known.
	Cost    time.Duration `json:"cost_ns"`
	Outcome string        `json:"outcome"` // done, refused, unsupported, gone
}

// Span is a period in which a device did one thing, as the hardware recorded it. The spans
// of a device follow each other without gap or overlap. The pid of the entry is the process
// whose context was on the device or, of a switch, came onto it; its queue is given if the
// process has exactly one there.
type Span struct {
	Begin time.Duration `json:"begin_ns"`
	End   time.Duration `json:"end_ns"`
	What  string        `json:"what"` // held, switch, idle, unknown
	// Left is how a held span ended: stays (it goes on in the next one), left (the process
	// ran out of work), preempted, unknown.
	Left string `json:"left,omitempty"`
}

// RequestSpan is a request from its arrival to its answer.
type RequestSpan struct {
	Begin time.Duration `json:"begin_ns"`
	End   time.Duration `json:"end_ns"`
	SLO   time.Duration `json:"slo_ns,omitempty"`
	Late  bool          `json:"late,omitempty"` // it took longer than the SLO
	// Estimated says that the daemon knows how long the request took, but learned later that
	// it was over: Begin and End are too late by up to 100 ms.
	Estimated bool `json:"estimated,omitempty"`
}

// Wait is a period in which an online queue had work and its process was not on the device.
type Wait struct {
	Begin time.Duration `json:"begin_ns"`
	End   time.Duration `json:"end_ns"`
	// Holder is the holder that had the device for the largest part of it, and Held that part.
	Holder Holder        `json:"holder"`
	Held   time.Duration `json:"held_ns"`
	// Estimated says that it is from the scheduler's account, because the device has no trace.
	Estimated bool `json:"estimated,omitempty"`
}

// StateChange is a change of the device, process or queue that the entry names.
type StateChange struct {
	What   string `json:"what"`   // device, process, queue
	Change string `json:"change"` // appeared, gone, attributes, policy
	// Of a process or queue that appeared or whose attributes changed:
	Class    string        `json:"class,omitempty"`
	Weight   uint32        `json:"weight,omitempty"`
	Priority int32         `json:"priority,omitempty"`
	SLO      time.Duration `json:"slo_ns,omitempty"`
	Paused   bool          `json:"paused,omitempty"`
	Policy   string        `json:"policy,omitempty"` // of a device whose policy changed
}

// Order is an order, as the audit logs it. The pid of the entry is the process that it
// changes, if it changes one. Another user's order that does not affect the caller has only
// Name and Refused.
type Order struct {
	Name    string `json:"name"` // set, run, policy, restore, config, or what was refused
	UID     *int64 `json:"uid,omitempty"`
	PID     int    `json:"by_pid,omitempty"`
	Command string `json:"by_command,omitempty"` // the name of the caller's command, in printable ASCII
	Address string `json:"address,omitempty"`    // of a caller over TCP
	Tree    bool   `json:"tree,omitempty"`
	From    string `json:"from,omitempty"` // what it changed, as it was
	To      string `json:"to,omitempty"`   // as it was asked for
	Refused bool   `json:"refused,omitempty"`
	Status  int    `json:"status,omitempty"` // of HTTP, if refused
	Reason  string `json:"reason,omitempty"` // why it was refused
	LeftOut int    `json:"left_out,omitempty"`
}

// Note is something else that a user may want to know.
type Note struct {
	// Name is overruled (the policy of the device makes mistakes, and the vendor's
	// scheduling is in force), resumed (it decides again), guardian or action (an action
	// failed; the same failure is noted once a minute). A floor turn is a decision with the
	// reason floor.
	Name string `json:"name"`
	Text string `json:"text,omitempty"` // in printable ASCII
}

// Holder is what kept a device from a waiting process.
type Holder struct {
	// Kind is process, switch (context switches), idle (no context was on the device: the
	// waiting queue was stopped or had just become ready) or others (processes that are not
	// listed one by one).
	Kind string `json:"kind"`
	PID  int    `json:"pid,omitempty"` // of process; zero: its pid is hidden
}

// Delays says which processes waited for which others.
type Delays struct {
	Version int `json:"version"` // RecordVersion
	Clock
	// WindowEnd is up to when the delays are accounted for, on the device that is behind the
	// most: less than half a second ago, unless a backend is late.
	WindowEnd time.Duration `json:"window_end_ns"`
	// Delays has a row for each pair, the largest total first. Of each waiting process the
	// holders with the most time are listed; the rest is the row of the holder others.
	Delays []Delay `json:"delays"`
	// Classes has the sums by class. They include processes that are gone.
	Classes []ClassDelay `json:"classes"`
}

// Delay is how long a process had work and was not on a device, while a holder had it. The
// delays of a process on a device are together the time that it waited.
type Delay struct {
	Device string        `json:"device"`
	PID    int           `json:"pid"` // the waiting process
	Class  string        `json:"class"`
	Holder Holder        `json:"holder"`
	Total  time.Duration `json:"total_ns"`    // since the process appeared
	Last10 time.Duration `json:"last_10s_ns"` // in the 10 s that end there
	Last60 time.Duration `json:"last_60s_ns"`
	// Estimated says that a part of it is from the scheduler's account and not from a
	// context-switch trace, or that it is not known when the process had work.
	Estimated bool `json:"estimated,omitempty"`
}

// ClassDelay is the sum of the delays of processes of a class.
type ClassDelay struct {
	Device string        `json:"device"`
	Class  string        `json:"class"`  // of the waiting processes
	Holder string        `json:"holder"` // a class, or switch, idle, unknown (a process that the daemon does not know)
	Total  time.Duration `json:"total_ns"`
}

// Pressure is the GPU pressure of devices and processes.
type Pressure struct {
	Version int `json:"version"` // RecordVersion
	Clock
	Devices   []DevicePressure  `json:"devices"`
	Processes []ProcessPressure `json:"processes"`
}

// DevicePressure is the pressure of a device. Some: at least one process waited for it.
// Full: one waited, and no process held it.
type DevicePressure struct {
	Device    string `json:"device"`
	Index     int    `json:"index"` // as nvidia-smi counts
	Some      Stall  `json:"some"`
	Full      Stall  `json:"full"`
	Estimated bool   `json:"estimated,omitempty"`
}

// ProcessPressure is the pressure of a process. Some: a queue of it waited. Full: a queue of
// it waited, and the process was on no device.
type ProcessPressure struct {
	PID       int   `json:"pid"`
	Some      Stall `json:"some"`
	Full      Stall `json:"full"`
	Estimated bool  `json:"estimated,omitempty"`
}

// Stall is a line of the kernel's pressure stall information: the part of the last 10, 60
// and 300 seconds in percent, averaged as the kernel does, and the sum.
type Stall struct {
	Avg10  float64       `json:"avg10"`
	Avg60  float64       `json:"avg60"`
	Avg300 float64       `json:"avg300"`
	Total  time.Duration `json:"total_ns"`
}

// String returns the stall in the kernel's format: total is in microseconds.
func (s Stall) String() string {
	return fmt.Sprintf("avg10=%.2f avg60=%.2f avg300=%.2f total=%d", s.Avg10, s.Avg60, s.Avg300, s.Total.Microseconds())
}

// Inputs is a part of a recording of the scheduler's inputs, in the form of
// internal/replay. It has no meaning for other programs.
type Inputs struct {
	Data []byte `json:"data"`
}
