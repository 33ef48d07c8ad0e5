package kfdtest

import (
	"fmt"

	"github.com/giveway/giveway/internal/amd/kfd"
)

// The requests that a process makes for its own queues, and a reservation of slots.
// Production code makes none of them: the shim makes the first ones in C.

// QueueType is the type of a queue in ioctls, enum kfd_ioctl_queue_type.
type QueueType uint32

const (
	TypeCompute    QueueType = 0
	TypeSDMA       QueueType = 1
	TypeComputeAQL QueueType = 2
	typeSDMAXGMI   QueueType = 3
)

// isCompute reports whether a queue of that type takes a compute slot.
func (t QueueType) isCompute() bool { return t == TypeCompute || t == TypeComputeAQL }

// NewQueue describes a queue to be created.
type NewQueue struct {
	GPU      uint32
	Type     QueueType
	Ring     uint64
	RingSize uint32
	Priority uint32 // 0 to 15
}

// CreateQueue creates a queue of the caller. The real driver needs more arguments, which
// only a runtime can supply.
func CreateQueue(f kfd.Ioctler, q NewQueue) (uint32, error) {
	arg := words(q.Ring, [24]byte{}, q.RingSize, q.GPU, q.Type, uint32(100), q.Priority, uint32(0), [40]byte{})
	if _, err := f.Ioctl(kfd.ReqCreateQueue, arg); err != nil {
		return 0, fmt.Errorf("create a queue on GPU %d: %w", q.GPU, err)
	}
	return le.Uint32(arg[createQueueID:]), nil
}

// DestroyQueue destroys a queue of the caller. It waits until a queue that a debugger
// suspended is resumed.
func DestroyQueue(f kfd.Ioctler, queue uint32) error {
	if _, err := f.Ioctl(kfd.ReqDestroyQueue, words(queue, uint32(0))); err != nil {
		return fmt.Errorf("destroy queue %d: %w", queue, err)
	}
	return nil
}

// UpdateQueue changes a queue of the caller. A percentage of 0 takes it off the GPU and
// saves its running waves; 100 puts it back. Ring and size must be those that it was
// created with.
func UpdateQueue(f kfd.Ioctler, queue uint32, ring uint64, ringSize, percent, priority uint32) error {
	if _, err := f.Ioctl(kfd.ReqUpdateQueue, words(ring, queue, ringSize, percent, priority)); err != nil {
		return fmt.Errorf("update queue %d: %w", queue, err)
	}
	return nil
}

// SetRuntime enables or disables the runtime of the caller, as ROCm does when it starts
// and ends. If a debugger is attached, it waits for the debugger's answer.
func SetRuntime(f kfd.Ioctler, on bool) error {
	mode := uint32(0)
	if on {
		mode = 1 // KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK
	}
	if _, err := f.Ioctl(kfd.ReqRuntimeEnable, words(uint64(0), mode, uint32(0))); err != nil {
		return fmt.Errorf("set the runtime %v: %w", on, err)
	}
	return nil
}

// Reserve reserves slots of a GPU for queues of a priority and above, until f is closed.
func Reserve(f kfd.Ioctler, gpu, slots, priority uint32) error {
	if _, err := f.Ioctl(kfd.ReqHQDReservation, words(gpu, slots, priority, uint32(0), uint64(0))); err != nil {
		return fmt.Errorf("reserve slots of GPU %d: %w", gpu, err)
	}
	return nil
}
