package shim

import (
	"fmt"
	"syscall"
	"time"
)

// What a gate's program does to its own queues on AMD GPUs, because nobody else may.

// queueLease is how long that counts when we are not there any more. It is longer than
// that of a gate: a thread of the program's sleeps until its end, for as long as
// something is wanted, and is to wake twice a second at most.
const queueLease = 800 * time.Millisecond

// QueueCount is how many compute queues the program's shim knows on an AMD GPU.
func (g *Gate) QueueCount(gpu uint32) int { return g.page.QueueCounts(gpu).Queues }

// StopQueues has the program take all its compute queues on a GPU off, with those that it
// makes from then on, and returns how many are. One that does not answer in time is not
// asked any more: the error then is one that may not come another time.
func (g *Gate) StopQueues(gpu uint32, within time.Duration) (int, error) {
	turn, ok := g.page.SetQueuesStopped(gpu, true, queueLease)
	if !ok {
		return 0, errLeft
	}
	err := fmt.Errorf("the program has not answered in %v", within)
	if g.obeyed(turn, within) {
		switch o := g.page.QueueCounts(gpu); {
		case o.Failed > 0:
			err = fmt.Errorf("the driver refuses %d of %d: %w", o.Failed, o.Queues, syscall.Errno(o.Errno))
		case o.Stopped < o.Queues:
			err = fmt.Errorf("%d of %d are off", o.Stopped, o.Queues)
		default:
			return o.Stopped, nil
		}
	}
	return 0, err
}

// StartQueues takes that back, and waits so long at most for it to be done: it will be, at
// the end of the lease if not before.
func (g *Gate) StartQueues(gpu uint32, within time.Duration) {
	if turn, ok := g.page.SetQueuesStopped(gpu, false, queueLease); ok {
		g.obeyed(turn, within)
	}
}

// SetQueuePriority has the program's queues have a priority, as KFD counts; negative:
// their own.
func (g *Gate) SetQueuePriority(priority int) { g.page.SetQueuePriority(priority, queueLease) }

func (g *Gate) obeyed(turn uint32, within time.Duration) bool {
	for end := time.Now().Add(within); !g.page.Applied(turn); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
