package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestTurnsDoNotChangeInRequests checks that no call is made between the arrival of a request and
// its end, if requests are regular or the shim tells of them.
func TestTurnsDoNotChangeInRequests(t *testing.T) {
	for _, c := range []struct {
		name     string
		counters bool
		load     func(*job, sched.Time)
	}{{"regular requests", false, periodic(20*ms, ms)}, {"counted requests", true, atRandom(ms)}} {
		l, jobs := newShared(t, nil, 0, 0, 0)
		online := l.openJob(class(sched.Online), c.load, 0)
		online.noCounters = !c.counters
		l.run(2 * time.Second)
		during, actions, before := 0, len(l.actions), jobs[0].served
		l.run(4*time.Second, func() {
			if len(online.todo) > 0 && len(l.actions) > actions {
				during++
			}
			actions = len(l.actions)
		})
		if during > 0 {
			t.Errorf("%s: calls were made in %d ticks of requests, want none", c.name, during)
		}
		if got := jobs[0].served - before; got < 1000*ms {
			t.Errorf("%s: the first of three batch jobs had %v of 4 s, want its turns", c.name, got)
		}
	}
}

// TestTurnOver checks when a turn of 50 ms ends.
func TestTurnOver(t *testing.T) {
	p := makeGiveway()
	p.turnStart.Time, p.inRotation = sched.Time(ms), 2
	for _, tt := range []struct {
		after time.Duration
		sum   onlineSummary
		want  bool
	}{
		{50*ms - 1, onlineSummary{}, false},
		{50 * ms, onlineSummary{}, true},
		{50 * ms, onlineSummary{serving: true}, false},
		{50 * ms, onlineSummary{expecting: true}, false},
		{62500*time.Microsecond - 1, onlineSummary{serving: true, expecting: true}, false},
		{62500 * time.Microsecond, onlineSummary{serving: true, expecting: true}, true},
	} {
		if got := p.turnOver(p.turnStart.Add(tt.after), p.turnStart.Add(p.turnLength()), &summary{onlineSummary: tt.sum}); got != tt.want {
			t.Errorf("after %v, %+v: over %v, want %v", tt.after, tt.sum, got, tt.want)
		}
	}
}

// TestWakeOfATurnThatGoesOn checks that the policy looks again when the request is over, or when
// the turn must end at last.
func TestWakeOfATurnThatGoesOn(t *testing.T) {
	for _, tt := range []struct{ after, change, want time.Duration }{
		{20 * ms, 30 * ms, 50 * ms},
		{51 * ms, 52 * ms, 52 * ms},
		{51 * ms, 0, 62500 * time.Microsecond},
		{51 * ms, 70 * ms, 62500 * time.Microsecond},
	} {
		p, v, states := lightNode(heavyLoad, heavyLoad)
		start := v.Now
		p.current, p.turnStart.Time, p.inRotation = 1, start, 2
		v.Now = start.Add(tt.after)
		s := summary{inRotation: 2, rotationClass: sched.Batch, current: 0}
		s.serving = true
		if tt.change > 0 {
			s.onlineChange = start.Add(tt.change)
		}
		set := p.ownSetting()
		p.rotate(v, states, &s, &set)
		if p.current != 1 || s.wake != start.Add(tt.want) {
			t.Errorf("after %v: turn of queue %d, wake after %v; want queue 1 and %v", tt.after, p.current, s.wake.Sub(start), tt.want)
		}
	}
}

// TestFirstRequestsFindOneBatchQueue checks that light queues do not run side by side until it is
// known whether requests are regular, for at most half a second after each pause.
func TestFirstRequestsFindOneBatchQueue(t *testing.T) {
	const start, pause, again = 3 * time.Second, 5 * time.Second, 8 * time.Second
	for _, counters := range []bool{false, true} {
		l, jobs := newShared(t, nil, lightBurst, lightBurst, lightBurst, lightBurst)
		next := start
		online := l.openJob(class(sched.Online), func(j *job, now sched.Time) {
			if time.Duration(now) >= next {
				j.submit(now, ms)
				if next += 20 * ms; next == pause {
					next = again
				}
			}
		}, 0)
		online.noCounters = !counters
		running := func() (n int) {
			for _, j := range jobs {
				if j.running {
					n++
				}
			}
			return n
		}
		l.run(start)
		if n := running(); n != 4 {
			t.Fatalf("counters %v: %d light queues run without requests, want 4", counters, n)
		}
		for _, begin := range []time.Duration{start, again} {
			l.run(begin - time.Duration(l.now))
			// The first request is not expected, and is seen when the trace is read.
			l.run(30 * ms)
			for i := range 20 {
				l.run(begin + time.Duration(i+2)*20*ms - time.Duration(l.now) + tick)
				if n := running(); n > 1 {
					t.Errorf("counters %v: request %d after %v found %d batch queues, want 1", counters, i+3, begin, n)
				}
			}
		}
	}
}

// TestLearningEnds checks for how long the first requests are waited for, and that it begins anew
// only after a pause.
func TestLearningEnds(t *testing.T) {
	const first = sched.Time(time.Second)
	o := onlineState{}
	q := sched.Queue{Measured: true, Visits: sched.Visits{Known: true}}
	arrive := func(at sched.Time) {
		q.Visits.Arrived = at
		q.Visits.Count++
		o.watch(&q, at)
	}
	check := func(at sched.Time, want bool) {
		t.Helper()
		if got := o.learning(at); got != want {
			t.Errorf("%v after the first request: learning %v, want %v", at.Sub(first), got, want)
		}
	}
	check(first, false)
	arrive(first)
	check(first, true)
	check(first.Add(learnTime-1), true)
	check(first.Add(learnTime), false)
	arrive(first.Add(activeFor - 1)) // no pause
	check(first.Add(activeFor-1), false)
	second := first.Add(2*activeFor - 1)
	arrive(second)
	check(second, true)
	for i := range 6 { // eight intervals that no rhythm fits
		arrive(second.Add(time.Duration(i*i+2*i+3) * 5 * ms))
	}
	check(o.arrival, false)
}

// TestTurnBeginsAnewAfterTheDeviceWasOccupied checks that a turn is postponed once after stopped queues
// had commands on a device that runs one at a time, unless it has been used.
func TestTurnBeginsAnewAfterTheDeviceWasOccupied(t *testing.T) {
	v := &sched.View{Now: sched.Time(ms), Devices: []sched.Device{{Serial: true}}, Queues: []sched.Queue{{ID: 1}}}
	for _, used := range []time.Duration{0, ms} {
		start := turnStart{occupied: true}
		for i, want := range []bool{used == 0, false} {
			v.Now = v.Now.Add(ms)
			if start.postpone(v, used, 8*ms); (start.Time == v.Now) != want {
				t.Errorf("%v used, plan %d: the turn begins anew %v, want %v", used, i+1, start.Time == v.Now, want)
			}
		}
	}
}

// TestLearnPeriod checks that light queues take turns for half a second at a time, and for a fifth of
// the time if there are always queues with their first requests.
func TestLearnPeriod(t *testing.T) {
	var l learnPeriod
	const begin = sched.Time(time.Hour)
	var sum time.Duration
	for now := begin; now < begin.Add(10*time.Second); now = now.Add(10 * ms) {
		in, change := l.update(now, true)
		if again, _ := l.update(now, true); again != in {
			t.Fatalf("after %v: two plans at the same instant differ", now.Sub(begin))
		}
		if in {
			sum += 10 * ms
		}
		if in != (change > now) {
			t.Errorf("after %v: in a period %v, which changes after %v", now.Sub(begin), in, change.Sub(begin))
		}
	}
	if sum != 2*time.Second {
		t.Errorf("got %v of 10 s, want a fifth", sum)
	}
	l = learnPeriod{}
	for _, c := range []struct {
		after    time.Duration
		learning bool
		want     bool
	}{{0, true, true}, {100 * ms, true, true}, {160 * ms, false, false}, {799 * ms, true, false}, {800 * ms, true, true}} {
		if got, _ := l.update(begin.Add(c.after), c.learning); got != c.want {
			t.Errorf("after %v, learning %v: got %v, want %v", c.after, c.learning, got, c.want)
		}
	}
}

// replanned makes each plan twice.
type replanned struct {
	sched.Policy
	t *testing.T
}

func (r replanned) Observe(now sched.Time, ev *sched.Event) {
	if o, ok := r.Policy.(sched.Observer); ok {
		o.Observe(now, ev)
	}
}

func (r replanned) Plan(v *sched.View) sched.Plan {
	first := r.Policy.Plan(v)
	grants, wake := slices.Clone(first.Grants), first.Wake
	second := r.Policy.Plan(v)
	if !slices.Equal(grants, second.Grants) {
		r.t.Errorf("at %v: two plans differ: %v and %v", time.Duration(v.Now), grants, second.Grants)
	}
	if wake > 0 && wake <= v.Now {
		r.t.Errorf("at %v: the next plan is to be made %v earlier", time.Duration(v.Now), v.Now.Sub(wake))
	}
	return second
}

// TestSecondPlanIsTheSame checks that a second plan at the same instant is the same as the first, and
// that no plan is due before its time, beside requests with a little jitter.
func TestSecondPlanIsTheSame(t *testing.T) {
	for _, name := range []string{"giveway", "slo"} {
		for _, period := range []time.Duration{16 * ms, 47 * ms, 100 * ms} {
			for _, bursts := range [][]time.Duration{{0, 0, 0}, {lightBurst, lightBurst, lightBurst}, {0, 0, lightBurst}} {
				choice, err := Choose(name, nil)
				if err != nil {
					t.Fatal(err)
				}
				build := choice.Make
				choice.Make = func() sched.Policy { return replanned{build(), t} }
				l := newNodeOf(t, sched.Config{Floor: -1, StallLimit: time.Hour}, choice, sharedGPU)
				l.measureEvery, l.visits, l.actionTime = 10*ms, true, 500*time.Microsecond
				for _, b := range bursts {
					l.openJob(batch(1), saturating, b)
				}
				next, k := sched.Time(0), 0
				for _, counters := range []bool{false, true} {
					online := l.openJob(class(sched.Online), func(j *job, now sched.Time) {
						if now >= next {
							j.submit(now, ms)
							k++
							next = sched.Time(time.Duration(k)*period + time.Duration(k*7%5)*period/60)
						}
					}, 0)
					online.noCounters = !counters
					l.run(5 * time.Second)
					online.load = func(*job, sched.Time) {}
				}
				if t.Failed() {
					t.Fatalf("%s, requests every %v, jobs %v", name, period, bursts)
				}
			}
		}
	}
}
