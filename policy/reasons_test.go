package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestWaitReasons checks why batch and idle queues wait, by what happens on the device.
func TestWaitReasons(t *testing.T) {
	const now = sched.Time(time.Second)
	for _, tt := range []struct {
		name        string
		sliced      bool
		change      func(p *giveway, s *summary, set *setting)
		batch, idle sched.Reason
	}{
		{"turns", true, func(*giveway, *summary, *setting) {}, sched.OtherTurn, sched.OtherTurn},
		{"batch work is ready", true, func(_ *giveway, s *summary, _ *setting) { s.classIdleWaits = true }, sched.OtherTurn, sched.OtherWork},
		{"idle queues found the device busy", true, func(p *giveway, _ *summary, _ *setting) { p.classIdleStop = now + 1 }, sched.OtherTurn, sched.OtherWork},
		{"they did, long ago", true, func(p *giveway, _ *summary, _ *setting) { p.classIdleStop = now }, sched.OtherTurn, sched.OtherTurn},
		{"a burst", true, func(p *giveway, _ *summary, _ *setting) { p.burst.phase = inBurst }, sched.InBurst, sched.InBurst},
		{"a gap", true, func(p *giveway, _ *summary, _ *setting) { p.burst.phase = inGap }, sched.OtherTurn, sched.OtherTurn},
		{"online work, on a device with slices", true, func(p *giveway, s *summary, _ *setting) { s.busy, p.serving = true, true }, sched.OtherTurn, sched.OtherTurn},
		{"online work", false, func(p *giveway, s *summary, _ *setting) { s.busy, p.serving = true, true }, sched.OnlineWork, sched.OnlineWork},
		{"online work a moment ago", false, func(p *giveway, s *summary, _ *setting) { s.busy, p.lingerUntil = true, now+1 }, sched.OnlineWork, sched.OnlineWork},
		{"online work before that", false, func(p *giveway, s *summary, _ *setting) { s.busy, p.lingerUntil = true, now }, sched.RequestExpected, sched.RequestExpected},
		{"online work that stops nothing", false, func(p *giveway, s *summary, set *setting) { s.busy, p.serving, set.stopWhenBusy = true, true, false }, sched.OtherTurn, sched.OtherTurn},
		{"a request is expected, with slices", true, func(p *giveway, s *summary, _ *setting) { s.wantClear, p.mayShare = true, true }, sched.RequestExpected, sched.RequestExpected},
		{"the same with a single batch queue", true, func(_ *giveway, s *summary, _ *setting) { s.wantClear = true }, sched.OtherTurn, sched.OtherTurn},
	} {
		p, dev := makeGiveway(), sched.Device{}
		if tt.sliced {
			dev = h200Device
		}
		s, set := summary{}, p.ownSetting()
		tt.change(p, &s, &set)
		why := p.waitReasons(now, &dev, &s, &set)
		if why[sched.Batch] != tt.batch || why[sched.Idle] != tt.idle {
			t.Errorf("%s: batch queues wait because of %q, idle ones of %q; want %q and %q", tt.name, why[sched.Batch], why[sched.Idle], tt.batch, tt.idle)
		}
	}
}

// TestPlanSaysWhyQueuesWait checks that a plan has these reasons.
func TestPlanSaysWhyQueuesWait(t *testing.T) {
	queue := sched.Queue{ID: 1, Can: canAll, Attr: sched.Attr{Class: sched.Batch}, Counters: sched.Counters{Known: true, Submitted: 1}}
	other, idle := queue, queue
	other.ID = 2
	idle.ID, idle.Attr.Class = 3, sched.Idle
	plan := makeGiveway().Plan(&sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{queue, other, idle}})
	if len(plan.Grants) != 1 || plan.Waiting[sched.Batch] != sched.OtherTurn || plan.Waiting[sched.Idle] != sched.OtherWork {
		t.Errorf("got %+v, want one turn, batch queues to wait for it, and idle ones for batch work", plan)
	}
}

// TestRunReasons checks why a batch queue that is granted runs.
func TestRunReasons(t *testing.T) {
	sliceable, other := sched.Queue{ID: 1, Can: sched.CanSlice}, sched.Queue{ID: 1}
	for _, tt := range []struct {
		name   string
		q      sched.Queue
		change func(p *giveway, st *queueState)
		want   sched.Reason
	}{
		{"its turn", sliceable, func(p *giveway, st *queueState) { p.current, st.takesTurns = 1, true }, sched.ItsTurn},
		{"its turn in a gap", sliceable, func(p *giveway, _ *queueState) { p.current, p.burst.phase = 1, inGap }, sched.InGap},
		{"side by side", sliceable, func(p *giveway, st *queueState) { p.sharingNow, st.sideBySide = true, true }, sched.Beside},
		{"the same without a slice", other, func(p *giveway, st *queueState) { p.sharingNow, st.sideBySide, p.current = true, true, 1 }, sched.Beside},
		{"its turn beside others", sliceable, func(p *giveway, st *queueState) { p.sharingNow, st.takesTurns, p.current = true, true, 1 }, sched.ItsTurn},
		{"an overlap", sliceable, func(p *giveway, _ *queueState) { p.overlap.leaving = 1 }, sched.Beside},
		{"no work", sliceable, func(*giveway, *queueState) {}, sched.NoWork},
		{"cannot be stopped", sliceable, func(_ *giveway, st *queueState) { st.takesTurns = true }, sched.Unstoppable},
	} {
		p, a := makeGiveway(), queueState{}
		tt.change(p, &a)
		if got := p.runReason(&tt.q, &a); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
