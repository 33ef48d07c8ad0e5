package sched_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestClosedQueueNoLongerCounts checks that the queues that stay are billed the whole
// device when another one closes: by its own event, with its device's reply that it is
// gone, or with work left.
func TestClosedQueueNoLongerCounts(t *testing.T) {
	all := func() sched.Policy { return grantAll{} }
	for name, closing := range map[string]sched.Event{
		"closed": {Kind: sched.QueueClosed, Queue: 2},
		"gone":   {Kind: sched.ActionDone, Queue: 2, Action: 1, Outcome: sched.Gone},
	} {
		s := sched.New(sched.Config{}, sched.PolicyChoice{Make: all})
		s.Step(0, []sched.Event{
			{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"},
			{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanInterrupt},
		})
		now := sched.Time(time.Second)
		if closing.Kind == sched.ActionDone { // of the stop
			s.Step(now, []sched.Event{{Kind: sched.AttrsChanged, Queue: 2, Attr: sched.Attr{Paused: true}}})
		}
		s.Step(now, []sched.Event{closing})
		before := queueOf(s, 1).Served
		s.Step(now.Add(time.Second), []sched.Event{{Kind: sched.PlanOffered}})
		if got := queueOf(s, 1).Served - before; got != time.Second {
			t.Errorf("%s: the queue that is left got %v of the next second, want all of it", name, got)
		}
		if before != 500*time.Millisecond {
			t.Errorf("%s: beside the other queue it got %v of a second, want half", name, before)
		}
	}
}

// grantAll is a policy that grants every queue.
type grantAll struct{}

func (grantAll) Plan(v *sched.View) (p sched.Plan) {
	for i := range v.Queues {
		p.Grants = append(p.Grants, sched.Grant{Queue: v.Queues[i].ID})
	}
	return p
}

// eventLog is a policy for all devices that keeps what it observes.
type eventLog struct {
	grantAll
	seen []sched.Event
}

func (l *eventLog) Observe(_ sched.Time, ev *sched.Event) { l.seen = append(l.seen, *ev) }

// TestClosedDeviceClosesItsQueues checks that a policy for several devices learns that the queues
// of a closed device are closed, and then that the device is.
func TestClosedDeviceClosesItsQueues(t *testing.T) {
	l := &eventLog{}
	s := sched.New(sched.Config{}, sched.PolicyChoice{AllDevices: true, Make: func() sched.Policy { return l }})
	s.Step(0, []sched.Event{
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0"}, {Kind: sched.QueueOpened, Queue: 2, Device: "gpu1"}, {Kind: sched.QueueOpened, Queue: 3, Device: "gpu0"},
	})
	l.seen = nil
	s.Step(1, []sched.Event{{Kind: sched.DeviceClosed, Device: "gpu0"}})
	got := ""
	for _, ev := range l.seen {
		got += fmt.Sprint(ev.Kind, " ", ev.Device, " ", ev.Queue, "\n")
	}
	if want := "queue-closed gpu0 1\nqueue-closed gpu0 3\ndevice-closed gpu0 0\n"; got != want {
		t.Errorf("the policy observed\n%swant\n%s", got, want)
	}
}

// TestPolicyForAllDevicesIsOne checks that a policy for all devices that is chosen while several
// are open is one instance, which sees all of them.
func TestPolicyForAllDevicesIsOne(t *testing.T) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Name: "each", Make: func() sched.Policy { return grantAll{} }})
	s.Step(0, []sched.Event{{Kind: sched.DeviceOpened, Device: "gpu0"}, {Kind: sched.DeviceOpened, Device: "gpu1"}})
	made, devices := 0, 0
	all := sched.PolicyChoice{Name: "all", AllDevices: true, Make: func() sched.Policy {
		made++
		return planner(func(v *sched.View) sched.Plan { devices = len(v.Devices); return sched.Plan{} })
	}}
	s.Step(1, []sched.Event{{Kind: sched.PolicyChosen, Choice: all}})
	if made != 1 || devices != 2 {
		t.Errorf("got %d instances, the last of which sees %d devices, want 1 and 2", made, devices)
	}
}

// TestPolicyForAllDevicesLosesOne checks that a policy for all devices decides anew, without a
// device that gets a policy of its own, and that the queues of both keep running.
func TestPolicyForAllDevicesLosesOne(t *testing.T) {
	var seen []int // queues of each plan
	all := sched.PolicyChoice{Name: "all", AllDevices: true, Make: func() sched.Policy {
		return planner(func(v *sched.View) sched.Plan {
			seen = append(seen, len(v.Queues))
			return sched.Plan{Grants: grants(v.Queues[0].ID).Grants} // one at a time in all
		})
	}}
	own := sched.PolicyChoice{Name: "own", Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return grants(1) }) }}
	s := sched.New(sched.Config{}, all)
	actions, _ := s.Step(0, []sched.Event{
		{Kind: sched.QueueOpened, Queue: 1, Device: "x", Can: sched.CanInterrupt},
		{Kind: sched.QueueOpened, Queue: 2, Device: "y", Can: sched.CanInterrupt},
	})
	if len(actions) != 1 || actions[0].Queue != 2 || actions[0].Verb != sched.Stop {
		t.Fatalf("got %v, want queue 2 to be stopped", actions)
	}
	s.Step(1, []sched.Event{{Kind: sched.ActionDone, Queue: 2, Action: actions[0].ID}})
	seen = nil
	actions, _ = s.Step(2, []sched.Event{{Kind: sched.PolicyChosen, Device: "x", Choice: own}})
	if len(seen) != 1 || seen[0] != 1 || len(actions) != 1 || actions[0].Queue != 2 || actions[0].Verb != sched.Start {
		t.Errorf("got plans for %v queues and %v, want one plan that starts queue 2", seen, actions)
	}
}

// TestUpdateDoesNotForgiveHeldQueues checks that a policy which holds a ready queue is overruled after
// StallLimit, also if its parameters change meanwhile, or those of another device's policy. A new
// policy has held no queue yet.
func TestUpdateDoesNotForgiveHeldQueues(t *testing.T) {
	for _, c := range []struct {
		name   string
		device sched.DeviceID
		want   bool
	}{{"a", "x", true}, {"b", "x", false}, {"b", "y", true}} {
		choice := func(name string) sched.PolicyChoice {
			return sched.PolicyChoice{
				Name: name, Make: func() sched.Policy { return planner(func(*sched.View) sched.Plan { return grants(1) }) },
				Update: func(sched.Policy) {},
			}
		}
		s := sched.New(sched.Config{Floor: -1, StallLimit: time.Second}, choice("none"))
		s.Step(0, []sched.Event{
			{Kind: sched.QueueOpened, Queue: 1, Device: "x", Can: sched.CanInterrupt},
			{Kind: sched.QueueOpened, Queue: 2, Device: "x", Can: sched.CanInterrupt},
			{Kind: sched.DeviceOpened, Device: "y"},
			{Kind: sched.PolicyChosen, Device: "x", Choice: choice("a")},
		})
		s.Step(sched.Time(500*ms), []sched.Event{{Kind: sched.PolicyChosen, Device: c.device, Choice: choice(c.name)}})
		s.Step(sched.Time(time.Second), nil)
		if mistake, _, yes := s.Overruled("x"); yes != c.want || yes && mistake != sched.HeldTooLong {
			t.Errorf("policy %q chosen for %s: overruled %v because of %v, want %v", c.name, c.device, yes, mistake, c.want)
		}
	}
}

// TestPolicySeesEventsOfItsDevices checks that a policy is not shown events about another device.
func TestPolicySeesEventsOfItsDevices(t *testing.T) {
	var policies []*deviceWatcher
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy {
		policies = append(policies, &deviceWatcher{})
		return policies[len(policies)-1]
	}})
	opened := func(id sched.DeviceID) sched.Event { return sched.Event{Kind: sched.DeviceOpened, Device: id} }
	s.Step(0, []sched.Event{opened("x"), opened("y")})
	s.Step(1, []sched.Event{opened("x")})
	for _, p := range policies {
		if want := map[sched.DeviceID]int{"x": 2, "y": 1}[p.device]; p.events != want {
			t.Errorf("the policy of %s was shown %d events, want %d", p.device, p.events, want)
		}
	}
}

// TestPolicySeesThatAQueueIsGone checks that a policy is shown the reply that a queue is gone, and
// then that it is closed.
func TestPolicySeesThatAQueueIsGone(t *testing.T) {
	p := &deviceWatcher{}
	s := sched.New(sched.Config{}, sched.PolicyChoice{Make: func() sched.Policy { return p }})
	actions, _ := s.Step(0, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Device: "x", Can: sched.CanInterrupt}})
	if len(actions) != 1 {
		t.Fatalf("got %v, want a stop", actions)
	}
	before := p.events
	s.Step(1, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: actions[0].ID, Outcome: sched.Gone}})
	if got := p.events - before; got != 2 {
		t.Errorf("the policy was shown %d events, want the reply and the end of the queue", got)
	}
}

// deviceWatcher counts the events that it is shown.
type deviceWatcher struct {
	device sched.DeviceID
	events int
}

func (w *deviceWatcher) Plan(v *sched.View) sched.Plan {
	w.device = v.Devices[0].ID
	return sched.Plan{}
}

func (w *deviceWatcher) Observe(sched.Time, *sched.Event) { w.events++ }

// TestAbilitiesOfGoneQueue checks that new abilities of a queue that is closed already open no queue,
// and no device without a name: the daemon learns of the end of a queue after its driver has said so.
func TestAbilitiesOfGoneQueue(t *testing.T) {
	l := &eventLog{}
	s := sched.New(sched.Config{}, sched.PolicyChoice{AllDevices: true, Make: func() sched.Policy { return l }})
	actions, _ := s.Step(0, []sched.Event{
		{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt, Attr: sched.Attr{Paused: true}},
	})
	s.Step(1, []sched.Event{{Kind: sched.ActionDone, Queue: 1, Action: actions[0].ID, Outcome: sched.Gone}})
	l.seen = nil
	s.Step(2, []sched.Event{{Kind: sched.QueueOpened, Queue: 1, Can: sched.CanInterrupt | sched.CanHold}})
	if all := s.Queues(nil); len(all) != 0 || len(l.seen) != 0 {
		t.Errorf("got the queues %+v, and the policy observed %+v; want nothing", all, l.seen)
	}
}
