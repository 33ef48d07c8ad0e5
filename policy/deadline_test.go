package policy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestEDFMeetsAllDeadlinesWhenUtilisationIsAtMostOne is theorem 7 of Liu and
// Layland, 1973. For least laxity see Dertouzos and Mok, 1989.
func TestEDFMeetsAllDeadlinesWhenUtilisationIsAtMostOne(t *testing.T) { checkAllInTime(t, "edf", nil) }

func TestLLFMeetsAllDeadlinesWhenUtilisationIsAtMostOne(t *testing.T) {
	checkAllInTime(t, "llf", map[string]string{"hysteresis": "10us"})
}

func checkAllInTime(t *testing.T, name string, params map[string]string) {
	for seed := range uint64(60) {
		l := newNode(t, name, params)
		for _, task := range fullTaskSet(rand.New(rand.NewPCG(seed, 2))) {
			l.open(sched.Queue{Attr: task}, periodic(task.Deadline, task.Work))
		}
		l.run(400 * ms) // two hyperperiods
		for _, j := range l.jobs {
			if late := j.worstLateness(); late > 0 {
				t.Errorf("seed %d: queue %d (%v every %v): got a command %v late, want none", seed, j.ID, j.Attr.Work, j.Attr.Deadline, late)
			}
		}
		if n := len(l.jobs[0].finished); n < int(400*ms/l.jobs[0].Attr.Deadline) {
			t.Errorf("seed %d: got %d finished commands of queue 1, want all", seed, n)
		}
	}
}

// fullTaskSet returns two to six periodic tasks with a hyperperiod of 200 ms that
// use nearly all of the device.
func fullTaskSet(r *rand.Rand) []sched.Attr {
	var tasks []sched.Attr
	const total = 200 * ms / tick
	left := total
	for n := 2 + r.IntN(5); n > 0 && left > 0; n-- {
		period := []time.Duration{5, 10, 20, 25, 40, 50, 100, 200}[r.IntN(8)] * ms
		most := left * period / (200 * ms) // ticks of every period
		if most == 0 {
			continue
		}
		work := most
		if n > 1 {
			work = 1 + time.Duration(r.Int64N(int64(most)))
		}
		left -= work * (200 * ms / period)
		tasks = append(tasks, sched.Attr{Deadline: period, Work: work * tick})
	}
	return tasks
}

// TestWorkThatIsTooLateDoesNotMakeOtherWorkLate checks that there is no domino
// effect under overload.
func TestWorkThatIsTooLateDoesNotMakeOtherWorkLate(t *testing.T) {
	for _, name := range []string{"edf", "llf"} {
		l := newNode(t, name, map[string]string{"tardy": "20ms"})
		tooLate := l.open(sched.Queue{Attr: sched.Attr{Deadline: 10 * ms}}, func(j *job, now sched.Time) {
			if now == 0 {
				j.submit(now, 10*time.Second) // a thousand times the deadline
			}
		})
		good := l.open(sched.Queue{Attr: sched.Attr{Deadline: 20 * ms, Work: 5 * ms}}, periodic(20*ms, 5*ms))
		l.run(2 * time.Second)
		n := 0
		for _, c := range good.finished {
			if c.arrived >= sched.Time(40*ms) && c.done.Sub(c.arrived) > 20*ms {
				n++
			}
		}
		if n > 0 || len(good.finished) < 98 {
			t.Errorf("%s: got %d of %d commands late, want none", name, n, len(good.finished))
		}
		if tooLate.served < time.Second {
			t.Errorf("%s: the queue that is too late got %v, want at least 1s of the rest", name, tooLate.served)
		}
	}
}

// TestWorkThatBecomesTooLateGivesWayWithoutAnEvent checks Wake: there are no events
// in between.
func TestWorkThatBecomesTooLateGivesWayWithoutAnEvent(t *testing.T) {
	for _, name := range []string{"edf", "llf"} {
		l := newNode(t, name, map[string]string{"tardy": "20ms"})
		l.open(sched.Queue{Attr: sched.Attr{Deadline: 10 * ms}}, periodic(time.Hour, time.Second))
		good := l.open(sched.Queue{Attr: sched.Attr{Deadline: 50 * ms}}, periodic(time.Hour, 5*ms))
		l.run(time.Second)
		if done := good.finished[0].done; !near(time.Duration(done), 35*ms, tick) {
			t.Errorf("%s: got done at %v, want 35ms, when the other is 20 ms late", name, time.Duration(done))
		}
		if l.steps > 50 { // a queue for which others wait is looked at: see recheck
			t.Errorf("%s: got %d steps, want at most 50", name, l.steps)
		}
	}
}

func TestWorkWithoutADeadlineComesLastInOrderOfArrival(t *testing.T) {
	for _, name := range []string{"edf", "llf"} {
		l := newNode(t, name, nil)
		once := func(at time.Duration) func(*job, sched.Time) {
			return func(j *job, now sched.Time) {
				if now == sched.Time(at) {
					j.submit(now, 10*ms)
				}
			}
		}
		second := l.open(sched.Queue{}, once(2*ms))
		first := l.open(sched.Queue{}, once(ms))
		dated := l.open(sched.Queue{Attr: sched.Attr{Deadline: time.Second}}, once(3*ms))
		l.run(50 * ms)
		order := []sched.Time{dated.finished[0].done, first.finished[0].done, second.finished[0].done}
		if order[0] != sched.Time(13*ms) || order[1] != sched.Time(21*ms) || order[2] != sched.Time(31*ms) {
			t.Errorf("%s: got done at %v, want 13ms, 21ms and 31ms", name, order)
		}
	}
}

func TestKEDFRunsTheKEarliest(t *testing.T) {
	l := newNode(t, "kedf", map[string]string{"k": "3"})
	var jobs []*job
	for i := range 6 {
		jobs = append(jobs, l.open(sched.Queue{Attr: sched.Attr{Deadline: time.Duration(6-i) * 100 * ms}}, saturating))
	}
	l.run(ms)
	for i, j := range jobs {
		if j.running != (i >= 3) {
			t.Errorf("deadline %v: got running %v, want %v", j.Attr.Deadline, j.running, i >= 3)
		}
	}
}

// TestLLFEqualQueuesChangePlacesOnlyByHysteresis checks that two equal queues do not
// change places all the time.
func TestLLFEqualQueuesChangePlacesOnlyByHysteresis(t *testing.T) {
	l := newNode(t, "llf", map[string]string{"hysteresis": "5ms"})
	same := sched.Queue{Attr: sched.Attr{Deadline: 200 * ms, Work: 80 * ms}}
	a, b := l.open(same, periodic(200*ms, 80*ms)), l.open(same, periodic(200*ms, 80*ms))
	bystander := l.open(sched.Queue{}, idle)
	l.run(0)
	before := l.steps
	l.run(time.Second)
	if steps := l.steps - before; steps > 600 {
		t.Errorf("got %d steps in 1 s, want at most 600", steps)
	}
	l.run(time.Second, func() { l.setAttr(bystander, func(*sched.Attr) {}) }) // many calls of Plan must not change the order
	if a.worstLateness() > 0 || b.worstLateness() > 0 {
		t.Errorf("got late by %v and %v, want in time", a.worstLateness(), b.worstLateness())
	}
	// A turn takes twice the hysteresis. There are 1.6 s of work, and two actions for each turn.
	if n := len(l.actions); n > 2*180 {
		t.Errorf("got %d actions, want at most 360", n)
	}
}

// TestLLFFavoursNoQueueAfterAPause checks that after a moment without work no queue counts as
// running: the one with the lower laxity goes first, however small the difference.
func TestLLFFavoursNoQueueAfterAPause(t *testing.T) {
	p, now := newLLF(), sched.Time(time.Hour)
	plan := func(submitted uint64) (granted []sched.QueueID) {
		now = now.Add(ms)
		v := &sched.View{Now: now, Devices: []sched.Device{plainGPU}}
		for id, deadline := range []time.Duration{20*ms + 1, 20 * ms} {
			v.Queues = append(v.Queues, sched.Queue{
				ID: sched.QueueID(id + 1), Attr: sched.Attr{Deadline: deadline}, ReadySince: now,
				Counters: sched.Counters{Known: true, Submitted: submitted},
			})
		}
		for _, g := range p.Plan(v).Grants {
			granted = append(granted, g.Queue)
		}
		return granted
	}
	for range 2 {
		if got := plan(0); len(got) != 2 {
			t.Fatalf("without work: queues %v run, want both", got)
		}
		if got := plan(1); len(got) != 1 || got[0] != 2 {
			t.Errorf("after a pause: queues %v run, want 2", got)
		}
	}
}

// TestLLFForgetsTheRunningQueueWhenAllAreIdle checks that a queue which ran before all were idle has no
// advantage over one whose laxity is a little lower.
func TestLLFForgetsTheRunningQueueWhenAllAreIdle(t *testing.T) {
	p := newLLF()
	v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
		{ID: 1, Can: canAll, Attr: sched.Attr{Deadline: 10 * ms}}, {ID: 2, Can: canAll, Attr: sched.Attr{Deadline: 10*ms - 1}},
	}}
	plan := func(busy ...bool) sched.QueueID {
		v.Now = v.Now.Add(ms)
		for i, b := range busy {
			c := &v.Queues[i].Counters
			c.Known, c.Completed = true, c.Submitted
			if b {
				c.Submitted, c.Launched = c.Submitted+1, c.Submitted+1
				v.Queues[i].ReadySince = v.Now
			}
		}
		for _, g := range p.Plan(v).Grants {
			if busy[g.Queue-1] {
				return g.Queue
			}
		}
		return 0
	}
	if got := plan(true, false); got != 1 {
		t.Fatalf("only queue 1 has work: queue %d runs", got)
	}
	if got := plan(true, true); got != 1 {
		t.Fatalf("both have work: queue %d runs, want the one that did, by the hysteresis", got)
	}
	plan(false, false)
	if got := plan(true, true); got != 2 {
		t.Errorf("both have work after a pause: queue %d runs, want 2, whose laxity is lower", got)
	}
}

// TestWorkIsLookedAtAfterAnEighthMore checks when a policy looks again whether work is done for
// which others wait: after an eighth of the device time that the work has had, and not sooner
// than 500 us. Time that was measured late may be of earlier work.
func TestWorkIsLookedAtAfterAnEighthMore(t *testing.T) {
	now := sched.Time(time.Hour)
	for _, c := range []struct{ had, waited, want time.Duration }{
		{0, 0, 500 * time.Microsecond},
		{4 * ms, 10 * ms, 500 * time.Microsecond},
		{80 * ms, 100 * ms, 10 * ms},
		{8 * time.Second, 8 * time.Second, time.Second},
		{8 * time.Second, 80 * ms, 10 * ms},
	} {
		q := sched.Queue{Served: time.Minute + c.had, ServedAtReady: time.Minute, ReadySince: now.Add(-c.waited), Counters: sched.Counters{Known: true, Submitted: 1}}
		if got := recheck(&q, now).Sub(now); got != c.want {
			t.Errorf("the work has had %v in %v: looked at after %v, want %v", c.had, c.waited, got, c.want)
		}
		if q.Counters.Known = false; recheck(&q, now) != 0 {
			t.Error("work of a queue without counters is looked at: there is nothing to see")
		}
	}
}

// TestLLFWakesSeldomWhenTheOrderCannotChange uses unknown work: all laxities fall at
// the same rate. The running queue is looked at seldom: see recheck.
func TestLLFWakesSeldomWhenTheOrderCannotChange(t *testing.T) {
	l := newNode(t, "llf", map[string]string{"tardy": "1h"})
	for i := range 3 {
		deadline := time.Duration(100+i) * ms
		l.open(sched.Queue{Attr: sched.Attr{Deadline: deadline}}, periodic(time.Hour, time.Minute))
	}
	l.run(time.Second)
	if l.steps > 70 {
		t.Errorf("got %d steps in the first second, want at most 70", l.steps)
	}
	before := l.steps
	l.run(10 * time.Second)
	if steps := l.steps - before; steps > 30 {
		t.Errorf("got %d steps in the next ten seconds, want at most 30", steps)
	}
}

func TestLLFUsesTheLaxityAttribute(t *testing.T) {
	l := newNode(t, "llf", nil)
	l.open(sched.Queue{Attr: sched.Attr{Deadline: 50 * ms, Work: 20 * ms}}, periodic(100*ms, 20*ms))
	patient := l.open(sched.Queue{Attr: sched.Attr{Laxity: 40 * ms}}, periodic(100*ms, 10*ms))
	l.run(100 * ms)
	// Laxity 30 ms and 40 ms: the first queue is ahead for 11 ms.
	if c := patient.finished[0]; c.done < sched.Time(20*ms) || c.done > sched.Time(31*ms) {
		t.Errorf("got done at %v, want 20ms to 31ms", time.Duration(c.done))
	}
}

// oneByOne submits n commands of 1 ms from the start on, two of them at a time.
func oneByOne(n int) func(*job, sched.Time) {
	return func(j *job, now sched.Time) {
		for len(j.todo) < 2 && len(j.todo)+len(j.finished) < n {
			j.submit(now, ms)
		}
	}
}

// TestEDFDeadlineStartsAtTheRequest has a request of many commands, of which the process
// has only two submitted at a time. Its deadline must not move with them.
func TestEDFDeadlineStartsAtTheRequest(t *testing.T) {
	l := newNode(t, "edf", nil)
	many := l.open(sched.Queue{Attr: sched.Attr{Deadline: 40 * ms}}, oneByOne(20))
	l.events = append(l.events, sched.Event{Kind: sched.RequestStarted, Queue: many.ID})
	l.now = 1 // no request starts at time zero
	l.run(10 * ms)
	one := l.open(sched.Queue{Attr: sched.Attr{Deadline: 36 * ms}}, periodic(time.Hour, 25*ms))
	l.run(100 * ms)
	if done := many.finished[19].done; done > sched.Time(40*ms) {
		t.Errorf("the request was done at %v, want by 40ms", time.Duration(done))
	}
	if done := one.finished[0].done; done > sched.Time(46*ms) {
		t.Errorf("the other request was done at %v, want by 46ms", time.Duration(done))
	}
}

// TestEDFRequestThatNeverEnds checks that a queue whose request never ends, because the
// process does not mark its requests and is never idle, shares the device with another
// of the same kind.
func TestEDFRequestThatNeverEnds(t *testing.T) {
	l := newNode(t, "edf", nil)
	l.now = 1
	a := l.open(sched.Queue{Attr: sched.Attr{Deadline: 20 * ms}}, saturating)
	b := l.open(sched.Queue{Attr: sched.Attr{Deadline: 20 * ms}}, saturating)
	for _, j := range l.jobs {
		l.events = append(l.events, sched.Event{Kind: sched.RequestStarted, Queue: j.ID})
	}
	l.run(2 * time.Second)
	if !near(a.served, b.served, 200*ms) {
		t.Errorf("got %v and %v, want about equal parts", a.served, b.served)
	}
}

// TestUncountedQueueDoesNotKeepThePolicyAwake has a queue without counters, which runs beside
// the first of the others and never takes its place.
func TestUncountedQueueDoesNotKeepThePolicyAwake(t *testing.T) {
	for _, name := range []string{"fifo", "edf", "kedf", "llf"} {
		for _, deadline := range []time.Duration{0, 10 * ms, 30 * ms, time.Second} {
			l := newNode(t, name, nil)
			l.open(sched.Queue{Attr: sched.Attr{Deadline: deadline, Laxity: deadline}}, nil) // uncounted
			l.open(sched.Queue{Attr: sched.Attr{Deadline: 20 * ms, Work: 5 * ms}}, periodic(20*ms, 5*ms))
			l.open(sched.Queue{Attr: sched.Attr{Deadline: 40 * ms}}, periodic(40*ms, 5*ms))
			l.run(0)
			for range 2000 { // a look each 500 us would be 200
				if l.wake >= sched.Time(100*ms) {
					break
				}
				l.now = max(l.now, min(l.wake, sched.Time(100*ms)))
				l.arrive()
				l.step()
			}
			if l.wake < sched.Time(100*ms) {
				t.Errorf("%s, deadline %v: got more than 2000 steps up to %v, want fewer in 100 ms", name, deadline, time.Duration(l.now))
			}
		}
	}
}

// TestLLFUncountedQueueBesideItsEqual checks that a queue without counters whose laxity is that of
// the running one runs beside it, and that the policy does not wake for that.
func TestLLFUncountedQueueBesideItsEqual(t *testing.T) {
	now := sched.Time(time.Hour)
	for _, c := range []struct {
		more time.Duration // laxity of the uncounted queue, beyond that of the other
		runs bool
		wake time.Duration
	}{
		{-ms, true, 500 * time.Microsecond}, // only to look whether the work is done
		{0, true, 500 * time.Microsecond},
		{200 * time.Microsecond, false, 200 * time.Microsecond}, // when it is as low
		{ms, false, 500 * time.Microsecond},
	} {
		p := newLLF()
		attr := sched.Attr{Deadline: 20 * ms, Work: 5 * ms}
		later := attr
		later.Deadline += c.more
		plan := p.Plan(&sched.View{Now: now, Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{
			{ID: 1, Attr: attr, ReadySince: now, Counters: sched.Counters{Submitted: 1, Known: true}},
			{ID: 2, Attr: later, ReadySince: now},
		}})
		if runs := len(plan.Grants) == 2; runs != c.runs || plan.Wake != now.Add(c.wake) {
			t.Errorf("laxity %v beyond the other: runs %v, next look after %v; want %v, %v", c.more, runs, plan.Wake.Sub(now), c.runs, c.wake)
		}
	}
}

// TestSlackOfWork checks the slack of a queue whose work has waited for 5 ms and has had 3 ms of
// the device since it became ready.
func TestSlackOfWork(t *testing.T) {
	now := sched.Time(time.Hour)
	for _, c := range []struct {
		attr sched.Attr
		want slack
	}{
		{sched.Attr{Laxity: 20 * ms, Work: 10 * ms}, slack{laxity: 18 * ms, work: 7 * ms}},
		{sched.Attr{Laxity: 20 * ms, Work: 2 * ms}, slack{laxity: 17 * ms}}, // more than was expected
		{sched.Attr{Laxity: 20 * ms}, slack{laxity: 18 * ms, work: unlimited}},
		{sched.Attr{Deadline: 20 * ms, Work: 10 * ms}, slack{laxity: 8 * ms, work: 7 * ms}},
		{sched.Attr{Deadline: 20 * ms}, slack{laxity: 15 * ms}},
		{sched.Attr{Deadline: ms}, slack{laxity: -4 * ms, group: tooLate}},
		{sched.Attr{Work: 10 * ms}, slack{laxity: time.Duration(now) - 5*ms, group: noDeadline}},
	} {
		p := newLLF().(*llf)
		p.tardy = 3 * ms
		q := &sched.Queue{Attr: c.attr, Served: 7 * ms, ServedAtReady: 4 * ms, ReadySince: now.Add(-5 * ms)}
		if got := p.slackOf(q, now); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.attr, got, c.want)
		}
	}
}

// TestLLFWakesWhenAnotherGoesAhead checks that the policy looks again when the laxity of another
// queue will be lower by the hysteresis of 1 ms, if the running one still has work then, and
// that the other goes ahead at that time.
func TestLLFWakesWhenAnotherGoesAhead(t *testing.T) {
	now := sched.Time(time.Hour)
	for work, want := range map[time.Duration]time.Duration{
		199 * time.Microsecond: 500 * time.Microsecond, // only to look whether the work is done
		200 * time.Microsecond: 200 * time.Microsecond,
		ms:                     200 * time.Microsecond,
	} {
		p := newLLF().(*llf)
		p.running = 1
		v := &sched.View{Now: now, Devices: []sched.Device{plainGPU}, Queues: []sched.Queue{
			{ID: 1, Attr: sched.Attr{Laxity: 20 * ms, Work: work}, ReadySince: now, Counters: sched.Counters{Submitted: 1, Known: true}},
			{ID: 2, Attr: sched.Attr{Laxity: 20*ms - 800*time.Microsecond, Work: ms}, ReadySince: now, Counters: sched.Counters{Submitted: 1, Known: true}},
		}}
		plan := p.Plan(v)
		if len(plan.Grants) != 1 || plan.Grants[0].Queue != 1 || plan.Wake != now.Add(want) {
			t.Errorf("work of %v: got %+v, want queue 1, and the next look after %v", work, plan, want)
		}
		v.Now = now.Add(want)
		v.Queues[0].Served = want
		if plan := p.Plan(v); work > 199*time.Microsecond && plan.Grants[0].Queue != 2 {
			t.Errorf("work of %v, %v later: got %+v, want queue 2", work, want, plan)
		}
	}
}

// TestLLFWithoutDeadlinesWaitsForTheWork checks that equal queues without deadlines are looked at
// again when the work of the first may be over, not earlier.
func TestLLFWithoutDeadlinesWaitsForTheWork(t *testing.T) {
	p, now := newLLF().(*llf), sched.Time(time.Hour)
	work := sched.Counters{Known: true, Submitted: 1}
	v := &sched.View{Now: now, Queues: []sched.Queue{{ID: 1, Counters: work, ReadySince: now}, {ID: 2, Counters: work, ReadySince: now}}}
	if got, want := p.Plan(v).Wake, recheck(&v.Queues[0], now); got != want {
		t.Errorf("the next plan is after %v, want %v", got.Sub(now), want.Sub(now))
	}
}
