package kfd

import "fmt"

// What a process does with queues of its own.

// NewQueue is what a queue is made with, as far as it matters here.
type NewQueue struct {
	GPU      uint32
	Type     QueueType
	Ring     uint64
	RingSize uint32
	Priority uint32 // 0 to 15
}

// CreateQueue makes a queue of the caller's. On a real GPU it needs much that
// only a runtime knows how to make; it is here for the double.
func CreateQueue(f Ioctler, q NewQueue) (uint32, error) {
	arg := make([]byte, sizeCreateQueue)
	le.PutUint64(arg[createRing:], q.Ring)
	le.PutUint32(arg[createRingSize:], q.RingSize)
	le.PutUint32(arg[createGPU:], q.GPU)
	le.PutUint32(arg[createType:], uint32(q.Type))
	le.PutUint32(arg[createPercent:], maxPercent)
	le.PutUint32(arg[createPriority:], q.Priority)
	if _, err := f.Ioctl(ReqCreateQueue, arg); err != nil {
		return 0, fmt.Errorf("create a queue on GPU %d: %w", q.GPU, err)
	}
	return le.Uint32(arg[createQueue:]), nil
}

// DestroyQueue gives a queue of the caller's up. One that a debugger suspended is
// waited for until it is resumed.
func DestroyQueue(f Ioctler, queue uint32) error {
	arg := make([]byte, sizeDestroyQueue)
	le.PutUint32(arg, queue)
	if _, err := f.Ioctl(ReqDestroyQueue, arg); err != nil {
		return fmt.Errorf("destroy queue %d: %w", queue, err)
	}
	return nil
}

// UpdateQueue changes a queue of the caller's. At a percentage of 0 it is taken off
// the GPU, waves and all, and at 100 it is put back. Ring and size have to be those
// that it was made with: others move it, and none disables it.
func UpdateQueue(f Ioctler, queue uint32, ring uint64, ringSize, percent, priority uint32) error {
	if percent > maxPercent || priority > MaxPriority {
		return fmt.Errorf("update queue %d: percentage %d, priority %d: at most %d and %d", queue, percent, priority, maxPercent, MaxPriority)
	}
	arg := make([]byte, sizeUpdateQueue)
	le.PutUint64(arg[updateRing:], ring)
	le.PutUint32(arg[updateQueue:], queue)
	le.PutUint32(arg[updateRingSize:], ringSize)
	le.PutUint32(arg[updatePercent:], percent)
	le.PutUint32(arg[updatePriority:], priority)
	if _, err := f.Ioctl(ReqUpdateQueue, arg); err != nil {
		return fmt.Errorf("update queue %d: %w", queue, err)
	}
	return nil
}

// SetRuntime tells KFD that the caller's runtime is there, or goes: what ROCm's
// does as it starts and ends. It waits for a debugger where there is one.
func SetRuntime(f Ioctler, on bool) error {
	arg := make([]byte, sizeRuntimeEnable)
	if on {
		arg[runtimeMode] = 1 // KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK
	}
	if _, err := f.Ioctl(ReqRuntimeEnable, arg); err != nil {
		return fmt.Errorf("set the runtime %v: %w", on, err)
	}
	return nil
}
