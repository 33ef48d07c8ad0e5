package nvidia

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/sched"
)

// TestTimelineFollowsItself checks that spans follow each other whatever the clocks do: the
// GPU's clock is set back, runs fast, or is read late.
func TestTimelineFollowsItself(t *testing.T) {
	base := time.Now()
	at := func(d time.Duration) time.Time { return base.Add(d) }
	tl := timeline{origin: base}
	var all []hal.Span
	read := func(clock int64, before, after time.Duration, spans ...nvtrace.Span) {
		t.Helper()
		tl.spans = tl.spans[:0]
		tl.synchronize(clock, at(before), at(after))
		for _, s := range spans {
			tl.spent(s)
		}
		all = append(all, tl.spans...)
	}
	held := func(begin, end int64) nvtrace.Span {
		return nvtrace.Span{Begin: begin, End: end, PID: 7, Kind: hal.SpanHeld}
	}
	read(5000, 1000, 1020, held(4000, 4900))                                  // the offset is -3990
	read(9000, 5000, 5000+slowCall+1, held(4900, 9000))                       // slow: the offset stays
	read(10_000, 6000, 6000, held(9000, 10_000))                              // the GPU's clock is 10 behind
	read(300, 7000, 7000, held(100, 200), nvtrace.Span{Begin: 200, End: 300}) // it was set back
	read(900, 7100, 7100, held(300, 900))                                     // it runs fast: nothing is left for it
	read(2000, 9000, 9000, nvtrace.Span{Begin: 900, End: 2000, PID: nvtrace.PIDKernel, Kind: hal.SpanSwitch})
	want := []hal.Span{
		{Begin: 10, End: 910, PID: 7, Kind: hal.SpanHeld},
		{Begin: 910, End: 5010, PID: 7, Kind: hal.SpanHeld},
		{Begin: 5010, End: 6000, PID: 7, Kind: hal.SpanHeld},
		{Begin: 6000, End: 6800},
		{Begin: 6800, End: 6900, PID: 7, Kind: hal.SpanHeld},
		{Begin: 6900, End: 7000},
		{Begin: 7000, End: 7100, PID: 7, Kind: hal.SpanHeld},
		{Begin: 7100, End: 9000, Kind: hal.SpanSwitch},
	}
	if len(all) != len(want) {
		t.Fatalf("got %+v, want %+v", all, want)
	}
	for i := range want {
		if all[i] != want[i] {
			t.Errorf("span %d: got %+v, want %+v", i, all[i], want[i])
		}
	}
}

// TestTimelineOrigin checks that a reading which comes late does not move the origin.
func TestTimelineOrigin(t *testing.T) {
	var tl timeline
	tl.begin(sched.Time(time.Hour))
	first := tl.origin
	tl.begin(sched.Time(time.Minute)) // 59 minutes late
	if tl.origin != first {
		t.Errorf("origin moved by %v", tl.origin.Sub(first))
	}
	tl.begin(sched.Time(2 * time.Hour))
	if moved := first.Sub(tl.origin); moved < 59*time.Minute {
		t.Errorf("a better reading moved the origin by %v, want about an hour", moved)
	}
}

// TestDepartures checks how the end of a visit is judged by its length, the slice, and the
// calls that were made meanwhile.
func TestDepartures(t *testing.T) {
	const us = time.Microsecond
	base := time.Now()
	at := func(d time.Duration) time.Time { return base.Add(d) }
	calm := &groupUse{slice: 2048 * us, oldSlice: 2048 * us}
	short := &groupUse{slice: us, oldSlice: 2048 * us, sliceFrom: at(1000 * us), sliceTo: at(1400 * us)}
	stopped := &groupUse{slice: 2048 * us, oldSlice: 2048 * us, stopFrom: at(1000 * us)}
	started := &groupUse{slice: 2048 * us, oldSlice: 2048 * us, stopFrom: at(1000 * us), stopTo: at(5000 * us)}
	for _, c := range []struct {
		name       string
		use        *groupUse
		begin, end time.Duration
		want       hal.Departure
	}{
		{"never changed, short", nil, 0, 500 * us, hal.LeftItself},
		{"never changed, a whole slice", nil, 0, 2190 * us, hal.Preempted},
		{"before the slice is over", calm, 0, 1900 * us, hal.LeftItself},
		{"a whole slice and a switch", calm, 0, 2217 * us, hal.Preempted},
		{"long alone", calm, 0, 9000 * us, hal.LeftUnknown},
		{"before the slice was made short", short, 0, 900 * us, hal.LeftItself},
		{"while it was made short", short, 500 * us, 1200 * us, hal.LeftUnknown},
		{"a whole slice while it was made short", short, -1000 * us, 1200 * us, hal.Preempted},
		{"after it was made short", short, 1500 * us, 1540 * us, hal.Preempted},
		{"long after it was made short", short, 1500 * us, 90_000 * us, hal.Preempted},
		{"stopped", stopped, 500 * us, 1100 * us, hal.Preempted},
		{"before it was stopped", stopped, 200 * us, 800 * us, hal.LeftItself},
		{"after it was started again", started, 6000 * us, 6500 * us, hal.LeftItself},
		{"while it was stopped", started, 500 * us, 1500 * us, hal.Preempted},
	} {
		if got := c.use.departure(at(c.begin), at(c.end)); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		cut := c.name == "stopped" || c.name == "while it was stopped"
		if got := c.use.stoppedAt(at(c.end)); got != cut {
			t.Errorf("%s: stopped at its end %v, want %v", c.name, got, cut)
		}
	}
	if got := departure(360*us, 200*us); got != hal.Preempted {
		t.Errorf("the shortest shared slice and a switch: got %v", got)
	}
}
