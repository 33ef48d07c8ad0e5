package shim

import (
	"fmt"
	"syscall"
	"time"

	"github.com/giveway/giveway/sched"
)

// A process may stop and prioritise its own hardware queues on AMD GPUs where no other
// process is allowed to. The daemon asks for that through the page, and the shim in the
// process makes the driver calls.

// queueLease is how long such a request stays in force without a renewal. It is longer
// than the gate's lease: while a request is in force a thread of the process sleeps
// until the end of the lease, and it should wake at most twice a second.
const queueLease = 800 * time.Millisecond

// GPUs lists the AMD GPUs on which the process can stop its own compute queues.
func (g *Gate) GPUs() []uint32 { return g.page.GPUs() }

// QueueCount returns how many compute queues the shim knows on an AMD GPU.
func (g *Gate) QueueCount(gpu uint32) int { return g.page.QueueCounts(gpu).Queues }

// StopQueues asks the process to stop all its compute queues on a GPU, those that it
// creates later included, and returns how many are stopped. If the process does not
// answer in time the request is withdrawn by the caller's StartQueues.
func (g *Gate) StopQueues(gpu uint32, within time.Duration) (int, error) {
	seq, ok := g.page.SetQueuesStopped(gpu, true, queueLease)
	if !ok {
		return 0, errPageClosed
	}
	if !g.waitApplied(seq, within) {
		return 0, fmt.Errorf("the process has not answered in %v", within)
	}
	switch c := g.page.QueueCounts(gpu); {
	case c.Failed > 0:
		return 0, fmt.Errorf("the driver refuses to stop %d of %d queues: %w", c.Failed, c.Queues, syscall.Errno(c.Errno))
	case c.Stopped < c.Queues:
		return 0, fmt.Errorf("%d of %d queues are stopped", c.Stopped, c.Queues)
	default:
		return c.Stopped, nil
	}
}

// StartQueues asks the process to start those queues again and waits for it, at most so
// long. If the process does not answer, its queues start at the end of the lease.
func (g *Gate) StartQueues(gpu uint32, within time.Duration) {
	if seq, ok := g.page.SetQueuesStopped(gpu, false, queueLease); ok {
		g.waitApplied(seq, within)
	}
}

// waitApplied waits until the process has applied a request, and reports whether it has.
func (g *Gate) waitApplied(seq uint32, within time.Duration) bool {
	for end := time.Now().Add(within); !g.page.Applied(seq); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// processPriority leaves the process's queues the priority that it gave them.
const processPriority = -1

// queuePriorities are the KFD priorities that a process's queues get by its class. ROCm
// itself uses 0, 7 and 11 for low, normal and high; the driver maps all priorities to
// three levels that begin at 0, 7 and 11.
var queuePriorities = map[sched.Class]int{sched.Online: 11, sched.Standard: processPriority, sched.Batch: 3, sched.Idle: 0}
