package live

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// start runs a scenario on a test host. It fails the test if an invariant is broken.
func start(t *testing.T, yaml string, speed float64) (*Backend, *haltest.Host) {
	t.Helper()
	s, err := scenario.Parse("test.yaml", []byte(yaml), nil)
	if err != nil {
		t.Fatal(err)
	}
	return startScenario(t, s, speed)
}

func startScenario(t *testing.T, s *scenario.Scenario, speed float64) (*Backend, *haltest.Host) {
	t.Helper()
	b, err := New(s, speed)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, v := range b.node.Violations() {
			t.Error(v)
		}
	})
	h := haltest.NewHost()
	if err := b.Start(ctx, h); err != nil {
		t.Fatal(err)
	}
	return b, h
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(ms) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// queuesOf waits for so many queues and returns them by the command of their process.
func queuesOf(t *testing.T, h *haltest.Host, n int) map[string]*haltest.Queue {
	t.Helper()
	eventually(t, "queues are offered", func() bool { return len(h.Queues()) >= n })
	all := map[string]*haltest.Queue{}
	for _, q := range h.Queues() {
		all[q.Process().Info().Command] = q
	}
	return all
}

func (b *Backend) completed(id sched.QueueID) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance()
	return b.node.Queue(id).Counters().Completed
}

const pair = `
name: pair
devices: [{model: nvidia-h200}]
clients:
  - {name: serve, class: online, slo: 5ms, weight: 3, nice: -5, shim: true, arrival: {periodic: 20ms}, kernels: {time: 1ms}}
  - {name: train, class: batch, arrival: {closed: 0, depth: 16}, kernels: {time: 212us}}
`

func TestOffersDevicesAndProcesses(t *testing.T) {
	b, h := start(t, pair, 1)
	all := queuesOf(t, h, 2)
	devices := h.Devices()
	if len(devices) != 1 {
		t.Fatalf("%d devices, want 1", len(devices))
	}
	info := devices[0].Info()
	if info.Backend != "sim" || info.Model != "nvidia-h200" || info.Device.ID != "gpu0" || info.Device.Slice != 2048*us {
		t.Errorf("device %+v", info)
	}
	if tracing, ok := devices[0].(hal.Tracing); !ok || !tracing.Tracing() {
		t.Error("the device reports no context-switch trace")
	}
	serve, train := all["sim: serve"], all["sim: train"]
	if serve == nil || train == nil {
		t.Fatalf("processes %v, want sim: serve and sim: train", all)
	}
	p := serve.Process().Info()
	if p.PID <= 4194304 || p.UID != uint32(os.Geteuid()) || p.Nice != -5 || p.PID == train.Process().Info().PID {
		t.Errorf("process %+v", p)
	}
	if want := (sched.Attr{Class: sched.Online, SLO: 5 * ms, Weight: 3, Nice: -5}); serve.Offer.Attr != want {
		t.Errorf("attributes %+v, want %+v", serve.Offer.Attr, want)
	}
	const group = sched.CanInterrupt | sched.CanSlice
	if got, want := hal.Abilities(train.Attached()), group; got != want {
		t.Errorf("train can %v, want %v", got, want)
	}
	if got, want := hal.Abilities(serve.Attached()), group|sched.CanHold|sched.CanBound; got != want {
		t.Errorf("serve, which has the shim, can %v, want %v", got, want)
	}
	checks := b.Checks()
	if len(checks) == 0 || !checks[0].OK || !strings.Contains(checks[0].Detail, "gpu0 is a simulated nvidia-h200") {
		t.Errorf("checks %+v", checks)
	}
	if got := b.Find(1); got.Pending != nil || got.Note == "" {
		t.Errorf("Find of a real process: %+v, want a note", got)
	}
}

func TestReportsFacts(t *testing.T) {
	b, h := start(t, pair, 1)
	all := queuesOf(t, h, 2)
	serve, train := all["sim: serve"], all["sim: train"]
	f := haltest.NewFacts()
	pid := serve.Process().Info().PID
	eventually(t, "ten requests are reported", func() bool {
		b.Poll(0, f)
		return len(f.Finished[pid]) >= 10
	})
	for _, took := range f.Finished[pid] {
		// One millisecond of work, two slices of train and two switches.
		if took < ms || took > 10*ms {
			t.Errorf("a request took %v, want 1 to 10ms", took)
		}
	}
	if n := f.Started[pid]; n < 10 || n > len(f.Finished[pid])+1 {
		t.Errorf("%d requests started and %d finished", n, len(f.Finished[pid]))
	}
	if len(f.Finished[train.Process().Info().PID]) > 0 {
		t.Error("requests of a saturating client without an SLO are reported")
	}
	if _, known := f.Progresses[train.Process().Info().PID]; known {
		t.Error("progress of a process without the shim is reported")
	}
	if c := f.Progresses[pid]; c.Completed < 10 {
		t.Errorf("progress %+v, want at least 10 commands completed", c)
	}
	if got := f.DeviceTimes[train.ID()]; got < 100*ms {
		t.Errorf("device time of train is %v after 200 ms, want at least 100ms", got)
	}
	serve.SetSettings(hal.Settings{RequestsReported: true})
	b.Poll(0, f)
	started := f.Started[pid]
	time.Sleep(50 * ms)
	b.Poll(0, f)
	if got := f.Started[pid]; got != started {
		t.Error("requests are reported although the API reports them")
	}
}

func TestWakesForWatchedProcesses(t *testing.T) {
	_, h := start(t, pair, 1)
	serve := queuesOf(t, h, 2)["sim: serve"]
	before := h.Wakes.Load()
	time.Sleep(100 * ms)
	if got := h.Wakes.Load() - before; got != 0 {
		t.Errorf("%d wake-ups for processes that are not watched, want 0", got)
	}
	serve.SetSettings(hal.Settings{WatchRequests: true})
	eventually(t, "wake-ups for requests", func() bool { return h.Wakes.Load() > before+4 })
}

func TestCallsTakeTimeAndStopWork(t *testing.T) {
	b, h := start(t, pair, 1)
	q := queuesOf(t, h, 2)["sim: train"].Attached()
	began := time.Now()
	if err := hal.Stop(q, sched.LevelInterrupt); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 570*us {
		t.Errorf("an interrupt took %v, want at least 570us", took)
	}
	id := sim.QueueID(q)
	before := b.completed(id)
	time.Sleep(20 * ms)
	if got := b.completed(id) - before; got != 0 {
		t.Errorf("%d commands completed while interrupted, want 0", got)
	}
	if err := hal.Start(q, sched.LevelInterrupt); err != nil {
		t.Fatal(err)
	}
	eventually(t, "commands complete after restore", func() bool { return b.completed(id) > before+10 })
	if err := q.(hal.Slicer).SetSlice(sched.MinSlice); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSpans checks that the spans of a device follow each other up to the present time, name
// the processes, and agree with the device time that is reported.
func TestSpans(t *testing.T) {
	b, h := start(t, pair, 1)
	all := queuesOf(t, h, 2)
	serve, train := all["sim: serve"], all["sim: train"]
	f := haltest.NewFacts()
	began := time.Now()
	now := func() sched.Time { return sched.Time(time.Hour + time.Since(began)) } // the daemon is older than the devices
	var spans []hal.Span
	held := map[int]time.Duration{}
	left := map[int]map[hal.Departure]int{}
	eventually(t, "each process is often on the device", func() bool {
		b.Poll(now(), f)
		spans = f.SpansOf["gpu0"]
		clear(held)
		for _, p := range []*haltest.Queue{serve, train} {
			left[p.Process().Info().PID] = map[hal.Departure]int{}
		}
		for i, s := range spans {
			if s.End < s.Begin || i > 0 && s.Begin != spans[i-1].End {
				t.Fatalf("span %+v after %+v", s, spans[max(i, 1)-1])
			}
			if s.Kind != hal.SpanHeld {
				continue
			}
			if held[s.PID] += s.Length(); s.PID != 0 { // otherwise it was not offered yet
				left[s.PID][s.Left]++
			}
		}
		return left[serve.Process().Info().PID][hal.LeftItself] > 10 && left[train.Process().Info().PID][hal.Preempted] > 10
	})
	if age := now().Sub(spans[len(spans)-1].End); age < 0 || age > 5*time.Second || spans[0].Begin < sched.Time(59*time.Minute) {
		t.Errorf("spans from %v to %v ago; want them from an hour on, to the present", time.Duration(spans[0].Begin), age)
	}
	for _, q := range []*haltest.Queue{serve, train} {
		got, want := held[q.Process().Info().PID], f.DeviceTimes[q.ID()]
		if got > want+ms || got < want-ms-held[0] {
			t.Errorf("%s: spans of %v, measured %v", q.Process().Info().Command, got, want)
		}
	}
}

// TestDelayedClockIsUnknown checks that the time by which the simulated clock is delayed is an
// unknown span.
func TestDelayedClockIsUnknown(t *testing.T) {
	b, h := start(t, pair, 1)
	queuesOf(t, h, 2)
	f := haltest.NewFacts()
	began := time.Now()
	unknown := func() (d time.Duration) {
		b.Poll(sched.Time(time.Hour+time.Since(began)), f)
		for _, s := range f.SpansOf["gpu0"] {
			if s.Kind == hal.SpanUnknown {
				d += s.Length()
			}
		}
		return d
	}
	eventually(t, "spans are reported", func() bool { unknown(); return len(f.SpansOf["gpu0"]) > 10 })
	before := unknown()
	b.mu.Lock()
	b.clock.began = b.clock.began.Add(100 * ms)
	b.mu.Unlock()
	eventually(t, "100 ms are unknown", func() bool { return unknown() >= before+100*ms })
}

// TestSpeedScalesTime checks that at speed 20 everything takes a twentieth of its time.
func TestSpeedScalesTime(t *testing.T) {
	b, h := start(t, pair, 20)
	all := queuesOf(t, h, 2)
	serve := all["sim: serve"]
	if got := h.Devices()[0].Info().Device; got.Slice != 2048*us/20 || got.MinSharedSlice != 10*us {
		t.Errorf("device %+v, want slices of a twentieth", got)
	}
	if got := serve.Offer.Attr.SLO; got != 250*us {
		t.Errorf("SLO %v, want 250us", got)
	}
	f := haltest.NewFacts()
	pid := serve.Process().Info().PID
	shown := func() time.Duration {
		b.mu.Lock()
		defer b.mu.Unlock()
		return time.Duration(b.node.Now())
	}
	began := time.Now()
	b.Poll(0, f)
	first, from := len(f.Finished[pid]), shown()
	eventually(t, "ten seconds of the scenario", func() bool {
		b.Poll(0, f)
		return shown()-from >= 10*time.Second
	})
	passed := shown() - from
	if took := time.Since(began); took < 400*ms {
		t.Errorf("%v of the scenario took %v, want a twentieth at least", passed, took)
	}
	var ledger hal.Ledger
	for _, s := range f.SpansOf["gpu0"] {
		ledger.Add(s)
	}
	if ledger.Switching <= 0 || ledger.Wall() < 400*ms {
		t.Errorf("spans: got %+v, want switches within half a second or more", ledger)
	}
	took := f.Finished[pid]
	if n, want := len(took)-first, int(passed/(20*ms)); n < want-10 || n > want+10 {
		t.Errorf("%d requests in %v of the scenario, want about %d", n, passed, want)
	}
	if took[len(took)-1] > 500*us {
		t.Errorf("a request took %v, want a twentieth of 1 to 10ms", took[len(took)-1])
	}
}

func TestSpeedOutOfRange(t *testing.T) {
	for _, speed := range []float64{0, -1, 1e9, math.NaN(), math.Inf(1)} {
		if _, err := New(&scenario.Scenario{Name: "x"}, speed); err == nil || !strings.Contains(err.Error(), "want 0.001 to 1000") {
			t.Errorf("speed %v: error %v, want one that names the range", speed, err)
		}
	}
}

func TestHoldAndBound(t *testing.T) {
	b, h := start(t, `
name: npu
devices: [{model: level1-npu}]
clients:
  - {name: train, class: batch, arrival: {closed: 0, depth: 64}, kernels: {time: 200us}}
`, 1)
	queue := queuesOf(t, h, 1)["sim: train"]
	q := queue.Attached()
	if got, want := hal.Abilities(q), sched.CanHold|sched.CanBound; got != want {
		t.Fatalf("the queue can %v, want %v", got, want)
	}
	id := sim.QueueID(q)
	inFlight := func() uint64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.advance()
		c := b.node.Queue(id).Counters()
		return c.Launched - c.Completed
	}
	wantInFlight := func(want uint64) {
		t.Helper()
		eventually(t, "the bound is in effect", func() bool { return inFlight() == want })
	}
	wantInFlight(16) // the model's
	queue.SetSettings(hal.Settings{Bound: hal.Bound{Commands: 8}})
	b.Poll(0, haltest.NewFacts())
	wantInFlight(8)
	if err := q.(hal.Bounder).SetBound(2); err != nil {
		t.Fatal(err)
	}
	wantInFlight(2)
	if err := q.(hal.Bounder).SetBound(0); err != nil {
		t.Fatal(err)
	}
	wantInFlight(8)
	began := time.Now()
	if err := hal.Stop(q, sched.LevelHold); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 50*ms {
		t.Errorf("hold took %v: the loop calls it inline, so it must not wait", took)
	}
	wantInFlight(0)
	if err := hal.Start(q, sched.LevelHold); err != nil {
		t.Fatal(err)
	}
	wantInFlight(8)
}

// TestProcessesComeAndGo runs a process that is killed and starts again with a new pid, and
// one of two clients that keeps its pid while a queue comes and goes.
func TestProcessesComeAndGo(t *testing.T) {
	b, h := start(t, `
name: churn
length: 1s
devices: [{model: amd-hws}]
clients:
  - {name: job, class: batch, start: 100ms, kill: 600ms, kernels: {time: 1ms}}
  - {name: a, process: server, kernels: {time: 1ms}}
  - {name: b, process: server, kernels: {time: 1ms}, lifetime: 200ms, downtime: 100ms}
`, 10)
	jobs, servers := map[int]bool{}, map[int]bool{}
	queues := map[sched.QueueID]bool{}
	last := map[int]hal.Progress{}
	f := haltest.NewFacts()
	eventually(t, "five lives of the job", func() bool {
		for _, q := range h.Queues() {
			switch p := q.Process().Info(); p.Command {
			case "sim: job":
				jobs[p.PID] = true
			case "sim: server":
				servers[p.PID] = true
				queues[q.ID()] = true
			}
			_ = hal.Stop(q.Attached(), sched.LevelInterrupt)
			_ = hal.Start(q.Attached(), sched.LevelInterrupt)
		}
		b.Poll(0, f)
		for pid, c := range f.Progresses {
			if c.Completed < last[pid].Completed || c.Launched < last[pid].Launched || c.Completed > c.Launched {
				t.Errorf("progress of %d went from %+v to %+v", pid, last[pid], c)
			}
			last[pid] = c
		}
		return len(jobs) >= 5
	})
	if len(servers) != 1 || len(queues) < 5 {
		t.Errorf("the server had %d pids and %d queues, want 1 and at least 5", len(servers), len(queues))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queues) > 3 || b.node.Queue(1) != nil {
		t.Errorf("the backend has %d queues, want at most 3 without the job's first", len(b.queues))
	}
}

// TestSwitchChangesSeveralQueues interrupts two queues of a process in one call.
func TestSwitchChangesSeveralQueues(t *testing.T) {
	b, h := start(t, `
name: batch
devices: [{model: amd-hws}]
clients:
  - {name: a, process: one, kernels: {time: 1ms}}
  - {name: b, process: one, kernels: {time: 1ms}}
  - {name: c, kernels: {time: 1ms}}
`, 1)
	eventually(t, "three queues are offered", func() bool { return len(h.Queues()) == 3 })
	var queues []hal.Queue
	for _, q := range h.Queues() {
		if q.Offer.Batcher == nil {
			t.Fatal("a queue has no batcher")
		}
		queues = append(queues, q.Attached())
	}
	for _, err := range b.Switch(queues[:2], nil) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range b.Switch(queues[2:], queues[:1]) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var before, after [3]uint64
	for i, q := range queues {
		before[i] = b.completed(sim.QueueID(q))
	}
	time.Sleep(30 * ms)
	for i, q := range queues {
		after[i] = b.completed(sim.QueueID(q))
	}
	if after[0] == before[0] || after[1] != before[1] || after[2] != before[2] {
		t.Errorf("commands completed before %v and after %v, want progress of the first queue only", before, after)
	}
}

// TestHints checks that an announced arrival is reported as a time of CLOCK_MONOTONIC.
func TestHints(t *testing.T) {
	b, h := start(t, `
name: hint
devices: [{model: amd-mes}]
clients:
  - {name: serve, class: online, arrival: {periodic: 20ms}, announce: 10ms, kernels: {time: 1ms}}
`, 1)
	pid := queuesOf(t, h, 1)["sim: serve"].Process().Info().PID
	f := haltest.NewFacts()
	seen := 0
	eventually(t, "five hints", func() bool {
		b.Poll(0, f)
		for _, hint := range f.Hints[pid][seen:] {
			ahead := time.Duration(hint.Value) - time.Duration(pageabi.Now())
			if hint.Kind != uint32(pageabi.HintExpect) || ahead > 10*ms || ahead < -time.Second {
				t.Errorf("hint %+v, %v ahead, want at most 10ms", hint, ahead)
			}
		}
		seen = len(f.Hints[pid])
		return seen >= 5
	})
	if h.Wakes.Load() == 0 {
		t.Error("hints do not wake the daemon")
	}
}

// TestScenarios runs every scenario file with random control calls from several goroutines.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("../../../scenarios/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			s, err := scenario.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			s.Config.AllowLivelock = true // the calls below do not keep to minimum slices
			b, h := startScenario(t, s, 5)
			eventually(t, "queues are offered", func() bool { return len(h.Queues()) > 0 })
			var callers sync.WaitGroup
			end := time.Now().Add(100 * ms)
			for i := range uint64(3) {
				callers.Go(func() {
					r := rand.New(rand.NewPCG(1, i))
					for time.Now().Before(end) {
						if queues := h.Queues(); len(queues) > 0 {
							randomCall(t, r, queues[r.IntN(len(queues))].Attached())
						}
					}
				})
			}
			f := haltest.NewFacts()
			for time.Now().Before(end) {
				b.Poll(0, f)
				b.Checks()
				time.Sleep(ms)
			}
			callers.Wait()
		})
	}
}

// randomCall makes a random control call. Calls to a queue that was closed meanwhile, and
// those that the scenario makes fail, may fail.
func randomCall(t *testing.T, r *rand.Rand, q hal.Queue) {
	can := hal.Abilities(q)
	a := sched.Action{Verb: sched.Verb(1 + r.IntN(4)), Level: can.Level(), Bound: uint32(r.IntN(4)), Slice: time.Duration(r.IntN(3)) * ms}
	switch {
	case a.Verb == sched.SetSlice && can&sched.CanSlice == 0, a.Verb == sched.SetBound && can&sched.CanBound == 0,
		a.Verb < sched.SetSlice && a.Level == sched.LevelNone:
		return
	case a.Verb >= sched.SetSlice:
		a.Level = sched.LevelNone
	}
	if err := hal.Do(q, a); err != nil && !errors.Is(err, hal.ErrGone) && !strings.Contains(err.Error(), "injected") {
		t.Errorf("%v: %v", a, err)
	}
}
