package trace_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// TestWaitsOfASimulatedRequest constructs a late request: batch work has the device for 3 ms
// of it, then a switch, then the request itself, and at last no queue has the device.
func TestWaitsOfASimulatedRequest(t *testing.T) {
	at := func(d time.Duration) sched.Time { return sched.Time(d) }
	run := scenario.Run{Policy: "p", Result: sim.Result{
		Clients: []sim.ClientResult{
			{Name: "chat", Queue: 1, Device: "gpu0", Class: sched.Online, SLO: 5 * ms},
			{Name: "train", Queue: 2, Device: "gpu0", Class: sched.Batch},
			{Name: "embed", Queue: 3, Device: "gpu0", Class: sched.Batch},
		},
		Segments: []sim.Segment{
			{Device: "gpu0", Queue: 3, From: at(0), To: at(2 * ms)},
			{Device: "gpu0", Queue: 2, From: at(2 * ms), To: at(5 * ms)},
			{Device: "gpu0", Queue: 0, From: at(5 * ms), To: at(6 * ms)},
			{Device: "gpu0", Queue: 1, From: at(6 * ms), To: at(8 * ms)},
			{Device: "gpu0", Queue: 0, From: at(8 * ms), To: at(8*ms + 5*time.Microsecond)}, // too short
			{Device: "gpu0", Queue: 1, From: at(8*ms + 5*time.Microsecond), To: at(9 * ms)},
			{Device: "gpu1", Queue: 4, From: at(0), To: at(20 * ms)},
		},
		Requests: []sim.Request{
			{Client: 0, Begin: at(ms), End: at(12 * ms)},
			{Client: 0, Begin: at(2 * ms), End: at(10 * ms)}, // at the same time
			{Client: 1, Begin: at(0), End: at(12 * ms)},      // of a batch client
		},
	}}
	events := read(t, write(t, run))
	type shownWait struct {
		name       string
		begin, end time.Duration
	}
	var got []shownWait
	for _, e := range of(events, "wait") {
		if e.Track != "p: chat (online)/waits" {
			t.Errorf("got a wait on track %q", e.Track)
		}
		got = append(got, shownWait{e.Name, e.Begin, e.End})
	}
	want := []shownWait{
		{"waits for train (batch)", ms, 6 * ms},
		{"waits for nothing: the device was idle", 9 * ms, 12 * ms},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got waits %v, want %v", got, want)
	}
	requests := of(events, "request")
	late := slices.IndexFunc(requests, func(e shown) bool { return e.Name == "late request" && e.Begin == ms })
	if late < 0 || requests[late].Args["waited for"] != "train (batch) 5ms, nothing: the device was idle 3ms" {
		t.Errorf("got requests %+v, want one that was late because of train", requests)
	}
}

// TestWaitsAreThoseOfTheRecord compares the waits in the trace of a simulated run with those
// that the daemon's own account makes of the same spans and requests.
func TestWaitsAreThoseOfTheRecord(t *testing.T) {
	for _, policy := range []string{"native", "giveway"} {
		run := simulated(t, "nvidia-h200", policy)
		type wait struct {
			begin, end, held time.Duration
			holder           uint64 // pid; zero: not a process
		}
		var got, want []wait
		for _, e := range of(read(t, write(t, run)), "wait") {
			held, err := time.ParseDuration(e.Args["of this the holder held"].(string))
			if err != nil {
				t.Fatal(err)
			}
			pid, _ := e.Args["pid of the holder"].(uint64)
			got = append(got, wait{e.Begin, e.End, held, pid})
		}
		for _, e := range recordedWaits(&run) {
			want = append(want, wait{time.Duration(e.Begin), time.Duration(e.End), e.Cost, uint64(max(e.Holder, 0))})
		}
		if len(got) < 20 || !slices.Equal(got, want) {
			t.Errorf("%s: got %d waits %.600v, the record has %d %.600v", policy, len(got), got, len(want), want)
		}
	}
}

// recordedWaits lets the daemon's account find the waits of a run with one device. The pid of
// a process is that in the trace.
func recordedWaits(run *scenario.Run) (waits []record.Entry) {
	const pids = 1 // pid of queue 0
	a := record.NewAccounts(func(e *record.Entry) { waits = append(waits, *e) })
	a.Device(0, "gpu0", 0, func() bool { return true })
	for _, c := range run.Result.Clients {
		a.Open(0, c.Queue, "gpu0", int32(c.Queue)+pids, &sched.Attr{Class: c.Class})
	}
	segments := slices.Clone(run.Result.Segments)
	slices.SortFunc(segments, func(a, b sim.Segment) int { return cmp.Compare(a.From, b.From) })
	requests := slices.Clone(run.Result.Requests)
	slices.SortFunc(requests, func(a, b sim.Request) int { return cmp.Compare(a.End, b.End) })
	end := sched.Time(0)
	span := func(s hal.Span) {
		for len(requests) > 0 && requests[0].End <= s.End {
			r := requests[0]
			a.RequestFinished(r.End, run.Result.Clients[r.Client].Queue, r.End.Sub(r.Begin), r.End)
			requests = requests[1:]
		}
		a.Span(s.End, "gpu0", &s)
		a.Update(s.End, func() []sched.Queue { return nil })
		end = s.End
	}
	for _, s := range segments {
		if end < s.From {
			span(hal.Span{Begin: end, End: s.From, Kind: hal.SpanIdle})
		}
		if s.Queue == 0 {
			span(hal.Span{Begin: s.From, End: s.To, Kind: hal.SpanSwitch})
		} else {
			span(hal.Span{Begin: s.From, End: s.To, Kind: hal.SpanHeld, PID: int(s.Queue) + pids})
		}
	}
	for range 10 { // until everything is accounted for
		span(hal.Span{Begin: end, End: end.Add(100 * ms), Kind: hal.SpanIdle})
	}
	return slices.DeleteFunc(waits, func(e record.Entry) bool { return e.Kind != record.Wait })
}

// TestWaitsOfEveryModel: on each model of a device that runs one process at a time, online
// requests beside batch work wait, and late requests say for what.
func TestWaitsOfEveryModel(t *testing.T) {
	for _, model := range sim.ModelNames() {
		if strings.HasPrefix(model, "amd-") {
			continue // all queues are on the device at the same time
		}
		events := read(t, write(t, simulated(t, model, "native")))
		if len(of(events, "wait")) == 0 {
			t.Errorf("%s: no waits", model)
		}
		for _, e := range of(events, "request") {
			if text, _ := e.Args["waited for"].(string); e.Name == "late request" && !strings.HasPrefix(e.Track, "native: train") && text == "" {
				t.Errorf("%s: the late request at %v does not say for what it waited", model, e.Begin)
			}
		}
	}
}
