package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestAnnouncedRequest checks for which time a request that was announced is expected, and whether the
// device is cleared for it: not if the stops would interrupt it.
func TestAnnouncedRequest(t *testing.T) {
	const lead, patience, longest = 4 * ms, 2 * ms, 12 * ms
	const seen = sched.Time(time.Second) // when the request is announced
	type check struct {
		after           time.Duration // the announcement
		expected, clear bool
		change          time.Duration // after the announcement; zero: none
	}
	for _, tt := range []struct {
		name      string
		notice    time.Duration // from the announcement to the expected time
		arrives   time.Duration // after the announcement; zero: it does not come
		ends      time.Duration
		uncounted bool
		checks    []check
	}{
		{"not announced", -time.Duration(seen), 0, 0, false, []check{{0, false, false, 0}}},
		{"does not come", 10 * ms, 0, 0, false, []check{{0, false, false, 6 * ms}, {6*ms - 1, false, false, 6 * ms}, {6 * ms, true, true, 12 * ms}, {12*ms - 1, true, true, 12 * ms}, {12 * ms, false, false, 0}, {13 * ms, false, false, 0}}},
		{"comes and ends", 10 * ms, 10 * ms, 15 * ms, false, []check{{6 * ms, true, true, 12 * ms}, {10 * ms, true, true, 22 * ms}, {14 * ms, true, true, 22 * ms}, {15 * ms, false, false, 0}, {16 * ms, false, false, 0}}},
		{"takes too long", 10 * ms, 10 * ms, time.Second, false, []check{{22*ms - 1, true, true, 22 * ms}, {22 * ms, false, false, 0}}},
		{"announced just in time", 3 * ms, 3 * ms, 5 * ms, false, []check{{0, true, true, 5 * ms}, {4 * ms, true, true, 15 * ms}, {5 * ms, false, false, 0}}},
		{"announced too late", 3*ms - 1, 3 * ms, 5 * ms, false, []check{{0, true, false, 5*ms - 1}, {4 * ms, true, false, 15 * ms}, {5 * ms, false, false, 0}}},
		{"comes much too early", 10 * ms, 2 * ms, 4 * ms, false, []check{{0, false, false, 6 * ms}, {2 * ms, true, false, 14 * ms}, {4 * ms, false, false, 0}, {8 * ms, false, false, 0}}},
		{"cannot be seen to come", 10 * ms, 10 * ms, 15 * ms, true, []check{{6 * ms, true, true, 12 * ms}, {11 * ms, true, true, 12 * ms}, {12 * ms, false, false, 0}}},
	} {
		var a announced
		q := sched.Queue{Counters: sched.Counters{Known: !tt.uncounted}, Attr: sched.Attr{Expect: seen.Add(tt.notice)}}
		a.update(&q, seen, lead, patience, longest)
		for _, c := range tt.checks {
			if tt.arrives > 0 && c.after >= tt.arrives && q.Counters.Submitted == 0 {
				q.Counters.Submitted, q.ReadySince = 1, seen.Add(tt.arrives)
			}
			if tt.ends > 0 && c.after >= tt.ends {
				q.Counters.Completed = q.Counters.Submitted
			}
			var change sched.Time
			if c.change > 0 {
				change = seen.Add(c.change)
			}
			if expected, clear, at := a.update(&q, seen.Add(c.after), lead, patience, longest); expected != c.expected || clear != c.clear || at != change {
				t.Errorf("%s, after %v: expected %v, clear %v, change after %v; want %+v", tt.name, c.after, expected, clear, at.Sub(seen), c)
			}
		}
	}
}

// TestAnnouncedRequestStaysExpected checks that a request for which the device is being cleared stays expected
// when the lead becomes shorter, so that nothing is started again for a moment.
func TestAnnouncedRequestStaysExpected(t *testing.T) {
	var a announced
	now := sched.Time(time.Second)
	q := sched.Queue{Counters: sched.Counters{Known: true}, Attr: sched.Attr{Expect: now.Add(10 * ms)}}
	a.update(&q, now, 4*ms, 2*ms, 12*ms)
	for _, lead := range []time.Duration{4 * ms, ms} {
		if expected, clear, change := a.update(&q, now.Add(6*ms), lead, 2*ms, 12*ms); !expected || !clear || change != now.Add(12*ms) {
			t.Errorf("lead of %v: expected %v, clear %v, change after %v; want both, and 12ms", lead, expected, clear, change.Sub(now))
		}
	}
}

// TestAnnouncedAgain checks that the next announcement begins anew, and that a second request which was
// not announced is not expected.
func TestAnnouncedAgain(t *testing.T) {
	var a announced
	now := sched.Time(time.Second)
	q := sched.Queue{Counters: sched.Counters{Known: true}, Attr: sched.Attr{Expect: now.Add(10 * ms)}}
	for i := range 3 {
		q.Attr.Expect = now.Add(10 * ms)
		a.update(&q, now, 4*ms, 2*ms, 12*ms)
		now = now.Add(10 * ms)
		q.Counters.Submitted, q.ReadySince = q.Counters.Submitted+1, now
		if expected, clear, _ := a.update(&q, now, 4*ms, 2*ms, 12*ms); !expected || !clear {
			t.Errorf("request %d: expected %v, clear %v; want both", i, expected, clear)
		}
		q.Counters.Completed++
		a.update(&q, now.Add(ms), 4*ms, 2*ms, 12*ms)
		q.Counters.Submitted, q.ReadySince = q.Counters.Submitted+1, now.Add(2*ms)
		if expected, _, _ := a.update(&q, now.Add(2*ms), 4*ms, 2*ms, 12*ms); expected {
			t.Errorf("request %d: one that was not announced is expected", i)
		}
		q.Counters.Completed++
		now = now.Add(20 * ms)
	}
}

// TestAnnouncedRequestIsNotInterrupted checks that light jobs which were stopped for an announced request
// are started again when it is over, not while it is served, and that none is stopped for a request that
// is announced too late.
func TestAnnouncedRequestIsNotInterrupted(t *testing.T) {
	for _, notice := range []time.Duration{10 * ms, ms / 2} {
		l, jobs := newShared(t, nil, lightBurst, lightBurst, lightBurst)
		var arrivals []sched.Time
		online := l.open(class(sched.Online), func(j *job, now sched.Time) {
			for len(arrivals) > 0 && arrivals[0] <= now {
				j.submit(now, 5*ms)
				arrivals = arrivals[1:]
			}
		})
		l.run(2 * time.Second)
		calls, clear, requests := 0, 0, 0
		for i := range 40 {
			at := l.now.Add(notice)
			arrivals = append(arrivals, at)
			l.setAttr(online, func(a *sched.Attr) { a.Expect = at })
			seen, was := false, -1
			l.run(time.Duration(70+13*(i%5))*ms, func() {
				n := 0
				for _, j := range jobs {
					if j.running {
						n++
					}
				}
				if len(online.todo) > 0 && i >= 10 { // at first light jobs take turns: see learnTime
					if seen && n != was {
						calls++
					}
					if !seen && n == 1 {
						clear++
					}
					seen, was = true, n
				}
			})
			if seen {
				requests++
			}
		}
		if requests != 30 || calls > 0 {
			t.Errorf("notice of %v: of %d requests, in %d ticks jobs were stopped or started; want 30 and none", notice, requests, calls)
		}
		if want := notice > ms; (clear > 25) != want || !want && clear > 0 {
			t.Errorf("notice of %v: %d of 30 requests found one job on the device, want most: %v", notice, clear, want)
		}
	}
}
