package policy

import "github.com/giveway/giveway/sched"

// hpfGlobal is hpf over all devices at once: work on one device stops work of
// lower priority on every other. For jobs whose parts wait for each other
// across devices.
type hpfGlobal struct{ hpf }

func newHPFGlobal() sched.Policy {
	p := &hpfGlobal{}
	p.setUp(func(q *sched.Queue) int32 { return q.Attr.Priority })
	return p
}

func (p *hpfGlobal) allDevices() {}
