package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// clearedRequests runs n requests, every apart, of 20 visits of 100 us each. A request takes cleared
// with a clear device and beside otherwise. It returns for how many the device was clear from the
// start, and for how many only later.
func (c *requestClear) clearedRequests(q *sched.Queue, n int, every, cleared, beside time.Duration) (clear, late int) {
	for range n {
		at := max(c.began, 1).Add(every)
		c.arrived(at, q)
		now, end, wasClear := at, at.Add(beside), false
		for step := 0; now < end; step++ {
			c.watch(q, now, true)
			isClear, look := c.update(q, now, true, false)
			switch {
			case isClear && step == 0:
				clear++
				end = at.Add(cleared)
			case isClear && !wasClear:
				late++
				end = min(end, now.Add(cleared))
			}
			wasClear = wasClear || isClear
			if look == 0 {
				look = end
			}
			now = min(look, end)
		}
		c.watch(q, end, true)
		q.Visits.Count += 20
		q.Counters.Launched += 20
		q.Served += 2 * ms
	}
	return clear, late
}

func countedQueue() *sched.Queue {
	return &sched.Queue{Counters: sched.Counters{Known: true}, Visits: sched.Visits{Known: true}}
}

func TestDeviceIsClearForRequestsThatWouldTakeLonger(t *testing.T) {
	for _, test := range []struct {
		cleared, beside time.Duration
		clear           bool
	}{
		{8 * ms, 47 * ms, true},
		{8 * ms, 14 * ms, true},
		{8 * ms, 11 * ms, false}, // an eager program
		{8 * ms, 8 * ms, false},
	} {
		var c requestClear
		clear, late := c.clearedRequests(countedQueue(), 1000, 100*ms, test.cleared, test.beside)
		if test.clear && (clear < 950 || clear+late > 1000-usualRequests) || !test.clear && clear > 50 {
			t.Errorf("%v with a clear device, %v beside light queues: got %d of 1000 with a clear device and %d cleared late", test.cleared, test.beside, clear, late)
		}
	}
}

func TestProbesOfRequestClearAreRareAndShort(t *testing.T) {
	var c requestClear
	q := countedQueue()
	c.clearedRequests(q, 100, 100*ms, 8*ms, 47*ms)
	if clear, late := c.clearedRequests(q, 1000, 100*ms, 8*ms, 47*ms); clear+late != 1000 || late > 2*probedRequests {
		t.Errorf("got %d of 1000 requests with a clear device and %d cleared late, want few cleared late and none not at all", clear, late)
	}
}

// TestFollow checks that the score of a property changes by one with each request, and has limits, so that a few
// requests change what is expected.
func TestFollow(t *testing.T) {
	score := 0
	for _, want := range []int{1, 2, 3, 4, 5, 6, 7, 8, 8, 8} {
		if follow(&score, true); score != want {
			t.Errorf("got %d, want %d", score, want)
		}
	}
	for _, want := range []int{7, 6, 5, 4, 3, 2, 1, 0, 0} {
		if follow(&score, false); score != want {
			t.Errorf("got %d, want %d", score, want)
		}
	}
}

// TestProbeOfRequestClear checks that a probe lets light queues run on in four requests: after the first six
// requests, then after 1024 others, and then each time after 4096 others.
func TestProbeOfRequestClear(t *testing.T) {
	var c requestClear
	q := countedQueue()
	var probed []int
	for i := range 10_000 {
		at := sched.Time(time.Duration(i+1) * 100 * ms)
		if c.arrived(at, q); c.runsOn {
			probed = append(probed, i)
		}
		c.watch(q, at.Add(ms), true)
		c.update(q, at.Add(ms), true, false)
		took := 8 * ms
		if c.runsOn {
			took = 20 * ms // longer, but not so much that the probe ends
		}
		q.Visits.Count += 20
		q.Counters.Launched += 20
		q.Served += 2 * ms
		c.watch(q, at.Add(took), true)
		c.update(q, at.Add(took), true, false)
	}
	if want := []int{6, 7, 8, 9, 1034, 1035, 1036, 1037, 5134, 5135, 5136, 5137, 9234, 9235, 9236, 9237}; !slices.Equal(probed, want) {
		t.Errorf("light queues run on in the requests %v, want %v", probed, want)
	}
}

func TestRequestClearFollowsTheLoad(t *testing.T) {
	var c requestClear
	q := countedQueue()
	c.clearedRequests(q, 100, 100*ms, 8*ms, 9*ms)
	if clear, late := c.clearedRequests(q, 200, 100*ms, 8*ms, 47*ms); clear < 150 {
		t.Errorf("requests that became slow: got %d of 200 with a clear device and %d cleared late, want most", clear, late)
	}
	const n = firstProbeWait * 3 / 2
	if clear, _ := c.clearedRequests(q, n, 100*ms, 8*ms, 9*ms); clear > n*3/4 {
		t.Errorf("requests that became fast: got %d of %d with a clear device, want fewer after the next probe", clear, n)
	}
}

func TestDeviceIsNotClearForOtherRequests(t *testing.T) {
	us := time.Microsecond
	for _, test := range []struct {
		name    string
		visits  uint64
		served  time.Duration
		sharing bool
		clear   bool
	}{
		{"many short visits", 20, 2 * ms, true, true},
		{"few visits", 5, 500 * us, true, false},
		{"just many visits", 6, 500 * us, true, true},
		{"visits that end with a slice", 20, 20*500*us + us, true, false},
		{"light queues take turns", 20, 2 * ms, false, false},
	} {
		var c requestClear
		q, clear := countedQueue(), false
		for i := range usualRequests + 2 { // before the first probe
			at := sched.Time(time.Duration(i+1) * 100 * ms)
			c.arrived(at, q)
			c.watch(q, at.Add(ms), true)
			clear, _ = c.update(q, at.Add(ms), test.sharing, false)
			q.Visits.Count += test.visits
			q.Counters.Launched += test.visits
			q.Served += test.served
		}
		if clear != test.clear {
			t.Errorf("%s: got clear %v, want %v", test.name, clear, test.clear)
		}
	}
}

func TestClearDeviceEndsWithTheRequest(t *testing.T) {
	for _, counters := range []bool{true, false} {
		gap := requestGap
		if !counters {
			gap = sched.MinAbsence
		}
		q := &sched.Queue{Visits: sched.Visits{Known: true}}
		q.Counters.Known = counters
		at := sched.Time(time.Second)
		c := requestClear{many: usualRequests, began: at}
		q.Visits.Left = at.Add(ms)
		c.watch(q, at.Add(ms), counters)
		if clear, look := c.update(q, at.Add(ms+gap-1), true, false); !clear || look == 0 {
			t.Errorf("counters %v: got clear %v and look %v shortly after work, want true and a time", counters, clear, look)
		}
		if clear, look := c.update(q, at.Add(ms+gap), true, false); clear || look != 0 {
			t.Errorf("counters %v: got clear %v and look %v after the request, want false and none", counters, clear, look)
		}
		c.watch(q, at.Add(maxRequestClear), true)
		if clear, _ := c.update(q, at.Add(maxRequestClear), true, false); clear {
			t.Errorf("counters %v: the device is clear for a request without an end", counters)
		}
	}
}

func TestRequestsThatAreTakenForOneAreNotSlow(t *testing.T) {
	var cleared, beside requestMeans
	cleared.add(8*ms, 2*ms)
	beside.add(27*ms, 6*ms) // three requests
	if got := beside.slowdown(&cleared, false); got < 1 || got > 1.5 {
		t.Errorf("got a slowdown of %v, want that of one request", got)
	}
}

// TestProbesOfRequestClearSpareTheP99 checks that after the first requests fewer than one in a hundred is
// part of a probe.
func TestProbesOfRequestClearSpareTheP99(t *testing.T) {
	for _, n := range []int{400, 2000} {
		var c requestClear
		q := countedQueue()
		c.clearedRequests(q, 20, 100*ms, 8*ms, 47*ms)
		if clear, _ := c.clearedRequests(q, n, 100*ms, 8*ms, 47*ms); 100*(n-clear) >= n {
			t.Errorf("the device was clear for %d of %d requests from the start, want more than 99 of 100", clear, n)
		}
	}
}

// TestRequestClearProbesTheClearDevice checks that light queues do not run on for ever once a probe has let
// them: requests that then take longer, but not so much that it is noticed at once, are compared anew.
func TestRequestClearProbesTheClearDevice(t *testing.T) {
	var c requestClear
	q := countedQueue()
	if clear, _ := c.clearedRequests(q, 100, 100*ms, 8*ms, 9*ms); clear > 20 {
		t.Fatalf("the device is clear for %d of 100 requests that hardly take longer", clear)
	}
	c.clearedRequests(q, firstProbeWait, 100*ms, 8*ms, 15*ms)
	if clear, _ := c.clearedRequests(q, 100, 100*ms, 8*ms, 15*ms); clear < 90 {
		t.Errorf("got %d of 100 requests with a clear device after the next probe, want nearly all", clear)
	}
}

// TestSlowdownIsForTheWork checks that three requests that were taken for one with a clear device do not hide
// that a request takes longer beside light queues.
func TestSlowdownIsForTheWork(t *testing.T) {
	var cleared, beside requestMeans
	cleared.add(24*ms, 60*time.Microsecond)
	beside.add(16*ms, 20*time.Microsecond)
	if got := beside.slowdown(&cleared, true); got < 1.9 || got > 2.1 {
		t.Errorf("got a slowdown of %v by launches, want 2", got)
	}
}

// TestDeviceIsClearForRegularRequestsThatPause checks that the device is clear to the end of regular
// requests that run out of work for moments, however seldom they come on.
func TestDeviceIsClearForRegularRequestsThatPause(t *testing.T) {
	for _, regular := range []bool{true, false} {
		c := requestClear{regular: regular}
		q, clear := countedQueue(), false
		for i := range usualRequests + 2 {
			at := sched.Time(time.Duration(i+1) * 100 * ms)
			c.arrived(at, q)
			c.watch(q, at.Add(ms), true)
			c.paused = true
			clear, _ = c.update(q, at.Add(ms), true, false)
			q.Visits.Count += 2
		}
		if clear != regular {
			t.Errorf("regular %v: got clear %v", regular, clear)
		}
	}
}
