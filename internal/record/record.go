// Package record keeps what the scheduler decided, did and measured: a ring of entries of
// fixed size, the account of which process delayed which, and pressure. Every view of the
// daemon reads it.
package record

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Kind is the kind of an entry. Its order is that of api.EntryKinds.
type Kind uint8

// The kinds of entries.
const (
	Decision Kind = iota
	Action
	Span
	Request
	Wait
	State
	Order
	Note
	kinds
)

var kindNames = api.EntryKinds()

func (k Kind) String() string { return string(kindNames[k]) }

// Set is a set of kinds, as bits.
type Set uint16

// All has every kind.
const All Set = 1<<kinds - 1

// kept are the kinds that are kept longer than the others: there are few of them.
const kept = 1<<State | 1<<Order | 1<<Note

// audited are the kinds of the audit. A user whose processes come and go causes states without
// end, and must not push them out.
const audited = 1<<Order | 1<<Note

// Has reports whether k is in the set.
func (s Set) Has(k Kind) bool { return s&(1<<k) != 0 }

// SetOf returns the set with the kinds; all kinds if there are none.
func SetOf(all []api.EntryKind) (s Set) {
	for _, name := range all {
		for k := range kinds {
			if k.String() == string(name) {
				s |= 1 << k
			}
		}
	}
	if len(all) == 0 {
		s = All
	}
	return s
}

// Entry is an entry of the ring. It has the fields of all kinds, so that the ring needs no
// memory besides its own; api.Entry says what they mean.
type Entry struct {
	Seq    uint64
	At     sched.Time
	Begin  sched.Time // of spans, requests and waits; Ordered of an action; Since of a decision
	End    sched.Time // the same; Completed of an action
	Queue  sched.QueueID
	Number uint64 // of the decision or the action
	Cause  uint64 // of an action: the number of the decision
	Device sched.DeviceID
	Slice  time.Duration // of decisions and actions; the SLO of requests and states
	Cost   time.Duration // of an action; of a wait, how long Holder held the device
	PID    int32
	UID    uint32 // the owner of the process
	Bound  uint32 // of decisions and actions; the weight of states
	Holder int32  // of a wait: the pid, or a holderKind
	Kind   Kind

	Verb      sched.Verb
	Level     sched.Level
	Outcome   sched.Outcome
	Reason    sched.Reason
	Class     sched.Class
	What      What
	Change    Change
	SpanKind  hal.SpanKind
	Left      hal.Departure
	Run       bool
	Late      bool
	Estimated bool
	Paused    bool

	Pod   string   // of the process: see api.Process.Owner; empty: it is in none
	Text  string   // the policy of a decision or a state; the name of a note. Constants, or shared
	Words *Details // of orders and notes
}

// Details are the texts of an order or a note.
type Details struct {
	Order api.Order
	Note  string
	// UID is the user that the order affects besides the one that gave it, and Pod the pod if the
	// affected process is in one; AffectsAll says that it affects all.
	UID        uint32
	Pod        string
	AffectsAll bool
	ByPod      string // the pod of the caller that gave the order; empty: it is in none
}

// What is what a state entry is about.
type What uint8

// The values of What.
const (
	Device What = iota
	Process
	Queue
)

// Change is what happened to it.
type Change uint8

// The values of Change.
const (
	Appeared Change = iota
	Gone
	Attributes
	Policy
)

// Sizes of the rings.
const (
	DefaultEntries = 64 << 10
	keptEntries    = 8 << 10
	auditEntries   = 8 << 10
)

// Record is the record of a daemon. Add may be called from any goroutine, and takes a
// fraction of a microsecond; readers never delay it.
type Record struct {
	began time.Time

	mu   sync.Mutex // of writers
	all  ring       // the entry with sequence number n has the index n-1
	kept ring
	// audit has the audited kinds once more. It is read if no other kind is asked for.
	audit ring
}

// New returns an empty record of a daemon that was started at a time, with room for so many
// entries; zero: DefaultEntries.
func New(began time.Time, entries int) *Record {
	if entries <= 0 {
		entries = DefaultEntries
	}
	return &Record{began: began, all: newRing(entries), kept: newRing(keptEntries), audit: newRing(auditEntries)}
}

// Add adds an entry and sets its sequence number.
func (r *Record) Add(e *Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Seq = r.all.written.Load() + 1
	r.all.add(e)
	if kept&(1<<e.Kind) != 0 {
		r.kept.add(e)
	}
	if audited&(1<<e.Kind) != 0 {
		r.audit.add(e)
	}
}

// Order adds an order that changes a process, or none if pid is zero. d says which users it
// affects.
func (r *Record) Order(pid int, o api.Order, d Details) {
	d.Order = o
	r.Add(&Entry{Kind: Order, At: sched.Time(time.Since(r.began)), PID: int32(pid), Words: &d})
}

// Note adds a note about a device or a queue, if they are given.
func (r *Record) Note(device sched.DeviceID, queue sched.QueueID, name, text string) {
	e := Entry{Kind: Note, At: sched.Time(time.Since(r.began)), Device: device, Queue: queue, Text: name}
	if text != "" {
		e.Words = &Details{Note: text}
	}
	r.Add(&e)
}

// Printable returns text that a user chose in one line of printable ASCII, of bounded
// length.
func Printable(s string) string {
	const most = 300
	s = strconv.QuoteToASCII(s[:min(len(s), most)])
	return strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`) // a quotation mark is printable
}

// Last returns the sequence number of the newest entry.
func (r *Record) Last() uint64 { return r.all.written.Load() }

// Clock relates times of entries to the wall clock.
func (r *Record) Clock() api.Clock {
	now := time.Now()
	return api.Clock{Began: r.began.Round(0), Wall: now.Round(0), Now: now.Sub(r.began)}
}

// Query selects entries.
type Query struct {
	After uint64
	Kinds Set
	Limit int  // zero: no limit
	Last  bool // the newest entries, if there are more than Limit
	// Visible reports whether the reader may see an entry; nil: it may see all.
	Visible func(*Entry) bool
}

// Result says what a reader did not see and where it goes on.
type Result struct {
	Lost  uint64
	Next  uint64
	Shown int // entries that were visited
	More  bool
}

// Read calls visit with the entries that a query selects, in order. Entries are valid during
// the call. A sequence number that was not reached yet is of an earlier daemon: it selects
// all entries.
func (r *Record) Read(q Query, visit func(*Entry)) (res Result) {
	if q.After > r.Last() {
		q.After = 0
	}
	if q.Last && q.Limit > 0 {
		q.After = r.startOfLast(q)
	}
	res.Next = q.After
	take := func(e *Entry) bool {
		if q.selects(e) {
			if q.Limit > 0 && res.Shown == q.Limit {
				res.More = true
				return false
			}
			res.Shown++
			visit(e)
		}
		res.Next = e.Seq
		return true
	}
	r.all.read(q.After, func(from, to uint64) bool { return r.readKept(q.Kinds, from, to, &res, take) }, take)
	return res
}

// keptOf returns the ring that has entries of some kinds for longest.
func (r *Record) keptOf(kinds Set) *ring {
	if kinds&^audited == 0 {
		return &r.audit
	}
	return &r.kept
}

// readKept visits the entries that are kept longer, of those with the indices from from to
// to that are overwritten, and counts the others as lost.
func (r *Record) readKept(kinds Set, from, to uint64, res *Result, take func(*Entry) bool) bool {
	stopped := false
	kept := r.keptOf(kinds)
	kept.read(kept.oldest(), func(uint64, uint64) bool { return true }, func(e *Entry) bool {
		switch {
		case e.Seq <= from:
			return true
		case e.Seq > to:
			return false
		}
		last := res.Next
		if stopped = !take(e); stopped {
			return false
		}
		res.Lost += e.Seq - 1 - last
		return true
	})
	if !stopped {
		res.Lost += to - res.Next
		res.Next = to
	}
	return !stopped
}

// startOfLast returns the sequence number after which there are as many entries as the limit
// of a query.
func (r *Record) startOfLast(q Query) uint64 {
	var found []uint64 // the last ones, as a ring
	n := 0
	all := Query{After: q.After, Kinds: q.Kinds, Visible: q.Visible}
	r.Read(all, func(e *Entry) {
		if len(found) < q.Limit {
			found = append(found, e.Seq)
		} else {
			found[n%q.Limit] = e.Seq
		}
		n++
	})
	if n <= q.Limit {
		return q.After
	}
	return found[n%q.Limit] - 1
}

func (q *Query) selects(e *Entry) bool {
	return q.Kinds.Has(e.Kind) && (q.Visible == nil || q.Visible(e))
}
