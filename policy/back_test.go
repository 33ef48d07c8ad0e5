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

// TestWatchRest checks that a queue which begins to rest keeps whether it used its turn, and that the length of the
// rest is known when it ends.
func TestWatchRest(t *testing.T) {
	st, start := &queueState{}, sched.Time(time.Second)
	works := &sched.Queue{}
	rests := &sched.Queue{Counters: sched.Counters{Submitted: 1, Launched: 1, Completed: 1, Known: true}}
	for i, step := range []struct {
		q        *sched.Queue
		turn     bool // it has had the turn for long enough
		usedTurn bool
		lastRest time.Duration
	}{
		{works, true, false, 0},
		{rests, false, false, 0},
		{rests, true, false, 0},
		{works, true, false, 2 * ms}, // since it completed a command
		{rests, true, true, 2 * ms},
		{rests, false, true, 2 * ms},
		{works, false, true, 2 * ms},
	} {
		st.watchRest(step.q, start.Add(time.Duration(i)*ms), step.turn)
		if st.usedTurn != step.usedTurn || st.lastRest != step.lastRest {
			t.Errorf("step %d: used its turn %v, last rest %v; want %v, %v", i, st.usedTurn, st.lastRest, step.usedTurn, step.lastRest)
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

// TestQueueThatIsOwedATurnIsNext checks that a queue that waits and is owed a turn goes before one that
// came back, whatever the weights are and however much the present queue owes.
func TestQueueThatIsOwedATurnIsNext(t *testing.T) {
	for _, weight := range []int64{1, 7, 100} {
		for _, owed := range []time.Duration{50*ms - 1, 50 * ms} {
			p, v, states := lightNode(heavyLoad, heavyLoad, heavyLoad)
			p.current, p.turnStart.Time, p.inRotation = 2, v.Now, 1
			for i := range states {
				states[i].weight, states[i].lastTurn = weight*unit, v.Now.Add(-time.Second)
			}
			states[0].joined, states[1].joined = true, true // the third one comes back
			states[0].weight = unit
			states[1].at, states[2].at = 400*ms, owed
			s := summary{inRotation: 3, rotationClass: sched.Batch, current: 1}
			next, end := p.nextTurn(v, states, &s)
			wantNext, wantEnd := 2, p.turnStart.Add(10*ms)
			if owed == 50*ms {
				wantNext, wantEnd = 0, p.turnStart.Add(50*ms)
			}
			if next != wantNext || end != wantEnd {
				t.Errorf("weight %d, owed %v: queue %d is next after %v, want %d after %v", weight, owed, next, end.Sub(v.Now), wantNext, wantEnd.Sub(v.Now))
			}
			// A queue of a larger weight is owed a turn sooner.
			states[0].weight = 2 * unit
			if next, _ = p.nextTurn(v, states, &s); next != 0 {
				t.Errorf("weight %d, owed %v by weight 2: queue %d is next, want 0", weight, owed, next)
			}
		}
	}
}

// TestQueueThatComesBackDuringADrain checks that a queue that came back is next although the turn began
// anew, because stopped queues still had commands on a device that runs one at a time.
func TestQueueThatComesBackDuringADrain(t *testing.T) {
	p, v, states := lightNode(heavyLoad, heavyLoad)
	p.current, p.turnStart.Time, p.inRotation = 1, v.Now, 1
	states[0].joined, states[1].lastTurn = true, v.Now.Add(-time.Second)
	states[0].weight, states[1].weight = unit, unit
	s := summary{inRotation: 2, rotationClass: sched.Batch}
	p.nextTurn(v, states, &s)
	p.turnStart.Time = v.Now.Add(ms)
	if next, end := p.nextTurn(v, states, &s); next != 1 || end != p.turnStart.Add(10*ms) {
		t.Errorf("queue %d is next after %v, want 1 after 10ms", next, end.Sub(p.turnStart.Time))
	}
}

// restNode has two heavy queues with counters. The second one has the turn.
func restNode() (*giveway, *sched.View) {
	p, v, _ := lightNode(heavyLoad, heavyLoad)
	for i := range v.Queues {
		v.Queues[i].Counters = sched.Counters{Submitted: 1, Launched: 1, Known: true}
	}
	v.Queues[0].Counters.Known = false
	p.overlap.next = sched.Never
	p.trial.end, p.trial.took = v.Now, time.Hour // no trials
	p.Plan(v)
	v.Now = v.Now.Add(60 * ms)
	p.Plan(v)
	return p, v
}

// step sets whether the second queue has work, some time later, and makes a plan. It reports whether
// the queue has the turn then.
func restStep(p *giveway, v *sched.View, after time.Duration, work bool) bool {
	v.Now = v.Now.Add(after)
	c := &v.Queues[1].Counters
	c.Completed = c.Submitted
	if work {
		c.Submitted++
		c.Launched++
	}
	p.Plan(v)
	return p.current == 2
}

// TestShortRests checks what a rest of less than shortRest does to the turns. A queue that had used its
// turn has the next one after 10 ms, and others after 50 ms. After a rest that was shorter than a stop
// it keeps its turn in the next rest, for as long as a stop takes.
func TestShortRests(t *testing.T) {
	stop := h200Device.StopTime
	for _, tt := range []struct {
		name   string
		works  time.Duration // in its turn, before it rests
		rests  time.Duration
		waits  time.Duration // from the end of its turn to the next one
		second time.Duration // another rest, in the next turn
		keeps  bool          // its turn in that
	}{
		{"after half a turn", 20 * ms, 2 * ms, 10 * ms, stop - 1, false},
		{"after a useful turn", h200Device.Slice, 2 * ms, 10 * ms, stop - 1, false},
		{"after a shorter one", h200Device.Slice - 1, 2 * ms, 50 * ms, stop - 1, false},
		{"a rest as short as a stop", 20 * ms, stop, 10 * ms, stop - 1, true},
		{"then one that is not", 20 * ms, stop, 10 * ms, stop, false},
		{"a longer rest", 20 * ms, stop + 1, 10 * ms, stop - 1, false},
	} {
		p, v := restNode()
		if p.current != 2 {
			t.Fatalf("%s: the turn is that of queue %d, want 2", tt.name, p.current)
		}
		if restStep(p, v, tt.works, false) {
			t.Errorf("%s: it keeps its turn in its first rest", tt.name)
		}
		ended := v.Now
		for has := restStep(p, v, tt.rests, true); !has && v.Now.Sub(ended) < time.Second; {
			v.Now = v.Now.Add(ms / 2)
			p.Plan(v)
			has = p.current == 2
		}
		if got := v.Now.Sub(ended); got < tt.waits || got > tt.waits+ms {
			t.Errorf("%s: its next turn begins after %v, want %v", tt.name, got, tt.waits)
		}
		restStep(p, v, 20*ms, false)
		if got := restStep(p, v, tt.second, false); got != tt.keeps {
			t.Errorf("%s: it keeps its turn after %v of rest: %v, want %v", tt.name, tt.second, got, tt.keeps)
		}
	}
	if got := usefulTurn(&sched.Device{Slice: 2 * ms, StopTime: 5 * ms}); got != 10*ms {
		t.Errorf("where stops take 5 ms a turn is useful after %v, want after both of them", got)
	}
}

// TestHeavyQueueBesideLightOnesKeepsItsTurn checks for how long the only queue that takes turns keeps its
// turn without work, while light queues run beside it, and that it is not charged for that.
func TestHeavyQueueBesideLightOnesKeepsItsTurn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *giveway, q *sched.Queue)
		want   time.Duration
	}{
		{"one heavy queue", func(*giveway, *sched.Queue) {}, shortRest},
		{"two", func(p *giveway, _ *sched.Queue) { p.heavyQueues = 2 }, 0},
		{"no light one", func(p *giveway, _ *sched.Queue) { p.sharing = false }, 0},
		{"it has no slice", func(_ *giveway, q *sched.Queue) { q.Can = sched.CanInterrupt }, 0},
	} {
		p, v, states := lightNode(heavyLoad)
		q, st := &v.Queues[0], &states[0]
		q.Counters = sched.Counters{Submitted: 1, Completed: 1, Known: true}
		p.sharing, p.heavyQueues = true, 1
		tt.change(p, q)
		if got := p.keepsPlace(st, q, &v.Devices[0], true); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		if got := p.keepsPlace(st, q, &v.Devices[0], false); got != 0 {
			t.Errorf("%s, without the turn: got %v, want none", tt.name, got)
		}
		p.current, p.inRotation, st.readyAt, st.rests = q.ID, 2, v.Now, true
		if p.updateState(st, q, &v.Devices[0], v.Now); st.takesTurns != (tt.want > 0) || st.restsSince != 0 {
			t.Errorf("%s: takes turns %v, and is charged since %v", tt.name, st.takesTurns, st.restsSince)
		}
	}
}

// TestNoBurstsWhileLightQueuesShare checks that there are no bursts while light queues run side by side.
func TestNoBurstsWhileLightQueuesShare(t *testing.T) {
	for _, sharing := range []bool{false, true} {
		n := newLoopNode(sched.Attr{})
		for range 1000 {
			n.policy.sharing = sharing
			n.run(ms)
		}
		if got := n.entries > 0; got == sharing {
			t.Errorf("light queues run side by side: %v, bursts: %v", sharing, got)
		}
	}
}
