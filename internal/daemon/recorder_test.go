package daemon

import (
	"encoding/json"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim/live"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

const recordScenario = `
name: record
devices: [{model: nvidia-h200}]
clients:
  - {name: serve, class: online, slo: 100ms, shim: true, arrival: {periodic: 20ms}, kernels: {time: 1ms}}
  - {name: a, class: batch, arrival: {closed: 0, depth: 2}, kernels: {time: 3ms}}
  - {name: b, class: batch, arrival: {closed: 0, depth: 2}, kernels: {time: 3ms}}
`

// recorded returns the entries of a daemon as the API shows them.
func recorded(t testing.TB, d *Daemon) (all []api.Entry) {
	t.Helper()
	text, res := d.Record().AppendRecord(nil, record.Query{Kinds: record.All}, func(*record.Entry) bool { return false })
	var r api.Record
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if res.Lost > 0 || r.Version != api.RecordVersion {
		t.Fatalf("got %+v", res)
	}
	return r.Entries
}

// TestRecordOfADaemon runs a daemon with simulated devices and checks that the record tells
// what happened.
func TestRecordOfADaemon(t *testing.T) {
	s, err := scenario.Parse("record.yaml", []byte(recordScenario), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := live.New(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := newTestDaemon(b)
	stop := runDaemon(t, d)
	defer stop()
	count := func(of func(*api.Entry) bool) (n int) {
		for _, e := range recorded(t, d) {
			if of(&e) {
				n++
			}
		}
		return n
	}
	has := func(what string, n int, of func(*api.Entry) bool) {
		t.Helper()
		eventually(t, what, func() bool { return count(of) >= n })
	}
	online, batch := pidOf(t, d, "sim: serve"), pidOf(t, d, "sim: a")
	has("queues appear", 3, func(e *api.Entry) bool {
		return e.State != nil && e.State.What == "queue" && e.State.Change == "appeared"
	})
	has("processes appear", 3, func(e *api.Entry) bool { return e.State != nil && e.State.What == "process" && e.PID > 0 })
	has("turns are decided", 4, func(e *api.Entry) bool { return e.Decision != nil && e.Decision.Run && e.Decision.Reason == "turn" })
	has("queues wait for their turn", 4, func(e *api.Entry) bool {
		return e.Decision != nil && !e.Decision.Run && e.Decision.Reason == "other turn" && e.Decision.Policy == "giveway"
	})
	has("stops are done", 4, func(e *api.Entry) bool {
		a := e.Action
		return a != nil && a.Verb == "stop" && a.Level == "interrupt" && a.Outcome == "done" && a.Ordered < a.Completed && a.Cost > 0 && a.Decision > 0
	})
	has("requests are over", 5, func(e *api.Entry) bool {
		r := e.Request
		return r != nil && e.PID == online && !r.Estimated && r.Begin < r.End && r.End <= e.At && r.SLO == 100*time.Millisecond
	})
	has("the online process waits for batch work", 3, func(e *api.Entry) bool {
		return e.Wait != nil && e.PID == online && !e.Wait.Estimated && e.Wait.Held <= e.Wait.End-e.Wait.Begin
	})
	if _, err := d.Change(caller(batch), batch, api.Change{Values: attr.Must("paused=true")}); err != nil {
		t.Fatal(err)
	}
	has("the pause is decided", 1, func(e *api.Entry) bool {
		return e.Decision != nil && e.PID == batch && !e.Decision.Run && e.Decision.Reason == "paused"
	})
	has("the pause is a change", 1, func(e *api.Entry) bool {
		return e.State != nil && e.PID == batch && e.State.Change == "attributes" && e.State.Paused
	})
	has("the guardian runs", 1, func(e *api.Entry) bool { return e.Note != nil && e.Note.Name == "guardian" })
	checkSpans(t, recorded(t, d))
	checkDelays(t, d, online)
	i := slices.IndexFunc(d.Processes(), func(p api.Process) bool { return p.PID == batch })
	if q := d.Processes()[i].Queues[0]; q.MayRun || q.Reason != "paused" || q.DecidedFor <= 0 {
		t.Errorf("the paused queue is shown as %+v", q)
	}
}

func pidOf(t *testing.T, d *Daemon, command string) (pid int) {
	t.Helper()
	eventually(t, command+" is found", func() bool {
		for _, p := range d.Processes() {
			if p.Command == command {
				pid = p.PID
			}
		}
		return pid > 0
	})
	return pid
}

// checkSpans checks that the spans of a device follow each other.
func checkSpans(t *testing.T, all []api.Entry) {
	t.Helper()
	last, n := time.Duration(0), 0
	for _, e := range all {
		if e.Span == nil {
			continue
		}
		if n++; n > 1 && e.Span.Begin != last || e.Span.End < e.Span.Begin {
			t.Fatalf("a span of %v to %v comes after %v", e.Span.Begin, e.Span.End, last)
		}
		last = e.Span.End
	}
	if n < 10 {
		t.Errorf("only %d spans", n)
	}
}

// checkDelays checks that the delays of each process are together its pressure.
func checkDelays(t *testing.T, d *Daemon, online int) {
	t.Helper()
	eventually(t, "delays are known", func() bool { return len(d.Delays().Delays) > 4 })
	var delays api.Delays
	var pressure api.Pressure
	d.events.inLoop(func() { delays, pressure = d.recorder.accounts.Delays(), d.recorder.accounts.Pressure() })
	sums := map[int]time.Duration{}
	for _, c := range delays.Delays {
		sums[c.PID] += c.Total
	}
	for _, p := range pressure.Processes {
		if sums[p.PID] != p.Some.Total || sums[p.PID] == 0 {
			t.Errorf("process %d: delays of %v, pressure %v", p.PID, sums[p.PID], p.Some)
		}
	}
	if dev := pressure.Devices[0]; dev.Some.Total < sums[online] || dev.Full.Total > dev.Some.Total {
		t.Errorf("got %+v, and the online process waited %v", dev, sums[online])
	}
}

// recordLoad drives the recorder of a daemon that does not run, as the loop would: processes
// on one traced device, with so many events a second in turns of 1 ms.
type recordLoad struct {
	d         *Daemon
	processes int
	perTurn   int
	now       sched.Time
	n         uint64
	events    []sched.Event
	actions   []sched.Action
	measure   bool
	step, rec time.Duration // time spent in the scheduler, and in the recorder
}

// cpu returns the CPU time of the thread, if it is measured: other processes do not count.
func (l *recordLoad) cpu() time.Duration {
	var ts unix.Timespec
	if l.measure {
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // it exists everywhere
	}
	return time.Duration(ts.Nano())
}

func newRecordLoad(processes, perSecond int) *recordLoad {
	l := &recordLoad{d: newTestDaemon(), processes: processes, perTurn: perSecond / 1000}
	about := sched.Device{ID: "d", Slice: 2 * time.Millisecond, MinSharedSlice: 100 * time.Microsecond}
	l.events = append(l.events, sched.Event{Kind: sched.DeviceOpened, Device: "d", About: about})
	l.d.recorder.noteDevice(tracedDevice{})
	for i := range processes {
		l.open(sched.QueueID(i+1), i)
	}
	l.turn()
	return l
}

type tracedDevice struct{}

func (tracedDevice) Tracing() bool  { return true }
func (tracedDevice) Info() hal.Info { return hal.Info{Device: sched.Device{ID: "d"}} }

func (l *recordLoad) open(id sched.QueueID, i int) {
	l.d.recorder.noteOwner(id, &process{})
	l.d.recorder.owners[id] = owner{pid: int32(id)}
	ev := sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "d", Can: sched.CanInterrupt | sched.CanSlice}
	if ev.Attr.Class = sched.Batch; i%4 == 0 {
		ev.Attr.Class, ev.Attr.SLO = sched.Online, 10*time.Millisecond
	}
	l.events = append(l.events, ev)
}

// turn is one turn of the loop.
func (l *recordLoad) turn() {
	l.d.facts.spans = l.d.facts.spans[:0]
	began := l.now
	l.now = l.now.Add(time.Millisecond)
	for _, a := range l.actions {
		l.events = append(l.events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Duration: 300 * time.Microsecond})
	}
	for i := range l.perTurn {
		l.n++
		id := sched.QueueID(1 + l.n%uint64(l.processes))
		switch i % 5 {
		case 0, 1: // a span
			n := len(l.d.facts.spans)
			part := time.Millisecond / time.Duration((l.perTurn*2+4)/5)
			s := hal.Span{Begin: began.Add(time.Duration(n) * part), PID: int(id), Kind: hal.SpanHeld, Left: hal.Preempted}
			if n%2 == 1 {
				s.Kind, s.Left = hal.SpanSwitch, 0
			}
			s.End = s.Begin.Add(part)
			l.d.facts.spans = append(l.d.facts.spans, deviceSpan{"d", s})
		case 2, 3:
			c := sched.Counters{Submitted: l.n, Launched: l.n, Completed: l.n - l.n/7%2, Known: true}
			l.events = append(l.events, sched.Event{Kind: sched.Progressed, Queue: id, Counters: c})
		default:
			id = 1 + id/4*4%sched.QueueID(l.processes)
			l.events = append(l.events, sched.Event{Kind: sched.RequestFinished, Queue: id, Duration: time.Millisecond, At: l.now})
		}
	}
	at := l.cpu()
	actions, _ := l.d.sched.Step(l.now, l.events)
	stepped := l.cpu()
	l.d.recorder.Record(l.now, l.events, actions)
	l.step, l.rec = l.step+stepped-at, l.rec+l.cpu()-stepped
	l.actions = append(l.actions[:0], actions...)
	l.events = l.events[:0]
}

// TestIdleProcessStopsWaiting checks that the recorder tells the account when the scheduler
// finds no work: process 2 has no counters, was preempted and never comes back.
func TestIdleProcessStopsWaiting(t *testing.T) {
	l := newRecordLoad(0, 0)
	l.open(1, 1)
	l.open(2, 2)
	var served [2]time.Duration
	waited := func() (sum time.Duration) {
		for _, d := range l.d.recorder.accounts.Delays().Delays {
			if d.PID == 2 {
				sum += d.Total
			}
		}
		return sum
	}
	run := func(turns int, pid int) {
		for range turns {
			s := hal.Span{Begin: l.now, End: l.now.Add(time.Millisecond), PID: pid, Kind: hal.SpanHeld, Left: hal.Preempted}
			l.now = s.End
			for _, a := range l.actions {
				l.events = append(l.events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
			}
			served[pid-1] += time.Millisecond
			for i, took := range served {
				l.events = append(l.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: sched.QueueID(1 + i), Duration: took})
			}
			l.actions, _ = l.d.sched.Step(l.now, l.events)
			l.d.facts.spans = append(l.d.facts.spans[:0], deviceSpan{"d", s})
			l.d.recorder.Record(l.now, l.events, l.actions)
			l.events = l.events[:0]
		}
	}
	run(50, 2)
	run(5000, 1)
	before := waited()
	if run(5000, 1); before == 0 || waited() != before {
		t.Errorf("waited for %v in the first seconds, and for %v in the next", before, waited()-before)
	}
}

// BenchmarkRecord measures what the record costs with 200 processes and 10,000 events a
// second: writing it, the account of delays, a stream of all entries, and delays, pressure
// and the last entries once a second. The limit is 5 % of a core.
func BenchmarkRecord(b *testing.B) {
	runtime.LockOSThread()
	l := newRecordLoad(200, 10_000)
	l.measure = true
	var buf []byte
	var api time.Duration
	after, seconds := uint64(0), 0
	for b.Loop() {
		l.step, l.rec, api = 0, 0, 0
		for range 10 {
			seconds++
			for i := range 1000 {
				if l.turn(); i%50 == 0 { // as a stream does
					at := l.cpu()
					var res record.Result
					buf, res = l.d.Record().AppendRecord(buf[:0], record.Query{After: after, Kinds: record.All}, func(*record.Entry) bool { return false })
					after = res.Next
					api += l.cpu() - at
				}
			}
			at := l.cpu()
			_, _ = json.Marshal(l.d.recorder.accounts.Delays())
			_, _ = json.Marshal(l.d.recorder.accounts.Pressure())
			buf, _ = l.d.Record().AppendRecord(buf[:0], record.Query{Kinds: record.All, Limit: 1000, Last: true}, func(*record.Entry) bool { return false })
			api += l.cpu() - at
		}
	}
	percent := func(d time.Duration) float64 { return d.Seconds() / 10 * 100 }
	b.ReportMetric(percent(l.step), "%core-scheduler")
	b.ReportMetric(percent(l.rec), "%core-record")
	b.ReportMetric(percent(api), "%core-api")
	b.ReportMetric(float64(after)/float64(seconds), "entries/s")
}

// TestRecordNeedsNoMemory runs the load for long and lets processes come and go: the memory
// stays flat, and a turn allocates nothing.
func TestRecordNeedsNoMemory(t *testing.T) {
	l := newRecordLoad(40, 10_000)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	run := func(turns int) {
		for range turns {
			l.turn()
		}
	}
	next := sched.QueueID(1000)
	churn := func() { // processes come and go
		for range 3000 {
			next++
			l.open(next, int(next))
			l.turn()
			l.events = append(l.events, sched.Event{Kind: sched.QueueClosed, Queue: next})
		}
		l.turn()
	}
	run(15_000)
	churn()
	if got := testing.AllocsPerRun(3000, l.turn); got >= 1 {
		t.Errorf("got %v allocations a turn", got)
	}
	before := heap()
	run(15_000)
	churn()
	if after := heap(); after > before+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	if r := l.d.recorder; len(r.queues) != 40 || len(r.processes) != 40 || len(r.owners) != 0 || len(r.accounts.Pressure().Processes) != 40 {
		t.Errorf("kept %d queues, %d processes, %d owners", len(r.queues), len(r.processes), len(r.owners))
	}
}

// TestCauseOfAnAction: an action names the decision because of which it was ordered, also if
// another one was made before the action was over.
func TestCauseOfAnAction(t *testing.T) {
	d := newTestDaemon()
	q := &recordedQueue{owner: owner{pid: 5}, device: "d", decision: 7}
	d.recorder.queues[1] = q
	d.recorder.Record(1, nil, []sched.Action{{ID: 3, Queue: 1, Verb: sched.Stop}})
	q.decision = 8
	d.recorder.Record(2, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: 3}}, nil)
	for _, e := range recorded(t, d) {
		if e.Action != nil {
			if e.Action.Decision != 7 {
				t.Errorf("the action is because of decision %d, want 7", e.Action.Decision)
			}
			return
		}
	}
	t.Error("the action is not in the record")
}
