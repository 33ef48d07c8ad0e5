package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestTimeAddStopsAtNever checks that a sum beyond Never is Never: an overflow would be a
// time in the past.
func TestTimeAddStopsAtNever(t *testing.T) {
	const hour = sched.Time(time.Hour)
	for _, c := range []struct {
		t    sched.Time
		d    time.Duration
		want sched.Time
	}{
		{0, 0, 0},
		{hour, time.Second, hour + sched.Time(time.Second)},
		{hour, -time.Second, hour - sched.Time(time.Second)},
		{sched.Never, 0, sched.Never},
		{sched.Never, 1, sched.Never},
		{sched.Never, time.Hour, sched.Never},
		{sched.Never - 1, 1, sched.Never},
		{sched.Never - 1, 2, sched.Never},
		{1, time.Duration(sched.Never), sched.Never},
		{sched.Never, -1, sched.Never - 1},
	} {
		if got := c.t.Add(c.d); got != c.want {
			t.Errorf("%d + %d: got %d, want %d", c.t, c.d, got, c.want)
		}
	}
}
