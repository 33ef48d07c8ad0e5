package kfd

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// QueueKey identifies a queue within its process.
type QueueKey struct{ GPU, Queue uint32 }

// BatchUnmap takes queues of a process off their GPUs and saves their running waves. It
// needs a driver with our patch. The slice holds the result for each queue.
func BatchUnmap(f Ioctler, pid int, queues []QueueKey, grace Grace) ([]error, error) {
	return batch(f, ReqBatchUnmap, pid, queues, uint32(grace), fmt.Sprintf("unmap %d queues of process %d", len(queues), pid))
}

// FastRemap undoes BatchUnmap. The result for a queue is ENOSPC if all free slots are
// reserved for higher priorities.
func FastRemap(f Ioctler, pid int, queues []QueueKey) ([]error, error) {
	return batch(f, ReqFastRemap, pid, queues, 0, fmt.Sprintf("remap %d queues of process %d", len(queues), pid))
}

// RemapAll remaps all queues of a process, even into reserved slots, and ends the claim on
// the process.
func RemapAll(f Ioctler, pid int) error {
	arg := make([]byte, sizeSched)
	le.PutUint32(arg[schedPID:], uint32(int32(pid)))
	le.PutUint32(arg[schedFlags:], SchedAll)
	if _, err := f.Ioctl(ReqFastRemap, arg); err != nil {
		return fmt.Errorf("remap all queues of process %d: %w", pid, err)
	}
	return nil
}

// MayUnmap returns an error if queues of a process cannot be unmapped. pid 0 is the
// caller's process. It changes nothing.
func MayUnmap(f Ioctler, pid int) error {
	arg := make([]byte, sizeSched)
	le.PutUint32(arg[schedPID:], uint32(int32(pid)))
	if _, err := f.Ioctl(ReqBatchUnmap, arg); err != nil {
		return fmt.Errorf("unmap queues of process %d: %w", pid, err)
	}
	return nil
}

func batch(f Ioctler, request uint32, pid int, queues []QueueKey, grace uint32, what string) ([]error, error) {
	if len(queues) == 0 || len(queues) > MaxQueues {
		return nil, fmt.Errorf("%s: one call takes 1 to %d", what, MaxQueues)
	}
	entries := make([]byte, sizeSchedQueue*len(queues))
	for i, q := range queues {
		e := entries[i*sizeSchedQueue:]
		le.PutUint32(e[schedQueueGPU:], q.GPU)
		le.PutUint32(e[schedQueueID:], q.Queue)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&entries[0])
	arg := make([]byte, sizeSched)
	le.PutUint64(arg[schedArray:], pointer(entries))
	le.PutUint32(arg[schedCount:], uint32(len(queues)))
	le.PutUint32(arg[schedPID:], uint32(int32(pid)))
	le.PutUint32(arg[schedGrace:], grace)
	n, err := f.Ioctl(request, arg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	errs := make([]error, len(queues))
	done := 0
	for i, q := range queues {
		s := int32(le.Uint32(entries[i*sizeSchedQueue+schedQueueStatus:]))
		if s == 0 {
			done++
			continue
		}
		errs[i] = fmt.Errorf("queue %d: %w", q.Queue, statusError(s))
	}
	if n != done {
		return errs, fmt.Errorf("%s: %d have no error, but the driver counts %d: %w", what, done, n, ErrHardware)
	}
	return errs, nil
}

// statusError translates the status of an entry. The driver writes a negative errno;
// anything else is an error of the driver.
func statusError(s int32) error {
	if s > 0 || s < -4095 {
		return fmt.Errorf("status %d: %w", s, ErrHardware)
	}
	return unix.Errno(-s)
}

// Reserve keeps slots of a GPU free of queues below a priority when queues are remapped; 0
// slots end it. It needs a driver with our patch, and CAP_SYS_ADMIN. The reservation ends when
// f is closed or the process exits.
func Reserve(f Ioctler, gpu, slots, priority uint32) error {
	arg := make([]byte, sizeReservation)
	le.PutUint32(arg[reserveGPU:], gpu)
	le.PutUint32(arg[reserveSlots:], slots)
	le.PutUint32(arg[reservePriority:], priority)
	if _, err := f.Ioctl(ReqHQDReservation, arg); err != nil {
		return fmt.Errorf("reserve %d slots of GPU %d: %w", slots, gpu, err)
	}
	return nil
}

// ActiveSlots returns how many compute queues of a GPU are active, as the driver counts
// them. It needs a driver with our patch.
func ActiveSlots(f Ioctler, gpu uint32) (uint32, error) {
	arg := make([]byte, sizeReservation)
	le.PutUint32(arg[reserveGPU:], gpu)
	le.PutUint32(arg[reserveFlags:], HQDQuery)
	if _, err := f.Ioctl(ReqHQDReservation, arg); err != nil {
		return 0, fmt.Errorf("query the slots of GPU %d: %w", gpu, err)
	}
	return le.Uint32(arg[reserveActive:]), nil
}
