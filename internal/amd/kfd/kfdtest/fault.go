package kfdtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"golang.org/x/sys/unix"
)

// Call names a kind of call.
type Call struct {
	nr uint8
	op uint32
}

// Request names the calls of one request.
func Request(request uint32) Call { return Call{nr: uint8(request)} }

// Trap names the calls of one operation of DBG_TRAP.
func Trap(op uint32) Call { return Call{uint8(kfd.ReqDebugTrap & 0xff), op} }

// Fault is what befalls calls of a kind: first time passes, then the call may
// hang, then it may fail. One that fails with an errno has changed nothing.
type Fault struct {
	Latency  time.Duration
	Hang     <-chan struct{} // the call goes on when this is closed
	Errno    unix.Errno
	Hardware bool            // the GPU does not do it
	After    <-chan struct{} // the call is done, and its answer comes when this is closed
	Skip     int             // how many calls it lets pass first
	Times    int             // how many calls it befalls; zero: all, until Inject again
}

// Inject has f befall the calls of a kind, in place of what did. The zero Fault
// takes it away.
func (k *KFD) Inject(c Call, f Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f == (Fault{}) {
		delete(k.faults, c)
		return
	}
	k.faults[c] = &f
}

// arrive counts a call and returns what is to befall it.
func (k *KFD) arrive(c Call) Fault {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls[c]++
	f := k.faults[c]
	if f == nil {
		return Fault{}
	}
	if f.Skip > 0 {
		f.Skip--
		return Fault{}
	}
	befalls := *f
	if f.Times > 0 {
		if f.Times--; f.Times == 0 {
			delete(k.faults, c)
		}
	}
	return befalls
}

// Calls counts the calls of a kind that have come, those that failed included.
func (k *KFD) Calls(c Call) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls[c]
}

// Updates counts how often a GPU was told to run other queues than before.
func (k *KFD) Updates(gpu uint32) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.updates[gpu]
}

// Active reports whether a queue is there and may run.
func (k *KFD) Active(id QueueID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.processes[id.PID]; p != nil {
		if q := p.queue(id.Queue); q != nil {
			return q.active()
		}
	}
	return false
}

// State is a queue as its process has it.
type State struct {
	Ring              uint64
	RingSize          uint32
	Percent, Priority uint32
}

// State tells how a queue is; false: there is none.
func (k *KFD) State(id QueueID) (State, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.processes[id.PID]; p != nil {
		if q := p.queue(id.Queue); q != nil {
			return State{q.ring, q.ringSize, q.percent, q.priority}, true
		}
	}
	return State{}, false
}

// Left says what of the processes is not as they made it: queues that are stopped
// by others, debug sessions, claims. Empty is what it has to be when nobody
// controls anything.
func (k *KFD) Left() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var left []string
	for pid, p := range k.processes {
		if p.debugged {
			left = append(left, fmt.Sprintf("process %d is debugged", pid))
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
