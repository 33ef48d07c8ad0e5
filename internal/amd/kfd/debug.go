package kfd

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Grace is how long waves may go on before they are taken off, in units of 1000
// GPU clock cycles. The hardware's field has eight bits, and its packets take
// anything longer modulo 256: so it is 1 to 255, or DefaultGrace. MES ignores it.
type Grace uint32

// DefaultGrace leaves the hardware's setting as it is.
const DefaultGrace Grace = 0xffffffff

// GraceOf is the Grace nearest to d for a GPU clock in MHz; DefaultGrace if the
// clock is not known.
func GraceOf(d time.Duration, clockMHz uint32) Grace {
	if clockMHz == 0 {
		return DefaultGrace
	}
	const most = 255
	us := min(max(d, 0), time.Second).Microseconds()
	return Grace(min(max(uint64(us)*uint64(clockMHz)/1000, 1), most))
}

// What became of one queue of a call that named several.
var (
	// ErrInvalidQueue: the queue is unknown, new, or being destroyed. A new one
	// stays so until it was in a Snapshot that clears that.
	ErrInvalidQueue = errors.New("the queue is unknown, new or being destroyed")
	// ErrHardware: the GPU did not do it.
	ErrHardware = errors.New("the GPU did not do it")
)

// EnableDebug opens a debug session of a process: the caller's own, or one whose
// first thread is traced by the calling thread. The driver writes a byte to the
// descriptor events for each exception in mask. It reports whether the process
// has its runtime enabled, without which its queues cannot be suspended.
//
// While the session lasts a process that enables or disables its runtime waits
// in the kernel for SendRuntimeEvent, so mask has to hold MaskProcessRuntime and
// somebody has to answer.
func EnableDebug(f Ioctler, pid int, mask uint64, events int) (ready bool, err error) {
	arg := trap(pid, OpEnable)
	info := make([]byte, sizeRuntimeInfo)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&info[0])
	le.PutUint64(arg[enableMask:], mask)
	le.PutUint64(arg[enableInfoPtr:], pointer(info))
	le.PutUint32(arg[enableInfoSize:], sizeRuntimeInfo)
	le.PutUint32(arg[enableFD:], uint32(int32(events)))
	if _, err := f.Ioctl(ReqDebugTrap, arg); err != nil {
		return false, fmt.Errorf("debug process %d: %w", pid, err)
	}
	return le.Uint32(info[runtimeState:]) == runtimeEnabled, nil
}

// DisableDebug ends the session. Every queue of the process is resumed.
func DisableDebug(f Ioctler, pid int) error {
	if _, err := f.Ioctl(ReqDebugTrap, trap(pid, OpDisable)); err != nil {
		return fmt.Errorf("end debugging of process %d: %w", pid, err)
	}
	return nil
}

// QueryEvent returns an exception that is pending in a process under debug, and
// clears those of mask. It is EAGAIN if there is none.
func QueryEvent(f Ioctler, pid int, mask uint64) (uint64, error) {
	arg := trap(pid, OpQueryDebugEvent)
	le.PutUint64(arg[eventMask:], mask)
	if _, err := f.Ioctl(ReqDebugTrap, arg); err != nil {
		return 0, fmt.Errorf("query events of process %d: %w", pid, err)
	}
	return le.Uint64(arg[eventMask:]), nil
}

// SendRuntimeEvent lets a process go on that waits for its debugger.
func SendRuntimeEvent(f Ioctler, pid int, mask uint64) error {
	arg := trap(pid, OpSendRuntimeEvent)
	le.PutUint64(arg[eventMask:], mask)
	if _, err := f.Ioctl(ReqDebugTrap, arg); err != nil {
		return fmt.Errorf("answer the runtime of process %d: %w", pid, err)
	}
	return nil
}

// Suspend takes queues of a process under debug off the GPU, waves and all. The
// errors are those of the queues, in order. It is one runlist update for each GPU
// under HWS, whatever the number. A queue whose hardware failed is left marked as
// suspended by the driver.
func Suspend(f Ioctler, pid int, queues []uint32, grace Grace) ([]error, error) {
	arg := trap(pid, OpSuspendQueues)
	le.PutUint32(arg[suspendGrace:], uint32(grace))
	return many(f, arg, suspendArray, suspendCount, queues, fmt.Sprintf("suspend %d queues of process %d", len(queues), pid))
}

// Resume puts them back.
func Resume(f Ioctler, pid int, queues []uint32) ([]error, error) {
	return many(f, trap(pid, OpResumeQueues), resumeArray, resumeCount, queues, fmt.Sprintf("resume %d queues of process %d", len(queues), pid))
}

// many makes a call on an array of queue ids, which comes back with what became
// of each. The count that the driver returns has to agree.
func many(f Ioctler, arg []byte, atArray, atCount int, queues []uint32, what string) ([]error, error) {
	if len(queues) == 0 || len(queues) > MaxQueues {
		return nil, fmt.Errorf("%s: one call takes 1 to %d", what, MaxQueues)
	}
	ids := make([]byte, 4*len(queues))
	for i, q := range queues {
		le.PutUint32(ids[4*i:], q)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&ids[0])
	le.PutUint64(arg[atArray:], pointer(ids))
	le.PutUint32(arg[atCount:], uint32(len(queues)))
	n, err := f.Ioctl(ReqDebugTrap, arg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	errs := make([]error, len(queues))
	done := 0
	for i := range queues {
		switch id := le.Uint32(ids[4*i:]); {
		case id&queueError != 0:
			errs[i] = fmt.Errorf("queue %d: %w", queues[i], ErrHardware)
		case id&queueInvalid != 0:
			errs[i] = fmt.Errorf("queue %d: %w", queues[i], ErrInvalidQueue)
		default:
			done++
		}
	}
	// Under HWS a call on a GPU counts all of its queues or none, so it may count
	// fewer than those without an error bit only by a mistake of the driver's.
	if n < done {
		return errs, fmt.Errorf("%s: %d of them have no error and %d are counted: %w", what, done, n, ErrHardware)
	}
	return errs, nil
}

// Entry is a queue as a Snapshot has it.
type Entry struct {
	Exceptions uint64
	Ring       uint64 // the same as hsa_queue_t's base_address
	RingSize   uint32
	GPU        uint32
	Queue      uint32
	Type       QueueType
}

// QueueType is of enum kfd_ioctl_queue_type: what user space calls it.
type QueueType uint32

// Queue types.
const (
	TypeCompute    QueueType = 0
	TypeSDMA       QueueType = 1
	TypeComputeAQL QueueType = 2
	TypeSDMAXGMI   QueueType = 3
)

// IsCompute reports whether a queue of that type takes a compute slot.
func (t QueueType) IsCompute() bool { return t == TypeCompute || t == TypeComputeAQL }

// Snapshot lists the queues of a process under debug and clears the exceptions of
// mask in them. A queue is born with MaskQueueNew, and cannot be suspended until
// it is cleared.
func Snapshot(f Ioctler, pid int, mask uint64) ([]Entry, error) {
	arg := trap(pid, OpQueueSnapshot)
	// Room for all at once: what a snapshot clears it tells once.
	buf := make([]byte, MaxQueues*sizeSnapshotEntry)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&buf[0])
	le.PutUint64(arg[snapshotMask:], mask)
	le.PutUint64(arg[snapshotBuf:], pointer(buf))
	le.PutUint32(arg[snapshotCount:], MaxQueues)
	le.PutUint32(arg[snapshotEntrySize:], sizeSnapshotEntry)
	if _, err := f.Ioctl(ReqDebugTrap, arg); err != nil {
		return nil, fmt.Errorf("snapshot of process %d: %w", pid, err)
	}
	if size := le.Uint32(arg[snapshotEntrySize:]); size != sizeSnapshotEntry {
		return nil, fmt.Errorf("snapshot of process %d: its entries have %d bytes", pid, size)
	}
	found := make([]Entry, min(le.Uint32(arg[snapshotCount:]), MaxQueues))
	for i := range found {
		e := buf[i*sizeSnapshotEntry:]
		found[i] = Entry{
			Exceptions: le.Uint64(e[entryStatus:]), Ring: le.Uint64(e[entryRing:]), RingSize: le.Uint32(e[entryRingSize:]),
			GPU: le.Uint32(e[entryGPU:]), Queue: le.Uint32(e[entryQueue:]), Type: QueueType(le.Uint32(e[entryType:])),
		}
	}
	return found, nil
}

// trap begins the argument of DBG_TRAP.
func trap(pid int, op uint32) []byte {
	arg := make([]byte, sizeDebugTrap)
	le.PutUint32(arg[trapPID:], uint32(int32(pid)))
	le.PutUint32(arg[trapOp:], op)
	return arg
}
