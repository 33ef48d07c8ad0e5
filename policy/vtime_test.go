package policy

import (
	"testing"

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
