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
				entities[i].charge(ms)
			}
			c.see(&entities[i])
		}
		c.tick(at)
		for i := range entities {
			c.join(&entities[i], true, 0)
			c.setWeight(&entities[i], unit)
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
			c.see(&entities[i])
		}
		c.tick(at)
		for i := range entities {
			c.join(&entities[i], active[i], 0)
			c.setWeight(&entities[i], unit)
		}
	}
	plan(1, true, true)
	entities[0].prepay(50 * ms)
	entities[1].prepay(70 * ms)
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
	v := vtime{weight: unit}
	for i, c := range []struct{ prepay, used, want time.Duration }{
		{50 * ms, 0, 50 * ms},
		{0, 30 * ms, 50 * ms},
		{0, 30 * ms, 60 * ms},
		{70 * ms, 0, 130 * ms},
		{70 * ms, 0, 200 * ms},
		{0, 110 * ms, 210 * ms},
	} {
		if c.prepay > 0 {
			v.prepay(c.prepay)
		} else {
			v.charge(c.used)
		}
		if v.at != c.want {
			t.Errorf("after %d of the turns and charges: virtual time %v, want %v", i+1, v.at, c.want)
		}
	}
}

// serve makes plans, in each of which the entities have had this service since the last one: in their
// turns, or outside of them.
func serve(c *vclock, plans int, entities []vtime, inTurns, outside []time.Duration) {
	for range plans {
		for i := range entities {
			entities[i].charge(inTurns[i])
			c.chargeExtra(&entities[i], outside[i])
			c.see(&entities[i])
		}
		c.tick(c.ticked + 1)
		for i := range entities {
			c.join(&entities[i], true, 0)
		}
	}
}

// TestServiceOutsideOfTurns checks that an entity of weight 1 that always has more than its share, by the
// floor, does not owe more and more, and that the other one does not fall behind the clock.
func TestServiceOutsideOfTurns(t *testing.T) {
	var c vclock
	entities := make([]vtime, 2)
	c.setWeight(&entities[0], unit)
	c.setWeight(&entities[1], 100*unit)
	const step = ms / 5
	serve(&c, 100_000, entities, []time.Duration{0, 49 * step}, []time.Duration{step, 0})
	if owed := entities[0].at - c.now; owed < 500*ms-step || owed > 500*ms+step {
		t.Errorf("the entity of weight 1 owes %v, want 500ms", owed)
	}
	if behind := (c.now - entities[1].at) * 100; behind < 0 || behind > maxOwed+step {
		t.Errorf("the entity of weight 100 is %v of service behind the clock, want %v at most", behind, maxOwed)
	}
}

// TestOwedServiceStaysTheSame checks that an entity owes as much service after its weight has changed,
// and one that is behind the clock has as much to come.
func TestOwedServiceStaysTheSame(t *testing.T) {
	c := vclock{now: time.Hour}
	for _, joined := range []bool{true, false} {
		for _, off := range []time.Duration{50 * ms, -50 * ms, 0} {
			v := vtime{at: c.now + off, weight: unit, joined: joined}
			c.setWeight(&v, 100*unit)
			want := off / 100
			if off < 0 && !joined {
				want = off // it starts at the clock when it joins
			}
			if got := v.at - c.now; got != want {
				t.Errorf("joined %v: %v ahead of the clock at weight 1 became %v at weight 100, want %v", joined, off, got, want)
			}
		}
	}
	v := vtime{at: 0, weight: 10_000 * 88_761, joined: true}
	if c.setWeight(&v, 15); v.at >= c.now || v.at < -(1<<61) {
		t.Errorf("an entity far behind the clock is at %v", v.at)
	}
}

// TestServiceBelongsToWhatLetItRun checks which service counts as outside of turns.
func TestServiceBelongsToWhatLetItRun(t *testing.T) {
	run := func(r sched.Reason) sched.Decided { return sched.Decided{Run: true, Reason: r} }
	q := sched.Queue{Can: sched.CanHold}
	var x extra
	for i, step := range []struct {
		decided sched.Decided
		itsTurn bool
		want    bool
	}{
		{sched.Decided{}, false, false},
		{run(sched.IsFirst), true, false},
		{sched.Decided{}, false, false}, // what its turn had begun
		{run(sched.FloorTurn), false, true},
		{sched.Decided{}, false, true}, // what its floor turn had begun
		{run(sched.ItsTurn), true, false},
		{run(sched.FloorTurn), true, false},
		{run(sched.PolicyOverruled), false, true},
		{run(sched.NoWork), false, false},
		{run(sched.Shared), false, true},
	} {
		q.Decided = step.decided
		if got := x.update(&q, step.itsTurn); got != step.want {
			t.Errorf("step %d: outside of turns %v, want %v", i, got, step.want)
		}
	}
	q = sched.Queue{Can: sched.CanSlice}
	x = false
	if !x.update(&q, false) || x.update(&q, true) {
		t.Error("service of a queue that cannot be stopped must count as outside of turns, unless it is its turn")
	}
}
