package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// gaugeRun reads a gauge as slo does.
type gaugeRun struct {
	gauge
	l ladder
	v sched.View
}

func newGaugeRun() *gaugeRun {
	x := &gaugeRun{v: sched.View{Now: sched.Time(time.Hour), Queues: []sched.Queue{
		{ID: 1, Attr: sched.Attr{Class: sched.Online}, Measured: true},
		{ID: 2, Attr: sched.Attr{Class: sched.Batch}, Measured: true},
		{ID: 3, Attr: sched.Attr{Class: sched.Idle}, Measured: true},
		{ID: 4, Attr: sched.Attr{Class: sched.Standard}, Measured: true},
	}}}
	x.l.build(h200)
	x.l.since = x.v.Now
	x.pass(0, 0)
	return x
}

// pass lets time pass in which each queue is served so long, and reads the gauge.
func (x *gaugeRun) pass(wall time.Duration, finished int, served ...time.Duration) *rung {
	x.v.Now = x.v.Now.Add(wall)
	for i := range x.v.Queues {
		q := &x.v.Queues[i]
		if i < len(served) {
			q.Served += served[i]
		}
		if q.Measured {
			q.MeasuredAt = x.v.Now
		}
	}
	x.read(&x.v, &x.l, finished, time.Duration(finished)*ms)
	return &x.l.rungs[x.l.current]
}

// TestGaugeMeasuresWhatBatchWorkGets checks the figures of one rung: what batch and idle
// queues had, less an eighth of the time in which no context was on the device.
func TestGaugeMeasuresWhatBatchWorkGets(t *testing.T) {
	x := newGaugeRun()
	x.pass(20*ms, 1, 2*ms, 8*ms, 3*ms, ms)      // 6 ms are lost
	r := x.pass(30*ms, 2, 5*ms, 20*ms, 0, 5*ms) // nothing is lost
	if r.wall != 50*ms || r.lost != 6*ms || r.batch != 31*ms-6*ms/8 || r.requests != 3 || r.openTime != 3*ms || !x.l.measured {
		t.Errorf("got %v, %v lost, %v for batch work, %v requests of %v in all; want 50ms, 6ms, 30.25ms, 3 of 3ms", r.wall, r.lost, r.batch, r.requests, r.openTime)
	}
	x.v.Queues[0].OpenRequests = 1
	// More context switches than batch work has time.
	if r = x.pass(10*ms, 0, 0, ms/10, 0, 0); r.batch != 31*ms-6*ms/8 || r.lost != 6*ms+9900*time.Microsecond {
		t.Errorf("got %v for batch work, %v lost, want no more, 15.9ms", r.batch, r.lost)
	}
	// Time in which no queue, or no batch queue, was served counts as well.
	before := r.wall
	if r = x.pass(10*ms, 0); r.wall != before+10*ms {
		t.Errorf("no service: got %v, want %v", r.wall, before+10*ms)
	}
	if r = x.pass(10*ms, 0, 10*ms); r.wall != before+20*ms {
		t.Errorf("online work alone: got %v, want %v", r.wall, before+20*ms)
	}
	x.l.rungs[x.l.current].lost -= 10 * ms
	// A reading may be late: two queues can seem to have had more than there was.
	if r = x.pass(10*ms, 0, 0, 12*ms, 0, 0); r.lost != 15900*time.Microsecond {
		t.Errorf("got %v lost, want as before: no time can be gained", r.lost)
	}
}

// TestGaugeLeavesOutPauses checks that the time without requests counts if it is as long as
// usual, and does not if a process has paused: batch work then has the device for itself.
func TestGaugeLeavesOutPauses(t *testing.T) {
	x := newGaugeRun()
	x.pass(500*ms, 0, 0, 500*ms) // until the first request
	loop := func() (r *rung) {
		for range 20 {
			r = x.pass(10*ms, 20, 5*ms, ms)
		}
		return r
	}
	loop()
	x.pass(500*ms, 0, 0, 500*ms)
	if r := loop(); r.wall != 400*ms || r.requests != 800 {
		t.Errorf("a loop that pauses: got %v requests in %v, want 800 in 400ms", r.requests, r.wall)
	}
	x.pass(125*ms, 0, 0, 125*ms) // a moment is no pause
	if r := loop(); r.wall != 725*ms {
		t.Errorf("after 125 ms without requests: got %v, want 725ms", r.wall)
	}
	x.pass(126*ms, 0, 0, 126*ms)
	if r := loop(); r.wall != 925*ms {
		t.Errorf("after 126 ms without requests: got %v, want 925ms", r.wall)
	}
	for wait, counts := range map[time.Duration]bool{310 * ms: true, 330 * ms: false} { // eight times as long as usual
		x = newGaugeRun()
		for range 40 {
			x.pass(10*ms, 1, 5*ms, ms)
			x.pass(40*ms, 0, 0, 40*ms)
		}
		x.pass(10*ms, 1, 5*ms, ms)
		before := x.l.rungs[x.l.current].wall
		x.pass(wait, 0, 0, wait)
		got, want := x.pass(10*ms, 1, 5*ms, ms).wall-before, 10*ms
		if counts {
			want += wait
		}
		if got != want {
			t.Errorf("%v without requests, usually 40 ms: got %v more, want %v", wait, got, want)
		}
	}
	x = newGaugeRun()
	var r *rung
	for range 5 {
		x.pass(490*ms, 0, 0, 490*ms)
		r = x.pass(10*ms, 1, 5*ms, ms)
	}
	if r.wall < 2*time.Second-10*ms || r.requests != 5 {
		t.Errorf("a request every half second: got %v in %v, want all time but that before the first", r.requests, r.wall)
	}
}

// TestGaugeCountsOnlyOneSetting checks that a reading that is partly from another setting,
// or from other queues, does not count, and that its requests do not either.
func TestGaugeCountsOnlyOneSetting(t *testing.T) {
	for name, change := range map[string]func(*gaugeRun){
		"another rung":           func(x *gaugeRun) { x.l.current-- },
		"the same rung anew":     func(x *gaugeRun) { x.l.since = x.v.Now.Add(5 * ms) },
		"not in force yet":       func(x *gaugeRun) { x.l.since = sched.Never },
		"a queue closed":         func(x *gaugeRun) { x.v.Queues = x.v.Queues[:3] },
		"a queue replaced":       func(x *gaugeRun) { x.v.Queues[3].ID = 5 },
		"batch work lost a part": func(x *gaugeRun) { x.v.Queues[1].Served = -time.Second },
		"other work lost a part": func(x *gaugeRun) { x.v.Queues[0].Served = -time.Second },
	} {
		x := newGaugeRun()
		x.pass(20*ms, 1, 2*ms, 8*ms)
		before := x.l.rungs
		change(x)
		x.pass(20*ms, 1, 2*ms, 8*ms)
		if x.l.rungs != before {
			t.Errorf("%s: the reading counts, want not", name)
		}
	}
	x := newGaugeRun()
	x.pass(20*ms, 5, 2*ms, 8*ms)
	x.l.setCurrent(x.l.current-1, x.v.Now)
	x.l.since = x.v.Now
	x.pass(20*ms, 7, 2*ms, 8*ms)
	if r := x.pass(20*ms, 1, 2*ms, 8*ms); r.requests != 1 || r.openTime != ms || r.wall != 20*ms {
		t.Errorf("after a change: %v requests of %v in %v, want 1 of 1ms in 20ms", r.requests, r.openTime, r.wall)
	}
}

// TestGaugeNeedsANewMeasurement checks that requests between two measurements count with
// the second.
func TestGaugeNeedsANewMeasurement(t *testing.T) {
	x := newGaugeRun()
	x.pass(20*ms, 1, 2*ms, 8*ms)
	x.v.Now = x.v.Now.Add(5 * ms)
	x.read(&x.v, &x.l, 3, 3*ms) // nothing was measured since
	if r := &x.l.rungs[x.l.current]; r.requests != 1 {
		t.Errorf("without a measurement: got %v requests, want 1: the others belong to time that is not measured yet", r.requests)
	}
	if r := x.pass(15*ms, 1, 2*ms, 8*ms); r.requests != 5 || r.openTime != 5*ms || r.wall != 40*ms {
		t.Errorf("got %v requests of %v in %v, want 5 of 5ms in 40ms", r.requests, r.openTime, r.wall)
	}
}

// TestGaugeNeedsMeasuredBatchWork checks that nothing counts unless the hardware measures
// every batch queue, and there is one. Online queues need not be measured.
func TestGaugeNeedsMeasuredBatchWork(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*gaugeRun)
		want   bool
	}{
		{"an online queue is not measured", func(x *gaugeRun) { x.v.Queues[0].Measured = false }, true},
		{"a batch queue is not measured", func(x *gaugeRun) { x.v.Queues[1].Measured = false }, false},
		{"an idle queue is not measured", func(x *gaugeRun) { x.v.Queues[2].Measured = false }, false},
		{"there is no batch work", func(x *gaugeRun) {
			x.v.Queues[1].Attr.Class, x.v.Queues[2].Attr.Class = sched.Standard, sched.Standard
		}, false},
	} {
		x := newGaugeRun()
		c.change(x)
		x.pass(20*ms, 1, 0, 8*ms)
		before := x.l.rungs[x.l.current].wall
		r := x.pass(20*ms, 1, 0, 8*ms)
		if x.l.measured != c.want || (r.wall > before) != c.want {
			t.Errorf("%s: measured %v, counted %v, want %v", c.name, x.l.measured, r.wall > before, c.want)
		}
	}
}

// TestGaugeFades checks that old figures lose weight, half of it each 4 s or so, and that
// all figures of a rung do so together.
func TestGaugeFades(t *testing.T) {
	x := newGaugeRun()
	for range 1000 { // 20 s at one load
		x.pass(20*ms, 1, 10*ms, 4*ms)
	}
	r := x.l.rungs[x.l.current]
	if r.wall < 2*time.Second || r.wall > 4*time.Second {
		t.Errorf("the figures are of the last %v, want 2 to 4 s", r.wall)
	}
	near := func(what string, got, want float64) {
		if got < 0.99*want || got > 1.01*want {
			t.Errorf("%s is %.4f, want %.4f", what, got, want)
		}
	}
	near("lost", float64(r.lost)/float64(r.wall), 0.3)
	near("batch", float64(r.batch)/float64(r.wall), (4-6.0/8)/20)
	near("requests a second", r.requests/r.wall.Seconds(), 50)
	near("open", float64(r.openTime)/float64(r.wall), 0.05)
	for range 500 { // 10 s at another
		x.pass(20*ms, 1, 0, 20*ms)
	}
	if now := x.l.rungs[x.l.current]; float64(now.batch) < 0.9*float64(now.wall) {
		t.Errorf("after 10 s batch work has %v of %v, want nearly all", now.batch, now.wall)
	}
}

// TestGaugeComparesTheSameBatchQueues checks that what batch work got with other rungs is dropped when
// a batch or idle queue comes or goes, and that all else that is known about the rungs stays.
func TestGaugeComparesTheSameBatchQueues(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*gaugeRun)
		drops  bool
	}{
		{"no change", func(*gaugeRun) {}, false},
		{"another batch queue", func(x *gaugeRun) { x.v.Queues[1].ID = 20 }, true},
		{"the idle queue closes", func(x *gaugeRun) { x.v.Queues = append(x.v.Queues[:2:2], x.v.Queues[3]) }, true},
		{"a queue becomes batch", func(x *gaugeRun) { x.v.Queues[3].Attr.Class = sched.Batch }, true},
		{"another batch queue, which is not measured", func(x *gaugeRun) { x.v.Queues[1].ID, x.v.Queues[1].Measured = 20, false }, true},
		{"another standard queue", func(x *gaugeRun) { x.v.Queues[3].ID = 40 }, false},
		{"another online queue", func(x *gaugeRun) { x.v.Queues[0].ID = 40 }, false},
	} {
		x := newGaugeRun()
		x.pass(20*ms, 1, 2*ms, 8*ms)
		known := rung{tried: 20, late: 1, measurement: measurement{time.Second, ms, ms}, requests: 20, openTime: ms, retry: x.v.Now, pause: time.Second}
		x.l.rungs[1] = known
		current := x.l.rungs[x.l.current]
		c.change(x)
		x.pass(20*ms, 1, 2*ms, 8*ms)
		if c.drops {
			known.measurement, known.requests, known.openTime = measurement{}, 0, 0
		}
		if got := x.l.rungs[1]; got != known {
			t.Errorf("%s: of another rung %+v is known, want %+v", c.name, got, known)
		}
		if got := x.l.rungs[x.l.current]; got.wall < current.wall || got.requests < current.requests {
			t.Errorf("%s: of the current rung %v is known, %v requests, want at least %v, %v", c.name, got.wall, got.requests, current.wall, current.requests)
		}
	}
}
