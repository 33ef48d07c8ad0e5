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
