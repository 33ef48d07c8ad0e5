package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestClockAdvancesOnlyByService checks that plans without service do not move the clock,
// however many there are: a newcomer would start as far behind the others.
func TestClockAdvancesOnlyByService(t *testing.T) {
	var c vclock
	members := make([]vtime, 3)
	plan := func(at sched.Time, served bool) {
		for i := range members {
			if served {
				members[i].charge(ms, unit)
			}
			c.see(&members[i], unit)
		}
		c.tick(at)
		for i := range members {
			c.join(&members[i], true, 0)
		}
	}
	plan(1, false)
	plan(2, true)
	if c.now != ms {
		t.Fatalf("each of three members had 1 ms: the clock is at %v, want 1ms", c.now)
	}
	for i := range sched.Time(1000) {
		plan(3+i, false)
	}
	if c.now != ms {
		t.Errorf("after 1000 plans without service the clock is at %v, want 1ms", c.now)
	}
}

// TestPrepaidTurnIsChargedOnce checks that service that is measured after its turn was charged is
// not charged again, up to 100 ms of it.
func TestPrepaidTurnIsChargedOnce(t *testing.T) {
	var v vtime
	for i, c := range []struct{ prepay, used, want time.Duration }{
		{50 * ms, 0, 50 * ms},
		{0, 30 * ms, 50 * ms},
		{0, 30 * ms, 60 * ms},
		{70 * ms, 0, 130 * ms},
		{70 * ms, 0, 200 * ms},
		{0, 110 * ms, 210 * ms},
	} {
		if c.prepay > 0 {
			v.prepay(c.prepay, unit)
		} else {
			v.charge(c.used, unit)
		}
		if v.at != c.want {
			t.Errorf("after %d of the turns and charges: virtual time %v, want %v", i+1, v.at, c.want)
		}
	}
}
