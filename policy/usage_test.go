package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestUsageOfAStandardQueue checks that a standard queue uses much of the device if it had an
// eighth of a window of 100 ms, for two seconds from then on, and that this is known only with
// counters or measurements.
func TestUsageOfAStandardQueue(t *testing.T) {
	measured, counted := sched.Queue{Measured: true}, sched.Queue{Counters: sched.Counters{Known: true}}
	for _, tt := range []struct {
		name   string
		q      sched.Queue
		served time.Duration // in a window
		want   bool
	}{
		{"an eighth, measured", measured, 12500 * time.Microsecond, true},
		{"less, measured", measured, 12500*time.Microsecond - 1, false},
		{"an eighth, with counters", counted, 12500 * time.Microsecond, true},
		{"less, with counters", counted, 12500*time.Microsecond - 1, false},
		{"all, not known", sched.Queue{}, 100 * ms, false},
	} {
		var u usageState
		now := sched.Time(time.Minute)
		tt.q.Served = time.Hour // from before
		watch := func(after time.Duration) bool {
			now = now.Add(after)
			tt.q.MeasuredAt = now
			return u.watch(&tt.q, now)
		}
		if watch(0) {
			t.Errorf("%s: it uses much before a window is over", tt.name)
		}
		tt.q.Served += tt.served
		if watch(99 * ms) {
			t.Errorf("%s: it uses much before a window is over", tt.name)
		}
		if got := watch(ms); got != tt.want {
			t.Errorf("%s: it uses much: %v, want %v", tt.name, got, tt.want)
		}
		if got := watch(2*time.Second - 1); got != tt.want {
			t.Errorf("%s: it uses much almost two seconds later: %v, want %v", tt.name, got, tt.want)
		}
		if watch(1) {
			t.Errorf("%s: it uses much two seconds later", tt.name)
		}
	}
	// A window is as long as the time between the measurements that it is for.
	var u usageState
	q := sched.Queue{Measured: true, MeasuredAt: sched.Time(time.Minute)}
	u.watch(&q, q.MeasuredAt)
	q.Served = 50 * ms
	if u.watch(&q, q.MeasuredAt.Add(200*ms)) {
		t.Error("it uses much although it was not measured again")
	}
}

// TestUsageWakesThePolicy checks that the policy looks again when a window of a standard queue
// that has work is over, and when the queue no longer counts as one that uses much.
func TestUsageWakesThePolicy(t *testing.T) {
	now := sched.Time(time.Minute)
	q := sched.Queue{Counters: sched.Counters{Known: true, Submitted: 1}}
	p, a, s := makeGiveway(), queueState{}, summary{}
	p.watchStandard(now, &q, &a, &s)
	if s.busyStandard != 0 || s.usageChange != now.Add(100*ms) {
		t.Errorf("at first: %d use much, the next look is after %v; want 0, 100ms", s.busyStandard, s.usageChange.Sub(now))
	}
	q.Served = 90 * ms
	now, s = now.Add(100*ms), summary{}
	p.watchStandard(now, &q, &a, &s)
	if s.busyStandard != 1 || s.usageChange != now.Add(100*ms) {
		t.Errorf("after a busy window: %d use much, the next look is after %v; want 1, 100ms", s.busyStandard, s.usageChange.Sub(now))
	}
	q.Counters.Completed = 1
	now, s = now.Add(50*ms), summary{}
	p.watchStandard(now, &q, &a, &s)
	if s.busyStandard != 1 || s.usageChange != now.Add(1950*ms) {
		t.Errorf("idle now: %d use much, the next look is after %v; want 1, 1.95s", s.busyStandard, s.usageChange.Sub(now))
	}
	now, s = now.Add(2*time.Second), summary{}
	p.watchStandard(now, &q, &a, &s)
	if s.busyStandard != 0 || s.usageChange != 0 {
		t.Errorf("idle for two seconds: %d use much, the next look is at %v; want 0 and never", s.busyStandard, s.usageChange)
	}
}
