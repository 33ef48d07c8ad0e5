package kfdtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"golang.org/x/sys/unix"
)

// Call identifies a kind of call.
type Call struct {
	nr uint8
	op uint32
}

// Request identifies the calls of one request.
func Request(request uint32) Call { return Call{nr: uint8(request)} }

// Trap identifies the calls of one operation of DBG_TRAP.
func Trap(op uint32) Call { return Call{uint8(kfd.ReqDebugTrap & 0xff), op} }

// Fault disturbs calls. Its fields apply in their order. A call that fails with Errno has
// no effect.
type Fault struct {
	Latency  time.Duration
	Hang     <-chan struct{} // the call waits until this is closed
	Errno    unix.Errno
	Hardware bool            // the GPU fails to carry out the call
	After    <-chan struct{} // the call takes effect, but returns only when this is closed
	Skip     int             // let so many calls pass first
	Times    int             // affect so many calls; zero: all, until the next Inject
}

// Inject applies f to the calls of a kind, in place of an earlier Fault. The zero Fault
// ends it.
func (k *KFD) Inject(c Call, f Fault) {
	skip, times := f.Skip, f.Times
	f.Skip, f.Times = 0, 0
	k.faults.Set(c, f, skip, times)
}

// Calls returns how many calls of a kind were made, failed ones included.
func (k *KFD) Calls(c Call) int { return k.faults.Calls(c) }

// Updates returns how many runlist updates, or MES packets, a GPU received.
func (k *KFD) Updates(gpu uint32) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.updates[gpu]
}

// find returns a queue, or nil. k.mu is held.
func (k *KFD) find(id QueueID) *queue {
	if p := k.processes[id.PID]; p != nil {
		return p.queue(id.Queue)
	}
	return nil
}

// Active reports whether a queue exists and is not stopped.
func (k *KFD) Active(id QueueID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := k.find(id)
	return q != nil && q.active()
}

// State holds what the process of a queue has set.
type State struct {
	Ring              uint64
	RingSize          uint32
	Percent, Priority uint32
}

// State returns the state of a queue; false if there is none.
func (k *KFD) State(id QueueID) (State, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if q := k.find(id); q != nil {
		return State{q.ring, q.ringSize, q.percent, q.priority}, true
	}
	return State{}, false
}

// Left describes what controllers have changed and not undone: queues that others have
// stopped, debug sessions, claims and reservations. It is empty when all is undone. FUSE
// reports a closed file only later, so what ends with a file is left for a moment.
func (k *KFD) Left() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reap()
	var left []string
	for pid, p := range k.processes {
		if p.debugged {
			left = append(left, fmt.Sprintf("process %d is in a debug session", pid))
		}
		if p.claim != nil {
			left = append(left, fmt.Sprintf("process %d is claimed", pid))
		}
		for _, q := range p.queues {
			if q.suspended || q.preempted {
				left = append(left, fmt.Sprintf("queue %d of process %d: suspended %v, preempted %v", q.id, pid, q.suspended, q.preempted))
			}
		}
	}
	for gpu := range k.reserved {
		left = append(left, fmt.Sprintf("slots of GPU %d are reserved", gpu))
	}
	return strings.Join(left, "; ")
}
