package daemon

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestOldRequestsLeaveTheQuantiles: a request counts for a minute, so that a process that
// has stopped answering requests has no P99.
func TestOldRequestsLeaveTheQuantiles(t *testing.T) {
	var r requests
	at := func(d time.Duration) sched.Time { return sched.Time(d) }
	for i := range 300 { // more than are kept
		r.add(time.Second, at(time.Duration(i)*time.Millisecond))
	}
	for _, c := range []struct {
		now   time.Duration
		add   bool
		count uint64
		want  time.Duration
	}{
		{now: time.Second, count: 300, want: time.Second},
		{now: requestWindow, count: 300, want: time.Second},
		{now: requestWindow + 300*time.Millisecond, count: 300, want: 0},
		{now: time.Hour, count: 300, want: 0},
		{now: time.Hour, add: true, count: 301, want: time.Millisecond},
		{now: time.Hour + requestWindow, count: 301, want: time.Millisecond},
		{now: time.Hour + requestWindow + 1, count: 301, want: 0},
	} {
		if c.add {
			r.add(time.Millisecond, at(c.now))
		}
		v := requestsView{count: r.count, last: r.last}
		if got := v.describe(at(c.now)); got.Count != c.count || got.P50 != c.want || got.P99 != c.want {
			t.Errorf("at %v: got %+v, want %d requests and quantiles of %v", c.now, got, c.count, c.want)
		}
	}
}
