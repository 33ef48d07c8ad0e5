package sched_test

import (
	"testing"

	"github.com/giveway/giveway/sched"
)

type frozen struct{ p sched.Plan }

func (f *frozen) Plan(*sched.View) sched.Plan { return f.p }

func BenchmarkCore(b *testing.B) {
	s, now := busyDevice(b, 32)
	f := &frozen{}
	for _, q := range s.Queues(nil) {
		if q.State == sched.Running {
			f.p.Grants = append(f.p.Grants, sched.Grant{Queue: q.ID, Slice: q.Slice})
		}
	}
	b.Log(len(f.p.Grants))
	s.Step(now, []sched.Event{{Kind: sched.PolicyChosen, Choice: sched.Choice{Make: func() sched.Policy { return f }}}})
	ev := []sched.Event{{Kind: sched.Progressed, Queue: 1}}
	seen := &ev[0].Seen
	seen.Submitted = 20
	for b.Loop() {
		now += 1000
		seen.Submitted++
		seen.Launched++
		seen.Completed++
		s.Step(now, ev)
	}
}
