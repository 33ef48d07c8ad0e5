package nvidia

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// TestPoolIsOffered checks that the group of a pool's server is offered as class batch, with
// the members that were found before and after it.
func TestPoolIsOffered(t *testing.T) {
	b, h, made, _ := newOnDouble(t, &fakeHost{})
	g := made.group(t, 0)
	g.MPSServer, g.Pool = true, "night"
	member := func(pid int) *discover.Member {
		return &discover.Member{Process: proc.Process{PID: pid, Start: 1}, Server: g.Process.ID(), Group: g.Key}
	}
	b.setMember(member(50), true)
	b.arrived(g, time.Time{})
	b.offerDue(time.Now())
	q := h.open()[0]
	check := func(want ...int) {
		t.Helper()
		d := q.detail.Load()
		if d.Pool != "night" || d.SharedBy != "mps" || len(d.Members) != len(want) {
			t.Fatalf("got %+v, want members %v", d, want)
		}
		for i, pid := range want {
			if d.Members[i].PID != pid {
				t.Errorf("got %+v, want members %v", d.Members, want)
			}
		}
	}
	check(50)
	if q.offer.Attr != (sched.Attr{Class: sched.Batch}) {
		t.Errorf("got attributes %+v, want class batch", q.offer.Attr)
	}
	b.setMember(member(51), true)
	check(50, 51)
	b.setMember(member(51), true) // on another descriptor
	check(50, 51)
	b.setMember(member(50), false)
	check(51)
	b.gone(&discover.Gone{PID: g.Process.PID, Start: g.Process.Start}, time.Now())
	if len(b.members) != 0 {
		t.Errorf("members of a server that has exited: %v", b.members)
	}
	b.setMember(member(51), false)
}

// TestOwnMPSServerIsLeftAlone checks that a server which the user runs keeps its class.
func TestOwnMPSServerIsLeftAlone(t *testing.T) {
	b, h, made, _ := newOnDouble(t, &fakeHost{})
	g := made.group(t, 0)
	g.MPSServer = true
	b.arrived(g, time.Time{})
	b.offerDue(time.Now())
	if q := h.open()[0]; q.offer.Attr != (sched.Attr{}) || q.detail.Load().Pool != "" {
		t.Errorf("got attributes %+v, %+v", q.offer.Attr, q.detail.Load())
	}
}
