// Package attr is the table of attributes: what can be set for a process that uses an
// accelerator, such as its class, its weight or its SLO.
//
// One row describes an attribute completely: its name, its type and range, what zero
// means, its help text, the ways to set it, and where it goes. The API, the command
// line, configuration rules, scenario files, hints, giveway ps and docs/REFERENCE.md
// derive from the rows. A new attribute is one row and one ID.
//
// Values is a sparse set of attributes. Resolve merges the sets that several sources
// gave to a process and says which source each value came from.
package attr

import (
	"math"
	"strings"
	"time"

	"github.com/giveway/giveway/sched"
)

// ID identifies an attribute: it is the index of its row.
type ID uint8

// The attributes, in the order in which they are shown.
const (
	Class ID = iota
	Weight
	Priority
	Nice
	RealTime
	Share
	SLO
	Deadline
	Laxity
	Work
	Expect
	Bound
	BoundBatch
	Predict
	LateEntry
	StreamClasses
	Pool
	Idempotent
	Focus
	Paused
	count
)

// Type is the type of an attribute's value. Every value is held as an int64.
type Type uint8

const (
	TypeClass    Type = iota // a sched.Class
	TypeInteger              // the number
	TypeDuration             // nanoseconds
	TypeBool                 // 0 or 1
	TypePercent              // whole percent
	TypeWord                 // index of one of Row.Words
)

func (t Type) String() string {
	return [...]string{"class", "number", "duration", "bool", "percent", "word"}[t]
}

// Way is a set of ways in which an attribute can be set.
type Way uint8

const (
	ByRule     Way = 1 << iota // a rule of the configuration file
	ByRun                      // giveway run
	BySet                      // giveway set
	ByHint                     // giveway hint and the hint API
	ByPage                     // a hint on the shim's page, with the number HintKind
	ByScenario                 // a client of a scenario file
)

var wayNames = []string{"rule", "run", "set", "hint", "page", "scenario"}

func (w Way) String() string {
	var names []string
	for i, name := range wayNames {
		if w&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Row describes an attribute.
type Row struct {
	Name string // on command lines, in errors and in tables
	Key  string // in JSON: a duration ends in _ns, a percentage in _percent
	Help string

	Type     Type
	Min, Max int64
	Default  int64
	Zero     string   // what 0 means; empty: the number 0
	Words    []string // of TypeWord: from Min to Max

	Ways     Way
	HintKind uint32 // enum gw_hint_kind of shim/abi.h; zero: none

	// Uses is the name under which policy.Info.Uses lists the attribute. It is empty
	// for an attribute that has the same effect under every policy.
	Uses     string
	Shim     bool     // it has no effect in a process without the shim
	Runtimes []string // the shim applies it with these runtimes only; empty: with any
	Online   bool     // it has no effect in another class
	Public   bool     // every user may see it, not only the owner of the process

	demand demand // which values ask for more of the device: see Limits
	field  *field // where it goes in sched.Attr; nil: it is not part of it
}

// YAML is the attribute's key in rules and scenario files.
func (r *Row) YAML() string { return strings.ReplaceAll(r.Name, "-", "_") }

// Limits of values.
const (
	maxTime  = int64(time.Hour)
	maxBound = 1 << 16

	byOwner = ByRule | ByRun | BySet
)

// Values of LateEntry.
const (
	LateEntryOff  = iota // requests enter at once
	LateEntryAuto        // late where the shim has measured that it pays
	LateEntryOn          // late wherever it is possible

	LateEntryDefault = LateEntryAuto
)

var lateEntryWords = []string{"off", "auto", "on"}

var table = [count]Row{
	Class: {
		Name: "class", Key: "class", Type: TypeClass, Max: int64(sched.Idle), Public: true,
		Help: "the kind of work that the process does",
		Ways: byOwner | ByHint | ByPage | ByScenario, HintKind: 1,
		Uses: "class", demand: demandClass, field: number(func(a *sched.Attr) *sched.Class { return &a.Class }),
	},
	Weight: {
		Name: "weight", Key: "weight", Type: TypeInteger, Min: 1, Max: 10_000, Default: 1,
		Help: "share of device time relative to other processes: twice the weight, twice the share",
		Ways: byOwner | ByHint | ByPage | ByScenario, HintKind: 3,
		Uses: "weight", demand: demandGreater, field: number(func(a *sched.Attr) *uint32 { return &a.Weight }),
	},
	Priority: {
		Name: "priority", Key: "priority", Type: TypeInteger, Min: math.MinInt32, Max: math.MaxInt32,
		Help: "the process with the higher priority runs first",
		Ways: byOwner | ByHint | ByPage | ByScenario, HintKind: 2,
		Uses: "priority", demand: demandGreater, field: number(func(a *sched.Attr) *int32 { return &a.Priority }),
	},
	Nice: {
		Name: "nice", Key: "nice", Type: TypeInteger, Min: -20, Max: 19,
		Help: "nice value to schedule by, lower runs first; by default the process's own nice value on the CPU",
		Ways: byOwner | ByScenario,
		Uses: "nice", demand: demandSmaller, field: number(func(a *sched.Attr) *int8 { return &a.Nice }),
	},
	RealTime: {
		Name: "real-time", Key: "real_time", Type: TypeInteger, Max: 99, Zero: "not real-time",
		Help: "real-time priority to schedule by, higher runs first; by default the process's own on the CPU",
		Ways: byOwner | ByScenario,
		Uses: "real-time", demand: demandGreater, field: number(func(a *sched.Attr) *uint8 { return &a.RealTime }),
	},
	Share: {
		Name: "share", Key: "share_percent", Type: TypePercent, Max: 100, Zero: "an equal part of what is left",
		Help: "percentage of device time",
		Ways: byOwner | ByScenario,
		Uses: "share", demand: demandGreater, field: number(func(a *sched.Attr) *uint8 { return &a.Share }),
	},
	SLO: {
		Name: "slo", Key: "slo_ns", Type: TypeDuration, Max: maxTime, Zero: "none",
		Help: "time within which nearly every request is to finish",
		Ways: byOwner | ByHint | ByPage | ByScenario, HintKind: 8,
		Uses: "slo", demand: demandSmaller, field: number(func(a *sched.Attr) *time.Duration { return &a.SLO }),
	},
	Deadline: {
		Name: "deadline", Key: "deadline_ns", Type: TypeDuration, Max: maxTime, Zero: "none",
		Help: "time from ready to done that a request may take",
		Ways: byOwner | ByHint | ByPage | ByScenario, HintKind: 4,
		Uses: "deadline", demand: demandSmaller, field: number(func(a *sched.Attr) *time.Duration { return &a.Deadline }),
	},
	Laxity: {
		Name: "laxity", Key: "laxity_ns", Type: TypeDuration, Max: maxTime, Zero: "unknown",
		Help: "time that the work can wait and still be done by its deadline",
		Ways: ByHint | ByPage | ByScenario, HintKind: 5,
		Uses: "laxity", demand: demandSmaller, field: number(func(a *sched.Attr) *time.Duration { return &a.Laxity }),
	},
	Work: {
		Name: "work", Key: "work_ns", Type: TypeDuration, Max: maxTime, Zero: "unknown",
		Help: "device time that a request needs",
		Ways: ByHint | ByPage | ByScenario, HintKind: 6,
		Uses: "work", field: number(func(a *sched.Attr) *time.Duration { return &a.Work }),
	},
	Expect: {
		Name: "expect", Key: "expect_ns", Type: TypeDuration, Max: maxTime, Zero: "unknown",
		Help: "time from now until the next request arrives",
		Ways: ByHint | ByPage, HintKind: 7, Runtimes: []string{"cuda"},
		Uses: "expect", field: number(func(a *sched.Attr) *sched.Time { return &a.Expect }),
	},
	Bound: {
		Name: "bound", Key: "bound", Type: TypeInteger, Max: maxBound, Zero: "no bound", Shim: true,
		Help: "bound on commands in flight where the policy sets none; more are allowed if they are short, fewer if they are long",
		Ways: byOwner,
	},
	BoundBatch: {
		Name: "bound-batch", Key: "bound_batch", Type: TypeInteger, Max: maxBound, Zero: "adaptive", Shim: true,
		Help: "launches between two looks for completed commands, at most",
		Ways: byOwner,
	},
	Predict: {
		Name: "predict", Key: "predict", Type: TypeBool, Max: 1, Shim: true, Runtimes: []string{"cuda"}, Online: true,
		Help: "take the device shortly before requests that arrive at a regular interval, in class online on CUDA",
		Ways: byOwner,
	},
	LateEntry: {
		Name: "late-entry", Key: "late_entry", Type: TypeWord, Words: lateEntryWords, Max: LateEntryOn, Default: LateEntryDefault,
		Shim: true, Runtimes: []string{"cuda", "hip", "opencl"}, Online: true,
		Help: "keep the first commands of a request from the device while the program launches the others, in class online beside batch work",
		Ways: byOwner,
	},
	StreamClasses: {
		Name: "stream-classes", Key: "stream_classes", Type: TypeBool, Max: 1, Shim: true, Runtimes: []string{"cuda", "hip"},
		Help: "inside the process, streams of default or lower priority give way to streams of higher priority",
		Ways: byOwner,
	},
	Pool: {
		Name: "pool", Key: "pool", Type: TypeWord, Words: modeNames, Max: int64(ModeOn),
		Help: "run a batch program side by side with the other members of its user's pool (NVIDIA; docs/POOL.md)",
		Ways: ByRule | ByRun,
	},
	Idempotent: {
		Name: "idempotent", Key: "idempotent", Type: TypeBool, Max: 1, Shim: true,
		Help: "commands that are launched from now on may be run twice",
		Ways: ByHint | ByPage, HintKind: 11,
	},
	Focus: {
		Name: "focus", Key: "focus", Type: TypeBool, Max: 1,
		Help: "the process's window has the user's focus",
		Ways: byOwner | ByHint | ByScenario,
		Uses: "focus", demand: demandGreater, field: flag(func(a *sched.Attr) *bool { return &a.Focus }),
	},
	Paused: {
		Name: "paused", Key: "paused", Type: TypeBool, Max: 1, Public: true,
		Help: "keep the process off its devices until it is resumed",
		Ways: BySet, field: flag(func(a *sched.Attr) *bool { return &a.Paused }),
	},
}

// Mode is a value of Pool.
type Mode int64

const (
	ModeOff  Mode = iota
	ModeAuto      // where it is possible and pays
	ModeOn
)

var modeNames = []string{"off", "auto", "on"}

func (m Mode) String() string { return modeNames[m] }

// Row returns the row of id.
func (id ID) Row() *Row { return &table[id] }

func (id ID) String() string { return table[id].Name }

// IDs lists the attributes that can be set in all of the given ways; all attributes if
// way is zero.
func IDs(way Way) []ID {
	var ids []ID
	for id := range count {
		if table[id].Ways&way == way {
			ids = append(ids, id)
		}
	}
	return ids
}

// ByHintKind returns the attribute that a hint of that kind on the shim's page sets.
func ByHintKind(kind uint32) (ID, bool) {
	return find(func(r *Row) bool { return kind != 0 && r.HintKind == kind })
}

func byName(name string) (ID, bool) { return find(func(r *Row) bool { return r.Name == name }) }
func byKey(key string) (ID, bool)   { return find(func(r *Row) bool { return r.Key == key }) }

func find(is func(*Row) bool) (ID, bool) {
	for id := range count {
		if is(&table[id]) {
			return id, true
		}
	}
	return 0, false
}

// ClassInfo is a class and what it means.
type ClassInfo struct {
	Class sched.Class
	Help  string
}

// Classes lists the classes, the most urgent first.
func Classes() []ClassInfo {
	return []ClassInfo{
		{sched.Online, "latency-critical: batch and idle give way to it"},
		{sched.Standard, "left exactly as the vendor schedules it"},
		{sched.Batch, "gives way to online, shares the rest by weight"},
		{sched.Idle, "runs when nothing else is ready"},
	}
}

// ClassNames lists the names of the classes, the most urgent first.
func ClassNames() []string {
	var names []string
	for _, c := range Classes() {
		names = append(names, c.Class.String())
	}
	return names
}
