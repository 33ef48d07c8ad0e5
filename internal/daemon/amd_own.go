package daemon

import (
	"slices"
	"time"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/sched"
)

// What programs do to their own KFD queues because we ask them to, through the shim.

// shimOf returns what there is of us in a process, or nil.
func (d *Daemon) shimOf(pid int) amd.Shim {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.processes[pid]; p != nil && p.guest != nil {
		return p.guest.gate
	}
	return nil
}

// hearOwn takes in on which GPUs a guest can stop its own queues. Where that has changed,
// so has what can be done to them. To look at that may be felt by others, so a guest that
// changes its mind all the time is heard once a second. d.mu is held.
func (d *Daemon) hearOwn(g *guest, p *process, gpus []uint32) {
	gone := p.guest != g
	unused := slices.ContainsFunc(gpus, func(gpu uint32) bool { q := p.queues[amdKey(gpu)]; return q != nil && q.way == "" })
	if slices.Equal(gpus, g.own) && !unused || !gone && time.Since(g.heardOwn) < queuesEvery {
		return
	}
	g.own, g.heardOwn = gpus, time.Now()
	if p.kfd != nil && d.running {
		p.kfd.shim = true
		d.attach(p)
	}
}

// ownPriority leaves a program's queues the priority that it gave them.
const ownPriority = -1

// queuePriorities are those that programs' queues are asked to have. ROCm's own are 0, 7
// and 11 for low, normal and high; the driver makes three of all: from 0, 7 and 11 on.
var queuePriorities = map[sched.Class]int{sched.Online: 11, sched.Standard: ownPriority, sched.Batch: 3, sched.Idle: 0}

// setPriority asks for the priority of a class, if the program has queues.
func (g *guest) setPriority(class sched.Class) {
	want := ownPriority
	if len(g.own) > 0 {
		want = queuePriorities[class]
	}
	if want != g.priority {
		g.priority = want
		g.gate.SetQueuePriority(want)
	}
}
