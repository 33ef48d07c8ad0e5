package trace_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/trace"
	"github.com/giveway/giveway/sched"
)

const ms = time.Millisecond

func write(t *testing.T, runs ...scenario.Run) []byte {
	t.Helper()
	var b bytes.Buffer
	if cuts, err := trace.Write(&b, runs, 1<<30); err != nil || cuts != nil {
		t.Fatalf("got %v, %v; want the whole trace", cuts, err)
	}
	return b.Bytes()
}

// simulated runs an online client beside three batch clients for a second, on a model of a
// device and under a policy.
func simulated(t *testing.T, model, policy string) scenario.Run {
	t.Helper()
	file := filepath.Join(t.TempDir(), "s.yaml")
	shim := ""
	if model == "level1-npu" {
		shim = ", shim: true"
	}
	text := fmt.Sprintf(`
name: test
devices: [{id: gpu0, model: %s}]
seed: 7
warmup: 100ms
length: 900ms
clients:
  - {name: chat, class: online, slo: 5ms, arrival: {poisson: 20ms}, kernels: {count: 160, time: 7400ns, gap: 2us}%s}
  - {name: train, class: batch, count: 3, arrival: {closed: 0, depth: 64}, kernels: {count: 1, time: 200us}%s}
`, model, shim, shim)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := scenario.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Run([]string{policy}, scenario.Options{Segments: 200_000, Actions: 200_000})
	if err != nil {
		t.Fatal(err)
	}
	return out.Runs[0]
}

// of returns the events of a category.
func of(events []shown, category string) (all []shown) {
	for _, e := range events {
		if e.Category == category {
			all = append(all, e)
		}
	}
	return all
}

// sameSegments checks that the spans are exactly the segments, each once.
func sameSegments(t *testing.T, events []shown, segments []sim.Segment) {
	t.Helper()
	left := map[sim.Segment]int{}
	for _, s := range segments {
		left[s]++
	}
	spans := of(events, "span")
	for _, e := range spans {
		_, device, _ := strings.Cut(e.Track, ": GPU ")
		queue, _ := e.Args["queue"].(uint64)
		s := sim.Segment{Device: sched.DeviceID(device), Queue: sched.QueueID(queue), From: sched.Time(e.Begin), To: sched.Time(e.End)}
		if left[s] == 0 {
			t.Fatalf("slice %+v is not a segment, or is in the trace twice", s)
		}
		left[s]--
	}
	if len(spans) != len(segments) {
		t.Fatalf("got %d spans of %d segments", len(spans), len(segments))
	}
}

// TestSimulatedRunsAreComplete writes simulated runs and finds every segment, request,
// decision and action again.
func TestSimulatedRunsAreComplete(t *testing.T) {
	for _, model := range []string{"nvidia-h200", "amd-hws", "level1-npu"} {
		for _, name := range []string{"native", "giveway"} {
			t.Run(model+" "+name, func(t *testing.T) {
				run := simulated(t, model, name)
				if len(run.Result.Segments) < 20 || len(run.Result.Requests) < 5 || name != "native" && len(run.Decisions) < 20 {
					t.Fatalf("got %d segments, %d requests and %d decisions, want 20, 5 and 20 at least",
						len(run.Result.Segments), len(run.Result.Requests), len(run.Decisions))
				}
				text := write(t, run)
				if dir := os.Getenv("TRACE_OUT"); dir != "" { // for viewing in Perfetto
					if err := os.WriteFile(filepath.Join(dir, model+"-"+name+".pftrace"), text, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				events := read(t, text)
				sameSegments(t, events, run.Result.Segments)
				got := [...]int{len(of(events, "request")), len(of(events, "decision")), len(of(events, "action"))}
				if want := [...]int{len(run.Result.Requests), len(run.Decisions), len(run.Actions)}; got != want {
					t.Errorf("got %v requests, decisions and actions, want %v", got, want)
				}
				sameRequests(t, events, &run)
			})
		}
	}
}

func sameRequests(t *testing.T, events []shown, run *scenario.Run) {
	t.Helper()
	type key struct{ begin, end time.Duration }
	left := map[key]int{}
	for _, r := range run.Result.Requests {
		left[key{time.Duration(r.Begin), time.Duration(r.End)}]++
	}
	for _, e := range of(events, "request") {
		k := key{e.Begin, e.End}
		if left[k]--; left[k] < 0 {
			t.Fatalf("request %+v is not one of the run", e)
		}
		if late := e.End-e.Begin > 5*ms; late != (e.Name == "late request") {
			t.Errorf("a request of %v is a %q", e.End-e.Begin, e.Name)
		}
	}
}

// TestFlowsConnectDecisionActionAndEffect checks, in a simulated run, that the flow of an
// action begins with the decision that caused it, and that most starts and stops end at a
// span of the device.
func TestFlowsConnectDecisionActionAndEffect(t *testing.T) {
	run := simulated(t, "amd-hws", "giveway")
	events := read(t, write(t, run))
	byFlow := map[uint64][]shown{}
	for _, e := range events {
		for _, f := range e.Flows {
			byFlow[f] = append(byFlow[f], e)
		}
	}
	actions, effects := 0, 0
	for _, e := range of(events, "action") {
		if len(e.Flows) != 1 {
			t.Fatalf("action %+v has %d flows, want 1", e, len(e.Flows))
		}
		chain := byFlow[e.Flows[0]]
		if first := chain[0]; first.Category != "decision" || first.Args["decision"] != e.Args["decision"] || first.Args["queue"] != e.Args["queue"] {
			t.Fatalf("the flow of %+v begins with %+v", e, first)
		}
		actions++
		if slices.ContainsFunc(chain, func(s shown) bool { return s.Category == "span" && s.Begin >= e.Begin }) {
			effects++
		}
	}
	if actions < 20 || effects*2 < actions {
		t.Errorf("got %d actions and %d with an effect, want at least 20, and half of them", actions, effects)
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
		sameSegments(t, read(t, write(t, run)), run.Result.Segments)
	}
}

// TestHostileNames checks that any name is written as one line of bounded length.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{"\xff\xfe", "</script>\n\x00\u2028\x1b[31m", strings.Repeat("ж", 1<<16), "имя", ""} {
		run := scenario.Run{
			Policy: name,
			Result: sim.Result{
				Clients:  []sim.ClientResult{{Name: name, Queue: 1, Device: sched.DeviceID(name)}},
				Segments: []sim.Segment{{Device: sched.DeviceID(name), Queue: 1, From: 1, To: 2}},
			},
			Actions: []scenario.TimedAction{{At: 1, Action: sched.Action{Queue: 1, Verb: sched.Stop}}},
		}
		for _, e := range read(t, write(t, run)) {
			if len([]rune(e.Track)) > 400 || len([]rune(e.Name)) > 200 || strings.ContainsAny(e.Track+e.Name, "\n\x00\x1b\u2028\ufffd") {
				t.Errorf("got track %.500q and name %.500q, want them clean", e.Track, e.Name)
			}
		}
	}
}

// TestWriteErrors checks that Write returns an error for times that cannot be, and for a
// failed write.
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
// and has every span that ends before the time that Write returns and none that ends later.
func TestLimit(t *testing.T) {
	runs := []scenario.Run{simulated(t, "amd-hws", "native"), simulated(t, "amd-hws", "giveway")}
	whole := int64(len(write(t, runs...)))
	limit := whole / 3
	var b bytes.Buffer
	cuts, err := trace.Write(&b, runs, limit)
	if err != nil || len(cuts) == 0 {
		t.Fatalf("got %v, %v; want a run that is cut", cuts, err)
	}
	if got := int64(b.Len()); got > limit+limit/20 || got < limit/4 {
		t.Errorf("got %d bytes of %d, want about %d and at least a quarter of that", got, whole, limit)
	}
	spans := of(read(t, b.Bytes()), "span")
	for _, c := range cuts {
		i := slices.IndexFunc(runs, func(r scenario.Run) bool { return r.Policy == c.Policy })
		got, want, most := 0, 0, 0
		for _, s := range spans {
			if strings.HasPrefix(s.Track, c.Policy+": ") {
				got++
				if s.End > c.Until {
					t.Fatalf("%s: got a span until %v, want none after %v", c.Policy, s.End, c.Until)
				}
			}
		}
		for _, s := range runs[i].Result.Segments {
			if time.Duration(s.To) < c.Until {
				want++
			}
			if time.Duration(s.To) <= c.Until {
				most++
			}
		}
		if got < want || got > most {
			t.Errorf("%s: got %d spans until %v, want %d to %d", c.Policy, got, c.Until, want, most)
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
	for _, e := range of(read(t, b.Bytes()), "span") {
		if e.End > 300*ms {
			t.Errorf("got a span until %v, want none after 300ms", e.End)
		}
	}
}

// TestEmptyRuns writes runs without segments.
func TestEmptyRuns(t *testing.T) {
	for _, runs := range [][]scenario.Run{nil, {{Policy: "native"}}, {{Policy: "giveway", Actions: []scenario.TimedAction{{At: 5}}}}} {
		read(t, write(t, runs...))
	}
}
