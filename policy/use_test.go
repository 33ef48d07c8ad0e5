package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestJudgedByUse checks which queues are light by what they use of their turns: those that use less
// than three quarters of what another uses, in four turns or more.
func TestJudgedByUse(t *testing.T) {
	now := sched.Time(time.Hour)
	use := func(n int, parts ...time.Duration) (m meanTime) {
		for i := range n {
			m.add(parts[i%len(parts)])
		}
		return m
	}
	const s = time.Second
	for _, tt := range []struct {
		name         string
		light, heavy meanTime
		verdict      load
		held         bool
		want         load
	}{
		{"half", use(4, s/2), use(4, s), unknownLoad, false, lightLoad},
		{"half, was heavy", use(4, s/2), use(4, s), heavyLoad, false, lightLoad},
		{"half, was heavy a moment ago", use(4, s/2), use(4, s), heavyLoad, true, heavyLoad},
		{"half, in too few turns", use(3, s/2), use(4, s), unknownLoad, false, unknownLoad},
		{"the other in too few turns", use(4, s/2), use(3, s), unknownLoad, false, unknownLoad},
		{"three quarters", use(4, s*3/4), use(4, s), unknownLoad, false, unknownLoad},
		{"just less", use(4, s*3/4-1), use(4, s), unknownLoad, false, lightLoad},
		{"varies", use(8, s/10, s), use(4, s), unknownLoad, false, unknownLoad},
		{"all use little, because there is much online work", use(4, s/10), use(4, s/10), unknownLoad, false, unknownLoad},
	} {
		states := []queueState{{class: sched.Batch, takesTurns: true}, {class: sched.Batch, takesTurns: true}}
		states[0].load.setVerdict(tt.verdict)
		states[1].load.setVerdict(heavyLoad)
		states[0].load.use, states[1].load.use = tt.light, tt.heavy
		states[0].joined, states[1].joined = true, true
		if tt.held {
			states[0].load.holdVerdict(now)
		}
		judgeByUse(now, states)
		if states[0].load.verdict != tt.want || states[1].load.verdict != heavyLoad {
			t.Errorf("%s: got loads %d and %d, want %d and %d", tt.name, states[0].load.verdict, states[1].load.verdict, tt.want, heavyLoad)
		}
	}
}

// TestUseOfTurns checks what counts as used of a turn: the measured service, if it was measured for half
// of the turn.
func TestUseOfTurns(t *testing.T) {
	p := makeGiveway()
	p.turnStart.Time = sched.Time(time.Hour)
	for _, tt := range []struct {
		name     string
		measured time.Duration // from the start of the turn
		served   time.Duration
		counters bool
		want     time.Duration // zero: nothing is learnt
	}{
		{"half of it", 50 * ms, 25 * ms, false, time.Second / 2},
		{"measured for half of it", 25 * ms, 20 * ms, false, time.Second * 4 / 5},
		{"measured for less", 24 * ms, 20 * ms, false, 0},
		{"with counters", 50 * ms, 25 * ms, true, 0},
	} {
		q := sched.Queue{Measured: true, State: sched.Running, MeasuredAt: p.turnStart.Add(tt.measured), Counters: sched.Counters{Known: tt.counters}}
		st := queueState{class: sched.Batch, served: tt.served, takesTurns: true}
		p.endTurn(p.turnStart.Add(50*ms), &h200Device, &q, &st)
		if got := st.load.use; (got.n == 1) != (tt.want > 0) || !near(got.mean, tt.want, time.Microsecond) {
			t.Errorf("%s: got %v of a second from %d turns, want %v", tt.name, got.mean, got.n, tt.want)
		}
	}
}

// TestShortRest checks that a batch queue with counters that runs side by side with others takes part for
// a moment after it has run out of work, and that it is told when that ends. One that has a turn of its
// own does not: it would keep the turn and not be charged for it.
func TestShortRest(t *testing.T) {
	now := sched.Time(time.Hour)
	busy := sched.Queue{Can: canAll, Visits: sched.Visits{Known: true}, Attr: sched.Attr{Class: sched.Batch}, Counters: sched.Counters{Known: true, Submitted: 1}}
	idle, paused := busy, busy
	idle.Counters.Completed, paused.Counters.Completed, paused.Attr.Paused = 1, 1, true
	untraced := idle
	untraced.Visits.Known = false
	other := &giveway{current: 1}
	for _, tt := range []struct {
		name   string
		dev    sched.Device
		q      sched.Queue
		beside bool
		after  time.Duration
		want   bool
	}{
		{"has work", h200Device, busy, true, time.Second, true},
		{"ran out of it", h200Device, idle, true, 0, true},
		{"a moment ago", h200Device, idle, true, 5*ms - 1, true},
		{"a while ago", h200Device, idle, true, 5 * ms, false},
		{"takes turns", h200Device, idle, false, 0, false},
		{"without a trace", h200Device, untraced, true, 0, true},
		{"paused", h200Device, paused, true, 0, false},
		{"without slices", sched.Device{}, idle, true, 0, false},
	} {
		var st queueState
		other.updateState(&st, &busy, &tt.dev, now)
		st.sideBySide = tt.beside
		other.updateState(&st, &tt.q, &tt.dev, now)
		change := other.updateState(&st, &tt.q, &tt.dev, now.Add(tt.after))
		want := sched.Time(0)
		if tt.want && !tt.q.Ready() {
			want = now.Add(5 * ms)
		}
		if st.takesTurns != tt.want || change != want {
			t.Errorf("%s: takes turns %v, changes at %v; want %v, %v", tt.name, st.takesTurns, change, tt.want, want)
		}
	}
	// Of a queue that is looked at seldom, the counters tell that it has worked since.
	st := queueState{class: sched.Batch, sideBySide: true}
	for i := range 5 {
		idle.Counters.Submitted, idle.Counters.Completed = uint64(i+2), uint64(i+2)
		for range 2 { // a second plan at the same instant is the same
			if other.updateState(&st, &idle, &h200Device, now.Add(time.Duration(i)*50*ms)); !st.takesTurns {
				t.Errorf("look %d: takes no turns, although it has worked since the last look", i)
			}
		}
	}
}

// TestUseTellsBesideOnlineWork checks that a queue that uses little of its turns is light beside online
// work, and that turns tell nothing without it or beside a queue that cannot be stopped.
func TestUseTellsBesideOnlineWork(t *testing.T) {
	for _, tt := range []struct {
		online, unstoppable int
		want                load
	}{{0, 0, heavyLoad}, {0, 1, heavyLoad}, {1, 0, lightLoad}, {1, 1, heavyLoad}} {
		p, v, states := lightNode(heavyLoad, heavyLoad)
		for i, part := range []time.Duration{time.Second, time.Second / 4} {
			states[i].joined = true
			for range 4 {
				states[i].load.use.add(part)
			}
		}
		sum := summary{inRotation: 2, rotationClass: sched.Batch, unstoppable: tt.unstoppable, onlineSummary: onlineSummary{activeOnline: tt.online}}
		p.watchLoads(v, states, &sum)
		if got := states[1].load.verdict; got != tt.want {
			t.Errorf("%d online queues, %d that cannot be stopped: got load %d, want %d", tt.online, tt.unstoppable, got, tt.want)
		}
	}
}
