package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestPresence checks how much of the time a queue had work, by the time in which others were alone.
func TestPresence(t *testing.T) {
	for _, tt := range []struct {
		name    string
		alone   time.Duration // in each of periods of 10 ms
		periods int
		want    float64
	}{
		{"nothing known", 10 * ms, 0, 1},
		{"too little known", 10 * ms, 4, 1},
		{"just enough known", 10 * ms, 5, 0},
		{"no other queue was ever alone", 0, 100, 1},
		{"a tenth of the time", ms, 100, 0.8},
		{"a third", 10 * ms / 3, 100, 1.0 / 3},
		{"half", 5 * ms, 100, 0},
		{"all of it", 10 * ms, 100, 0},
		{"by a measurement that came late, more than all of it", 50 * ms, 100, 0},
		{"less than before, because a queue was closed", -ms, 100, 1},
	} {
		var p presence
		for range tt.periods {
			p.add(10*ms, tt.alone)
		}
		if got := p.filled(); got < tt.want-1e-6 || got > tt.want+1e-6 {
			t.Errorf("%s: got %.3f, want %.3f", tt.name, got, tt.want)
		}
	}
}

// TestPresenceFollowsChanges checks that what was a second ago hardly counts.
func TestPresenceFollowsChanges(t *testing.T) {
	var p presence
	for range 100 {
		p.add(10*ms, 10*ms)
	}
	for range 100 {
		p.add(10*ms, 0)
	}
	if got := p.filled(); got < 0.7 {
		t.Errorf("a second after the queue began to work all the time: got %.2f, want at least 0.7", got)
	}
}

// TestLoadBesideAnotherThatRests checks two queues of which one always has work and the other rests most
// of the time. The first makes visits that are longer than its slice, while the other rests, and is
// heavy. The other fills the few visits that it makes, and is light.
func TestLoadBesideAnotherThatRests(t *testing.T) {
	busy, rests := newLoadTest(0), newLoadTest(0)
	for range 60 { // cycles of 60 ms, in which the second queue works for 10 ms
		for i := range 6 {
			var visits, full uint64
			var alone, served time.Duration
			if i == 0 {
				visits, full, served = 2, 2, 4*ms
			} else {
				alone = 10 * ms
			}
			busy.measureBeside(visits, full, 10*ms-served, 0)
			rests.measureBeside(visits, full, served, alone)
		}
	}
	if busy.verdict != heavyLoad || rests.verdict != lightLoad {
		t.Errorf("got loads %d and %d, want heavy (%d) and light (%d)", busy.verdict, rests.verdict, heavyLoad, lightLoad)
	}
}

// TestLoadOfTwoThatRest checks that a queue is light if others are alone for half of the time, although
// all its own visits are as long as its slice or longer.
func TestLoadOfTwoThatRest(t *testing.T) {
	l := newLoadTest(0)
	for range 20 {
		l.measureBeside(1, 1, 5*ms, 5*ms)
	}
	if l.verdict != lightLoad {
		t.Errorf("got load %d, want light", l.verdict)
	}
	// A heavy one becomes light too, once its verdict no longer holds.
	l = newLoadTest(0)
	l.setVerdict(heavyLoad)
	l.holdVerdict(l.now)
	for range 20 {
		l.measureBeside(1, 1, 5*ms, 5*ms)
	}
	if l.verdict != heavyLoad {
		t.Errorf("while the verdict holds: got load %d, want heavy", l.verdict)
	}
	for range 40 {
		l.measureBeside(1, 1, 5*ms, 5*ms)
	}
	if l.verdict != lightLoad {
		t.Errorf("afterwards: got load %d, want light", l.verdict)
	}
	// What happened while it was stopped does not count.
	l = newLoadTest(0)
	for range 20 {
		l.measureBeside(0, 0, 0, 0)
		l.q.State = sched.Stopped
		l.watch(&l.q, l.now, true, false, l.alone)
		l.q.State = sched.Running
		l.measureBeside(1, 1, 2*ms, 10*ms)
	}
	if l.verdict == lightLoad {
		t.Error("others were alone while the queue was stopped: got light, want not")
	}
}

// TestPresenceWhileAlone checks that the time in which the queue itself was alone tells nothing about it.
func TestPresenceWhileAlone(t *testing.T) {
	l := newLoadTest(0)
	for range 40 { // beside others that rest most of the time
		l.q.Visits.Alone += 8 * ms
		l.measureBeside(0, 0, 9*ms, ms)
	}
	if got := l.presence.filled(); got != 0 {
		t.Errorf("a queue that is absent for half of the time in which others have work: got %.2f, want 0", got)
	}
}
