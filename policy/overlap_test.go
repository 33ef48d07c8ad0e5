package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestRestedAtTurnEnd checks that the queue whose turn is over is light after two overlaps in a row in which
// it was served for less than half of its part, and that overlaps too short for that do not count.
func TestRestedAtTurnEnd(t *testing.T) {
	const running = 2
	enough := running * h200Device.Slice * 5 / 4
	type overlap struct{ took, served time.Duration }
	rests := overlap{enough, enough/(2*running) - 1}
	works := overlap{enough, enough/(2*running) + 1}
	short := overlap{enough - 1, 0}
	for _, tt := range []struct {
		name     string
		overlaps []overlap
		light    []bool // the queue is found to be light
	}{
		{"rests", []overlap{rests, rests, rests, rests}, []bool{false, true, false, true}},
		{"works", []overlap{works, works, works}, []bool{false, false, false}},
		{"works between two rests", []overlap{rests, works, rests, rests}, []bool{false, false, false, true}},
		{"an overlap too short changes nothing", []overlap{rests, short, rests}, []bool{false, false, true}},
		{"served for exactly half of its part", []overlap{{enough, enough / (2 * running)}, rests}, []bool{false, true}},
	} {
		p := makeGiveway()
		v := &sched.View{Devices: []sched.Device{h200Device}, Queues: []sched.Queue{{ID: 1}, {ID: 2}}}
		states := make([]queueState, 2)
		for i, o := range tt.overlaps {
			began := sched.Time(time.Duration(i+1) * time.Second)
			p.overlap.leaving, p.overlap.since, p.overlap.served = 2, began, time.Minute
			v.Queues[1].MeasuredAt, v.Queues[1].Served = began.Add(o.took), time.Minute+o.served
			states[1].load = loadState{verdict: heavyLoad, restedAtTurnEnd: states[1].load.restedAtTurnEnd}
			rested := p.restedAtTurnEnd(v, states, running)
			if want := o.took == enough && o != works; rested != want {
				t.Errorf("%s: overlap %d: rested %v, want %v", tt.name, i+1, rested, want)
			}
			if light := states[1].load.verdict == lightLoad; light != tt.light[i] {
				t.Errorf("%s: overlap %d: found light %v, want %v", tt.name, i+1, light, tt.light[i])
			}
		}
	}
	p := makeGiveway()
	if p.overlap.leaving = 3; p.restedAtTurnEnd(&sched.View{Devices: []sched.Device{h200Device}}, nil, running) {
		t.Error("a queue that is gone has rested")
	}
}
