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
	entities := make([]vtime, 3)
	plan := func(at sched.Time, served bool) {
		for i := range entities {
			if served {
				entities[i].charge(ms, unit)
			}
			c.see(&entities[i], unit)
		}
		c.tick(at)
		for i := range entities {
			c.join(&entities[i], true, 0)
		}
	}
	plan(1, false)
	plan(2, true)
	if c.now != ms {
		t.Fatalf("each of three entities had 1 ms: the clock is at %v, want 1ms", c.now)
	}
	for i := range sched.Time(1000) {
		plan(3+i, false)
	}
	if c.now != ms {
		t.Errorf("after 1000 plans without service the clock is at %v, want 1ms", c.now)
	}
}

// TestClockIsNotBehindItsEntities checks that the clock is at least the lowest virtual time of an
// active entity, also if that was charged for a turn without service: a newcomer would have the
// device alone until it has caught up.
func TestClockIsNotBehindItsEntities(t *testing.T) {
	var c vclock
	entities := make([]vtime, 2)
	plan := func(at sched.Time, active ...bool) {
		for i := range entities {
			c.see(&entities[i], unit)
		}
		c.tick(at)
		for i := range entities {
			c.join(&entities[i], active[i], 0)
		}
	}
	plan(1, true, true)
	entities[0].prepay(50*ms, unit)
	entities[1].prepay(70*ms, unit)
	if plan(2, false, true); c.now != 50*ms {
		t.Errorf("the clock is at %v, want 50ms", c.now)
	}
	if plan(3, true, true); c.now != 70*ms || entities[0].at != 70*ms {
		t.Errorf("without the first entity the clock is at %v and that joins at %v, want 70ms", c.now, entities[0].at)
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
