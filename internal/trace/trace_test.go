package trace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/trace"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// readEvent is one event of a trace that was read back.
type readEvent struct {
	Ph   string         `json:"ph"`
	Name string         `json:"name"`
	Pid  int            `json:"pid"`
	Tid  int            `json:"tid"`
	Ts   json.Number    `json:"ts"`
	Dur  json.Number    `json:"dur"`
	S    string         `json:"s"`
	Args map[string]any `json:"args"`
}

// nanos parses a time as text: floating point would hide an error.
func nanos(t *testing.T, n json.Number) sched.Time {
	t.Helper()
	whole, part, _ := strings.Cut(n.String(), ".")
	if len(part) != 3 {
		t.Fatalf("time %q: want three decimals", n)
	}
	var ns int64
	if _, err := fmt.Sscan(strings.TrimLeft(whole+part, "0")+" ", &ns); err != nil && strings.Trim(whole+part, "0") != "" {
		t.Fatal(err)
	}
	return sched.Time(ns)
}

// parsed is a whole trace that has what the importer needs.
type parsed struct {
	events    []readEvent
	processes map[int]string
	threads   map[int]string // by tid, which is unique
	owner     map[int]int    // pid by tid
}

func parse(t *testing.T, text []byte) parsed {
	t.Helper()
	var file struct {
		TraceEvents []readEvent `json:"traceEvents"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&file); err != nil {
		t.Fatalf("not JSON: %v", err)
	}
	p := parsed{file.TraceEvents, map[int]string{}, map[int]string{}, map[int]int{}}
	end := map[int]sched.Time{}
	for _, e := range p.events {
		switch e.Ph {
		case "M":
			p.metadata(t, e)
		case "X":
			from := nanos(t, e.Ts)
			if from < end[e.Tid] {
				t.Fatalf("slice %q at %v overlaps the one before it on thread %q", e.Name, from, p.threads[e.Tid])
			}
			end[e.Tid] = from + nanos(t, e.Dur)
		case "i":
			if e.S != "t" || p.threads[e.Tid] != "scheduler" {
				t.Fatalf("instant %+v is not on a thread named scheduler", e)
			}
		case "C":
		default:
			t.Fatalf("unknown phase %q", e.Ph)
		}
		if e.Ph == "X" || e.Ph == "i" {
			if pid, known := p.owner[e.Tid]; !known || pid != e.Pid {
				t.Fatalf("%+v is on a thread of another process", e)
			}
		}
	}
	return p
}

func (p *parsed) metadata(t *testing.T, e readEvent) {
	t.Helper()
	name, _ := e.Args["name"].(string)
	switch e.Name {
	case "process_name":
		if e.Pid <= 0 || p.processes[e.Pid] != "" || p.threads[e.Pid] != "" {
			t.Fatalf("process number %d is used twice, or not positive", e.Pid)
		}
		p.processes[e.Pid] = name
	case "thread_name":
		if e.Tid <= 0 || p.processes[e.Tid] != "" || p.threads[e.Tid] != "" {
			t.Fatalf("thread number %d is used twice, or not positive", e.Tid)
		}
		p.threads[e.Tid], p.owner[e.Tid] = name, e.Pid
	}
}

// sameSegments checks that the slices on the threads that keep selects are exactly
// the segments that want selects, each once.
func sameSegments(t *testing.T, p parsed, keep func(thread string) bool, all []sim.Segment, want func(sim.Segment) bool) {
	t.Helper()
	left := map[sim.Segment]int{}
	n := 0
	for _, s := range all {
		if want(s) {
			left[s]++
			n++
		}
	}
	for _, e := range p.events {
		if e.Ph != "X" || !keep(p.threads[e.Tid]) {
			continue
		}
		_, device, _ := strings.Cut(p.processes[e.Pid], ": ")
		queue, err := e.Args["queue"].(json.Number).Int64()
		if err != nil {
			t.Fatal(err)
		}
		s := sim.Segment{Device: sched.DeviceID(device), Queue: sched.QueueID(queue), From: nanos(t, e.Ts)}
		s.To = s.From + nanos(t, e.Dur)
		if left[s] == 0 {
			t.Fatalf("slice %+v is not a segment, or is in the trace twice", s)
		}
		left[s]--
		n--
	}
	if n != 0 {
		t.Fatalf("got %d segments that are not in the trace, want 0", n)
	}
}

func isClient(thread string) bool {
	return thread != deviceThread && !strings.HasPrefix(thread, "switches")
}
func isSwitch(s sim.Segment) bool { return s.Queue == 0 }
func isRun(s sim.Segment) bool    { return s.Queue != 0 }
func isAny(sim.Segment) bool      { return true }

const deviceThread = "device"

func write(t *testing.T, runs ...scenario.Run) []byte {
	t.Helper()
	var b bytes.Buffer
	if cuts, err := trace.Write(&b, runs, 1<<30); err != nil || cuts != nil {
		t.Fatalf("got %v, %v; want the whole trace", cuts, err)
	}
	return b.Bytes()
}

// recorder records the actions of a simulated run.
type recorder struct{ actions []scenario.TimedAction }

func (r *recorder) Record(at sched.Time, _ []sched.Event, actions []sched.Action) {
	for _, a := range actions {
		r.actions = append(r.actions, scenario.TimedAction{At: at, Action: a})
	}
}

// simulated runs an online client beside three batch clients for a second.
func simulated(t *testing.T, model, name string) scenario.Run {
	t.Helper()
	m, err := sim.NewModel(model)
	if err != nil {
		t.Fatal(err)
	}
	cfg := sim.Config{
		Seed: 7, Devices: []sim.DeviceConfig{{ID: "gpu0", Model: m}}, Warmup: 100 * ms, Length: 900 * ms, Segments: 200_000,
		Clients: []sim.ClientConfig{{
			Name: "chat", Attr: sched.Attr{Class: sched.Online}, Shim: m.Gated,
			Arrival: sim.Arrival{Kind: sim.Poisson, Every: 20 * ms},
			Kernels: []sim.Kernels{{Count: 160, Time: sim.Around(7400, 0.05), Gap: sim.Around(2*us, 0.1)}},
		}},
	}
	for i := range 3 {
		cfg.Clients = append(cfg.Clients, sim.ClientConfig{
			Name: fmt.Sprint("train", i), Attr: sched.Attr{Class: sched.Batch}, Shim: m.Gated,
			Arrival: sim.Arrival{Kind: sim.Closed, Depth: 64}, Kernels: []sim.Kernels{{Count: 1, Time: sim.Around(200*us, 0.01)}},
		})
	}
	var rec recorder
	cfg.Recorder = &rec
	if name != "native" {
		if cfg.Policy, err = policy.Choose(name, nil); err != nil {
			t.Fatal(err)
		}
	}
	res := sim.New(cfg).Run()
	return scenario.Run{Policy: name, Result: res, Actions: rec.actions}
}

// TestSimulatedRunsAreComplete writes simulated runs and finds every segment and
// action again.
func TestSimulatedRunsAreComplete(t *testing.T) {
	for _, model := range []string{"nvidia-h200", "amd-hws", "level1-npu"} {
		for _, name := range []string{"native", "giveway"} {
			t.Run(model+" "+name, func(t *testing.T) {
				run := simulated(t, model, name)
				if len(run.Result.Segments) < 20 {
					t.Fatalf("got %d segments, want at least 20", len(run.Result.Segments))
				}
				text := write(t, run)
				if dir := os.Getenv("TRACE_OUT"); dir != "" { // for viewing in Perfetto
					if err := os.WriteFile(filepath.Join(dir, model+"-"+name+".json"), text, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				p := parse(t, text)
				sameSegments(t, p, isClient, run.Result.Segments, isRun)
				if strings.Contains(string(text), `"`+deviceThread+`"`) {
					sameSegments(t, p, func(n string) bool { return n == deviceThread }, run.Result.Segments, isAny)
				} else {
					sameSegments(t, p, func(n string) bool { return !isClient(n) }, run.Result.Segments, isSwitch)
				}
				instants := 0
				for _, e := range p.events {
					if e.Ph == "i" {
						instants++
					}
				}
				if instants != len(run.Actions) {
					t.Errorf("got %d instants, want one for each of %d actions", instants, len(run.Actions))
				}
			})
		}
	}
}

// TestOverlappingSegmentsAreKept writes random segments that overlap even within a
// queue. None may be lost.
func TestOverlappingSegmentsAreKept(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var run scenario.Run
		for i := range r.IntN(60) {
			from := sched.Time(r.IntN(3000))
			run.Result.Segments = append(run.Result.Segments, sim.Segment{
				Device: sched.DeviceID(fmt.Sprint("gpu", i%2)), Queue: sched.QueueID(r.IntN(4)),
				From: from, To: from + sched.Time(r.IntN(900)),
			})
		}
		run.Result.Clients = []sim.ClientResult{{Name: "a", Queue: 1, Device: "gpu0"}, {Name: "b", Queue: 2, Device: "gpu1"}}
		p := parse(t, write(t, run))
		sameSegments(t, p, isClient, run.Result.Segments, isRun)
	}
}

// TestHostileNamesAreEscaped checks that any name survives writing and reading.
func TestHostileNamesAreEscaped(t *testing.T) {
	for _, name := range []string{`"}],"traceEvents":[{`, "</script>\n\x00\u2028", `\u0000\`, "имя", ""} {
		run := scenario.Run{
			Policy: name,
			Result: sim.Result{
				Clients:  []sim.ClientResult{{Name: name, Queue: 1, Device: sched.DeviceID(name)}},
				Segments: []sim.Segment{{Device: sched.DeviceID(name), Queue: 1, From: 1, To: 2}},
			},
			Actions: []scenario.TimedAction{{At: 1, Action: sched.Action{Queue: 1, Verb: sched.Stop}}},
		}
		p := parse(t, write(t, run))
		for _, got := range p.processes {
			if got != name+": "+name {
				t.Errorf("got process %q, want %q", got, name)
			}
		}
		for _, e := range p.events {
			if e.Ph == "X" && e.Name != name {
				t.Errorf("got slice %q, want %q", e.Name, name)
			}
		}
	}
}

// TestWriteErrors checks that Write returns an error for times that the importer
// would drop, and for a failed write.
func TestWriteErrors(t *testing.T) {
	for _, run := range []scenario.Run{
		{Result: sim.Result{Segments: []sim.Segment{{From: 2, To: 1}}}},
		{Result: sim.Result{Segments: []sim.Segment{{From: -1, To: 1}}}},
		{Actions: []scenario.TimedAction{{At: -1}}},
	} {
		if _, err := trace.Write(&bytes.Buffer{}, []scenario.Run{run}, 1<<30); err == nil {
			t.Errorf("%+v: got no error, want one", run)
		}
	}
	full := scenario.Run{Result: sim.Result{Segments: make([]sim.Segment, 10_000)}}
	if _, err := trace.Write(brokenPipe{}, []scenario.Run{full}, 1<<30); !errors.Is(err, errBroken) {
		t.Errorf("got error %v, want %v", err, errBroken)
	}
}

var errBroken = errors.New("broken pipe")

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }

// TestLimit writes runs that do not fit: the trace stays within the limit, uses most of it,
// and has everything until the time that Write returns and nothing after it.
func TestLimit(t *testing.T) {
	for _, model := range []string{"nvidia-h200", "amd-hws", "level1-npu"} {
		runs := []scenario.Run{simulated(t, model, "native"), simulated(t, model, "giveway")}
		whole := len(write(t, runs...))
		limit := min(whole/3, 1<<20)
		var b bytes.Buffer
		cuts, err := trace.Write(&b, runs, limit)
		if err != nil || len(cuts) == 0 {
			t.Fatalf("%s: got %v, %v; want a run that is cut", model, cuts, err)
		}
		if b.Len() > limit || b.Len() < limit/4 {
			t.Errorf("%s: got %d bytes of %d, want at most %d and at least a quarter of that", model, b.Len(), whole, limit)
		}
		p := parse(t, b.Bytes())
		for _, c := range cuts {
			until := sched.Time(c.Until)
			var last sched.Time
			slices := 0
			for _, e := range p.events {
				if e.Ph == "X" && strings.HasPrefix(p.processes[e.Pid], c.Policy+" (first ") && isClient(p.threads[e.Tid]) {
					slices++
					last = max(last, nanos(t, e.Ts)+nanos(t, e.Dur))
				}
			}
			want := 0
			for _, s := range runs[map[string]int{"native": 0, "giveway": 1}[c.Policy]].Result.Segments {
				if s.Queue != 0 && s.From < until {
					want++
				}
			}
			if last > until || slices != want {
				t.Errorf("%s, %s: got %d slices until %v, want %d until %v", model, c.Policy, slices, last, want, until)
			}
		}
	}
}

// TestRecordedUntil writes a run of which only the beginning was recorded.
func TestRecordedUntil(t *testing.T) {
	run := simulated(t, "nvidia-h200", "giveway")
	run.RecordedUntil = sched.Time(300 * ms)
	var b bytes.Buffer
	cuts, err := trace.Write(&b, []scenario.Run{run}, 1<<30)
	if err != nil || len(cuts) != 1 || cuts[0] != (trace.Cut{Policy: "giveway", Until: 300 * ms}) {
		t.Errorf("got %v, %v; want giveway until 300ms", cuts, err)
	}
	parse(t, b.Bytes())
}

// TestEmptyRuns writes runs without segments.
func TestEmptyRuns(t *testing.T) {
	for _, runs := range [][]scenario.Run{nil, {{Policy: "native"}}, {{Policy: "giveway", Actions: []scenario.TimedAction{{At: 5}}}}} {
		parse(t, write(t, runs...))
	}
}

// TestGolden writes a small trace: one device that switches between queues, one
// whose queues run side by side.
func TestGolden(t *testing.T) {
	run := scenario.Run{
		Policy: "giveway",
		Result: sim.Result{
			Clients: []sim.ClientResult{
				{Name: "chat", Queue: 1, Device: "gpu0", Class: sched.Online},
				{Name: "train", Queue: 2, Device: "gpu0", Class: sched.Batch},
				{Name: "embed", Queue: 3, Device: "gpu1", Class: sched.Batch},
				{Name: "index", Queue: 4, Device: "gpu1", Class: sched.Idle},
			},
			Segments: []sim.Segment{
				{Device: "gpu0", Queue: 2, From: 0, To: 1_000_001},
				{Device: "gpu0", From: 1_000_001, To: 1_165_002},
				{Device: "gpu0", Queue: 1, From: 1_165_002, To: 1_200_000},
				{Device: "gpu1", Queue: 3, From: 10, To: 500},
				{Device: "gpu1", Queue: 4, From: 20, To: 700},
				{Device: "gpu1", From: 700, To: 900},
			},
		},
		Actions: []scenario.TimedAction{
			{At: 990_000, Action: sched.Action{ID: 1, Queue: 2, Verb: sched.SetSlice, Slice: sched.MinSlice}},
			{At: 990_000, Action: sched.Action{ID: 2, Queue: 1, Verb: sched.Start, Level: 3}},
			{At: 600, Action: sched.Action{ID: 3, Queue: 4, Verb: sched.SetBound, Bound: 16}},
		},
	}
	got := write(t, run)
	parse(t, got)
	const file = "testdata/small.json"
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the trace changed; if that is intended, run go test ./internal/trace -rewrite\n%s", got)
	}
}
