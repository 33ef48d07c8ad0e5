package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// run lets a queue have work for so much device time and then none for so long, several times, and
// returns the load.
func (w *workPeriods) run(q *sched.Queue, now *sched.Time, times int, work, gap time.Duration, weighted bool, l load) load {
	for range times {
		q.Counters.Submitted++
		l = w.watch(q, *now, weighted, l)
		*now, q.Served = now.Add(work), q.Served+work
		l = w.watch(q, *now, weighted, l)
		q.Counters.Completed = q.Counters.Submitted
		l = w.watch(q, *now, weighted, l)
		*now = now.Add(gap)
		l = w.watch(q, *now, weighted, l)
	}
	return l
}

// TestLoadByCounters checks that a queue that runs out of work within a tenth of a turn is light, after
// eight periods, and one that does not within half of a turn heavy, at once. With different weights a
// queue that has work for most of the time is heavy.
func TestLoadByCounters(t *testing.T) {
	for _, tt := range []struct {
		name      string
		was       load
		times     int
		work, gap time.Duration
		weighted  bool
		want      load
	}{
		{"too few periods", unknownLoad, 7, ms, ms, false, unknownLoad},
		{"short periods", unknownLoad, 8, ms, ms, false, lightLoad},
		{"just short enough", unknownLoad, 8, 5*ms - 1, ms, false, lightLoad},
		{"neither", unknownLoad, 20, 5 * ms, ms, false, unknownLoad},
		{"it was light", lightLoad, 20, 25 * ms, ms, false, lightLoad},
		{"it was heavy", heavyLoad, 20, 5 * ms, ms, false, heavyLoad},
		{"now its periods are short", heavyLoad, 8, ms, ms, false, lightLoad},
		{"a long period", unknownLoad, 1, 25*ms + 1, ms, false, heavyLoad},
		{"of a light queue", lightLoad, 1, 25*ms + 1, ms, false, heavyLoad},
		{"short ones with different weights", unknownLoad, 8, ms, ms, true, lightLoad},
		{"for most of the time", unknownLoad, 8, ms, ms - 1, true, heavyLoad},
		{"for most of the time, of a light queue", lightLoad, 8, ms, ms - 1, true, lightLoad},
		{"for two thirds of the time", lightLoad, 8, ms, ms/2 - 1, true, heavyLoad},
		{"with equal weights", unknownLoad, 8, ms, 0, false, lightLoad},
	} {
		w, q, now := workPeriods{}, sched.Queue{Counters: sched.Counters{Known: true}}, sched.Time(time.Minute)
		if got := w.run(&q, &now, tt.times, tt.work, tt.gap, tt.weighted, tt.was); got != tt.want {
			t.Errorf("%s: got load %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestLoadByCountersBeginsAnew checks that after a long period eight short ones are needed again, and
// that time in which the queue was stopped does not make a period long.
func TestLoadByCountersBeginsAnew(t *testing.T) {
	w, q, now := workPeriods{}, sched.Queue{Counters: sched.Counters{Known: true}}, sched.Time(time.Minute)
	l := w.run(&q, &now, 20, ms, ms, false, unknownLoad)
	if l = w.run(&q, &now, 1, time.Second, ms, false, l); l != heavyLoad {
		t.Errorf("after a long period: got load %d, want heavy", l)
	}
	if l = w.run(&q, &now, 7, ms, ms, false, l); l != heavyLoad { // with the long one these are eight, and their mean is long
		t.Errorf("after seven short ones: got load %d, want heavy", l)
	}
	if l = w.run(&q, &now, 40, ms, ms, false, l); l != lightLoad {
		t.Errorf("after many short ones: got load %d, want light", l)
	}
	q.Counters.Submitted++
	w.watch(&q, now, false, l)
	now = now.Add(time.Second) // stopped: not served
	if l = w.watch(&q, now, false, l); l != lightLoad {
		t.Errorf("after a second in which it was stopped: got load %d, want light", l)
	}
}

// TestQueuesThatNothingIsKnownAbout checks that batch queues without visits and counters run side by
// side if there is no online queue and their weights are equal, on any device, and otherwise take turns.
func TestQueuesThatNothingIsKnownAbout(t *testing.T) {
	for _, dev := range []sched.Device{h200Device, {ID: "amd", StopTime: ms}} {
		for _, tt := range []struct {
			name   string
			change func(queues []sched.Queue)
			want   int // queues that run
		}{
			{"equal weights", func([]sched.Queue) {}, 3},
			{"different weights", func(q []sched.Queue) { q[2].Attr.Weight = 2 }, 1},
			{"that of one without a weight", func(q []sched.Queue) { q[2].Attr.Weight = 1 }, 3},
			{"an online queue", func(q []sched.Queue) { q[0].Attr.Class, q[0].Counters.Known = sched.Online, true }, 2},
			{"a paused queue of another weight", func(q []sched.Queue) { q[2].Attr.Weight, q[2].Attr.Paused = 2, true }, 3},
			{"queues of class idle", func(q []sched.Queue) {
				for i := range q {
					q[i].Attr.Class = sched.Idle
				}
			}, 1},
		} {
			v := &sched.View{Now: sched.Time(time.Minute), Devices: []sched.Device{dev}}
			for i := range 3 {
				q := sched.Queue{ID: sched.QueueID(i + 1), Device: dev.ID, Can: sched.CanInterrupt, Attr: sched.Attr{Class: sched.Batch}}
				if dev.Sliced() {
					q.Can |= sched.CanSlice
				}
				v.Queues = append(v.Queues, q)
			}
			tt.change(v.Queues)
			p := makeGiveway()
			p.Plan(v)
			v.Now = v.Now.Add(ms)
			if got := p.Plan(v).Grants; len(got) != tt.want {
				t.Errorf("%s, slices %v: got %v, want %d queues to run", tt.name, dev.Sliced(), got, tt.want)
			}
		}
	}
}
