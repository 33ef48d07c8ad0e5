package policy

import "github.com/giveway/giveway/sched"

// hpfGlobal is hpf for all devices together: a runnable queue on one device stops
// queues of lower priority on all devices. It is for jobs whose parts on different
// devices wait for each other.
type hpfGlobal struct{ hpf }

func newHPFGlobal() sched.Policy {
	p := &hpfGlobal{}
	p.setUp(func(q *sched.Queue) int32 { return q.Attr.Priority })
	return p
}

func (p *hpfGlobal) allDevices() {}
