package sched_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

const ms = time.Millisecond

// drainRun has one device with queue 2, which completes a command every 10 ms, and may be
// stopped, and queue 1, which runs beside it or not at all. Actions succeed at once.
type drainRun struct {
	t     *testing.T
	s     *sched.Scheduler
	plans plans
	now   sched.Time
	c     sched.Counters // of queue 2
}

// newDrainRun lets queue 2 run for a second. Each command takes each.
func newDrainRun(t *testing.T, can sched.Ability, serial bool, each time.Duration) *drainRun {
	x := &drainRun{t: t, plans: plans{"": grants(2)}}
	x.s = sched.New(sched.Config{Floor: -1, StallLimit: time.Hour}, sched.PolicyChoice{Make: func() sched.Policy { return x.plans }})
	x.step(0,
		sched.Event{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Serial: serial}},
		sched.Event{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: can},
	)
	x.c = sched.Counters{Submitted: 1000, Launched: 3, Known: true}
	x.progress(0, 0)
	for range 100 {
		x.progress(each, 1)
	}
	return x
}

func grants(ids ...sched.QueueID) (p sched.Plan) {
	for _, id := range ids {
		p.Grants = append(p.Grants, sched.Grant{Queue: id})
	}
	return p
}

// step lets time pass and passes events to the scheduler. It returns when the scheduler
// wants to be called again.
func (x *drainRun) step(after time.Duration, events ...sched.Event) sched.Time {
	x.now = x.now.Add(after)
	for {
		actions, wake := x.s.Step(x.now, events)
		events = nil
		for _, a := range actions {
			events = append(events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
		if len(events) == 0 {
			return wake
		}
	}
}

// progress completes commands of queue 2. It always has three in flight while it runs.
func (x *drainRun) progress(after time.Duration, completed uint64) {
	x.c.Completed += completed
	if !x.stopped() {
		x.c.Launched += completed
	}
	x.step(after, sched.Event{Kind: sched.Progressed, Queue: 2, Counters: x.c})
}

// replan changes the plan. The event is one that changes nothing else.
func (x *drainRun) replan(p sched.Plan) {
	x.plans[""] = p
	x.step(0, sched.Event{Kind: sched.PlanOffered})
}

func (x *drainRun) stopped() bool { return queueOf(x.s, 2).State == sched.Stopped }

func (x *drainRun) draining() bool {
	q := queueOf(x.s, 2)
	return q.Draining()
}

func (x *drainRun) served(id sched.QueueID) time.Duration { return queueOf(x.s, id).Served }

// drainsFor stops queue 2 and returns for how long it is charged if it reports nothing.
func (x *drainRun) drainsFor() time.Duration {
	x.replan(sched.Plan{})
	if !x.stopped() {
		x.t.Fatal("the queue is not stopped")
	}
	before := x.served(2)
	for end := x.now.Add(3 * time.Second); x.now < end; {
		x.now = min(x.step(0), end)
	}
	x.step(0, sched.Event{Kind: sched.PlanOffered})
	if x.draining() {
		x.t.Error("it still drains after 3 s")
	}
	return x.served(2) - before
}

// TestStoppedQueueIsChargedForWhatItDrains checks how long a stopped queue is charged that
// reports nothing more: four times what its commands are expected to take, from 2 ms to 2 s.
// Those are all that were launched if it is held, one if it is deactivated, and none if it
// is interrupted.
func TestStoppedQueueIsChargedForWhatItDrains(t *testing.T) {
	for _, c := range []struct {
		name string
		can  sched.Ability
		each time.Duration
		want time.Duration
	}{
		{"held, 3 commands", sched.CanHold, 10 * ms, 4 * 3 * 10 * ms},
		{"held, short commands", sched.CanHold, 100 * time.Microsecond, 2 * ms},
		{"held, long commands", sched.CanHold, 500 * ms, 2 * time.Second},
		{"interrupted", sched.CanInterrupt, 10 * ms, 0},
	} {
		x := newDrainRun(t, c.can, false, c.each)
		if got := x.drainsFor(); got != c.want {
			t.Errorf("%s of %v: charged for %v, want %v", c.name, c.each, got, c.want)
		}
	}
	x := newDrainRun(t, sched.CanDeactivate, false, 10*ms)
	x.progress(5*ms, 0) // a command is running
	if got := x.drainsFor(); got != 4*10*ms {
		t.Errorf("deactivated during a command: charged for %v, want %v", got, 4*10*ms)
	}
	x = newDrainRun(t, sched.CanHold, false, 10*ms)
	for range 30 {
		x.progress(60*ms, 3) // reported together
	}
	if got := x.drainsFor(); got < 4*3*19*ms || got > 4*3*20*ms {
		t.Errorf("held, 3 commands of 20ms: charged for %v, want about %v", got, 4*3*20*ms)
	}
	for _, serial := range []bool{false, true} {
		x = newDrainRun(t, sched.CanDeactivate, serial, 10*ms)
		if got := x.drainsFor(); got != 0 {
			t.Errorf("deactivated between commands, serial %v: charged for %v, want 0", serial, got)
		}
	}
}

// TestQueueThatHasCompletedNothingDrainsFor100ms checks the limit while nothing is known
// about the queue's commands.
func TestQueueThatHasCompletedNothingDrainsFor100ms(t *testing.T) {
	x := newDrainRun(t, sched.CanHold, false, 0)
	x.step(0, sched.Event{Kind: sched.QueueClosed, Queue: 2}, sched.Event{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanHold})
	x.c = sched.Counters{Submitted: 5, Launched: 3, Known: true}
	x.progress(0, 0)
	if got := x.drainsFor(); got != 100*ms {
		t.Errorf("charged for %v, want 100ms", got)
	}
}

// TestDrainEndsWithTheLastCommand checks that each completed command gives the rest new
// time, and the last one ends the drain.
func TestDrainEndsWithTheLastCommand(t *testing.T) {
	x := newDrainRun(t, sched.CanHold, false, 10*ms)
	x.replan(sched.Plan{})
	before := x.served(2)
	for i := range 3 {
		if !x.draining() {
			t.Fatalf("it does not drain with %d commands left", 3-i)
		}
		x.progress(100*ms, 1) // slower than before, but each within its limit
	}
	if x.draining() {
		t.Error("it drains without commands")
	}
	x.step(time.Second, sched.Event{Kind: sched.PlanOffered})
	if got := x.served(2) - before; got != 300*ms {
		t.Errorf("charged for %v, want the 300ms in which its commands ran", got)
	}
}

// TestHeldQueueMayLaunchLate checks that commands of a thread that had passed the gate are
// charged for too, even if the drain was over.
func TestHeldQueueMayLaunchLate(t *testing.T) {
	x := newDrainRun(t, sched.CanHold, false, 10*ms)
	x.replan(sched.Plan{})
	x.progress(30*ms, 3)
	before := x.served(2)
	x.c.Launched++
	x.progress(0, 0)
	if x.progress(10*ms, 1); x.served(2)-before != 10*ms {
		t.Errorf("charged for %v, want 10ms", x.served(2)-before)
	}
}

// TestDrainSharesTheDevice checks the others' part while a queue drains: half, or nothing
// on a device that runs one command at a time, in order.
func TestDrainSharesTheDevice(t *testing.T) {
	for _, serial := range []bool{false, true} {
		x := newDrainRun(t, sched.CanHold, serial, 10*ms)
		x.step(0, sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"})
		x.replan(grants(1))
		a, b := x.served(1), x.served(2)
		x.progress(20*ms, 2)
		want := 10 * ms
		if serial {
			want = 0
		}
		if got := x.served(1) - a; got != want || x.served(2)-b != 20*ms-want {
			t.Errorf("serial %v: of 20 ms the running queue is charged for %v and the one that drains for %v", serial, got, x.served(2)-b)
		}
		x.progress(10*ms, 1)
		a = x.served(1)
		if x.step(10*ms, sched.Event{Kind: sched.PlanOffered}); x.served(1)-a != 10*ms {
			t.Errorf("serial %v: after the drain the running queue is charged for %v of 10ms", serial, x.served(1)-a)
		}
	}
}

// TestDrainBesideOthersMayTakeLonger checks that the limit of a drain grows with the number of
// queues that share the device: the commands take as much longer.
func TestDrainBesideOthersMayTakeLonger(t *testing.T) {
	for others, want := range map[int]time.Duration{0: 120 * ms, 1: 2 * 120 * ms, 3: 4 * 120 * ms} {
		x := newDrainRun(t, sched.CanHold, false, 10*ms)
		var plan sched.Plan
		for i := range others {
			id := sched.QueueID(3 + i)
			plan.Grants = append(plan.Grants, sched.Grant{Queue: id})
			x.step(0, sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "gpu0"})
		}
		x.replan(plan)
		began := x.now
		for x.draining() && x.now < began.Add(3*time.Second) {
			x.now = min(x.step(0), began.Add(3*time.Second))
			x.step(0)
		}
		if got := x.now.Sub(began); got != want {
			t.Errorf("beside %d others: it drains for %v, want %v", others, got, want)
		}
	}
}

// TestCompletedCommandRefutesADrain checks that a deactivated queue no longer drains when
// another one has completed a command on a serial device: that could not have begun.
func TestCompletedCommandRefutesADrain(t *testing.T) {
	for _, serial := range []bool{false, true} {
		x := newDrainRun(t, sched.CanDeactivate, serial, 10*ms)
		x.step(0, sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"})
		other := sched.Counters{Submitted: 100, Launched: 100, Known: true}
		x.step(0, sched.Event{Kind: sched.Progressed, Queue: 1, Counters: other})
		x.progress(5*ms, 0)
		x.replan(grants(1))
		if !x.draining() {
			t.Fatal("the queue does not drain")
		}
		other.Completed = 1 // perhaps before the stop
		if x.step(0, sched.Event{Kind: sched.Progressed, Queue: 1, Counters: other}); !x.draining() {
			t.Errorf("serial %v: no longer drains after a command that was reported with the stop", serial)
		}
		other.Completed = 2
		x.step(ms, sched.Event{Kind: sched.Progressed, Queue: 1, Counters: other})
		if got := x.draining(); got == serial {
			t.Errorf("serial %v: drains %v after another queue has completed a command", serial, got)
		}
	}
	// A held queue has several commands on the device, and others may run between them.
	x := newDrainRun(t, sched.CanHold, true, 10*ms)
	x.step(0, sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"})
	x.step(0, sched.Event{Kind: sched.Progressed, Queue: 1, Counters: sched.Counters{Submitted: 9, Launched: 9}})
	x.progress(5*ms, 0)
	x.replan(grants(1))
	x.step(ms, sched.Event{Kind: sched.Progressed, Queue: 1, Counters: sched.Counters{Submitted: 9, Launched: 9, Completed: 1}})
	if !x.draining() {
		t.Error("a held queue no longer drains after another queue has completed a command")
	}
}

// TestDrainThatEndsWithAnotherCommandIsCharged checks that a deactivated queue is charged for
// the time in which its last command had a serial device to itself, if what ends the drain is
// the report of a command of another queue that was idle until then.
func TestDrainThatEndsWithAnotherCommandIsCharged(t *testing.T) {
	x := newDrainRun(t, sched.CanDeactivate, true, 10*ms)
	x.step(0,
		sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: "gpu0", Can: sched.CanDeactivate},
		sched.Event{Kind: sched.Progressed, Queue: 3},
	)
	x.step(2*ms, sched.Event{Kind: sched.PlanOffered}) // its next command begins
	x.replan(sched.Plan{})
	if !x.draining() {
		t.Fatal("queue 2 does not drain")
	}
	before := x.served(2)
	x.step(8*ms, sched.Event{Kind: sched.Progressed, Queue: 3, Counters: sched.Counters{Submitted: 1, Launched: 1, Completed: 1}})
	if x.draining() {
		t.Error("queue 2 drains although a later command is finished")
	}
	if got := x.served(2) - before; got != 8*ms {
		t.Errorf("charged for %v, want the 8 ms that it had the device", got)
	}
}

// TestCommandsReportedTogetherAreChargedByWhatTheyUsuallyTake checks how the time of a serial
// device is divided among commands whose ends are reported at once: by what commands of each
// queue usually take, or equally if that is not known of all.
func TestCommandsReportedTogetherAreChargedByWhatTheyUsuallyTake(t *testing.T) {
	x := newDrainRun(t, sched.CanHold, true, 10*ms)
	x.plans[""] = grants(2, 3)
	other := sched.Counters{Submitted: 1000, Launched: 3}
	x.step(0,
		sched.Event{Kind: sched.QueueOpened, Queue: 3, Device: "gpu0", Can: sched.CanHold},
		sched.Event{Kind: sched.Progressed, Queue: 3, Counters: other},
	)
	together := func() (two, three time.Duration) {
		two, three = x.served(2), x.served(3)
		x.c.Completed, x.c.Launched = x.c.Completed+1, x.c.Launched+1
		other.Completed, other.Launched = other.Completed+1, other.Launched+1
		x.step(40*ms, sched.Event{Kind: sched.Progressed, Queue: 2, Counters: x.c}, sched.Event{Kind: sched.Progressed, Queue: 3, Counters: other})
		return x.served(2) - two, x.served(3) - three
	}
	if two, three := together(); two != 20*ms || three != 20*ms {
		t.Errorf("nothing is known about queue 3: charged for %v and %v of 40 ms, want equal parts", two, three)
	}
	for range 40 {
		x.progress(10*ms, 1)
		other.Completed, other.Launched = other.Completed+1, other.Launched+1
		x.step(30*ms, sched.Event{Kind: sched.Progressed, Queue: 3, Counters: other})
	}
	if two, three := together(); (two-10*ms).Abs() > ms || (three-30*ms).Abs() > ms {
		t.Errorf("commands of 10 and 30 ms: charged for %v and %v of 40 ms", two, three)
	}
}

// TestInterruptedQueueDoesNotDrain checks that an interrupted queue is charged for nothing, also
// if it was held before, because an interrupt was refused, and had many commands in flight then.
func TestInterruptedQueueDoesNotDrain(t *testing.T) {
	x := newDrainRun(t, sched.CanHold|sched.CanInterrupt, false, 10*ms)
	x.plans[""] = sched.Plan{}
	actions, _ := x.s.Step(x.now, []sched.Event{{Kind: sched.PlanOffered}})
	if len(actions) != 1 || actions[0].Level != sched.LevelInterrupt {
		t.Fatalf("got %v, want an interrupt", actions)
	}
	x.step(0, sched.Event{Kind: sched.ActionDone, Queue: 2, Action: actions[0].ID, Outcome: sched.Refused})
	if !x.stopped() || !x.draining() {
		t.Fatalf("stopped %v, drains %v; want the queue to be held and to drain", x.stopped(), x.draining())
	}
	x.replan(grants(2))
	x.step(time.Second, sched.Event{Kind: sched.PlanOffered})
	x.replan(sched.Plan{})
	if !x.stopped() || x.draining() {
		t.Errorf("stopped %v, drains %v; want the queue to be interrupted", x.stopped(), x.draining())
	}
}
