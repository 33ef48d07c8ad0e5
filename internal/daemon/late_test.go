package daemon

import (
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/sched"
)

// lateWord returns what the page of a process says about late entry.
func (p *shimProcess) lateWord(t *testing.T) string {
	t.Helper()
	p.send("late")
	select {
	case got := <-p.output:
		return got
	case <-time.After(20 * time.Second):
		t.Fatal("got no output within 20 s")
		return ""
	}
}

// eventuallyLate waits until the page of a process has that word.
func (p *shimProcess) eventuallyLate(t *testing.T, when, word string) {
	t.Helper()
	eventually(t, when+": "+word, func() bool { return p.lateWord(t) == word })
}

const (
	enterAtOnce = "late 0"
	enterAuto   = "late 1"
	enterLate   = "late 2"
)

// TestLateEntryNumbers: the attribute, the settings and the page have the same numbers.
func TestLateEntryNumbers(t *testing.T) {
	for word, want := range map[string][2]uint32{
		"off":  {uint32(hal.LateOff), pageabi.LateOff},
		"auto": {uint32(hal.LateAuto), pageabi.LateAuto},
		"on":   {uint32(hal.LateOn), pageabi.LateOn},
	} {
		v := attr.Must("late-entry=" + word)
		got, _ := v.Get(attr.LateEntry)
		if uint32(got) != want[0] || uint32(got) != want[1] {
			t.Errorf("%s: got %d in the attribute, %d in the settings, %d on the page", word, got, want[0], want[1])
		}
	}
}

// TestLateEntryBesideBatchWork: an online process may enter late only beside batch or idle work
// on its device that has something to do and gives way to it.
func TestLateEntryBesideBatchWork(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	online, batch, other := startShim(t, socket, "opencl"), startShim(t, socket, "opencl"), startShim(t, socket, "hip")
	online.set(t, d, "class=online late-entry=on")
	other.set(t, d, "class=batch")
	batch.set(t, d, "class=standard")
	other.send("launch") // on another device
	other.expect(t, "launched false")
	batch.send("launch") // not batch work yet
	batch.expect(t, "launched false")
	time.Sleep(3 * backgroundCheck)
	if got := online.lateWord(t); got != enterAtOnce {
		t.Errorf("without batch work on its device: got %s", got)
	}
	batch.set(t, d, "class=batch")
	online.eventuallyLate(t, "beside batch work", enterLate)
	batch.eventuallyLate(t, "the batch process itself", enterAtOnce)

	online.set(t, d, "late-entry=auto")
	online.eventuallyLate(t, "auto", enterAuto)
	online.set(t, d, "late-entry=off")
	online.eventuallyLate(t, "off", enterAtOnce)
	online.set(t, d, "late-entry=on")
	online.eventuallyLate(t, "on again", enterLate)

	for _, c := range []struct {
		name     string
		end, set func()
	}{
		{"no work to do", func() { batch.send("done") }, func() { batch.send("launch"); batch.expect(t, "launched false") }},
		{"paused", func() { batch.set(t, d, "paused=true") }, func() { batch.set(t, d, "paused=false") }},
		{"class standard", func() { batch.set(t, d, "class=standard") }, func() { batch.set(t, d, "class=idle") }},
		{"online in class standard", func() { online.set(t, d, "class=standard") }, func() { online.set(t, d, "class=online") }},
		{"policy native", func() { choosePolicy(t, d, "native") }, func() { choosePolicy(t, d, "giveway") }},
		{"a new page", func() { online.set(t, d, "late-entry=off"); online.send("connect"); online.expect(t, "connected") }, func() { online.set(t, d, "late-entry=on") }},
	} {
		c.end()
		online.eventuallyLate(t, c.name, enterAtOnce)
		c.set()
		online.eventuallyLate(t, "not "+c.name, enterLate)
	}
	if err := batch.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	online.eventuallyLate(t, "the batch process has exited", enterAtOnce)
}

// tracedBackend is a fakeBackend that measures the device time of a queue, when the test says so.
type tracedBackend struct {
	*fakeBackend
	mu       sync.Mutex
	queue    hal.QueueHandle
	state    traceState
	measured time.Duration
}

type traceState int

const (
	offDevice traceState = iota
	onDevice
	traceLost
)

// Poll implements hal.Poller.
func (b *tracedBackend) Poll(_ sched.Time, f hal.Facts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.queue == nil:
	case b.state == traceLost:
		f.MeasurementLost(b.queue)
	default:
		if b.state == onDevice {
			b.measured += time.Microsecond
		}
		f.DeviceTime(b.queue, b.measured, sched.Visits{Known: true})
	}
}

func (b *tracedBackend) set(s traceState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = s
}

// TestLateEntryBesideProcessWithoutShim: a batch process without the shim counts as having work
// only while the trace shows it on the device. Without a trace it always counts.
func TestLateEntryBesideProcessWithoutShim(t *testing.T) {
	b := &tracedBackend{fakeBackend: newFakeBackend(t.TempDir())}
	d := newTestDaemon(newShim(), b)
	socket, _ := serve(t, d)
	online := startShim(t, socket, "cuda")
	info, err := proc.Look(online.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	b.mustOffer(t, info)
	online.set(t, d, "class=online late-entry=on")
	plain, _ := sleeper(t)
	queue := b.mustOffer(t, plain)
	if _, err := d.Change(ourselves, plain.PID, given("class=batch")); err != nil {
		t.Fatal(err)
	}
	online.eventuallyLate(t, "nothing is known of the batch process", enterLate)
	b.mu.Lock()
	b.queue = queue
	b.mu.Unlock()
	for _, c := range []struct {
		when  string
		state traceState
		want  string
	}{
		{"it is not on the device", offDevice, enterAtOnce},
		{"it is on the device", onDevice, enterLate},
		{"it has left the device", offDevice, enterAtOnce},
		{"the trace is lost", traceLost, enterLate},
		{"the trace is back", offDevice, enterAtOnce},
	} {
		b.set(c.state)
		online.eventuallyLate(t, c.when, c.want)
	}
	b.set(onDevice)
	online.eventuallyLate(t, "on the device again", enterLate)
	if _, err := d.Change(ourselves, plain.PID, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	online.eventuallyLate(t, "paused", enterAtOnce)
}

func choosePolicy(t *testing.T, d *Daemon, name string) {
	t.Helper()
	if _, err := d.SetPolicy(ourselves, api.Policy{Name: name}); err != nil {
		t.Fatal(err)
	}
}

// TestBatchRunsUntilEntry: where batch work is stopped during online requests, it runs until a
// request enters. A request that claims to wait for too long counts as entered.
func TestBatchRunsUntilEntry(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	online, batch := startShim(t, socket, "opencl"), startShim(t, socket, "opencl")
	online.set(t, d, "class=online late-entry=on")
	batch.set(t, d, "class=batch")
	batch.send("launch")
	batch.expect(t, "launched false")
	online.eventuallyLate(t, "beside batch work", enterLate)
	state := func() string { return batch.described(d).Queues[0].State }
	for range 3 {
		begin := time.Now()
		online.send("launch-late")
		online.expect(t, "waits")
		// The state is newer than the launch: it is read after a poll. It is believed for 250 ms.
		if got := state(); got != "running" && time.Since(begin) < 200*time.Millisecond {
			t.Errorf("batch work is %s before the request enters", got)
		}
		online.send("enter")
		eventually(t, "batch work is stopped", func() bool { return state() == "stopped" })
		online.send("done")
		eventually(t, "batch work runs", func() bool { return state() == "running" })
	}
	online.send("launch-late")
	online.expect(t, "waits")
	eventually(t, "a request that never enters counts as entered", func() bool { return state() == "stopped" })
	online.send("done")
	eventually(t, "batch work runs again", func() bool { return state() == "running" })
	online.set(t, d, "late-entry=off")
	online.eventuallyLate(t, "off", enterAtOnce)
	online.send("launch-late")
	online.expect(t, "waits")
	eventually(t, "a process that may not enter late is not believed", func() bool { return state() == "stopped" })
}

// TestLateEntryIsCounted: the counters of the page are in the API.
func TestLateEntryIsCounted(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "opencl")
	p.send("count-late")
	p.expect(t, "counted")
	s := p.described(d).Shim
	if s == nil || s.LateRequests != 7 || s.LateEarly != 2 || s.LateFor != 3*time.Millisecond {
		t.Fatalf("got %+v, want 7 requests, 2 wrong, 3ms", s)
	}
	want := &api.LateCompared{
		Pairs: 6, Ratio: 1.01125, Low: 0.99, High: 1.015, GivenUp: 1,
		Counts: []api.RatioCount{{From: 0.99, To: 0.995, Pairs: 2}, {From: 1.01, To: 1.015, Pairs: 4}},
	}
	if !reflect.DeepEqual(s.LateCompared, want) {
		t.Errorf("got %+v, want %+v", s.LateCompared, want)
	}
}

// BenchmarkCheckBackground: the cost of a look at 256 processes, which the loop does at most
// every backgroundCheck.
func BenchmarkCheckBackground(b *testing.B) {
	d := &Daemon{processes: map[int]*process{}}
	dev := &device{}
	for i := range 256 {
		p := &process{gate: &processGate{}}
		p.queues = []*queue{{d: d, process: p, device: dev}}
		d.processes[i] = p
	}
	b.ReportAllocs()
	for now := d.nextBackgroundCheck; b.Loop(); now = now.Add(backgroundCheck) {
		d.checkBackground(now)
	}
}
