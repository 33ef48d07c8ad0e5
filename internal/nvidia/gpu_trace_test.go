package nvidia

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// fakeTrace is a context-switch trace that the test writes.
type fakeTrace struct {
	started  int64
	clock    int64
	switches []nvtrace.Switch
	reads    int
	err      error
	ownUser  bool
	closed   bool
}

func (f *fakeTrace) Started() int64        { return f.started }
func (f *fakeTrace) AllUsers() bool        { return !f.ownUser }
func (f *fakeTrace) Dropped() uint64       { return 0 }
func (f *fakeTrace) Clock() (int64, error) { return f.clock, f.err }
func (f *fakeTrace) Close() error          { f.closed = true; return nil }

func (f *fakeTrace) Read() ([]nvtrace.Switch, error) {
	f.reads++
	s := f.switches
	f.switches = nil
	return s, f.err
}

// traced returns a backend with two queues of pid 1, one of pid 2 and one of an MPS server
// with pid 3, all on one GPU with a trace.
func traced(trace *fakeTrace) (*Backend, *fakeHost) {
	trace.started = 1
	b := New(Config{
		Root:      fstest.MapFS{"sys/module/nvidia/version": {Data: []byte("580.159.04\n")}},
		openTrace: func(nvtrace.Config) (traceReader, error) { return trace, nil },
	})
	h := &fakeHost{turns: map[int]bool{}}
	b.host = h
	g := b.gpu(testGPU, b.driver.state())
	for i, pid := range []int{1, 1, 2, 3} {
		f := &fakeQueue{host: h, id: sched.QueueID(i + 1)}
		f.offer.Process.PID = pid
		b.queues = append(b.queues, &queue{name: groupName{pid: pid}, gpu: g, handle: f, mps: pid == 3})
	}
	return b, h
}

// TestPollReportsDeviceTime checks that the trace becomes the device time of the first
// queue of each process, and that an MPS server which the trace does not name has none.
func TestPollReportsDeviceTime(t *testing.T) {
	trace := &fakeTrace{clock: 1000}
	b, _ := traced(trace)
	var f *fakeFacts
	poll := func(now time.Duration) map[sched.QueueID]time.Duration {
		f = newFacts()
		b.Poll(sched.Time(now), f)
		return f.times
	}
	if got := poll(time.Second); len(got) != 0 {
		t.Errorf("before the first switch: got %v, want nothing", got)
	}
	trace.clock = 2000
	trace.switches = []nvtrace.Switch{{PID: 1, At: 1500, Seq: 0}, {PID: 9, On: true, At: 1600, Seq: 1}}
	if got, want := poll(2*time.Second), map[sched.QueueID]time.Duration{1: 1499, 3: 0}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	trace.clock = 3000
	trace.switches = []nvtrace.Switch{{PID: 9, At: 2000, Seq: 2}, {PID: 3, On: true, At: 2100, Seq: 3}}
	if got, want := poll(3*time.Second), map[sched.QueueID]time.Duration{1: 1499, 3: 0, 4: 900}; !maps.Equal(got, want) {
		t.Errorf("with the MPS server in the trace: got %v, want %v", got, want)
	}
	c := b.gpus[0].check()
	if !c.OK || !strings.Contains(c.Detail, "2 switches, P50 ") {
		t.Errorf("check: got %+v", c)
	}
	trace.ownUser = true
	if c := b.gpus[0].check(); !strings.Contains(c.Detail, "processes of this user only") {
		t.Errorf("check: got %+v", c)
	}
}

// TestPollReportsDeviceTimeOfAPool checks that the time of the clients of an MPS server is the
// server's, even if a visit begins with a channel of one client and ends with one of another.
func TestPollReportsDeviceTimeOfAPool(t *testing.T) {
	trace := &fakeTrace{clock: 10_000}
	b, _ := traced(trace)
	b.members[groupName{pid: 3}] = []proc.Process{{PID: 7}, {PID: 8}}
	trace.switches = []nvtrace.Switch{
		{PID: 7, On: true, At: 1000, Seq: 0},
		{PID: 8, At: 4000, Seq: 1},
		{PID: 1, On: true, At: 4100, Seq: 2},
		{PID: 1, At: 5000, Seq: 3},
		{PID: 8, On: true, At: 5100, Seq: 4},
	}
	f := newFacts()
	b.Poll(sched.Time(time.Second), f)
	if got, want := f.times[4], 7900*time.Nanosecond; got != want || f.visits[4].Count != 2 {
		t.Errorf("got %v in %d visits, want %v in 2", got, f.visits[4].Count, want)
	}
}

// TestPollReportsVisits checks that the visits of the trace are reported, full ones and longer ones by
// the GPU's own slice, and arrivals in the scheduler's time.
func TestPollReportsVisits(t *testing.T) {
	const us = int64(time.Microsecond)
	trace := &fakeTrace{clock: 20_000 * us}
	b, _ := traced(trace)
	for i, at := range []int64{1000, 3200, 3300, 3600, 3700, 10_000, 10_100, 10_500} { // 1 and 2 in turn, each on and off
		trace.switches = append(trace.switches, nvtrace.Switch{PID: uint32(1 + i/2%2), On: i%2 == 0, At: at * us, Seq: uint16(i)})
	}
	f := newFacts()
	b.Poll(sched.Time(time.Second), f)
	arrived := f.visits[3].Arrived
	if late := arrived.Sub(sched.Time(time.Second - 9900*time.Microsecond)); late < 0 || late > 100*time.Millisecond {
		t.Errorf("arrival: got %v, want 9.9ms before the reading", time.Duration(arrived))
	}
	want := map[sched.QueueID]sched.Visits{
		1: {Count: 2, Full: 2, Alone: 4252 * time.Microsecond, Left: arrived.Add(-100 * time.Microsecond), Known: true},
		3: {Count: 2, Arrived: arrived, Left: arrived.Add(400 * time.Microsecond), Known: true},
	}
	if !maps.Equal(f.visits, want) {
		t.Errorf("got %+v, want %+v", f.visits, want)
	}
}

// TestTraceIsReadMoreOftenForTurns checks the interval at which the trace is read.
func TestTraceIsReadMoreOftenForTurns(t *testing.T) {
	for _, tt := range []struct {
		name  string
		turns []int
		want  int // reads in 100 ms, with a poll every millisecond
	}{
		{"no turns", nil, 4},
		{"one process takes turns beside others", []int{2}, 20},
		{"two processes take turns", []int{2, 3}, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			trace := &fakeTrace{clock: 1000}
			b, h := traced(trace)
			for _, pid := range tt.turns {
				h.turns[pid] = true
			}
			for ms := range 100 {
				b.Poll(sched.Time(time.Second+time.Duration(ms)*time.Millisecond), newFacts())
			}
			if trace.reads != tt.want {
				t.Errorf("reads: got %d, want %d", trace.reads, tt.want)
			}
		})
	}
}

// TestFailedTraceIsOpenedAgain checks that a trace which cannot be read is closed, that the
// scheduler is told once, that the trace is opened again with growing pauses, and that the
// measurement then goes on.
func TestFailedTraceIsOpenedAgain(t *testing.T) {
	first := &fakeTrace{clock: 1000}
	b, _ := traced(first)
	g := b.gpus[0]
	var opened []*fakeTrace
	refuse := errors.New("not now")
	b.cfg.openTrace = func(nvtrace.Config) (traceReader, error) {
		if refuse != nil {
			return nil, refuse
		}
		opened = append(opened, &fakeTrace{started: 5000, clock: 5000})
		return opened[len(opened)-1], nil
	}
	now := sched.Time(0)
	poll := func() *fakeFacts {
		f := newFacts()
		now = now.Add(idleInterval)
		b.Poll(now, f)
		return f
	}
	first.clock, first.switches = 2000, []nvtrace.Switch{{PID: 2, At: 1500, Seq: 0}, {PID: 1, On: true, At: 1600, Seq: 1}}
	if f := poll(); f.times[1] != 400 || f.times[3] != 1499 || !f.visits[1].Known {
		t.Fatalf("got %v and %+v, want 400ns and 1.499us", f.times, f.visits)
	}
	first.err = errors.New("GPU is lost")
	if f := poll(); !slices.Equal(f.lost, []sched.QueueID{1, 3}) || len(f.times) != 0 {
		t.Errorf("got %v and lost measurements %v, want those of queues 1 and 3", f.times, f.lost)
	}
	failed := g.reopen.at.Add(-minReopen)
	b.reopenTraces(failed)
	if f := poll(); !first.closed || g.Tracing() || len(f.lost) != 0 || len(f.times) != 0 {
		t.Errorf("closed %v, tracing %v, lost %v, times %v; want closed, and nothing reported twice", first.closed, g.Tracing(), f.lost, f.times)
	}
	if c := g.check(); c.OK || !strings.Contains(c.Detail, "GPU is lost: device time is estimated") || !strings.Contains(c.Fix, "opens it again") {
		t.Errorf("check: got %+v", c)
	}
	at := failed
	for _, wait := range []time.Duration{minReopen, 2 * minReopen, 4 * minReopen} {
		if due, any := b.nextDue(); !any || due.Sub(at) != wait {
			t.Errorf("next attempt after %v, want %v", due.Sub(at), wait)
		}
		at = at.Add(wait)
		b.reopenTraces(at.Add(-1))
		if g.reopen.at != at {
			t.Error("it was opened too early")
		}
		b.reopenTraces(at)
	}
	refuse = nil
	at = g.reopen.at
	b.reopenTraces(at)
	if len(opened) != 1 || !g.Tracing() {
		t.Fatalf("opened %d times, tracing %v; want once", len(opened), g.Tracing())
	}
	if _, any := b.nextDue(); any {
		t.Error("another attempt is due")
	}
	if f := poll(); len(f.times) != 0 || len(f.lost) != 0 {
		t.Errorf("before a switch: got %v, lost %v", f.times, f.lost)
	}
	second := opened[0]
	second.clock, second.switches = 6000, []nvtrace.Switch{{PID: 9, At: 5500, Seq: 70}, {PID: 1, On: true, At: 5600, Seq: 71}}
	if f := poll(); f.times[1] != 800 || f.times[3] != 1499 || f.visits[1].Count != 2 || !f.visits[3].Known || len(f.lost) != 0 {
		t.Errorf("got %v, %+v, lost %v; want 400ns more for queue 1", f.times, f.visits, f.lost)
	}

	// It fails at once: the pauses go on growing. It fails after a long time: they do not.
	g.fail(second.err, at.Add(time.Second))
	if wait := g.reopen.wait; wait != 16*minReopen {
		t.Errorf("after a failure at once: wait %v, want %v", wait, 16*minReopen)
	}
	g.reopen.openedAt = at
	g.fail(second.err, at.Add(maxReopen))
	if wait := g.reopen.wait; wait != minReopen {
		t.Errorf("after a failure later: wait %v, want %v", wait, minReopen)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestTraceThatDoesNotOpenAtFirstIsOpenedLater checks that a trace which cannot be opened when
// its GPU is found, for a reason that may pass, is opened later, with growing pauses, and read.
func TestTraceThatDoesNotOpenAtFirstIsOpenedLater(t *testing.T) {
	trace := &fakeTrace{started: 1000, clock: 1000}
	b := New(Config{
		Root:      driverRoot("580.159.04"),
		openTrace: func(nvtrace.Config) (traceReader, error) { return nil, nvrm.ErrBusyRetry },
	})
	b.host = &fakeHost{}
	began := time.Now()
	g := b.gpu(testGPU, b.driver.state())
	f := &fakeQueue{host: b.host.(*fakeHost), id: 1}
	f.offer.Process.PID = 1
	b.queues = append(b.queues, &queue{name: groupName{pid: 1}, gpu: g, handle: f})
	b.Poll(1, newFacts())
	if c := g.check(); g.Tracing() || c.OK || !strings.Contains(c.Fix, "opens it again") {
		t.Errorf("tracing %v, check %+v; want one that says that it is opened again", g.Tracing(), c)
	}
	due, any := b.nextDue()
	if wait := due.Sub(began); !any || wait < minReopen || wait > minReopen+time.Minute/2 {
		t.Fatalf("next attempt after %v, %v; want %v", wait, any, minReopen)
	}
	b.reopenTraces(due)
	later, _ := b.nextDue()
	if later.Sub(due) != 2*minReopen {
		t.Errorf("next attempt after %v, want %v", later.Sub(due), 2*minReopen)
	}
	b.cfg.openTrace = func(nvtrace.Config) (traceReader, error) { return trace, nil }
	b.reopenTraces(later)
	if _, any := b.nextDue(); any || !g.Tracing() || !g.check().OK {
		t.Fatalf("tracing %v, another attempt due %v, check %+v", g.Tracing(), any, g.check())
	}
	trace.clock, trace.switches = 2000, []nvtrace.Switch{{PID: 2, At: 1500, Seq: 0}, {PID: 1, On: true, At: 1600, Seq: 1}}
	facts := newFacts()
	b.Poll(sched.Time(time.Second), facts)
	if facts.times[1] != 400 {
		t.Errorf("got %v, want 400ns", facts.times)
	}
	if err := b.Close(); err != nil || !trace.closed {
		t.Errorf("close: %v, trace closed %v", err, trace.closed)
	}
}

// TestFailedTraceWakesRun checks that the goroutine of the backend closes and opens the trace.
func TestFailedTraceWakesRun(t *testing.T) {
	trace := &fakeTrace{err: errors.New("GPU is lost")}
	b, _ := traced(trace)
	b.Poll(1, newFacts())
	b.Poll(sched.Time(time.Second), newFacts())
	select {
	case <-b.traceFailed:
	default:
		t.Error("run was not told")
	}
	if due, any := b.nextDue(); !any || time.Until(due) > minReopen {
		t.Errorf("due %v, %v; want an attempt within %v", due, any, minReopen)
	}
}

// TestSpansCoverAllTime checks that the spans follow each other from the first to the present,
// across a failure of the trace, in which what the GPU did is unknown.
func TestSpansCoverAllTime(t *testing.T) {
	const ms = int64(time.Millisecond)
	trace := &fakeTrace{}
	b, _ := traced(trace)
	g := b.gpus[0]
	began := time.Now()
	f := newFacts()
	poll := func() sched.Time {
		now := sched.Time(time.Hour + time.Since(began))
		trace.clock = int64(now) - int64(time.Hour) + 1
		b.pollGPU(g, now, f)
		return now
	}
	seq := uint16(0)
	add := func(pid uint32, on bool) {
		trace.switches = append(trace.switches, nvtrace.Switch{PID: pid, On: on, At: int64(time.Since(began)) + 1, Seq: seq})
		seq++
	}
	for range 20 {
		add(1, true)
		time.Sleep(2 * time.Millisecond)
		poll()
		add(1, false)
		add(2, true)
		time.Sleep(time.Millisecond)
		add(2, false)
	}
	poll()
	trace.err = errors.New("GPU is lost")
	down := poll()
	time.Sleep(3 * time.Millisecond)
	up := poll()
	trace.err = nil
	trace.started = int64(time.Since(began)) + 1
	b.reopenTraces(time.Now().Add(minReopen))
	add(1, true)
	time.Sleep(time.Millisecond)
	end := poll()
	var l hal.Ledger
	for i, s := range f.spans {
		if s.End < s.Begin || i > 0 && s.Begin != f.spans[i-1].End {
			t.Fatalf("span %+v after %+v", s, f.spans[max(i, 1)-1])
		}
		l.Add(s)
		if s.Begin > down && s.End < up && s.Kind != hal.SpanUnknown {
			t.Errorf("while the trace was closed: got %+v", s)
		}
	}
	first, last := f.spans[0], f.spans[len(f.spans)-1]
	if l.Wall() != last.End.Sub(first.Begin) || l.Unknown < up.Sub(down) || l.Held == 0 || l.Visits < 39 || l.Switches < 38 {
		t.Errorf("got %+v, %v together, from %v to %v", l, l.Wall(), first.Begin, last.End)
	}
	if late := end.Sub(last.End); late > 20*time.Millisecond || late < -20*time.Millisecond || first.Begin < sched.Time(time.Hour)-sched.Time(20*ms) {
		t.Errorf("spans from %v to %v, want from an hour to %v", first.Begin, last.End, end)
	}
}

// TestPIDsAreForgotten checks that a process with the pid of one that has exited begins
// without device time, and that a process keeps its own while it has a queue.
func TestPIDsAreForgotten(t *testing.T) {
	trace := &fakeTrace{clock: 2000, switches: []nvtrace.Switch{{PID: 1, At: 1500, Seq: 0}, {PID: 2, On: true, At: 1600, Seq: 1}}}
	b, h := traced(trace)
	poll := func(at sched.Time) map[sched.QueueID]time.Duration {
		f := newFacts()
		b.Poll(at, f)
		return f.times
	}
	if got, want := poll(1e9), map[sched.QueueID]time.Duration{1: 1499, 3: 400}; !maps.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	one := b.queues[0]
	b.queues[1].name.start = 5 // another group of process 1, which stays
	b.remove(func(n groupName) bool { return n == one.name })
	if got, want := poll(2e9), map[sched.QueueID]time.Duration{2: 1499, 3: 400}; !maps.Equal(got, want) {
		t.Errorf("with one queue left: got %v, want %v", got, want)
	}
	b.remove(func(n groupName) bool { return n.pid == 1 })
	f := &fakeQueue{host: h, id: 9}
	f.offer.Process.PID = 1
	b.queues = append(b.queues, &queue{name: groupName{pid: 1, start: 7}, gpu: b.gpus[0], handle: f})
	if got, want := poll(3e9), map[sched.QueueID]time.Duration{9: 0, 3: 400}; !maps.Equal(got, want) {
		t.Errorf("with the pid used again: got %v, want %v", got, want)
	}
}

// TestPollDoesNotAllocate checks that a reading costs no memory in the steady state.
func TestPollDoesNotAllocate(t *testing.T) {
	trace := &fakeTrace{clock: 1000}
	b, _ := traced(trace)
	b.members[groupName{pid: 3}] = []proc.Process{{PID: 7}, {PID: 8}}
	f := newFacts()
	switches := make([]nvtrace.Switch, 32)
	now, seq := sched.Time(0), uint16(0)
	round := func() {
		for i := range switches {
			trace.clock += 1000
			switches[i] = nvtrace.Switch{PID: uint32(i/2%4 + 1), On: i%2 == 0, At: trace.clock, Seq: seq}
			seq++
		}
		trace.switches, f.spans, now = switches, f.spans[:0], now.Add(turnInterval)
		b.pollGPU(b.gpus[0], now, f)
	}
	round()
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
	if len(f.spans) == 0 || f.times[1] == 0 {
		t.Errorf("got %d spans and %v", len(f.spans), f.times)
	}
}

// TestRefusedTraceIsShownByDoctor checks the texts for a trace that is not opened.
func TestRefusedTraceIsShownByDoctor(t *testing.T) {
	refused := fmt.Errorf("%w: this GPU is too old to have one", nvtrace.ErrRefused)
	for _, tt := range []struct {
		name        string
		version     string
		off         bool
		detail, fix string
	}{
		{"refused", "580.159.04", false, "too old", "as root"},
		{"turned off", "580.159.04", true, "turned off by the configuration", ""},
		{"unknown driver", "700.01", false, "the driver is unknown", "docs/DRIVERS.md"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := New(Config{
				Root:      fstest.MapFS{"sys/module/nvidia/version": {Data: []byte(tt.version)}},
				NoTrace:   tt.off,
				openTrace: func(nvtrace.Config) (traceReader, error) { return nil, refused },
			})
			b.host = &fakeHost{}
			g := b.gpu(testGPU, b.driver.state())
			if again := b.gpu(testGPU, b.driver.state()); again != g {
				t.Error("the GPU was announced twice")
			}
			c := g.check()
			if g.Tracing() || c.OK != tt.off || c.Name != "context-switch trace of "+testGPU || !strings.Contains(c.Detail, tt.detail) || !strings.Contains(c.Fix, tt.fix) {
				t.Errorf("got %+v; want %q and %q", c, tt.detail, tt.fix)
			}
			b.Poll(1, newFacts())
			if due, any := b.nextDue(); any {
				t.Errorf("it is to be opened again at %v", due)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

var _ hal.QueueHandle = (*fakeQueue)(nil)

// TestFullVisitsAreOfTheSliceThatWasFound checks that a visit is full if it takes the slice with
// which the group of the process was found, which need not be CUDA's.
func TestFullVisitsAreOfTheSliceThatWasFound(t *testing.T) {
	trace := &fakeTrace{clock: 1}
	b, _ := traced(trace)
	b.queues[0].found = 6 * time.Millisecond
	seq, at := uint16(0), int64(1000)
	visit := func(pid uint32, took time.Duration) {
		trace.switches = append(trace.switches, nvtrace.Switch{PID: pid, On: true, At: at, Seq: seq}, nvtrace.Switch{PID: pid, At: at + int64(took), Seq: seq + 1})
		seq, at = seq+2, at+int64(took)+1000
		trace.clock = at
	}
	for range 3 {
		visit(1, 6*time.Millisecond)
		visit(2, defaultSlice)
	}
	visit(1, defaultSlice)
	f := newFacts()
	b.Poll(sched.Time(time.Second), f)
	if one, two := f.visits[1], f.visits[3]; one.Full != 3 || one.Count != 4 || two.Full != 3 || two.Count != 3 {
		t.Errorf("got %+v and %+v, want 3 full visits of 4 and of 3", one, two)
	}
}
