package record

import (
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

const ms = sched.Time(time.Millisecond)

// twoClients returns the account of a device with an online process, 1, and a batch process, 2.
func twoClients(tracing bool, waits *[]Entry) *Accounts {
	a := NewAccounts(func(e *Entry) { *waits = append(*waits, *e) })
	a.Device(0, "d", 0, func() bool { return tracing })
	a.Open(0, 1, "d", 1, &sched.Attr{Class: sched.Online})
	a.Open(0, 2, "d", 2, &sched.Attr{Class: sched.Batch})
	return a
}

func delayOf(a *Accounts, pid int, by api.Holder) (d api.Delay) {
	for _, c := range a.Delays().Delays {
		if c.PID == pid && c.Holder == by {
			d = c
		}
	}
	return d
}

func process(pid int) api.Holder { return api.Holder{Kind: "process", PID: pid} }

// TestDelayByOneSlice constructs the case of a request that waits for a slice of 2 ms and a
// switch: it arrives at 10 ms, the batch process has the device until 12 ms, and the request
// is over at 13 ms.
func TestDelayByOneSlice(t *testing.T) {
	var waits []Entry
	a := twoClients(true, &waits)
	a.Progress(0, 2, &sched.Counters{Submitted: 1, Known: true})
	for _, s := range []hal.Span{
		{Begin: 0, End: 12 * ms, PID: 2, Kind: hal.SpanHeld, Left: hal.Preempted},
		{Begin: 12 * ms, End: 12*ms + ms/4, PID: 1, Kind: hal.SpanSwitch},
		{Begin: 12*ms + ms/4, End: 13 * ms, PID: 1, Kind: hal.SpanHeld, Left: hal.LeftItself},
		{Begin: 13 * ms, End: 14 * ms, Kind: hal.SpanUnknown},
		{Begin: 14 * ms, End: 20 * ms, PID: 2, Kind: hal.SpanHeld},
	} {
		a.Span(20*ms, "d", &s)
	}
	a.RequestFinished(20*ms, 1, 3*time.Millisecond, 13*ms)
	a.Update(20*ms+sched.Time(accountLag), nil)
	for by, want := range map[api.Holder]time.Duration{process(2): 2 * time.Millisecond, {Kind: "switch"}: time.Millisecond / 4} {
		if got := delayOf(a, 1, by); got.Total != want || got.Class != "online" || got.Estimated {
			t.Errorf("by %+v: got %+v, want %v", by, got, want)
		}
	}
	if got := delayOf(a, 2, process(1)); got.Total != 3*time.Millisecond/4 {
		t.Errorf("batch by online: got %+v", got)
	}
	if len(waits) != 1 || waits[0].Begin != 10*ms || waits[0].End != 12*ms+ms/4 || waits[0].Holder != 2 || waits[0].Cost != 2*time.Millisecond {
		t.Errorf("got waits %+v", waits)
	}
	// Both: 10 to 12, 12 to 12.25; batch alone: 12.25 to 13. The unknown millisecond counts for none.
	if p := a.Pressure().Devices[0]; p.Some.Total != 3*time.Millisecond || p.Full.Total != time.Millisecond/4 {
		t.Errorf("got %+v", p)
	}
}

// TestDelayOfAProcessWithoutCounters checks that a process of which only visits are known
// waits from when it was preempted until it comes back, and that this is marked.
func TestDelayOfAProcessWithoutCounters(t *testing.T) {
	a := twoClients(true, new([]Entry))
	for _, s := range []hal.Span{
		{Begin: 0, End: 5 * ms, PID: 2, Kind: hal.SpanHeld, Left: hal.Preempted},
		{Begin: 5 * ms, End: 8 * ms, PID: 1, Kind: hal.SpanHeld, Left: hal.LeftItself},
		{Begin: 8 * ms, End: 9 * ms, PID: 2, Kind: hal.SpanHeld, Left: hal.LeftItself},
		{Begin: 9 * ms, End: 20 * ms, PID: 1, Kind: hal.SpanHeld},
	} {
		a.Span(20*ms, "d", &s)
	}
	a.Update(20*ms+sched.Time(accountLag), nil)
	if got := delayOf(a, 2, process(1)); got.Total != 3*time.Millisecond || !got.Estimated {
		t.Errorf("got %+v, want 3ms, estimated", got)
	}
	if got := delayOf(a, 1, process(2)); got.Total != 0 {
		t.Errorf("a process that left by itself: got %+v", got)
	}
}

// TestEstimatedDelays checks a device without a trace: two processes that both have work and
// get 3 and 1 of 4 parts of it wait for each other, and while both are stopped for nothing.
func TestEstimatedDelays(t *testing.T) {
	a := twoClients(false, new([]Entry))
	for id := sched.QueueID(1); id <= 2; id++ {
		a.Progress(0, id, &sched.Counters{Submitted: 1, Known: true})
	}
	served := func(one, two sched.Time) func() []sched.Queue {
		return func() []sched.Queue {
			return []sched.Queue{{ID: 1, Served: time.Duration(one)}, {ID: 2, Served: time.Duration(two)}}
		}
	}
	for now := sched.Time(0); now <= 8000*ms; now += 100 * ms { // beyond a bucket
		a.Update(now, served(now*3/4, now/4))
	}
	a.Update(9000*ms, served(6000*ms, 2000*ms))
	near := func(got time.Duration, want sched.Time) bool {
		return (got - time.Duration(want)).Abs() < time.Millisecond
	}
	one, two := delayOf(a, 1, process(2)), delayOf(a, 2, process(1))
	if !near(one.Total, 2000*ms) || !near(two.Total, 6000*ms) || !one.Estimated || !two.Estimated {
		t.Errorf("got %+v and %+v", one, two)
	}
	if got := delayOf(a, 1, api.Holder{Kind: "idle"}); !near(got.Total, 1000*ms) {
		t.Errorf("while both were stopped: got %+v", got)
	}
	if p := a.Pressure().Devices[0]; !near(p.Some.Total, 9000*ms) || !near(p.Full.Total, 1000*ms) || !p.Estimated {
		t.Errorf("got %+v", p)
	}
	// The last 10 s are all there was by then.
	if d := a.Delays(); d.WindowEnd != 9*time.Second || two.Last10 != two.Total || two.Last60 != two.Total {
		t.Errorf("got windows to %v, %+v", d.WindowEnd, two)
	}
}

// TestManyHolders checks that a row keeps its sum and its size with any number of holders.
func TestManyHolders(t *testing.T) {
	var r row
	want := time.Duration(0)
	for i := range 10_000 {
		d := time.Duration(1 + i%97)
		r.add(int32(i*7919%1000), d, false)
		want += d
		if i%1000 == 0 {
			r.turnBucket(uint64(i / 1000))
		}
	}
	r.add(heldBySwitch, 5, false)
	sum := time.Duration(0)
	for i := range r.cells {
		sum += r.cells[i].total
	}
	if sum != want+5 || len(r.cells) > maxHolders+2 {
		t.Errorf("got %v in %d cells, want %v", sum, len(r.cells), want+5)
	}
}
