package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// periods runs n busy periods, 10 ms apart, which take beside while batch work runs on
// and stopped otherwise. If batch work is stopped in the middle, one takes both. It
// returns in how many batch work ran on to the end, and in how many it was stopped late.
func (c *stopCost) periods(now sched.Time, n int, stopTime, beside, stopped time.Duration) (runsOn, late int) {
	for i := range n {
		at := now.Add(time.Duration(i) * 10 * ms)
		c.begin(at, stopTime, true)
		on, until := c.runOn(at)
		took := stopped
		switch {
		case on && at.Add(beside) <= until:
			took = beside
			runsOn++
		case on:
			took = until.Sub(at) + stopped
			late++
		}
		c.end(at.Add(took))
	}
	return runsOn, late
}

func TestStopCostChoosesWhatTakesLess(t *testing.T) {
	const stopTime = 400 * time.Microsecond
	for _, test := range []struct {
		beside, stopped time.Duration
		runsOn          bool
	}{
		{200 * time.Microsecond, 450 * time.Microsecond, true},
		{400 * time.Microsecond, 400 * time.Microsecond, true}, // a stop saves nothing
		{500 * time.Microsecond, 400 * time.Microsecond, false},
		{20 * ms, 400 * time.Microsecond, false},
		{500 * time.Microsecond, 1200 * time.Microsecond, true},
		{500 * time.Microsecond, 1201 * time.Microsecond, false}, // longer than three stops: nothing is tried
		{ms, 1300 * time.Microsecond, false},
	} {
		var c stopCost
		runsOn, late := c.periods(1, 2000, stopTime, test.beside, test.stopped)
		if test.runsOn && runsOn < 1900 || !test.runsOn && runsOn+late > 40 || test.stopped > 3*stopTime && runsOn+late > 0 {
			t.Errorf("%v beside batch work, %v with a stop: got %d of 2000 without a stop and %d with a late one", test.beside, test.stopped, runsOn, late)
		}
	}
}

// TestFirstProbeOfStopCost checks that the first probe follows the sixth busy period, takes six of them, and that
// there is none where busy periods are long.
func TestFirstProbeOfStopCost(t *testing.T) {
	for _, short := range []bool{true, false} {
		var c stopCost
		took := 1200 * us
		if !short {
			took++
		}
		var probe []int
		for i := range 20 {
			at := sched.Time(i+1) * sched.Time(10*ms)
			if c.begin(at, 400*us, true); c.runsOn {
				probe = append(probe, i)
				c.end(at.Add(5 * ms))
			} else {
				c.end(at.Add(took))
			}
		}
		if want := []int{6, 7, 8, 9, 10, 11}; short && !slices.Equal(probe, want) || !short && probe != nil {
			t.Errorf("periods of %v: batch work runs on in %v, want in %v of short ones", took, probe, want)
		}
	}
}

func TestStopCostFollowsTheLoad(t *testing.T) {
	const stopTime = 400 * us
	var c stopCost
	c.periods(1, 500, stopTime, 200*us, 450*us)
	if runsOn, _ := c.periods(sched.Time(10*time.Second), 1000, stopTime, 5*ms, 600*us); runsOn > 30 {
		t.Errorf("longer requests: got %d of 1000 without a stop, want few", runsOn)
	}
	if runsOn, _ := c.periods(sched.Time(time.Minute), 10000, stopTime, 200*us, 450*us); runsOn < 5000 {
		t.Errorf("short requests again: got %d of 10000 without a stop, want most", runsOn)
	}
}

// TestStopCostBoundsOneLongPeriod checks that a busy period that is much too long, for example
// because the host stalls, counts as four stop times: usual ones of less than two stop times
// are still known as short.
func TestStopCostBoundsOneLongPeriod(t *testing.T) {
	const stopTime = 400 * us
	var c stopCost
	c.periods(1, 100, stopTime, ms, 300*us)
	before := c.stopped.mean
	c.periods(sched.Time(time.Second), 1, stopTime, time.Second, time.Second)
	c.periods(sched.Time(2*time.Second), 1, stopTime, ms, 300*us) // the long one is over
	if got, want := c.stopped.mean-before, (4*stopTime-before)/8; got <= 0 || got > want {
		t.Errorf("the mean of %v grows by %v, want at most %v", before, got, want)
	}
}

// TestStopCostTrialsAreShort checks that a trial never makes online work wait for long: batch
// work that runs on is stopped after about as long as a busy period takes with a stop.
func TestStopCostTrialsAreShort(t *testing.T) {
	var c stopCost
	if runsOn, late := c.periods(1, 2000, 400*time.Microsecond, 5*ms, 400*time.Microsecond); runsOn > 0 || late == 0 {
		t.Errorf("got %d busy periods of 5 ms beside batch work, and %d in which it was stopped late; want none, and some", runsOn, late)
	}
}

// TestBusyPeriodsAreApartByLinger checks that online work which continues within linger belongs
// to the same busy period, and that a new one begins after it.
func TestBusyPeriodsAreApartByLinger(t *testing.T) {
	p, s := makeGiveway(), summary{inRotation: 1}
	first := sched.Time(time.Second)
	update := func(at sched.Time, serving bool) { p.updateBusy(at, &plainGPU, serving, true, &s) }
	update(first, true)
	update(first.Add(ms), false)
	update(first.Add(ms+p.linger-1), true)
	if c := &p.stopCost; c.began != first || c.ended != 0 {
		t.Errorf("work within linger: the busy period began %v after the first, ended %v; want the first to go on", c.began.Sub(first), c.ended)
	}
	update(first.Add(2*ms), false)
	next := first.Add(2*ms + p.linger)
	update(next, true)
	if c := &p.stopCost; c.began != next || !c.counts {
		t.Errorf("work after linger: the busy period began %v after the first, want %v", c.began.Sub(first), next.Sub(first))
	}
	if c := &p.stopCost; c.stopped.n != 1 || c.stopped.mean != 2*ms {
		t.Errorf("got %d periods of %v, want one of 2 ms", c.stopped.n, c.stopped.mean)
	}
}

// TestOnlineWorkIsRecent checks that online work on a device without slices counts as present for two seconds after
// its last piece, as far as there is still an online queue.
func TestOnlineWorkIsRecent(t *testing.T) {
	p, start := makeGiveway(), sched.Time(time.Second)
	recent := func(at sched.Time, dev *sched.Device, serving, hasOnline bool) bool {
		s := summary{inRotation: 1}
		s.hasOnline = hasOnline
		p.updateBusy(at, dev, serving, true, &s)
		return s.recentOnline
	}
	if recent(start, &plainGPU, false, true) {
		t.Error("before the first work")
	}
	recent(start, &plainGPU, true, true)
	end := start.Add(100 * ms)
	for _, c := range []struct {
		after     time.Duration
		dev       *sched.Device
		hasOnline bool
		want      bool
	}{
		{0, &plainGPU, true, true},
		{2*time.Second - 1, &plainGPU, true, true},
		{2*time.Second - 1, &plainGPU, false, false},
		{2*time.Second - 1, &h200Device, true, false}, // there it is known for each queue
		{2 * time.Second, &plainGPU, true, false},
	} {
		if got := recent(end.Add(c.after), c.dev, false, c.hasOnline); got != c.want {
			t.Errorf("%v after the end, slices %v, an online queue %v: got %v, want %v", c.after, c.dev.Sliced(), c.hasOnline, got, c.want)
		}
	}
}

// TestBatchWorkRunsOnForATime checks when batch work that runs on beside online work is looked at
// again: 9/8 of what a busy period takes with a stop after it began, whenever the last one ended,
// and when linger is over once the online work is done.
func TestBatchWorkRunsOnForATime(t *testing.T) {
	p, began := makeGiveway(), sched.Time(time.Second)
	p.stopCost = stopCost{runsOn: true, usuallyRunsOn: true, next: 9, stopped: meanTime{mean: 8 * ms, n: 9}}
	p.lingerUntil = began.Add(-ms)
	for _, c := range []struct {
		after   time.Duration
		serving bool
		busy    bool
		change  sched.Time
	}{
		{0, true, false, began.Add(9 * ms)},
		{2 * ms, false, false, began.Add(2*ms + p.linger)},
		{2*ms + p.linger/2, true, false, began.Add(9 * ms)},
		{9*ms - 1, true, false, began.Add(9 * ms)},
		{9 * ms, true, true, 0},
		{10 * ms, false, true, began.Add(10*ms + p.linger)},
		{10*ms + p.linger, false, false, 0},
	} {
		s := summary{inRotation: 1}
		if p.updateBusy(began.Add(c.after), &plainGPU, c.serving, true, &s); s.busy != c.busy || s.busyChange != c.change {
			t.Errorf("after %v: gives way %v, next change at %v; want %v, %v", c.after, s.busy, s.busyChange.Sub(began), c.busy, c.change.Sub(began))
		}
	}
}

// TestBusyDeviceNeedsNoLook checks that nothing is looked at again for a request that is expected while
// online work is ready: its end is an event.
func TestBusyDeviceNeedsNoLook(t *testing.T) {
	now := sched.Time(time.Second)
	p, s := makeGiveway(), summary{inRotation: 1, busyChange: now.Add(time.Minute)}
	if p.updateBusy(now, &plainGPU, true, true, &s); !s.busy || s.busyChange != 0 {
		t.Errorf("gives way %v, next change %v from now; want true and none", s.busy, s.busyChange.Sub(now))
	}
}

// TestBusyPeriodsWithoutAStopDoNotCount checks that a busy period counts only if there is batch work,
// and the setting stops it.
func TestBusyPeriodsWithoutAStopDoNotCount(t *testing.T) {
	for _, c := range []struct {
		turns       int
		stops, want bool
	}{{1, true, true}, {2, true, true}, {0, true, false}, {1, false, false}} {
		p, s := makeGiveway(), summary{inRotation: c.turns}
		if p.updateBusy(sched.Time(time.Second), &plainGPU, true, c.stops, &s); p.stopCost.counts != c.want {
			t.Errorf("%+v: the busy period counts: %v", c, p.stopCost.counts)
		}
	}
}

// TestStopCostRecordsPeriodsThatCount checks which busy periods are recorded: those that have ended
// and for which there was batch work to stop, with at most four times the stop time.
func TestStopCostRecordsPeriodsThatCount(t *testing.T) {
	var c stopCost
	at := func(s time.Duration) sched.Time { return sched.Time(s * time.Second) }
	check := func(what string, n int, mean time.Duration) {
		t.Helper()
		if c.stopped.n != n || c.stopped.mean != mean || c.beside.n != 0 {
			t.Errorf("%s: got %d periods with mean %v, want %d with %v", what, c.stopped.n, c.stopped.mean, n, mean)
		}
	}
	c.begin(at(1), ms, false)
	c.end(at(1).Add(3 * ms))
	c.begin(at(2), ms, true)
	check("no batch work", 0, 0)
	c.begin(at(3), ms, true)
	check("not ended", 0, 0)
	c.end(at(3).Add(3 * ms))
	c.begin(at(4), ms, true)
	check("ended", 1, 3*ms)
	c.end(at(4).Add(2 * ms))
	c.resume()
	c.end(at(4).Add(9 * ms))
	c.begin(at(5), ms, true)
	check("resumed, and long", 2, 3500*time.Microsecond)
}

// TestStopCostTriesLessOftenWhatIsNoBetter checks how many busy periods pass until the next trial:
// 64 at first and whenever a trial changed something, and otherwise four times as many as the
// last time, up to 4096.
func TestStopCostTriesLessOftenWhatIsNoBetter(t *testing.T) {
	for _, test := range []struct {
		keepsOn bool
		beside  time.Duration
		wait    int
		want    int
	}{
		{false, 9 * ms, 0, 64},
		{false, 9 * ms, 64, 256},
		{false, 9 * ms, 2048, 4096},
		{false, 3 * ms, 1024, 64}, // it was better
		{true, 3 * ms, 64, 256},
		{true, 9 * ms, 1024, 64},
		{false, 5*ms + 4*ms/16, 1024, 64},
		{false, 5*ms + 4*ms/16 + 1, 1024, 4096}, // a stop saves enough
	} {
		c := stopCost{usuallyRunsOn: test.keepsOn, runsOn: !test.keepsOn, wait: test.wait, stopped: meanTime{mean: 5 * ms, n: 6}, beside: meanTime{mean: test.beside, n: 6}}
		c.begin(sched.Time(time.Hour), 4*ms, true) // the trial is over
		if better := test.beside <= 5*ms+4*ms/16; c.wait != test.want || c.next != test.want || c.usuallyRunsOn != better || c.runsOn != better {
			t.Errorf("%+v: got a wait of %d, next %d, keeps on %v", test, c.wait, c.next, c.usuallyRunsOn)
		}
	}
}
