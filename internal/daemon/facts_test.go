package daemon

import (
	"testing"

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
	p.setGate(&processGate{d: d, process: p, base: 1000}) // the process called exec
	events, _ := d.facts.takeIn(nil)
	if len(events) != 0 || p.counters != (sched.Counters{}) || p.requests.reported != 0 || p.attr.Class == sched.Online {
		t.Errorf("got events %v, counters %+v, %d requests and class %v, want nothing", events, p.counters, p.requests.reported, p.attr.Class)
	}
	d.facts.reset()
	d.facts.Progress(p, hal.Progress{Launched: 2, Completed: 1})
	if events, _ = d.facts.takeIn(nil); len(events) != 1 || p.counters.Launched != 1002 || p.counters.Completed != 1001 {
		t.Errorf("got events %v and counters %+v, want 1002 launched and 1001 completed", events, p.counters)
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
