package daemon

import (
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// TestReportsOfAReplacedPageAreDropped: what was read from a page is not counted for the
// page that replaced it before the report was taken in.
func TestReportsOfAReplacedPageAreDropped(t *testing.T) {
	d := newTestDaemon()
	p := &process{info: proc.Process{PID: 7}, queues: []*queue{{id: 1}}}
	old := &processGate{d: d, process: p}
	p.setGate(old)
	d.facts.reset()
	d.facts.Progress(p, hal.Progress{Launched: 1000, Completed: 900})
	d.facts.RequestStarted(p)
	d.facts.Hint(p, 1, int64(sched.Online))
	p.setGate(&processGate{d: d, process: p, base: 1000, idled: 40}) // the process called exec
	events, _ := d.facts.takeIn(nil)
	if len(events) != 0 || p.counters != (sched.Counters{}) || p.requests.reported != 0 || p.attr.Class == sched.Online {
		t.Errorf("got events %v, counters %+v, %d requests and class %v, want nothing", events, p.counters, p.requests.reported, p.attr.Class)
	}
	d.facts.reset()
	d.facts.Progress(p, hal.Progress{Launched: 2, Completed: 1, Idled: 1})
	if events, _ = d.facts.takeIn(nil); len(events) != 1 || p.counters.Launched != 1002 || p.counters.Completed != 1001 || p.counters.Idled != 41 {
		t.Errorf("got events %v and counters %+v, want 1002 launched, 1001 completed, and 41 times out of work", events, p.counters)
	}
}

// TestWithdrawnGateHasNoCounters: when the gate of a process is withdrawn, the scheduler takes
// its queue to have work, and the record learns that the counters are not known any more.
func TestWithdrawnGateHasNoCounters(t *testing.T) {
	d := newTestDaemon()
	p := &process{info: proc.Process{PID: 7}, queues: []*queue{{id: 1}}}
	g := &processGate{d: d, process: p}
	p.setGate(g)
	d.facts.reset()
	d.facts.Progress(p, hal.Progress{Launched: 2, Completed: 2})
	if events, _ := d.facts.takeIn(nil); len(events) != 1 || !events[0].Counters.Known {
		t.Fatalf("got events %v, want the counters", events)
	}
	g.Withdraw(false)
	events := d.events.take(nil)
	if len(events) != 1 || events[0].Kind != sched.Progressed || events[0].Counters.Known || events[0].Counters.Submitted != 3 {
		t.Errorf("got events %+v, want one more command, and counters that are not known", events)
	}
}

// TestHintsWithoutEndDoNotKeepTheLoopAwake: after a hint backends are polled again at once,
// but not for ever.
func TestHintsWithoutEndDoNotKeepTheLoopAwake(t *testing.T) {
	d := newTestDaemon()
	p := &process{info: proc.Process{PID: 7}, queues: []*queue{{id: 1, device: &device{}}}}
	polls := 0
	turn := func(weight int64) bool {
		d.facts.reset()
		if weight > 0 {
			d.facts.Hint(p, attr.Weight.Row().HintKind, weight)
		}
		_, again := d.facts.takeIn(nil)
		return again
	}
	for i := range int64(100) {
		if turn(i + 2) {
			polls++
		}
	}
	if polls != maxAgain {
		t.Errorf("got %d polls at once for 100 hints in a row, want %d", polls, maxAgain)
	}
	if turn(0) || !turn(7) {
		t.Error("after a turn without hints, a hint does not make backends be polled again")
	}
}

// TestSwitchingPerSecond checks that what a device loses in context switches is shown in all
// and for the last second.
func TestSwitchingPerSecond(t *testing.T) {
	var m switchMeter
	if got := m.describe(); got != nil {
		t.Errorf("before the first report: got %+v, want nothing", got)
	}
	second := sched.Time(time.Second)
	for _, tt := range []struct {
		at   sched.Time
		lost time.Duration
		n    uint64
		want api.Switching
	}{
		{10 * second, 5 * time.Second, 900, api.Switching{Lost: 5 * time.Second, Switches: 900}},
		{10*second + second/2, 5100 * time.Millisecond, 1000, api.Switching{Lost: 5100 * time.Millisecond, Switches: 1000}},
		{12 * second, 5500 * time.Millisecond, 2900, api.Switching{Lost: 5500 * time.Millisecond, Switches: 2900, Share: 0.25, Rate: 1000}},
		{13 * second, 5500 * time.Millisecond, 2900, api.Switching{Lost: 5500 * time.Millisecond, Switches: 2900}},
	} {
		m.update(tt.at, &hal.Ledger{Switching: tt.lost, Switches: tt.n})
		if got := m.describe(); *got != tt.want {
			t.Errorf("at %v: got %+v, want %+v", time.Duration(tt.at), *got, tt.want)
		}
	}
}

// TestSpansAreSummedUp checks that the spans of a device reach its ledger and the status, and
// that a lost measurement reaches the scheduler.
func TestSpansAreSummedUp(t *testing.T) {
	d := newTestDaemon()
	dev := fakeDevice{}
	d.DeviceFound(dev)
	d.facts.reset()
	d.facts.Spans(dev, []hal.Span{
		{Begin: 0, End: 5, PID: 7, Kind: hal.SpanHeld, Left: hal.Preempted},
		{Begin: 5, End: 7, PID: 8, Kind: hal.SpanSwitch},
	})
	d.facts.Spans(dev, []hal.Span{
		{Begin: 7, End: 8, PID: 8, Kind: hal.SpanHeld},
		{Begin: 8, End: 8, PID: 8, Kind: hal.SpanHeld, Left: hal.LeftItself},
		{Begin: 8, End: 11, Kind: hal.SpanIdle},
		{Begin: 11, End: 20},
	})
	d.facts.MeasurementLost(&queue{id: 3})
	events, _ := d.facts.takeIn(nil)
	if len(events) != 1 || events[0].Kind != sched.MeasurementLost || events[0].Queue != 3 {
		t.Errorf("got events %v, want a lost measurement of queue 3", events)
	}
	got, want := d.devices[dev.Info().Device.ID].ledger, hal.Ledger{Held: 6, Switching: 2, Idle: 3, Unknown: 9, Visits: 2, Preempted: 1, Switches: 1}
	if got != want || got.Wall() != 20 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if shown := d.devices[dev.Info().Device.ID].switching.describe(); shown == nil || shown.Lost != 2 || shown.Switches != 1 {
		t.Errorf("shown: got %+v, want 2ns in 1 switch", shown)
	}
}
