package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestSlowCallsAreForgottenSlowly checks that what slow calls take falls by one part in 500 of its distance to the mean
// with each clearing, so that one call in a hundred still counts when the next of them comes.
func TestSlowCallsAreForgottenSlowly(t *testing.T) {
	var c clearing
	for range 100 {
		c.add(ms)
	}
	c.add(1800 * us)
	want := 1800 * us
	for range 100 {
		c.add(ms)
		want -= (want - c.call.mean) / 500
	}
	if c.slow != want {
		t.Errorf("after 100 quick calls slow ones count as %v, want %v", c.slow, want)
	}
}

// TestClearLead checks how long before a request the device is cleared: for each queue that has to
// be stopped by the stop time of the device before it is known, then by what calls took, with a
// reserve of an eighth, or up to what the slow ones took, and at most as much again.
func TestClearLead(t *testing.T) {
	dev := sched.Device{StopTime: 800 * time.Microsecond}
	for _, tt := range []struct {
		name   string
		queues int // side by side, of which one has the turn
		call   meanTime
		slow   time.Duration
		want   time.Duration
	}{
		{"nothing known, no batch queue", 0, meanTime{}, 0, ms},
		{"nothing known, one batch queue", 1, meanTime{}, 0, ms},
		{"nothing known, four", 4, meanTime{}, 0, ms + 1200*us},
		{"always the same", 4, meanTime{n: 9, mean: ms}, ms, 4500 * us},
		{"half as many queues", 2, meanTime{n: 9, mean: ms}, ms, 2250 * us},
		{"varies a little", 4, meanTime{n: 9, mean: ms}, 1100 * us, 4500 * us},
		{"varies", 4, meanTime{n: 9, mean: ms}, 1700 * us, 6800 * us},
		{"varies much", 4, meanTime{n: 9, mean: ms}, 9 * ms, 8 * ms},
		{"takes no longer than the lead", 4, meanTime{n: 9, mean: 100 * us}, 100 * us, ms},
	} {
		p := makeGiveway()
		p.clearing.call, p.clearing.slow, p.current, p.sharing = tt.call, tt.slow, 3, true
		v := &sched.View{Devices: []sched.Device{dev}, Queues: []sched.Queue{class(sched.Online), batch(1)}}
		states := make([]queueState, 2, 9) // of which the second takes turns
		for i := range tt.queues {
			q := batch(1)
			q.ID, q.Can = sched.QueueID(3+i), canAll
			v.Queues, states = append(v.Queues, q), append(states, queueState{sideBySide: true})
		}
		// One that is not in the group is stopped anyway, and one that cannot be stopped is not.
		outside, unstoppable := batch(1), batch(1)
		outside.ID, outside.Can, unstoppable.ID = 20, canAll, 21
		v.Queues = append(v.Queues, outside, unstoppable)
		states = append(states, queueState{sideBySide: true, outsideGroup: true}, queueState{sideBySide: true})
		if got := p.clearLead(v, states, ms); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	p := makeGiveway() // no queues side by side: a change of turns must be over
	if got := p.clearLead(&sched.View{Devices: []sched.Device{dev}}, nil, ms); got != 1800*us {
		t.Errorf("turns, nothing known: got %v, want 1.8 ms", got)
	}
	p.clearing.call, p.clearing.slow = meanTime{n: 9, mean: ms}, ms
	if got := p.clearLead(&sched.View{Devices: []sched.Device{dev}}, nil, ms); got != 3375*us {
		t.Errorf("turns: got %v, want three calls with a reserve", got)
	}
}
