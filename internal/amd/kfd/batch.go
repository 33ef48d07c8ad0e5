package kfd

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// QueueKey names a queue of a process.
type QueueKey struct{ GPU, Queue uint32 }

// BatchUnmap takes queues of a process off their GPUs, waves and all, on a driver
// with our patch. The errors are those of the queues, in order.
func BatchUnmap(f Ioctler, pid int, queues []QueueKey, grace Grace) ([]error, error) {
	return batch(f, ReqBatchUnmap, pid, queues, uint32(grace), fmt.Sprintf("unmap %d queues of process %d", len(queues), pid))
}

// FastRemap puts them back. ENOSPC is the error of a queue for which there is no
// slot that is not reserved.
func FastRemap(f Ioctler, pid int, queues []QueueKey) ([]error, error) {
	return batch(f, ReqFastRemap, pid, queues, 0, fmt.Sprintf("remap %d queues of process %d", len(queues), pid))
}

// RemapAll puts back everything of a process, reservation or not, and gives the
// process up.
func RemapAll(f Ioctler, pid int) (int, error) {
	arg := make([]byte, sizeSched)
	le.PutUint32(arg[schedPID:], uint32(int32(pid)))
	le.PutUint32(arg[schedFlags:], SchedAll)
	n, err := f.Ioctl(ReqFastRemap, arg)
	if err != nil {
		return 0, fmt.Errorf("remap all queues of process %d: %w", pid, err)
	}
	return n, nil
}

// MayUnmap asks whether queues of a process may be unmapped: 0 is the caller's
// own. It changes nothing.
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
		return errs, fmt.Errorf("%s: %d of them have no error and %d are counted: %w", what, done, n, ErrHardware)
	}
	return errs, nil
}

// statusError is what the status of an entry means. What is no errno is no status
// of our driver's.
func statusError(s int32) error {
	if s > 0 || s < -4095 {
		return fmt.Errorf("status %d: %w", s, ErrHardware)
	}
	return unix.Errno(-s)
}

// Reservation is how many compute slots of a GPU queues below a priority leave
// free, and how many there are and are in use.
type Reservation struct {
	Slots    uint32
	Priority uint32
	Total    uint32
	Active   uint32
}

// SetReservation has Slots of a GPU left free by queues below Priority, until the
// descriptor is closed. The answer has Total and Active.
func SetReservation(f Ioctler, gpu uint32, r Reservation) (Reservation, error) {
	return reservation(f, gpu, r, 0, "reserve")
}

// QueryReservation reads what holds of a GPU.
func QueryReservation(f Ioctler, gpu uint32) (Reservation, error) {
	return reservation(f, gpu, Reservation{}, HQDQuery, "query")
}

func reservation(f Ioctler, gpu uint32, r Reservation, flags uint32, what string) (Reservation, error) {
	arg := make([]byte, sizeReservation)
	le.PutUint32(arg[reserveGPU:], gpu)
	le.PutUint32(arg[reserveSlots:], r.Slots)
	le.PutUint32(arg[reservePriority:], r.Priority)
	le.PutUint32(arg[reserveFlags:], flags)
	if _, err := f.Ioctl(ReqHQDReservation, arg); err != nil {
		return Reservation{}, fmt.Errorf("%s slots of GPU %d: %w", what, gpu, err)
	}
	return Reservation{
		Slots: le.Uint32(arg[reserveSlots:]), Priority: le.Uint32(arg[reservePriority:]),
		Total: le.Uint32(arg[reserveTotal:]), Active: le.Uint32(arg[reserveActive:]),
	}, nil
}
