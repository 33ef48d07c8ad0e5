package record

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// sharing returns the account of a device with an online process, 1, and batch processes 2 and
// 3 with weights 3 and 1, and their uses as they are counted.
func sharing(tracing bool) (*Accounts, map[int]*Use) {
	a, uses := NewAccounts(func(*Entry) {}), map[int]*Use{}
	a.Device(0, "d", 0, func() bool { return tracing })
	for pid, attr := range map[int]sched.Attr{1: {Class: sched.Online}, 2: {Class: sched.Batch, Weight: 3}, 3: {Class: sched.Batch}} {
		id := sched.QueueID(pid)
		u := &Use{}
		uses[pid] = u
		a.Open(0, id, "d", int32(pid), &attr)
		a.Count(id, func(_ sched.Class, more Use) { u.add(more) })
		a.Progress(0, id, &sched.Counters{Known: true})
	}
	return a, uses
}

func (u *Use) add(more Use) {
	u.GivenAway += more.GivenAway
	u.TakenBack += more.TakenBack
	u.Promised += more.Promised
	u.Given += more.Given
}

// setWork says from when on a queue has work, or has no more.
func setWork(a *Accounts, at sched.Time, id sched.QueueID, work bool) {
	c := sched.Counters{Known: true}
	if work {
		c.Submitted = 1
	}
	a.Progress(at, id, &c)
}

func checkUse(t *testing.T, what string, got *Use, want Use) {
	t.Helper()
	near := func(a, b time.Duration) bool { return (a - b).Abs() <= 10 }
	if !near(got.GivenAway, want.GivenAway) || !near(got.TakenBack, want.TakenBack) || !near(got.Promised, want.Promised) || !near(got.Given, want.Given) {
		t.Errorf("%s: got %+v, want %+v", what, *got, want)
	}
}

// hold adds spans that follow each other: pid 0 is a context switch.
func hold(a *Accounts, spans ...heldUntil) {
	at := sched.Time(0)
	for _, h := range spans {
		s := hal.Span{Begin: at, End: h.until, PID: h.pid, Kind: hal.SpanHeld, Left: hal.Preempted}
		if at = h.until; h.pid == 0 {
			s.Kind = hal.SpanSwitch
		}
		a.Span(at, "d", &s)
	}
	a.Update(at+sched.Time(accountLag), nil)
}

// heldUntil is until when a process holds the device.
type heldUntil struct {
	until sched.Time
	pid   int
}

// TestUses constructs a second in which process 2 always has work, process 3 from 400 ms to
// 800 ms, and the online process from 500 ms to 600 ms and from 900 ms on.
func TestUses(t *testing.T) {
	a, uses := sharing(true)
	setWork(a, 0, 2, true)
	setWork(a, 400*ms, 3, true)
	setWork(a, 500*ms, 1, true)
	setWork(a, 600*ms, 1, false)
	setWork(a, 800*ms, 3, false)
	setWork(a, 900*ms, 1, true)
	hold(a, heldUntil{550 * ms, 2}, heldUntil{600 * ms, 1}, heldUntil{650 * ms, 0}, heldUntil{800 * ms, 3}, heldUntil{950 * ms, 2}, heldUntil{1000 * ms, 1})
	const d = time.Millisecond
	// The batch processes have 850 ms together; the weights promise 3/4 and 1/4 of them.
	checkUse(t, "online", uses[1], Use{TakenBack: 100 * d})
	checkUse(t, "weight 3", uses[2], Use{GivenAway: 600 * d, Promised: 850 * d * 3 / 4, Given: 700 * d})
	checkUse(t, "weight 1", uses[3], Use{GivenAway: 150 * d, Promised: 850 * d / 4, Given: 150 * d})
}

// TestPromiseToAProcessThatWantsLittle: a process is promised no more than it wants, and the
// rest is promised to the other.
func TestPromiseToAProcessThatWantsLittle(t *testing.T) {
	a, uses := sharing(true)
	setWork(a, 300*ms, 2, true)
	setWork(a, 0, 3, true)
	setWork(a, 400*ms, 2, false)
	hold(a, heldUntil{320 * ms, 3}, heldUntil{400 * ms, 2}, heldUntil{1000 * ms, 3})
	const d = time.Millisecond
	checkUse(t, "weight 3, wants 100 ms", uses[2], Use{GivenAway: 80 * d, Promised: 100 * d, Given: 80 * d})
	checkUse(t, "weight 1, wants all", uses[3], Use{GivenAway: 920 * d, Promised: 900 * d, Given: 920 * d})
}

// TestUsesWithoutOnlineProcess: what batch processes have of a device without online processes
// is given away by none, and one that has no contender is promised nothing.
func TestUsesWithoutOnlineProcess(t *testing.T) {
	a, uses := sharing(true)
	a.Close(0, 1)
	setWork(a, 0, 2, true)
	setWork(a, 1500*ms, 3, true)
	hold(a, heldUntil{1000 * ms, 2}, heldUntil{2000 * ms, 2})
	const d = time.Millisecond
	checkUse(t, "alone for the first second", uses[2], Use{Promised: 750 * d, Given: 1000 * d})
	checkUse(t, "waits in the next", uses[3], Use{Promised: 250 * d})
}

// TestUsesByVisits: a process without counters has work while it holds the device, and from
// when it was preempted until it comes back.
func TestUsesByVisits(t *testing.T) {
	a, uses := sharing(true)
	for id := sched.QueueID(1); id <= 3; id++ {
		a.Progress(0, id, &sched.Counters{}) // not known any more
	}
	hold(a, heldUntil{500 * ms, 2}, heldUntil{900 * ms, 3}, heldUntil{1000 * ms, 2})
	const d = time.Millisecond
	// Process 3 wants 500 ms: 400 ms in which it holds the device and 100 ms after that.
	checkUse(t, "weight 3", uses[2], Use{GivenAway: 600 * d, Promised: 750 * d, Given: 600 * d})
	checkUse(t, "weight 1", uses[3], Use{GivenAway: 400 * d, Promised: 250 * d, Given: 400 * d})
}

// TestPromisesAddUp: whatever happens, all processes together are promised what they are given,
// on devices with a trace and without.
func TestPromisesAddUp(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		for _, tracing := range []bool{true, false} {
			a, uses := sharing(tracing)
			served := make([]sched.Queue, 3)
			for now := sched.Time(0); now < 3000*ms; {
				s := hal.Span{Begin: now, End: now + ms + sched.Time(rng.Int64N(int64(20*ms))), Kind: hal.SpanHeld, PID: 1 + rng.IntN(3)}
				if rng.IntN(5) == 0 {
					s.Kind = hal.SpanSwitch
				}
				now = s.End
				if served[s.PID-1].ID = sched.QueueID(s.PID); s.Kind == hal.SpanHeld {
					served[s.PID-1].Served += s.End.Sub(s.Begin)
				}
				setWork(a, now-ms/2, sched.QueueID(1+rng.IntN(3)), rng.IntN(3) > 0)
				if tracing {
					a.Span(now, "d", &s)
				}
				a.Update(now, func() []sched.Queue { return served })
			}
			promised, given := uses[2].Promised+uses[3].Promised, uses[2].Given+uses[3].Given
			if given == 0 || (promised-given).Abs() > time.Microsecond {
				t.Errorf("seed %d, traced %v: promised %v, given %v", seed, tracing, promised, given)
			}
			for pid, u := range uses {
				if had := served[pid-1].Served; u.Given > had || u.GivenAway > had || u.TakenBack > had {
					t.Errorf("seed %d, traced %v: process %d had %v, and yet %+v", seed, tracing, pid, had, *u)
				}
			}
		}
	}
}

// TestEstimatedUses: without a trace the same figures come from the device time that the
// scheduler counted and from when the processes have work.
func TestEstimatedUses(t *testing.T) {
	a, uses := sharing(false)
	setWork(a, 0, 2, true)
	setWork(a, 0, 3, true)
	queues := func(one, two, three sched.Time) func() []sched.Queue {
		return func() []sched.Queue {
			return []sched.Queue{{ID: 1, Served: time.Duration(one)}, {ID: 2, Served: time.Duration(two)}, {ID: 3, Served: time.Duration(three)}}
		}
	}
	a.Update(0, queues(0, 0, 0))
	a.Update(500*ms, queues(0, 250*ms, 250*ms)) // an equal share, although the weights are 3 and 1
	setWork(a, 500*ms, 1, true)
	a.Update(1000*ms, queues(500*ms, 250*ms, 250*ms))
	const d = time.Millisecond
	checkUse(t, "online", uses[1], Use{TakenBack: 500 * d})
	checkUse(t, "weight 3", uses[2], Use{GivenAway: 250 * d, Promised: 375 * d, Given: 250 * d})
	checkUse(t, "weight 1", uses[3], Use{GivenAway: 250 * d, Promised: 125 * d, Given: 250 * d})

	// If it is not known when the online process has work, nothing is given away.
	a.Progress(1000*ms, 1, &sched.Counters{})
	a.Update(2000*ms, queues(500*ms, 1250*ms, 250*ms))
	checkUse(t, "online without counters", uses[2], Use{GivenAway: 250 * d, Promised: 1125 * d, Given: 1250 * d})
}

// TestUseOfAProcessThatExits: what a process had before its exit is counted once.
func TestUseOfAProcessThatExits(t *testing.T) {
	a, uses := sharing(true)
	var classes []sched.Class
	a.Count(2, func(c sched.Class, more Use) {
		classes = append(classes, c)
		uses[2].add(more)
	})
	setWork(a, 0, 2, true)
	a.Span(20*ms, "d", &hal.Span{Begin: 0, End: 20 * ms, PID: 2, Kind: hal.SpanHeld})
	a.Close(20*ms, 2)
	a.Update(20*ms+sched.Time(accountLag), nil)
	checkUse(t, "exited", uses[2], Use{GivenAway: 20 * time.Millisecond})
	if len(classes) != 1 || classes[0] != sched.Batch {
		t.Errorf("got classes %v", classes)
	}
}
