package trace_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/trace"
)

// written writes entries and reads them back.
func written(t *testing.T, names map[int]string, entries ...api.Entry) ([]shown, trace.Summary) {
	t.Helper()
	var b bytes.Buffer
	tr := trace.New(&b, 1<<30)
	tr.Clock(api.Clock{Wall: time.Unix(1e9, 0), Now: time.Hour})
	tr.Names(names)
	for i := range entries {
		entries[i].Seq = uint64(i + 1)
		tr.Add(&entries[i])
	}
	sum, err := tr.Close()
	if err != nil || sum.Bytes != int64(b.Len()) {
		t.Fatalf("got %v and %d bytes, want no error and %d bytes", err, sum.Bytes, b.Len())
	}
	return read(t, b.Bytes()), sum
}

func one(t *testing.T, events []shown, category string) shown {
	t.Helper()
	all := of(events, category)
	if len(all) != 1 {
		t.Fatalf("got %d events of category %s, want 1", len(all), category)
	}
	return all[0]
}

// TestWhyARequestWasLate writes the record of a request that waited for a batch job. The
// picture must answer why: the request has the name of the holder, the wait is named after
// it, the device shows its holder, and the flow leads from the decision over the stop to
// the moment when the holder left.
func TestWhyARequestWasLate(t *testing.T) {
	events, sum := written(
		t, map[int]string{10: "serve", 20: "train"},
		api.Entry{Kind: api.KindDecision, At: 1 * ms, Device: "gpu0", PID: 20, Queue: 2, Decision: &api.Decision{Number: 1, Policy: "giveway", Run: true, Reason: "turn"}},
		api.Entry{Kind: api.KindDecision, At: 5 * ms, Device: "gpu0", PID: 20, Queue: 2, Decision: &api.Decision{Number: 2, Policy: "giveway", Reason: "online work"}},
		api.Entry{Kind: api.KindAction, At: 7 * ms, Device: "gpu0", PID: 20, Queue: 2, Action: &api.Action{
			Number: 9, Verb: "stop", Level: "interrupt", Decision: 2, Ordered: 5 * ms, Completed: 7 * ms, Cost: ms, Outcome: "done",
		}},
		api.Entry{Kind: api.KindSpan, At: 10 * ms, Device: "gpu0", PID: 20, Span: &api.Span{Begin: 1 * ms, End: 6 * ms, What: "held", Left: "preempted"}},
		api.Entry{Kind: api.KindSpan, At: 10 * ms, Device: "gpu0", PID: 10, Span: &api.Span{Begin: 6 * ms, End: 6500 * time.Microsecond, What: "switch"}},
		api.Entry{Kind: api.KindSpan, At: 10 * ms, Device: "gpu0", PID: 10, Span: &api.Span{Begin: 6500 * time.Microsecond, End: 9 * ms, What: "held", Left: "left"}},
		api.Entry{Kind: api.KindRequest, At: 9 * ms, PID: 10, Queue: 1, Request: &api.RequestSpan{Begin: 4 * ms, End: 9 * ms, SLO: 3 * ms, Late: true}},
		api.Entry{Kind: api.KindWait, At: 10 * ms, Device: "gpu0", PID: 10, Queue: 1, Wait: &api.Wait{
			Begin: 4 * ms, End: 6500 * time.Microsecond, Holder: api.Holder{Kind: "process", PID: 20}, Held: 2 * ms,
		}},
	)
	if sum.Total() != 8 || sum.LeftOut != 0 {
		t.Errorf("got %+v, want 8 entries", sum)
	}
	request := one(t, events, "request")
	if request.Name != "late request" || request.Track != "serve/requests" || request.Args["waited for"] != "train 2.5ms" || request.End != 9*ms {
		t.Errorf("got request %+v", request)
	}
	if wait := one(t, events, "wait"); wait.Name != "waits for train" || wait.Track != "serve/waits" || wait.Begin != 4*ms {
		t.Errorf("got wait %+v", wait)
	}
	decisions, stop, spans := of(events, "decision"), one(t, events, "action"), of(events, "span")
	if decisions[0].End != 5*ms || decisions[1].Name != "waits: online work" || decisions[1].Track != "train/decisions" {
		t.Errorf("got decisions %+v", decisions)
	}
	if stop.Name != "stop (interrupt)" || !slices.Equal(stop.Flows, decisions[1].Flows) {
		t.Errorf("got stop %+v, want the flow of its decision, %v", stop, decisions[1].Flows)
	}
	if spans[0].Name != "train" || spans[0].Track != "GPU gpu0" || spans[1].Name != "switch" || !slices.Equal(spans[1].Flows, stop.Flows) || spans[2].Name != "serve" {
		t.Errorf("got spans %+v, want the effect of the stop at the switch", spans)
	}
}

// TestEveryEntryIsOneEvent writes random entries of all kinds, overlapping ones among them,
// and counts them by kind. A reused pid, a name that two processes have, and processes whose
// pid is hidden must not lose any.
func TestEveryEntryIsOneEvent(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		var entries []api.Entry
		at := time.Duration(0)
		for range 400 {
			at += time.Duration(r.IntN(3_000_000))
			entries = append(entries, randomEntry(r, at))
		}
		events, sum := written(t, map[int]string{1: "python", 2: "python"}, entries...)
		got, want := map[api.EntryKind]int{}, map[api.EntryKind]int{}
		for _, e := range events {
			got[api.EntryKind(e.Category)]++
		}
		for _, e := range entries {
			want[e.Kind]++
		}
		for _, k := range api.EntryKinds() {
			if got[k] != want[k] || sum.Entries[k] != want[k] {
				t.Fatalf("seed %d: got %d events of kind %s and a count of %d, want %d", seed, got[k], k, sum.Entries[k], want[k])
			}
		}
	}
}

func randomEntry(r *rand.Rand, at time.Duration) api.Entry {
	begin := max(at-time.Duration(r.IntN(20_000_000)), 0)
	end := begin + time.Duration(r.Int64N(int64(at-begin)+1))
	e := api.Entry{Kind: api.EntryKinds()[r.IntN(8)], At: at, Device: fmt.Sprint("gpu", r.IntN(2)), PID: r.IntN(5), Queue: uint64(r.IntN(5))}
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	switch e.Kind {
	case api.KindDecision:
		e.Decision = &api.Decision{Number: r.Uint64N(20), Run: r.IntN(2) == 0, Reason: pick("", "turn")}
	case api.KindAction:
		e.Action = &api.Action{Verb: pick("stop", "start", "slice", "bound", "new"), Outcome: pick("done", "refused"), Ordered: begin, Completed: end, Decision: r.Uint64N(20)}
	case api.KindSpan:
		e.Span = &api.Span{Begin: begin, End: end, What: pick("held", "switch", "idle", "unknown")}
	case api.KindRequest:
		e.Request = &api.RequestSpan{Begin: begin, End: end, Late: r.IntN(2) == 0, Estimated: r.IntN(2) == 0}
	case api.KindWait:
		e.Wait = &api.Wait{Begin: begin, End: end, Holder: api.Holder{Kind: pick("process", "switch", "idle", "others", "new"), PID: r.IntN(5)}}
	case api.KindState:
		e.State = &api.StateChange{What: pick("device", "process", "queue"), Change: pick("appeared", "gone", "attributes", "policy"), Class: pick("", "batch")}
	case api.KindOrder:
		e.Order = &api.Order{Name: pick("set", "\x00"), Refused: r.IntN(2) == 0}
	case api.KindNote:
		e.Note = &api.Note{Name: "floor"}
	}
	return e
}

// TestLabels checks that processes of one name differ in more than digits, which the viewer
// ignores for colours, and that a reused pid is another process.
func TestLabels(t *testing.T) {
	held := func(at time.Duration, pid int) api.Entry {
		return api.Entry{Kind: api.KindSpan, At: at, Device: "g", PID: pid, Span: &api.Span{Begin: at - ms, End: at, What: "held"}}
	}
	state := func(at time.Duration, change string) api.Entry {
		return api.Entry{Kind: api.KindState, At: at, PID: 1, State: &api.StateChange{What: "process", Change: change}}
	}
	events, _ := written(t, map[int]string{1: "python", 2: "python"},
		held(ms, 1), held(2*ms, 2), held(3*ms, 3), held(4*ms, 0), state(time.Second, "gone"), state(2*time.Second, "appeared"), held(3*time.Second, 1))
	var names []string
	for _, e := range of(events, "span") {
		names = append(names, e.Name)
	}
	if got := strings.Join(names, ", "); got != "python, python b, process 3, another user's process, python c" {
		t.Errorf("got %s", got)
	}
}

// TestUnknownKindsAreLeftOut checks entries of a newer daemon, and entries without content.
func TestUnknownKindsAreLeftOut(t *testing.T) {
	events, sum := written(t, nil, api.Entry{Kind: "new"}, api.Entry{Kind: api.KindSpan}, api.Entry{Kind: api.KindNote, Note: &api.Note{Name: "floor"}})
	if len(events) != 1 || sum.Total() != 1 {
		t.Errorf("got %d events and %d entries, want 1", len(events), sum.Total())
	}
}

// TestRecordLimit checks that a trace that is full says since when, and stays readable.
func TestRecordLimit(t *testing.T) {
	var b bytes.Buffer
	tr := trace.New(&b, 20_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		e := randomEntry(r, time.Duration(i)*ms)
		tr.Add(&e)
	}
	sum, err := tr.Close()
	if err != nil || sum.LeftOut == 0 || sum.Total()+sum.LeftOut != 5000 || sum.Until <= 0 || sum.Until < sum.Last {
		t.Errorf("got %+v, %v; want entries left out since a time", sum, err)
	}
	if len(read(t, b.Bytes())) != sum.Total() || b.Len() > 25_000 || b.Len() < 5_000 {
		t.Errorf("got %d bytes with %d entries, want about 20000", b.Len(), sum.Total())
	}
}

// TestInputs writes a recording of inputs between entries and reads it again.
func TestInputs(t *testing.T) {
	var b bytes.Buffer
	tr := trace.New(&b, 20_000)
	r, want := rand.New(rand.NewPCG(1, 2)), ""
	for i := range 60 {
		e := randomEntry(r, time.Duration(i)*ms)
		tr.Add(&e)
		part := strings.Repeat("i", i)
		want += part
		if !tr.Inputs([]byte(part)) {
			t.Fatal("got no room, want some")
		}
	}
	if tr.Inputs(make([]byte, 20_000)) || tr.Inputs([]byte("x")) {
		t.Error("got room after a part for which there was none")
	}
	sum, err := tr.Close()
	if err != nil || len(read(t, b.Bytes())) != sum.Total() {
		t.Fatalf("got %+v, %v", sum, err)
	}
	if got, err := trace.ReadInputs(bytes.NewReader(b.Bytes())); err != nil || string(got) != want {
		t.Errorf("got %d bytes, %v; want %d", len(got), err, len(want))
	}
}

// TestReadInputsErrors checks files that are not traces, not complete, or have no inputs.
func TestReadInputsErrors(t *testing.T) {
	var b bytes.Buffer
	if _, err := trace.New(&b, 1<<20).Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, want string }{
		{b.String(), "it has no inputs"},
		{"", "it has no inputs"},
		{b.String()[:b.Len()-1], "not a trace"},
		{"{\"json\": true}", "not a trace"},
		{"\x0a\x05\xff\xff\xff\xff\xff", "not a trace"},
	} {
		if _, err := trace.ReadInputs(strings.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.file, err, c.want)
		}
	}
}

// FuzzReadInputs reads any file.
func FuzzReadInputs(f *testing.F) {
	var b bytes.Buffer
	tr := trace.New(&b, 1<<20)
	tr.Inputs([]byte("inputs"))
	if _, err := tr.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, file []byte) {
		if got, err := trace.ReadInputs(bytes.NewReader(file)); err == nil && len(got) > len(file) {
			t.Errorf("got %d bytes of a file of %d", len(got), len(file))
		}
	})
}
