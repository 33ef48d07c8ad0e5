package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestQueueThatComesBackIsNext checks that a queue that rested has the next turn, after the shortest turn
// of the queue that ran meanwhile, unless it owes more than a turn or is new.
func TestQueueThatComesBackIsNext(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *giveway, back *queueState, s *summary)
		next   sched.Time // when the turn of the second queue begins, after that of the first
	}{
		{"comes back", func(*giveway, *queueState, *summary) {}, sched.Time(10 * ms)},
		{"owes almost a turn", func(p *giveway, back *queueState, _ *summary) { back.at = 50*ms - 1 }, sched.Time(10 * ms)},
		{"owes a turn", func(p *giveway, back *queueState, _ *summary) { back.at = 50 * ms }, 0},
		{"is new", func(_ *giveway, back *queueState, _ *summary) { back.lastTurn = 0 }, sched.Time(50 * ms)},
		{"was there before", func(_ *giveway, back *queueState, _ *summary) { back.joined = true }, sched.Time(50 * ms)},
		{"a request is served", func(_ *giveway, _ *queueState, s *summary) { s.serving = true }, sched.Time(22500 * time.Microsecond)},
		{"short turns", func(p *giveway, _ *queueState, _ *summary) { p.turn = 4 * ms }, sched.Time(4 * ms)},
	} {
		p, v, states := lightNode(heavyLoad, heavyLoad)
		start := v.Now
		p.current, p.turnStart.Time, p.inRotation = 1, start, 1
		states[0].joined, states[0].lastTurn = true, start
		states[0].weight, states[1].weight = unit, unit
		states[1].lastTurn = start.Add(-time.Second)
		s := summary{inRotation: 2, rotationClass: sched.Batch}
		set := p.ownSetting()
		tt.change(p, &states[1], &s)
		var began sched.Time
		for v.Now = start.Add(ms); v.Now <= start.Add(100*ms) && p.current == 1; v.Now = v.Now.Add(ms / 2) {
			s.wake = 0
			p.rotate(v, states, &s, &set)
			if p.current == 2 {
				began = sched.Time(v.Now.Sub(start))
			}
			if wake := s.wake.Sub(start); p.current == 1 && tt.next > 0 && sched.Time(wake) != tt.next && !s.serving {
				t.Errorf("%s: wakes after %v, want %v", tt.name, wake, time.Duration(tt.next))
			}
			// The first queue is served, and pays.
			states[0].at = min(states[0].at+ms/2, 40*ms)
			if tt.next == 0 {
				states[0].at = 0
			}
		}
		if began != tt.next {
			t.Errorf("%s: its turn begins after %v, want %v", tt.name, time.Duration(began), time.Duration(tt.next))
		}
	}
}

// TestFirstOfTwoThatComeBack checks that of two queues that came back the one with the lower virtual
// time has the next turn.
func TestFirstOfTwoThatComeBack(t *testing.T) {
	for first := range 2 {
		p, v, states := lightNode(heavyLoad, heavyLoad, heavyLoad)
		p.current, p.turnStart.Time, p.inRotation = 3, v.Now, 1
		for i := range states {
			states[i].weight, states[i].lastTurn = unit, v.Now.Add(-time.Second)
		}
		states[2].joined, states[1-first].at = true, ms
		s := summary{inRotation: 3, rotationClass: sched.Batch, current: 2}
		set := p.ownSetting()
		for _, after := range []time.Duration{ms, 9 * ms} {
			v.Now = v.Now.Add(after)
			p.rotate(v, states, &s, &set)
		}
		if want := v.Queues[first].ID; p.current != want {
			t.Errorf("the turn is that of queue %d, want %d", p.current, want)
		}
	}
}

// TestTracedQueueThatRunsOutOfWork checks that a queue that counts as heavy by its visits is judged
// anew if its counters show that it runs out of work all the time, and others are not.
func TestTracedQueueThatRunsOutOfWork(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verdict load
		period  time.Duration
		held    bool
		known   bool
		class   sched.Class
		want    load
	}{
		{"short periods", heavyLoad, ms, false, true, sched.Batch, unknownLoad},
		{"long periods", heavyLoad, 40 * ms, false, true, sched.Batch, heavyLoad},
		{"the verdict holds", heavyLoad, ms, true, true, sched.Batch, heavyLoad},
		{"light", lightLoad, ms, false, true, sched.Batch, lightLoad},
		{"light with long periods", lightLoad, 60 * ms, false, true, sched.Batch, lightLoad},
		{"new", unknownLoad, ms, false, true, sched.Batch, unknownLoad},
		{"no counters", heavyLoad, ms, false, false, sched.Batch, heavyLoad},
		{"class idle", heavyLoad, ms, false, true, sched.Idle, heavyLoad},
	} {
		_, v, states := lightNode(tt.verdict)
		q, st := &v.Queues[0], &states[0]
		q.Counters.Known, q.Attr.Class = tt.known, tt.class
		if tt.held {
			st.load.heldUntil = v.Now.Add(time.Hour)
		}
		for range 20 {
			st.judgeByCounters(q, v.Now)
			q.Counters.Idled++
			q.Counters.Completed++
			q.Served += tt.period
			v.Now = v.Now.Add(tt.period)
		}
		if st.load.verdict != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, st.load.verdict, tt.want)
		}
	}
}
