package policy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// Liu and Layland, 1973, theorem 7; Dertouzos and Mok, 1989, for least laxity.
func TestEDFMeetsAllDeadlinesWhenUtilisationIsAtMostOne(t *testing.T) { meetAll(t, "edf", nil) }

func TestLLFAlsoDoes(t *testing.T) { meetAll(t, "llf", map[string]string{"hysteresis": "10us"}) }

func meetAll(t *testing.T, name string, params map[string]string) {
	for seed := range uint64(60) {
		l := newLab(t, name, params)
		for _, task := range fullTaskSet(rand.New(rand.NewPCG(seed, 2))) {
			l.open(sched.Queue{Attr: task}, periodic(task.Deadline, task.Work))
		}
		l.run(400 * ms) // two hyperperiods
		for _, j := range l.jobs {
			if late := j.late(); late > 0 {
				t.Errorf("seed %d: a command of queue %d (%v every %v) was %v late", seed, j.ID, j.Attr.Work, j.Attr.Deadline, late)
			}
		}
		if n := len(l.jobs[0].finished); n < int(400*ms/l.jobs[0].Attr.Deadline) {
			t.Errorf("seed %d: only %d commands of queue 1 finished", seed, n)
		}
	}
}

// fullTaskSet is two to six periodic tasks with a hyperperiod of 200 ms that
// use the device fully or nearly so.
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

// Under overload plain EDF makes everybody late, one after the other.
func TestHopelessWorkDoesNotMakeTheOthersLate(t *testing.T) {
	for _, name := range []string{"edf", "llf"} {
		l := newLab(t, name, map[string]string{"tardy": "20ms"})
		hopeless := l.open(sched.Queue{Attr: sched.Attr{Deadline: 10 * ms}}, func(j *job, now sched.Time) {
			if now == 0 {
				j.submit(now, 10*time.Second) // a thousand times too much
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
			t.Errorf("%s: %d of %d commands late beside a hopeless one", name, n, len(good.finished))
		}
		if hopeless.served < time.Second {
			t.Errorf("%s: the hopeless one got %v of what was left", name, hopeless.served)
		}
	}
}

// Nothing happens on the device all the while: only Wake can tell.
func TestWorkThatBecomesHopelessGivesWayWithoutAnEvent(t *testing.T) {
	for _, name := range []string{"edf", "llf"} {
		l := newLab(t, name, map[string]string{"tardy": "20ms"})
		l.open(sched.Queue{Attr: sched.Attr{Deadline: 10 * ms}}, periodic(time.Hour, time.Second))
		good := l.open(sched.Queue{Attr: sched.Attr{Deadline: 50 * ms}}, periodic(time.Hour, 5*ms))
		l.run(time.Second)
		if done := good.finished[0].done; !near(time.Duration(done), 35*ms, tick) {
			t.Errorf("%s: done at %v, want as soon as the other is 20 ms late", name, time.Duration(done))
		}
		if l.steps > 20 {
			t.Errorf("%s: asked %d times", name, l.steps)
		}
	}
}

func TestWorkWithoutADeadlineComesLastInOrderOfArrival(t *testing.T) {
	for _, name := range []string{"edf", "llf"} {
		l := newLab(t, name, nil)
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
			t.Errorf("%s: done at %v", name, order)
		}
	}
}

func TestKEDFRunsTheKEarliest(t *testing.T) {
	l := newLab(t, "kedf", map[string]string{"k": "3"})
	var jobs []*job
	for i := range 6 {
		jobs = append(jobs, l.open(sched.Queue{Attr: sched.Attr{Deadline: time.Duration(6-i) * 100 * ms}}, saturating))
	}
	l.run(ms)
	for i, j := range jobs {
		if j.running != (i >= 3) {
			t.Errorf("queue with deadline %v running: %v", j.Attr.Deadline, j.running)
		}
	}
}

// By the rule alone two equal queues change places at every instant.
func TestLLFEqualQueuesChangePlacesOnlyByHysteresis(t *testing.T) {
	l := newLab(t, "llf", map[string]string{"hysteresis": "5ms"})
	same := sched.Queue{Attr: sched.Attr{Deadline: 200 * ms, Work: 80 * ms}}
	a, b := l.open(same, periodic(200*ms, 80*ms)), l.open(same, periodic(200*ms, 80*ms))
	bystander := l.open(sched.Queue{}, idle)
	l.run(0)
	quiet := l.steps
	l.run(time.Second)
	if quiet = l.steps - quiet; quiet > 600 {
		t.Errorf("asked %d times: it polls", quiet)
	}
	l.run(time.Second, func() { l.hint(bystander, func(*sched.Attr) {}) }) // asked all the time, it must not change its mind
	if a.late() > 0 || b.late() > 0 {
		t.Errorf("late by %v and %v", a.late(), b.late())
	}
	// A turn is twice the hysteresis, and there are 1.6 s of work; a change is two actions.
	if n := len(l.actions); n > 2*180 {
		t.Errorf("%d actions", n)
	}
}

// Where the work is not known all laxities fall alike: there is nothing to wake for.
func TestLLFDoesNotPollWhereTheOrderStands(t *testing.T) {
	l := newLab(t, "llf", map[string]string{"tardy": "1h"})
	for i := range 3 {
		deadline := time.Duration(100+i) * ms
		l.open(sched.Queue{Attr: sched.Attr{Deadline: deadline}}, periodic(time.Hour, time.Second))
	}
	l.run(time.Second)
	if l.steps > 12 {
		t.Errorf("asked %d times", l.steps)
	}
}

func TestLLFGoesByTheLaxityItIsGiven(t *testing.T) {
	l := newLab(t, "llf", nil)
	l.open(sched.Queue{Attr: sched.Attr{Deadline: 50 * ms, Work: 20 * ms}}, periodic(100*ms, 20*ms))
	patient := l.open(sched.Queue{Attr: sched.Attr{Laxity: 40 * ms}}, periodic(100*ms, 10*ms))
	l.run(100 * ms)
	// Laxity 30 ms against 40 ms: the first is ahead until 11 ms have gone by.
	if c := patient.finished[0]; c.done < sched.Time(20*ms) || c.done > sched.Time(31*ms) {
		t.Errorf("done at %v", time.Duration(c.done))
	}
}
