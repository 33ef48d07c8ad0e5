package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// onlineTest is the state of an online queue with a request of 2 ms every 40 ms, of which
// 1 ms is device time.
type onlineTest struct {
	onlineState
	q    sched.Queue
	last sched.Time // the last arrival
}

const (
	onlinePeriod = 40 * ms
	onlineLead   = 3 * ms
)

func newOnlineTest(counters bool) *onlineTest {
	o := &onlineTest{q: sched.Queue{ID: 1, Measured: true, Attr: sched.Attr{Class: sched.Online}}}
	o.q.Counters.Known, o.q.Visits.Known = counters, !counters
	for i := range 200 {
		o.request(sched.Time(time.Second).Add(time.Duration(i) * onlinePeriod))
	}
	return o
}

// request lets a request arrive and end.
func (o *onlineTest) request(at sched.Time) {
	o.begin(at)
	o.watch(&o.q, at)
	o.end()
	o.watch(&o.q, at.Add(2*ms))
}

func (o *onlineTest) begin(at sched.Time) {
	o.last = at
	if o.q.Counters.Known {
		o.q.Counters.Submitted++
		o.q.Counters.Launched++
		o.q.ReadySince = at
	} else {
		o.q.Visits.Arrived = at
		o.q.Visits.Count++
	}
}

func (o *onlineTest) end() {
	o.q.Served += ms
	o.q.Counters.Completed = o.q.Counters.Submitted
}

// margin of requests without jitter, and what a request with its handover takes.
const (
	onlineMargin = 100 * time.Microsecond
	onlineTakes  = ms + 300*time.Microsecond
)

var onlineClear = clearAfter(onlineLead)

func clearAfter(lead time.Duration) clearTime { return clearTime{lead, 300 * time.Microsecond} }

// TestDeviceIsClearForAnExpectedRequest checks when the device is clear for a request: from
// the lead and the margin before it until it is over, or should be if it does not come.
func TestDeviceIsClearForAnExpectedRequest(t *testing.T) {
	for _, counters := range []bool{false, true} {
		o := newOnlineTest(counters)
		next := o.last.Add(onlinePeriod)
		from, until := next.Add(-onlineLead-onlineMargin), next.Add(onlineMargin+onlineTakes)
		check := func(at sched.Time, want bool, change sched.Time) {
			t.Helper()
			o.watch(&o.q, at)
			if got, when := o.updateClear(&o.q, at, onlineClear); got != want || !near(when.Sub(change), 0, time.Microsecond) {
				t.Errorf("counters %v, %v after the request: clear %v until %v, want %v until %v",
					counters, at.Sub(next), got, when.Sub(next), want, change.Sub(next))
			}
		}
		check(next.Add(-20*ms), false, from)
		check(from-1, false, from)
		check(from, true, until)
		check(next.Add(500*time.Microsecond), true, until)
		check(until-1, true, until)
		check(until, false, from.Add(onlinePeriod)) // it did not come
		next = next.Add(onlinePeriod)
		from, until = from.Add(onlinePeriod), until.Add(onlinePeriod)
		check(from, true, until)
		o.begin(next.Add(-50 * time.Microsecond))
		if counters {
			check(next, true, until)
			o.end()
			// Over the last two periods it came 25 us a period earlier: a sixteenth of that counts.
			check(next.Add(200*time.Microsecond), false, from.Add(onlinePeriod-(50+25/16)*time.Microsecond))
			continue
		}
		over := next.Add(onlineTakes - 50*time.Microsecond)
		check(next, true, over)
		check(over-1, true, over)
		o.watch(&o.q, over)
		if got, _ := o.updateClear(&o.q, over, onlineClear); got {
			t.Error("clear although the request must be over")
		}
	}
}

// TestEarlyRequestEndsTheClearTime checks that a request that is known from the trace only, and came up to half a
// period before it was expected, is the one for which the device is clear.
func TestEarlyRequestEndsTheClearTime(t *testing.T) {
	for _, c := range []struct {
		early time.Duration
		clear bool
	}{{onlinePeriod * 5 / 11, false}, {onlinePeriod * 6 / 11, true}} {
		o := newOnlineTest(false)
		next := o.last.Add(onlinePeriod)
		at := next.Add(-ms)
		if clear, _ := o.updateClear(&o.q, at, onlineClear); !clear {
			t.Fatal("not clear for the expected request")
		}
		o.arrival = next.Add(-c.early)
		if clear, _ := o.updateClear(&o.q, at, onlineClear); clear != c.clear {
			t.Errorf("one came %v early: clear %v, want %v", c.early, clear, c.clear)
		}
	}
}

// TestDeviceIsClearOncePerRequest checks that the device is not cleared a second time for a
// request that came and ended early.
func TestDeviceIsClearOncePerRequest(t *testing.T) {
	o := newOnlineTest(true)
	next := o.last.Add(onlinePeriod)
	cleared := 0
	was := false
	for at := next.Add(-10 * ms); at < next.Add(10*onlinePeriod-10*ms); at = at.Add(100 * time.Microsecond) {
		if phase := at.Sub(next.Add(-10*ms)) % onlinePeriod; phase == 8*ms { // 2 ms early
			o.begin(at)
		} else if phase == 10*ms {
			o.end()
		}
		o.watch(&o.q, at)
		wanted, _ := o.updateClear(&o.q, at, onlineClear)
		if wanted && !was {
			cleared++
		}
		was = wanted
	}
	if cleared != 10 {
		t.Errorf("the device was cleared %d times for 10 requests", cleared)
	}
}

// TestPredictableRequests checks that the device is cleared only if that leaves batch work
// more than half of the time.
func TestPredictableRequests(t *testing.T) {
	o := newOnlineTest(true)
	now := o.last.Add(ms)
	// The lead, twice the margin, a request and the handover are half of the period.
	longest := onlinePeriod/2 - 2*onlineMargin - onlineTakes
	if o.work.mean != ms {
		t.Fatalf("got a mean of %v of device time for each request, want 1 ms", o.work.mean)
	}
	if !o.predictable(now, clearAfter(longest-1)) || o.predictable(now, clearAfter(longest)) {
		t.Errorf("with a lead of %v: predictable %v, one nanosecond less %v; want false and true", longest, o.predictable(now, clearAfter(longest)), o.predictable(now, clearAfter(longest-1)))
	}
	if wanted, change := o.updateClear(&o.q, now, clearAfter(longest)); wanted || change != 0 {
		t.Errorf("with a lead that is too long: clear %v until %v, want never", wanted, change)
	}
	if o.predictable(now.Add(5*onlinePeriod), clearAfter(ms)) {
		t.Error("predictable long after the last request")
	}
	o.work = meanTime{}
	if o.predictable(now, clearAfter(ms)) {
		t.Error("predictable although the device time of a request is not known")
	}
}

// TestMarginFollowsTheJitter checks the limits of the margin: twice the jitter, at least
// 100 us and at most 1 ms.
func TestMarginFollowsTheJitter(t *testing.T) {
	for jitter, want := range map[time.Duration]time.Duration{
		0: 100 * time.Microsecond, 50 * time.Microsecond: 100 * time.Microsecond, 60 * time.Microsecond: 120 * time.Microsecond,
		400 * time.Microsecond: 800 * time.Microsecond, 600 * time.Microsecond: ms, time.Second: ms,
	} {
		o := onlineState{rhythm: rhythm{jitter: jitter}}
		if got := o.margin(); got != want {
			t.Errorf("jitter of %v: got a margin of %v, want %v", jitter, got, want)
		}
	}
}

// TestWorkOfARequest checks that the device time of a request is not measured over an arrival
// that was missed.
func TestWorkOfARequest(t *testing.T) {
	o := newOnlineTest(false)
	n := o.work.n
	o.end() // of a request whose arrival was not noticed
	o.request(o.last.Add(2 * onlinePeriod))
	if o.work.n != n || o.work.mean != ms {
		t.Errorf("got %d values with mean %v, want %d with 1 ms", o.work.n, o.work.mean, n)
	}
	// One request is enough to know it.
	if o.work = (meanTime{}); o.predictable(o.last.Add(ms), clearAfter(onlineLead)) {
		t.Error("requests are predictable before the device time of one is known")
	}
	o.request(o.last.Add(onlinePeriod))
	o.request(o.last.Add(onlinePeriod))
	if o.work.n = 1; !o.predictable(o.last.Add(ms), clearAfter(onlineLead)) {
		t.Error("requests are not predictable although the device time of one is known")
	}
	// A queue that has had no work has no arrival.
	idle := &onlineTest{q: sched.Queue{ID: 1, Counters: sched.Counters{Known: true}}}
	if idle.watch(&idle.q, sched.Time(time.Second)); idle.arrival != 0 || idle.rhythm != (rhythm{}) {
		t.Errorf("an idle queue: got an arrival at %v", idle.arrival)
	}
}

// TestOnlineQueueIsActive checks what counts as work of an online queue, and that the queue
// is taken for active until two seconds after the last.
func TestOnlineQueueIsActive(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(q *sched.Queue)
		want   bool
	}{
		{"nothing", func(*sched.Queue) {}, false},
		{"device time", func(q *sched.Queue) { q.Served++ }, true},
		{"a visit", func(q *sched.Queue) { q.Visits.Count++ }, true},
		{"an open request", func(q *sched.Queue) { q.OpenRequests = 1 }, true},
		{"a command", func(q *sched.Queue) { q.Counters = sched.Counters{Known: true, Submitted: 1} }, true},
		{"counters without work", func(q *sched.Queue) { q.Counters.Known, q.Measured = true, false }, false},
		{"not known", func(q *sched.Queue) { q.Measured = false }, true},
	} {
		var o onlineState
		q := sched.Queue{Measured: true, Visits: sched.Visits{Known: true}}
		from := sched.Time(time.Second)
		o.watch(&q, from)
		if active, until := o.active(from.Add(2*time.Second - 1)); !active || until != from.Add(2*time.Second) {
			t.Errorf("%s: a new queue is active %v until %v, want for 2s", tt.name, active, until.Sub(from))
		}
		now := from.Add(3 * time.Second)
		o.watch(&q, now)
		if active, _ := o.active(now); active {
			t.Errorf("%s: active before, want not", tt.name)
		}
		tt.change(&q)
		o.watch(&q, now.Add(ms))
		if active, _ := o.active(now.Add(ms)); active != tt.want {
			t.Errorf("%s: active %v, want %v", tt.name, active, tt.want)
		}
		// What has been seen once is no work any more.
		if tt.name == "device time" || tt.name == "a visit" {
			o.watch(&q, now.Add(2*time.Second))
			if active, _ := o.active(now.Add(2*time.Second + ms)); active {
				t.Errorf("%s: active 2 s later, want not", tt.name)
			}
		}
	}
}

// TestRequestsOfSeveralQueues checks that the device is cleared for the requests of any online
// queue, announced or regular, and that requests count as predicted only if those of all
// active queues come regularly.
func TestRequestsOfSeveralQueues(t *testing.T) {
	const lead = 3 * ms
	regular := newOnlineTest(true)
	now := regular.last.Add(onlinePeriod / 2)
	plan := func(announced sched.Time, others ...sched.Queue) summary {
		p := makeGiveway()
		v := &sched.View{Now: now, Devices: []sched.Device{h200Device}, Queues: []sched.Queue{regular.q}}
		v.Queues[0].Attr.Expect = announced
		v.Queues = append(v.Queues, others...)
		p.onlineStates.update(v.Queues)[0] = regular.onlineState
		s := summary{}
		p.watchOnline(v, clearAfter(lead), &s, &setting{})
		return s
	}
	known := sched.Counters{Known: true}
	queue := sched.Queue{ID: 2, Counters: known, Measured: true, Attr: sched.Attr{Class: sched.Online}}
	next := regular.last.Add(onlinePeriod - lead - onlineMargin)
	if s := plan(0); !s.predicted || s.wantClear || s.activeOnline != 1 || !near(s.onlineChange.Sub(next), 0, time.Microsecond) {
		t.Errorf("one regular queue: predicted %v, clear %v, %d active, change after %v", s.predicted, s.wantClear, s.activeOnline, s.onlineChange.Sub(now))
	}
	if s := plan(0, queue); s.predicted || s.activeOnline != 2 {
		t.Errorf("beside an irregular one: predicted %v with %d active, want false with 2", s.predicted, s.activeOnline)
	}
	paused := queue
	paused.Attr.Paused = true
	batch := queue
	batch.ID, batch.Attr.Class = 3, sched.Batch
	if s := plan(0, paused, batch); !s.predicted || s.activeOnline != 1 {
		t.Errorf("beside a paused one and a batch queue: predicted %v with %d active, want true with 1", s.predicted, s.activeOnline)
	}
	if s := plan(now.Add(10 * ms)); s.wantClear || s.onlineChange != now.Add(7*ms) {
		t.Errorf("a request is announced in 10 ms: clear %v, change after %v; want false, 7ms", s.wantClear, s.onlineChange.Sub(now))
	}
	const notice = lead - lead/4 // the least that is in time
	if s := plan(now.Add(notice)); !s.wantClear || !s.expecting || s.onlineChange != now.Add(notice+2*ms) {
		t.Errorf("a request is announced in %v: clear %v, change after %v; want true, %v with the patience", notice, s.wantClear, s.onlineChange.Sub(now), notice+2*ms)
	}
	if s := plan(now.Add(notice - 1)); s.wantClear || !s.expecting || s.onlineChange != now.Add(notice-1+2*ms) {
		t.Errorf("a request is announced too late: clear %v, expecting %v, change after %v; want false, true, %v", s.wantClear, s.expecting, s.onlineChange.Sub(now), notice-1+2*ms)
	}
	announced := queue
	announced.Attr.Expect = now.Add(notice)
	if s := plan(0, announced); !s.wantClear {
		t.Error("a request of the second queue is announced: the device is not cleared")
	}
	if s := plan(now.Add(notice), queue); !s.wantClear {
		t.Error("a request of the first queue is announced: the device is not cleared")
	}
	for _, c := range []struct {
		name   string
		change func(q *sched.Queue)
		want   bool
	}{
		{"with counters", func(*sched.Queue) {}, false},
		{"known from the trace", func(q *sched.Queue) { q.Counters.Known, q.Visits.Known = false, true }, true},
		{"known from neither", func(q *sched.Queue) { q.Counters.Known = false }, false},
		{"paused", func(q *sched.Queue) { q.Counters.Known, q.Visits.Known, q.Attr.Paused = false, true, true }, false},
	} {
		other := queue
		c.change(&other)
		if s := plan(0, other); s.uncounted != c.want {
			t.Errorf("beside a queue %s: uncounted %v, want %v", c.name, s.uncounted, c.want)
		}
	}
	now = next.Add(ms)
	regular.clear.pauses = usualRequests
	if s := plan(0); s.predicted {
		t.Error("requests run out of work for moments: they count as predicted")
	}
	regular.clear.pauses--
	if s := plan(0); !s.predicted {
		t.Error("one request ran out of work for a moment: requests do not count as predicted")
	}
	if s := plan(now.Add(10 * ms)); !s.wantClear {
		t.Error("a regular request comes in 2 ms, and one is announced for later: the device is not cleared")
	}
	none := makeGiveway()
	v := &sched.View{Now: now, Devices: []sched.Device{h200Device}}
	s := summary{}
	if none.watchOnline(v, clearAfter(lead), &s, &setting{}); s.predicted {
		t.Error("no online queue: predicted")
	}
}

// TestIdleQueueHasNoArrivals checks that a queue that counters show to be idle from the first has none.
func TestIdleQueueHasNoArrivals(t *testing.T) {
	var o onlineState
	q := sched.Queue{ID: 1, Counters: sched.Counters{Known: true}, Visits: sched.Visits{Known: true, Arrived: sched.Time(ms)}}
	if o.watch(&q, sched.Time(time.Second)); o.arrival != 0 || o.rhythm.last != 0 {
		t.Errorf("got an arrival at %d, want none", o.arrival)
	}
}

// TestBusyQueueHasNoArrivals checks that a queue which is never idle has one arrival, although
// its oldest work changes all the time.
func TestBusyQueueHasNoArrivals(t *testing.T) {
	o := newOnlineTest(true)
	last := o.last.Add(onlinePeriod)
	o.begin(last)
	for i := range 20 {
		o.q.ReadySince = last.Add(time.Duration(i) * 20 * ms)
		o.watch(&o.q, o.q.ReadySince)
	}
	if o.arrival != last {
		t.Errorf("got an arrival %v after the queue became busy, want none", o.arrival.Sub(last))
	}
}

// TestRequestsFiveMillisecondsApart checks that requests as often as every 5 ms are told apart
// by the trace alone.
func TestRequestsFiveMillisecondsApart(t *testing.T) {
	o := &onlineTest{q: sched.Queue{ID: 1, Measured: true, Visits: sched.Visits{Known: true}}}
	for i := range 20 {
		o.request(sched.Time(time.Second).Add(time.Duration(i) * 5 * ms))
	}
	if got := o.rhythm.period; got != 5*ms {
		t.Errorf("got a period of %v, want 5 ms", got)
	}
}
