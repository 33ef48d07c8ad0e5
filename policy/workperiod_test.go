package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// run lets a queue run out of work after so much device time, several times, and returns its load.
func (w *workPeriods) run(q *sched.Queue, times int, work time.Duration, l load) load {
	l = w.watch(q, l)
	for range times {
		q.Served += work
		l = w.watch(q, l)
		q.Counters.Idled++
		l = w.watch(q, l)
	}
	return l
}

// TestLoadByCounters checks that a queue that runs out of work within half of a turn is light, after
// eight periods, and one that does not within a turn heavy, at once.
func TestLoadByCounters(t *testing.T) {
	for _, tt := range []struct {
		name  string
		was   load
		times int
		work  time.Duration
		want  load
	}{
		{"too few periods", unknownLoad, 7, ms, unknownLoad},
		{"short periods", unknownLoad, 8, ms, lightLoad},
		{"just short enough", unknownLoad, 8, 25*ms - 1, lightLoad},
		{"neither", unknownLoad, 20, 25 * ms, unknownLoad},
		{"it was light", lightLoad, 20, 50 * ms, lightLoad},
		{"it was heavy", heavyLoad, 20, 25 * ms, heavyLoad},
		{"now its periods are short", heavyLoad, 8, ms, lightLoad},
		{"a long period", unknownLoad, 1, 50*ms + 1, heavyLoad},
		{"of a light queue", lightLoad, 1, 50*ms + 1, heavyLoad},
	} {
		w, q := workPeriods{}, sched.Queue{}
		if got := w.run(&q, tt.times, tt.work, tt.was); got != tt.want {
			t.Errorf("%s: got load %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestTimeOfACommand checks that the device time of the last periods is divided among the commands completed in
// them; without one it is that of one command.
func TestTimeOfACommand(t *testing.T) {
	for commands, want := range map[uint64]time.Duration{0: 80 * ms, 1: 10 * ms, 4: 2500 * us} {
		w, q := workPeriods{}, sched.Queue{}
		w.watch(&q, unknownLoad)
		for range 8 {
			q.Served += 10 * ms
			q.Counters.Completed += commands
			q.Counters.Idled++
			w.watch(&q, unknownLoad)
		}
		if w.command != want {
			t.Errorf("%d commands in each period of 10 ms: got %v for one, want %v", commands, w.command, want)
		}
	}
}

// TestLoadByCountersBeginsAnew checks that after a long period eight short ones are needed again, and
// that several periods between two plans count.
func TestLoadByCountersBeginsAnew(t *testing.T) {
	w, q := workPeriods{}, sched.Queue{}
	l := w.run(&q, 20, ms, unknownLoad)
	if l = w.run(&q, 1, time.Second, l); l != heavyLoad {
		t.Errorf("after a long period: got load %d, want heavy", l)
	}
	if l = w.run(&q, 6, ms, l); l != heavyLoad {
		t.Errorf("after the end of that and six short ones: got load %d, want heavy", l)
	}
	if l = w.run(&q, 1, ms, l); l != lightLoad {
		t.Errorf("after seven: got load %d, want light", l)
	}
	l = w.run(&q, 1, time.Second, l)
	q.Served, q.Counters.Idled = q.Served+40*ms, q.Counters.Idled+8
	if l = w.watch(&q, l); l != lightLoad {
		t.Errorf("after eight periods between two plans: got load %d, want light", l)
	}
}

// TestLoadByCountersOfAnOldQueue checks that what a queue did before it was watched, for example before
// it became a batch queue, tells nothing.
func TestLoadByCountersOfAnOldQueue(t *testing.T) {
	for _, idled := range []uint64{0, 1000, 1 << 40} {
		w, q := workPeriods{}, sched.Queue{Served: time.Hour, Counters: sched.Counters{Idled: idled}}
		if l := w.watch(&q, unknownLoad); l != unknownLoad {
			t.Errorf("at first, idle %d times before: got load %d, want unknown", idled, l)
		}
		if l := w.run(&q, 8, ms, unknownLoad); l != lightLoad {
			t.Errorf("after eight short periods: got load %d, want light", l)
		}
	}
}

// TestCountersDecideThePlan checks that queues that run out of work often run side by side as soon as
// their counters show it, and that a second plan at the same instant is the same.
func TestCountersDecideThePlan(t *testing.T) {
	p, v := makeGiveway(), &sched.View{Now: sched.Time(time.Minute), Devices: []sched.Device{{ID: "amd", StopTime: ms}}}
	for i := range 2 {
		v.Queues = append(v.Queues, sched.Queue{
			ID: sched.QueueID(i + 1), Device: "amd", Can: sched.CanInterrupt, Attr: sched.Attr{Class: sched.Batch},
			Counters: sched.Counters{Submitted: 1, Known: true},
		})
	}
	plan := func() (running int) {
		first := slices.Clone(p.Plan(v).Grants)
		if second := p.Plan(v).Grants; !slices.Equal(first, second) {
			t.Errorf("the first plan at %v: %+v, the second %+v", v.Now, first, second)
		}
		return len(first)
	}
	for periods := range 12 {
		want := 1
		if periods >= 8 {
			want = 2
		}
		if got := plan(); got != want {
			t.Errorf("after %d periods: got %d queues that run, want %d", periods, got, want)
		}
		v.Now = v.Now.Add(ms)
		for i := range v.Queues {
			q := &v.Queues[i]
			q.Served, q.Counters.Idled = q.Served+ms, q.Counters.Idled+1
			q.Counters.Submitted, q.Counters.Completed = q.Counters.Submitted+1, q.Counters.Completed+1
		}
	}
}

// TestLostTrace checks that counters do not change what the visits of a queue showed while the trace is
// lost for a moment.
func TestLostTrace(t *testing.T) {
	p, v, states := lightNode(lightLoad, lightLoad)
	sum := summary{inRotation: 2, rotationClass: sched.Batch}
	for range 5 {
		for i := range v.Queues {
			v.Queues[i].Counters.Known = true
			states[i].judgeByCounters(&v.Queues[i], v.Now)
		}
		p.watchLoads(v, states, &sum)
		for i := range v.Queues {
			v.Queues[i].Visits.Known, v.Queues[i].Served = false, v.Queues[i].Served+time.Second
		}
	}
	for i := range states {
		if states[i].load.verdict != lightLoad || p.isLight(&v.Devices[0], &v.Queues[i], &states[i]) {
			t.Errorf("queue %d: got load %d, want light, and that it takes turns until the trace is back", i, states[i].load.verdict)
		}
	}
}

// TestLightQueueKeepsItsTurn checks that a light queue by its counters, which takes turns because weights
// differ, does not lose its turn when it runs out of work for a moment, and a heavy one does.
func TestLightQueueKeepsItsTurn(t *testing.T) {
	for l, want := range map[load]bool{lightLoad: true, heavyLoad: false, unknownLoad: false} {
		now := sched.Time(time.Minute)
		q := sched.Queue{Attr: sched.Attr{Class: sched.Batch}, Counters: sched.Counters{Submitted: 1, Known: true}}
		st := queueState{class: sched.Batch}
		turn, other := &giveway{inRotation: 2}, &giveway{current: 1} // q has the turn, or not
		turn.updateState(&st, &q, &sched.Device{}, now)
		st.load.verdict = l
		q.Counters.Completed = 1
		if turn.updateState(&st, &q, &sched.Device{}, now.Add(ms)); st.takesTurns != want {
			t.Errorf("load %d, out of work for a moment: takes turns %v, want %v", l, st.takesTurns, want)
		}
		before := st.at
		if turn.updateState(&st, &q, &sched.Device{}, now.Add(3*ms)); st.at > before != want {
			t.Errorf("load %d: charged for %v of a rest, want that only of a queue that keeps its turn", l, st.at-before)
		}
		if turn.updateState(&st, &q, &sched.Device{}, now.Add(6*ms)); st.takesTurns {
			t.Errorf("load %d, out of work for 5 ms: takes turns, want not", l)
		}
		q.Counters.Submitted = 2
		other.updateState(&st, &q, &sched.Device{}, now.Add(10*ms))
		q.Counters.Completed = 2
		if other.updateState(&st, &q, &sched.Device{}, now.Add(11*ms)); st.takesTurns {
			t.Errorf("load %d, without a turn: takes turns without work, want not", l)
		}
	}
}

// TestQueuesWithoutTrace checks which batch queues run whose visits are not known. Light ones by their
// counters run side by side, and those that nothing is known about do if there is no online queue. With
// different weights they take turns, unless light ones run beside heavy ones.
func TestQueuesWithoutTrace(t *testing.T) {
	for _, dev := range []sched.Device{h200Device, {ID: "amd", StopTime: ms}} {
		for _, tt := range []struct {
			name   string
			loads  []load
			change func(queues []sched.Queue)
			want   int // queues that run
		}{
			{"nothing is known", nil, nil, 3},
			{"different weights", nil, func(q []sched.Queue) { q[2].Attr.Weight = 2 }, 1},
			{"the weight that is the default", nil, func(q []sched.Queue) { q[2].Attr.Weight = 1 }, 3},
			{"an online queue", nil, func(q []sched.Queue) { q[0].Attr.Class, q[0].Counters.Known = sched.Online, true }, 2},
			{"a paused queue of another weight", nil, func(q []sched.Queue) { q[2].Attr.Weight, q[2].Attr.Paused = 2, true }, 2},
			{"class idle", nil, func(q []sched.Queue) {
				for i := range q {
					q[i].Attr.Class = sched.Idle
				}
			}, 1},
			{"light", []load{lightLoad, lightLoad, lightLoad}, nil, 3},
			{"light, beside an online queue", []load{lightLoad, lightLoad, lightLoad}, func(q []sched.Queue) { q[0].Attr.Class, q[0].Counters.Submitted = sched.Online, 0 }, 3},
			{"light, different weights", []load{lightLoad, lightLoad, lightLoad}, func(q []sched.Queue) { q[2].Attr.Weight = 2 }, 1},
			{"two light, different weights", []load{lightLoad, lightLoad, heavyLoad}, func(q []sched.Queue) { q[2].Attr.Weight = 2 }, 3},
			{"two light", []load{lightLoad, lightLoad, heavyLoad}, nil, 3},
			{"one light", []load{lightLoad, heavyLoad, heavyLoad}, nil, 2},
			{"newcomers", []load{unknownLoad, unknownLoad, unknownLoad}, nil, 1},
		} {
			v := &sched.View{Now: sched.Time(time.Minute), Devices: []sched.Device{dev}}
			p := makeGiveway()
			for i := range 3 {
				q := sched.Queue{ID: sched.QueueID(i + 1), Device: dev.ID, Can: sched.CanInterrupt, Attr: sched.Attr{Class: sched.Batch}}
				if dev.Sliced() {
					q.Can |= sched.CanSlice
				}
				if tt.loads != nil {
					q.Counters = sched.Counters{Submitted: 1, Known: true}
				}
				v.Queues = append(v.Queues, q)
			}
			if tt.change != nil {
				tt.change(v.Queues)
			}
			p.Plan(v)
			for i := range tt.loads {
				p.states.values[i].load.verdict = tt.loads[i]
			}
			v.Now = v.Now.Add(ms)
			got := 0
			for _, g := range p.Plan(v).Grants {
				q := v.Queues[g.Queue-1]
				if q.Runnable() || q.Attr.Class == sched.Online {
					got++
				}
			}
			if got != tt.want {
				t.Errorf("%s, slices %v: got %d queues that run, want %d", tt.name, dev.Sliced(), got, tt.want)
			}
		}
	}
}

// TestLongCommands checks which batch queue has commands so long that queues take turns on a serial device:
// they are half a turn or longer, and it is not known to be light.
func TestLongCommands(t *testing.T) {
	serial := sched.Device{Serial: true}
	for _, tt := range []struct {
		name    string
		dev     sched.Device
		verdict load
		command time.Duration
		want    bool
	}{
		{"half a turn", serial, unknownLoad, 25 * ms, true},
		{"shorter", serial, unknownLoad, 25*ms - 1, false},
		{"a heavy queue", serial, heavyLoad, 25 * ms, true},
		{"a light queue", serial, lightLoad, 25 * ms, false},
		{"a device that runs several at a time", sched.Device{}, unknownLoad, 25 * ms, false},
	} {
		for _, before := range []bool{false, true} {
			s, st := summary{longCommands: before}, &queueState{}
			st.load.verdict, st.work.command = tt.verdict, tt.command
			if countBatch(&tt.dev, &sched.Queue{}, st, &s); s.longCommands != (before || tt.want) {
				t.Errorf("%s, beside one with long commands %v: got %v", tt.name, before, s.longCommands)
			}
		}
	}
}
