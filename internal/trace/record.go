package trace

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
)

// settle is how long after an entry other entries may arrive that belong to it: spans are
// read every few milliseconds, and an action is recorded when it is over.
const settle = 200 * time.Millisecond

// Limits on what a Trace keeps in memory.
const (
	maxPending = 1 << 16 // spans and requests that are not written yet
	maxWaits   = 1 << 10 // of a process
)

// pendingBytes is what a span or a request that is not written yet takes in the file, with
// its end.
const pendingBytes = 400

// Trace writes the entries of a record as a Perfetto trace, as they come. Every entry
// becomes one event, whose category is its kind:
//
//	span       a slice on the track of its device, named after the process that held it
//	request    a slice on the track "requests" of its process
//	wait       a slice on the track "waits", named after the holder
//	decision   a slice on the track "decisions", until the next decision about the queue
//	action     a slice on the track "actions", from the order to the outcome
//	state      an instant on the track "state" of its process, or on that of its device
//	order      an instant on the track "orders"
//	note       an instant on the track "notes"
//
// A flow connects a decision with its actions, and each action with the span in which the
// process came onto the device or left it.
type Trace struct {
	w       *writer
	limit   int64
	summary Summary
	now     time.Duration // the latest time of an entry
	written time.Duration // when spans and requests were last written

	group     string // before the names of devices and processes
	names     map[int]string
	labels    map[string]int // how many processes have a label
	processes map[int]*process
	devices   map[string]*device
	queues    map[uint64]*queue
	requests  []request         // not written yet
	general   map[string]uint64 // tracks of no process and no device
	pending   int               // spans and requests that are not written yet

	inputsFull bool // a part of the inputs was left out
}

// Summary says what a trace has.
type Summary struct {
	Entries map[api.EntryKind]int
	Bytes   int64
	LeftOut int           // entries for which there was no room
	Until   time.Duration // if entries were left out: when the first of them was made
	Last    time.Duration // when the last entry was made
}

// Total returns the number of entries.
func (s *Summary) Total() (n int) {
	for _, of := range s.Entries {
		n += of
	}
	return n
}

// process is a process of the trace.
type process struct {
	pid      int
	label    string
	track    uint64 // zero: none is open yet
	requests lanes
	waits    lanes
	actions  lanes
	state    uint64
	recent   []waited
	gone     bool
}

type waited struct {
	begin, end time.Duration
	holder     string
}

type request struct {
	api.Entry
	of *process
}

// queue is the state of the decisions of a queue.
type queue struct {
	track     uint64
	open      bool // a decision is in force
	decisions [8]decided
	next      int // index of the oldest
}

type decided struct{ number, flow uint64 }

// New returns a trace that is written to w and has at most about limit bytes.
func New(w io.Writer, limit int64) *Trace {
	t := &Trace{
		w: newWriter(w), limit: limit, general: map[string]uint64{},
		summary: Summary{Entries: map[api.EntryKind]int{}},
	}
	t.reset("", nil)
	return t
}

// reset forgets all processes, devices and queues.
func (t *Trace) reset(group string, names map[int]string) {
	t.group, t.names, t.labels = group, names, map[string]int{}
	t.processes, t.devices, t.queues = map[int]*process{}, map[string]*device{}, map[uint64]*queue{}
}

// Clock relates the times of the trace to the wall clock.
func (t *Trace) Clock(c api.Clock) { t.w.clock(c.Now, c.Wall) }

// Names sets the names of processes by pid. Those that it does not have keep their names.
func (t *Trace) Names(names map[int]string) {
	if t.names == nil {
		t.names = map[int]string{}
	}
	maps.Copy(t.names, names)
}

// Add adds an entry. Entries are added in the order of the record. An entry of a kind that
// Add does not know is left out.
func (t *Trace) Add(e *api.Entry) {
	if t.summary.LeftOut > 0 || t.w.written+int64(t.pending)*pendingBytes+int64(len(t.queues))*pendingBytes > t.limit {
		if t.summary.LeftOut == 0 {
			t.summary.Until = e.At
		}
		t.summary.LeftOut++
		return
	}
	if !t.add(e) {
		return
	}
	t.summary.Entries[e.Kind]++
	t.now = max(t.now, e.At)
	t.summary.Last = t.now
	if t.now-t.written >= settle/4 || t.pending > maxPending {
		t.writeSettled(t.now - settle)
		t.written = t.now
	}
}

func (t *Trace) add(e *api.Entry) bool {
	switch {
	case e.Kind == api.KindSpan && e.Span != nil:
		t.addSpan(e)
	case e.Kind == api.KindRequest && e.Request != nil:
		t.requests = append(t.requests, request{*e, t.process(e.PID)})
		t.pending++
	case e.Kind == api.KindWait && e.Wait != nil:
		t.wait(e, e.Wait)
	case e.Kind == api.KindDecision && e.Decision != nil:
		t.decision(e, e.Decision)
	case e.Kind == api.KindAction && e.Action != nil:
		t.action(e, e.Action)
	case e.Kind == api.KindState && e.State != nil:
		t.state(e, e.State)
	case e.Kind == api.KindOrder && e.Order != nil:
		t.order(e, e.Order)
	case e.Kind == api.KindNote && e.Note != nil:
		t.note(e, e.Note)
	default:
		return false
	}
	return true
}

// Close writes what is left. The trace is complete when it returns without an error.
func (t *Trace) Close() (Summary, error) {
	t.finish()
	err := t.w.flush()
	t.summary.Bytes = t.w.written
	return t.summary, err
}

// finish ends what is open.
func (t *Trace) finish() {
	t.writeSettled(1<<63 - 1)
	for _, id := range slices.Sorted(maps.Keys(t.queues)) {
		t.queues[id].end(t.w, t.now)
	}
}

// process returns the process with a pid.
func (t *Trace) process(pid int) *process {
	p := t.processes[pid]
	if p == nil {
		p = &process{pid: pid, label: t.newLabel(pid)}
		t.processes[pid] = p
	}
	return p
}

// newLabel returns a name for a process that no other has. The viewer takes the colour of a
// slice from its name without digits, so that a letter makes the difference and not the pid.
func (t *Trace) newLabel(pid int) string {
	name := clean(t.names[pid])
	switch {
	case pid == 0:
		name = "another user's process"
	case name == "":
		name = fmt.Sprint("process ", pid)
	}
	t.labels[name]++
	if n := t.labels[name]; n > 1 {
		name += " " + letters(n)
	}
	return name
}

// letters returns a, b, ..., z, aa, ab, ... for 1, 2, ....
func letters(n int) (s string) {
	for ; n > 0; n = (n - 1) / 26 {
		s = string(rune('a'+(n-1)%26)) + s
	}
	return s
}

// in returns the track of a process.
func (p *process) in(t *Trace) uint64 {
	if p.track == 0 {
		if p.pid == 0 { // to the viewer that is the kernel's idle process
			p.track = t.w.track(0, t.group+p.label, 0)
		} else {
			p.track = t.w.process(p.pid, t.group+p.label)
		}
		p.requests = lanes{parent: p.track, name: "requests", rank: 1}
		p.waits = lanes{parent: p.track, name: "waits", rank: 2}
		p.actions = lanes{parent: p.track, name: "actions", rank: 4}
	}
	return p.track
}

func (t *Trace) wait(e *api.Entry, w *api.Wait) {
	p := t.process(e.PID)
	p.in(t)
	holder := t.holder(&w.Holder)
	end := max(w.Begin, w.End)
	if len(p.recent) == maxWaits {
		p.recent = slices.Delete(p.recent, 0, maxWaits/2)
	}
	p.recent = append(p.recent, waited{w.Begin, end, holder})
	args := []arg{text("waits for", holder), text("of this the holder held", w.Held.String()), text("device", e.Device), number("queue", e.Queue)}
	if w.Holder.PID != 0 {
		args = append(args, number("pid of the holder", uint64(w.Holder.PID)))
	}
	if w.Estimated {
		args = append(args, estimated)
	}
	t.w.slice(p.waits.free(t.w, w.Begin, end), w.Begin, end, event{category: string(e.Kind), name: "waits for " + holder, args: args})
}

var estimated = text("estimated", "yes")

// holder returns the name of what kept a device from a process.
func (t *Trace) holder(h *api.Holder) string {
	switch h.Kind {
	case "process":
		return t.process(h.PID).label
	case "switch":
		return "a context switch"
	case "idle":
		return "nothing: the device was idle"
	}
	return clean(h.Kind)
}

// writeRequest writes a request, with what its process waited for meanwhile.
func (t *Trace) writeRequest(r *request) {
	q, p := r.Request, r.of
	p.in(t)
	end := max(q.Begin, q.End)
	args := []arg{text("took", (end - q.Begin).String())}
	name := "request"
	if q.SLO > 0 {
		args = append(args, text("SLO", q.SLO.String()))
	}
	if q.Late {
		name = "late request"
	}
	if during := p.waitsDuring(q.Begin, end); during != "" {
		args = append(args, text("waited for", during))
	}
	if q.Estimated {
		args = append(args, estimated)
	}
	t.w.slice(p.requests.free(t.w, q.Begin, end), q.Begin, end, event{category: string(r.Kind), name: name, args: args})
}

// waitsDuring lists what a process waited for in a period, the longest first.
func (p *process) waitsDuring(begin, end time.Duration) string {
	sums := map[string]time.Duration{}
	for _, w := range p.recent {
		if d := min(w.end, end) - max(w.begin, begin); d > 0 {
			sums[w.holder] += d
		}
	}
	holders := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a, b))
	})
	var list []string
	for _, h := range holders {
		list = append(list, fmt.Sprintf("%s %v", h, sums[h]))
	}
	return strings.Join(list, ", ")
}

// writeSettled writes the spans and requests that were recorded until a time.
func (t *Trace) writeSettled(until time.Duration) {
	n := 0
	for n < len(t.requests) && (t.requests[n].At <= until || t.pending > maxPending) {
		t.writeRequest(&t.requests[n])
		n++
	}
	t.requests = slices.Delete(t.requests, 0, n)
	t.pending -= n
	for _, id := range slices.Sorted(maps.Keys(t.devices)) {
		t.pending -= t.devices[id].writeSettled(t, until)
	}
}
