// Package api defines the daemon's control interface: the types that go over its socket
// as JSON. The command line, the dashboard and other programs use them through package
// client.
//
//	GET  /v1/processes            -> []Process
//	POST /v1/processes/{pid}      Change -> Process
//	POST /v1/processes/{pid}/hint Hint -> Process
//	POST /v1/runs                 Run -> RunStarted, then the response stays open
//	GET  /v1/policy               -> Policy
//	POST /v1/policy               Policy -> Policy
//	GET  /v1/status               -> Status
//	POST /v1/restore              -> Status
//	GET  /v1/record               RecordQuery in the query -> Record
//	GET  /v1/record/stream        the same -> Records as server-sent events
//	GET  /v1/delays               -> Delays
//	GET  /v1/pressure             -> Pressure, or text in the kernel's format
//	POST /v1/shim                 -> 101 and the shim's shared memory: see shim/abi.h
//	GET  /v1/containers           -> []Container
//	PUT  /v1/containers/{id}      Container -> Container
//	DELETE /v1/containers/{id}    -> Container
//	GET  /metrics                 -> text for Prometheus: see docs/METRICS.md
//
// A request that is refused is answered with an Error and status 400 (invalid), 403
// (not permitted), 404 (no such process or path), 405 (other method), 409 (not
// possible now or here) or 429 (too many requests of one user). After 429 the daemon
// closes the connection; wait for the time in Retry-After before the next one.
package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/attr"
)

// Process is a process that uses an accelerator. In JSON every attribute is a key
// (class, weight, slo_ns, ...), class_from is the source of the class, and sources has the
// source of every attribute that is not from the default.
type Process struct {
	PID       int    `json:"pid"`
	Command   string `json:"command"` // empty if the caller may not see it
	User      string `json:"user"`
	UID       uint32 `json:"uid"`
	Container string `json:"container,omitempty"` // container id
	Pod       string `json:"pod,omitempty"`       // Kubernetes pod UID
	ContainerNames
	Owner string `json:"-"` // identifies the pod whose processes may see and change it; empty: its user's

	Attrs   attr.Resolved `json:"-"`
	Ignored []Ignored     `json:"ignored,omitempty"` // attributes that have no effect now, or less than was asked for
	Warning string        `json:"warning,omitempty"` // in the answer to a Change: why it ends with the daemon

	Queues   []Queue   `json:"queues"`
	Requests *Requests `json:"requests,omitempty"` // nil: none are known
	Shim     *Shim     `json:"shim,omitempty"`     // nil: the process has no shim
	Member   *Member   `json:"member,omitempty"`   // nil: it is not a client of an MPS server
	// Memory is how many bytes of device memory the process has, by device. A device is left
	// out if it has none there or if that is not known; the answer to a change has none.
	Memory map[string]uint64 `json:"memory_bytes,omitempty"`
}

// Member says that a process is a client of an MPS server, whose queue runs its work.
type Member struct {
	Server int           `json:"server"`         // pid
	Pool   string        `json:"pool,omitempty"` // the label of the pool; empty: giveway does not own the server
	Index  int           `json:"index"`          // of the device
	Served time.Duration `json:"served_ns"`      // device time, as estimated
	Lost   bool          `json:"lost,omitempty"` // the server has exited, so the process can use the device no more
}

// Class returns the name of the process's class.
func (p *Process) Class() string { return p.Attrs.Class().String() }

// Ignored is an attribute that was given to a process and has no effect, because the
// policy in force does not use it or because the process lacks what it needs. Or it has
// less effect than was asked for: see Limited.
type Ignored struct {
	Name   string `json:"name"`
	Mark   string `json:"mark"`   // in short, such as "ignored by rr"
	Reason string `json:"reason"` // why, and what to do
}

// Limited is the mark of an attribute that is in force, with less than was asked for.
const Limited = "limited"

// Effect says what has become of an attribute that was asked for: a predicate and the reason.
func (i *Ignored) Effect() (predicate, reason string) {
	if i.Mark == Limited {
		return "is limited", i.Reason
	}
	return "has no effect now", cmp.Or(i.Reason, i.Mark)
}

// processJSON holds the keys of a Process in JSON besides its fields and attributes.
type processJSON struct {
	ClassFrom string            `json:"class_from"`
	Sources   map[string]string `json:"sources,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (p Process) MarshalJSON() ([]byte, error) {
	type fields Process
	values := p.Attrs.Given()
	values.Set(attr.Class, p.Attrs.Int(attr.Class)) // also if it is the default
	about := processJSON{ClassFrom: p.Attrs.Source(attr.Class).String()}
	for _, id := range values.IDs() {
		if from := p.Attrs.Source(id); from != attr.FromDefault {
			if about.Sources == nil {
				about.Sources = map[string]string{}
			}
			about.Sources[id.String()] = from.String()
		}
	}
	return joinJSON(fields(p), values, about)
}

// UnmarshalJSON implements json.Unmarshaler. It skips keys that it does not know: the
// daemon may be newer.
func (p *Process) UnmarshalJSON(data []byte) error {
	type fields Process
	var about processJSON
	var values attr.Values
	if err := errors.Join(json.Unmarshal(data, (*fields)(p)), json.Unmarshal(data, &about)); err != nil {
		return err
	}
	if _, err := values.ReadJSON(data); err != nil {
		return err
	}
	var layers attr.Layers
	for _, id := range values.IDs() {
		name := about.Sources[id.String()]
		if id == attr.Class {
			name = about.ClassFrom
		}
		from, _ := attr.ParseSource(name)
		value, _ := values.Get(id)
		layers[from].Set(id, value)
	}
	p.Attrs = attr.Resolve(&layers)
	return nil
}

// joinJSON returns one object with the keys of all objects.
func joinJSON(objects ...any) ([]byte, error) {
	var keys []string
	for _, o := range objects {
		b, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		if len(b) > len("{}") {
			keys = append(keys, string(b[1:len(b)-1]))
		}
	}
	return []byte("{" + strings.Join(keys, ",") + "}"), nil
}

// Requests holds the number and the durations of a process's requests.
type Requests struct {
	Count uint64 `json:"count"` // finished
	Open  uint32 `json:"open"`
	// Marked says that only requests that are marked through the API count now: one is open, or
	// the last mark came within the last 10 s.
	Marked bool `json:"marked,omitempty"`
	// P50 and P99 are quantiles of how long the last 256 took, as far as they ended in the last
	// minute; zero: none did.
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
}

// Shim holds the counters of the shim in a process.
type Shim struct {
	Runtime   string        `json:"runtime"` // cuda, hip, opencl, levelzero, queue; empty: not known yet
	Launched  uint64        `json:"launched"`
	Completed uint64        `json:"completed"`
	Holds     uint64        `json:"holds"` // launches that waited at the gate
	HeldFor   time.Duration `json:"held_ns"`
	Overruns  uint64        `json:"overruns"` // times the bound was exceeded because no command completed
	Parked    uint64        `json:"parked"`   // times a kernel was parked for an expected request
	Hits      uint64        `json:"hits"`     // of those, times the request arrived
	ParkedFor time.Duration `json:"parked_ns"`
	Saved     time.Duration `json:"saved_ns"` // by parked kernels, as the shim estimates
	// Late entry: requests that entered late, those of them that the program waited for before
	// the planned moment, and how long the device was left to others.
	LateRequests uint64        `json:"late_requests"`
	LateEarly    uint64        `json:"late_early"`
	LateFor      time.Duration `json:"late_ns"`
	LateCompared *LateCompared `json:"late_compared,omitempty"` // nil: no request that entered late was compared yet
	// Stream classes: launches that waited for streams of higher priority of the same process, for
	// how long, and launches that did not wait any longer although those were busy.
	ClassHolds   uint64        `json:"class_holds"`
	ClassHeldFor time.Duration `json:"class_held_ns"`
	ClassLetGo   uint64        `json:"class_let_go"`
	Ignored      uint64        `json:"ignored"` // invalid hints and requests
}

// LateCompared is what late entry costs, by pairs of alike requests since the process started:
// the first entered at once, the next one late. The two follow one another, so whatever changes
// with time affects both.
type LateCompared struct {
	Pairs   uint64       `json:"pairs"`
	Ratio   float64      `json:"ratio"` // median of the latency of the late one over that of the other; 0: too few pairs
	Low     float64      `json:"low"`   // 95 % confidence bounds of the median
	High    float64      `json:"high"`
	GivenUp uint64       `json:"given_up"` // times late entry was given up for a while because it cost too much
	Counts  []RatioCount `json:"counts"`   // of all pairs, in order
}

// RatioCount counts the pairs whose ratio is from From to To. The lowest that can be counted has
// all lower ones too, and the highest all higher ones.
type RatioCount struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Pairs uint64  `json:"pairs"`
}

// Queue is a queue of a process: the unit that is scheduled.
type Queue struct {
	ID          uint64        `json:"id"`
	Device      string        `json:"device"`                 // GPU-...
	Index       int           `json:"index"`                  // of the device, as nvidia-smi counts
	State       string        `json:"state"`                  // running, stopping, stopped, starting
	Can         []string      `json:"can"`                    // hold, deactivate, interrupt, slice, bound
	Slice       time.Duration `json:"slice_ns,omitempty"`     // as set by the daemon; 0: as found
	VendorSlice time.Duration `json:"found_ns,omitempty"`     // the slice that the queue was found with
	Served      time.Duration `json:"served_ns"`              // device time
	Measured    bool          `json:"measured,omitempty"`     // the hardware measured it; otherwise it is estimated
	OnFloor     bool          `json:"on_floor,omitempty"`     // the policy gives it less than the floor, which gives it the rest
	SideBySide  bool          `json:"side_by_side,omitempty"` // runs beside other batch queues instead of taking turns
	Shared      string        `json:"shared_by,omitempty"`    // mps: one queue for all clients of an MPS server
	Pool        string        `json:"pool,omitempty"`         // the label of the pool that the queue is
	KFDQueues   int           `json:"kfd_queues,omitempty"`   // number of AMD hardware queues that it stands for
	Way         string        `json:"way,omitempty"`          // how those are interrupted: batch, debug, own
	// ReservedSlots is how many hardware slots are kept free of batch work for this and other
	// online processes.
	ReservedSlots int           `json:"reserved_slots,omitempty"`
	MayRun        bool          `json:"may_run"`                // the scheduler has decided that it runs; State follows
	Reason        string        `json:"reason,omitempty"`       // why it runs or waits: a name of sched.Reason
	DecidedFor    time.Duration `json:"decided_for_ns"`         // how long MayRun and Reason have been so
	Ready         bool          `json:"ready"`                  // it has work, as far as is known
	WaitsBehind   uint64        `json:"waits_behind,omitempty"` // the queue that keeps the device from it although it is to be stopped: a priority inversion
}

// Change sets attributes of a process. Attributes that are not in it stay; one that it clears,
// null in JSON, loses the value that an earlier Change gave. In JSON the attributes are keys
// beside tree.
type Change struct {
	attr.Values
	Tree bool // also for the process's descendants, now and later
}

type changeJSON struct {
	Tree bool `json:"tree,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (c Change) MarshalJSON() ([]byte, error) { return joinJSON(c.Values, changeJSON{c.Tree}) }

// UnmarshalJSON implements json.Unmarshaler. It refuses keys that it does not know.
func (c *Change) UnmarshalJSON(data []byte) error {
	var other changeJSON
	if err := readJSON(data, &c.Values, &other, attr.BySet, "tree"); err != nil {
		return err
	}
	c.Tree = other.Tree
	return nil
}

// readJSON reads an object whose keys are attributes and other keys: the attributes into v,
// the others into other.
func readJSON(data []byte, v *attr.Values, other any, way attr.Way, keys ...string) error {
	rest, err := v.ReadJSON(data)
	if err != nil {
		return err
	}
	slices.Sort(rest)
	for _, key := range rest {
		if !slices.Contains(keys, key) {
			for _, id := range attr.IDs(way) {
				keys = append(keys, id.Row().Key)
			}
			return fmt.Errorf("there is no key %.40q; there are: %s", key, strings.Join(keys, ", "))
		}
	}
	return json.Unmarshal(data, other)
}

// Hint changes attributes of a process, and begins or ends a request. Attributes that are
// not in it stay; one that it clears, null in JSON, loses the value that an earlier Hint gave.
// In JSON the attributes are keys beside begin and end.
type Hint struct {
	attr.Values
	Begin *int64 // a request with this number begins
	End   *int64 // the request with this number ends
}

type hintJSON struct {
	Begin *int64 `json:"begin,omitempty"`
	End   *int64 `json:"end,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (h Hint) MarshalJSON() ([]byte, error) { return joinJSON(h.Values, hintJSON{h.Begin, h.End}) }

// UnmarshalJSON implements json.Unmarshaler. It refuses keys that it does not know.
func (h *Hint) UnmarshalJSON(data []byte) error {
	var other hintJSON
	if err := readJSON(data, &h.Values, &other, attr.ByHint, "begin", "end"); err != nil {
		return err
	}
	h.Begin, h.End = other.Begin, other.End
	return nil
}

// Check returns an error if h begins and ends a request, if the number of a request is below
// zero, or if an attribute cannot be set by a hint or is out of range.
func (h Hint) Check() error {
	if h.Begin != nil && h.End != nil {
		return errors.New("begin and end are both given: a request either begins or ends")
	}
	for _, number := range []*int64{h.Begin, h.End} {
		if number != nil && *number < 0 {
			return fmt.Errorf("%d is not the number of a request: it is 0 or more", *number)
		}
	}
	return h.Values.Check(attr.ByHint)
}

// Empty reports whether h sets no attribute and neither begins nor ends a request.
func (h Hint) Empty() bool { return h.Values.Empty() && h.Begin == nil && h.End == nil }

// Run sets attributes of the calling process and its descendants for as long as the
// response to the HTTP request stays open.
type Run struct{ attr.Values }

// RunStarted begins the response to a Run.
type RunStarted struct {
	Ignored []Ignored `json:"ignored,omitempty"` // attributes that have no effect under the policy in force, or in its class
	// Pool is auto or on if the program is to run in a pool, by its rule or by the run;
	// empty: it is not.
	Pool string `json:"pool,omitempty"`
	// Weight is the program's weight if it is to run in a pool, by its rule or by the run;
	// zero: it is not.
	Weight int64 `json:"weight,omitempty"`
	// Priority is the program's priority if it is to run in a pool, by its rule or by the run.
	Priority int64  `json:"priority,omitempty"`
	Warning  string `json:"warning,omitempty"` // why a restart of the daemon may end the run's attributes
}

// Policy is the policy in force, or one to put in force.
type Policy struct {
	Name      string            `json:"name"`
	Params    map[string]string `json:"params,omitempty"`
	Device    string            `json:"device,omitempty"`    // ID or index; empty: all devices
	Overruled string            `json:"overruled,omitempty"` // why it does not decide now; only in answers
	Devices   []Policy          `json:"devices,omitempty"`   // of devices that have their own; only in answers
	Replaced  []Policy          `json:"replaced,omitempty"`  // of devices that had their own before this order; only in answers
}

// Spec returns the policy as the command line takes it, such as giveway:turn=20ms.
func (p Policy) Spec() string {
	s, sep := p.Name, ":"
	for _, key := range slices.Sorted(maps.Keys(p.Params)) {
		s += sep + key + "=" + p.Params[key]
		sep = ","
	}
	return s
}

// Status describes the daemon and its devices.
type Status struct {
	Version string        `json:"version"`
	PID     int           `json:"pid"`
	Uptime  time.Duration `json:"uptime_ns"`
	Policy  Policy        `json:"policy"`
	Devices []Device      `json:"devices"`
	Checks  []Check       `json:"checks"`
	// KernelLogLines is an upper bound of the lines in the kernel's log that the daemon
	// caused by wrong guesses at handles of processes that are older than the daemon.
	KernelLogLines uint64 `json:"kernel_log_lines"`
	Goroutines     int    `json:"goroutines"` // of the daemon
}

// Device is an accelerator that the daemon drives.
type Device struct {
	ID      string `json:"id"`
	Index   int    `json:"index"`
	Model   string `json:"model"`
	Backend string `json:"backend"`
	Trace   bool   `json:"trace"` // the hardware's context-switch trace is read
	// Switching is what the trace says of context switches; nil: nothing.
	Switching *Switching `json:"switching,omitempty"`
	// Ledger is what the device did since the daemon was started, by the trace; nil: it is
	// not known.
	Ledger *Ledger `json:"ledger,omitempty"`
	// Slots are the hardware slots for queues, of a device that can keep some free; nil: it
	// cannot.
	Slots *Slots `json:"slots,omitempty"`
}

// Slots are hardware slots for queues.
type Slots struct {
	Total    int `json:"total"`
	Reserved int `json:"reserved"` // kept free of batch work for online processes
}

// Ledger is the sum of the spans of a device. Held, switching, idle and unknown time are
// together the time since the trace was first read.
type Ledger struct {
	Held      time.Duration `json:"held_ns"` // by processes
	Switching time.Duration `json:"switching_ns"`
	Idle      time.Duration `json:"idle_ns"`
	Unknown   time.Duration `json:"unknown_ns"` // records were lost
	Visits    uint64        `json:"visits"`     // that have ended
	Preempted uint64        `json:"preempted"`  // of those
	Switches  uint64        `json:"switches"`
}

// Switching is the time that a device loses in context switches: no process makes progress
// in it.
type Switching struct {
	Lost     time.Duration `json:"lost_ns"`    // since the daemon was started
	Switches uint64        `json:"switches"`   // the same
	Share    float64       `json:"share"`      // part of the last second that was lost
	Rate     float64       `json:"per_second"` // switches in the last second
}

// Check is the result of one check of this machine, for giveway doctor.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what to do if not OK
}

// Error is the answer to a request that was refused.
type Error struct {
	Message string `json:"error"`
}
