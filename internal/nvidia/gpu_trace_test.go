package nvidia

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// fakeTrace is a context-switch trace that the test writes.
type fakeTrace struct {
	clock    int64
	switches []nvtrace.Switch
	reads    int
	err      error
	ownUser  bool
	closed   bool
}

func (f *fakeTrace) Started() int64        { return 1 }
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
		f = &fakeFacts{times: map[sched.QueueID]time.Duration{}}
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
	if f.lost != 200 || f.count != 2 {
		t.Errorf("got %v lost in %d switches, want 200ns in 2", f.lost, f.count)
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
	f := &fakeFacts{times: map[sched.QueueID]time.Duration{}, visits: map[sched.QueueID]sched.Visits{}}
	b.Poll(sched.Time(time.Second), f)
	if got, want := f.times[4], 7900*time.Nanosecond; got != want || f.visits[4].Count != 2 {
		t.Errorf("got %v in %d visits, want %v in 2", got, f.visits[4].Count, want)
	}
}

// TestPollReportsVisits checks that the visits of the trace are reported, full ones by the
// GPU's own slice, and arrivals in the scheduler's time.
func TestPollReportsVisits(t *testing.T) {
	const us = int64(time.Microsecond)
	trace := &fakeTrace{clock: 20_000 * us}
	b, _ := traced(trace)
	for i, at := range []int64{1000, 3200, 3300, 3600, 3700, 10_000, 10_100, 10_500} { // 1 and 2 in turn, each on and off
		trace.switches = append(trace.switches, nvtrace.Switch{PID: uint32(1 + i/2%2), On: i%2 == 0, At: at * us, Seq: uint16(i)})
	}
	f := &fakeFacts{times: map[sched.QueueID]time.Duration{}, visits: map[sched.QueueID]sched.Visits{}}
	b.Poll(sched.Time(time.Second), f)
	arrived := sched.Time(time.Second - 9900*time.Microsecond)
	want := map[sched.QueueID]sched.Visits{1: {Count: 2, Full: 1, Known: true}, 3: {Count: 2, Arrived: arrived, Known: true}}
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
				b.Poll(sched.Time(time.Second+time.Duration(ms)*time.Millisecond), &fakeFacts{})
			}
			if trace.reads != tt.want {
				t.Errorf("reads: got %d, want %d", trace.reads, tt.want)
			}
		})
	}
}

// TestBrokenTraceIsClosed checks that a trace which cannot be read is closed, is not read
// again, and is shown by doctor.
func TestBrokenTraceIsClosed(t *testing.T) {
	trace := &fakeTrace{err: errors.New("GPU is lost")}
	b, _ := traced(trace)
	for s := range 3 {
		b.Poll(sched.Time(s+1)*sched.Time(time.Second), &fakeFacts{})
	}
	if !trace.closed || b.gpus[0].Tracing() {
		t.Errorf("closed %v, tracing %v; want true, false", trace.closed, b.gpus[0].Tracing())
	}
	if c := b.gpus[0].check(); c.OK || !strings.Contains(c.Detail, "GPU is lost: device time is estimated") || c.Fix == "" {
		t.Errorf("check: got %+v", c)
	}
}

// TestRefusedTraceIsShownByDoctor checks the texts for a trace that is not opened.
func TestRefusedTraceIsShownByDoctor(t *testing.T) {
	refused := errors.New("context-switch trace refused: this GPU is too old to have one")
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
			b.Poll(1, &fakeFacts{})
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

var _ hal.QueueHandle = (*fakeQueue)(nil)
