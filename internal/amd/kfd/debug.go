package kfd

import (
	"errors"
	"fmt"
	"runtime"
)

// Grace is how long running waves may continue before they are saved, in units of 1000
// GPU clock cycles: 1 to 255, or DefaultGrace. The hardware's field has eight bits, and
// the driver would truncate a longer grace period to them. MES ignores it.
type Grace uint32

const (
	MinGrace     Grace = 1
	DefaultGrace Grace = 0xffffffff // leaves the hardware's setting as it is
)

// Results for one queue of a call that names several.
var (
	// ErrInvalidQueue means that the queue is unknown, new, or being destroyed. A new
	// queue becomes valid through a Snapshot that clears MaskQueueNew.
	ErrInvalidQueue = errors.New("the queue is unknown, new or being destroyed")
	// ErrHardware means that the GPU failed to carry out the request.
	ErrHardware = errors.New("the GPU failed to carry it out")
)

// EnableDebug opens a debug session of a process: the caller's own, or one whose first
// thread the calling thread traces with ptrace. The driver writes a byte to the
// descriptor events for each exception in mask. ready reports whether the process has
// enabled its runtime; otherwise its queues cannot be suspended.
//
// While the session lasts, a process that enables or disables its runtime waits in the
// kernel for SendRuntimeEvent. mask must therefore include MaskProcessRuntime, and the
// caller must answer that event.
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
		return false, fmt.Errorf("open a debug session of process %d: %w", pid, err)
	}
	return le.Uint32(info[runtimeState:]) == runtimeEnabled, nil
}

// DisableDebug ends the session, which resumes every queue of the process.
func DisableDebug(f Ioctler, pid int) error {
	if _, err := f.Ioctl(ReqDebugTrap, trap(pid, OpDisable)); err != nil {
		return fmt.Errorf("end the debug session of process %d: %w", pid, err)
	}
	return nil
}

// QueryEvent returns the pending exceptions of a process in a debug session and clears
// those in mask. It fails with EAGAIN if none are pending.
func QueryEvent(f Ioctler, pid int, mask uint64) (uint64, error) {
	arg := trap(pid, OpQueryDebugEvent)
	le.PutUint64(arg[eventMask:], mask)
	if _, err := f.Ioctl(ReqDebugTrap, arg); err != nil {
		return 0, fmt.Errorf("query events of process %d: %w", pid, err)
	}
	return le.Uint64(arg[eventMask:]), nil
}

// SendRuntimeEvent lets a process continue that waits for its debugger.
func SendRuntimeEvent(f Ioctler, pid int, mask uint64) error {
	arg := trap(pid, OpSendRuntimeEvent)
	le.PutUint64(arg[eventMask:], mask)
	if _, err := f.Ioctl(ReqDebugTrap, arg); err != nil {
		return fmt.Errorf("answer the runtime of process %d: %w", pid, err)
	}
	return nil
}

// Suspend takes queues of a process in a debug session off the GPU and saves their
// running waves. The slice holds the result for each queue. Under HWS it is one runlist
// update for each GPU, for any number of queues. The driver leaves a queue marked as
// suspended even if the hardware failed.
func Suspend(f Ioctler, pid int, queues []uint32, grace Grace) ([]error, error) {
	arg := trap(pid, OpSuspendQueues)
	le.PutUint32(arg[suspendGrace:], uint32(grace))
	return changeQueues(f, arg, suspendArray, suspendCount, queues, fmt.Sprintf("suspend %d queues of process %d", len(queues), pid))
}

// Resume undoes Suspend.
func Resume(f Ioctler, pid int, queues []uint32) ([]error, error) {
	return changeQueues(f, trap(pid, OpResumeQueues), resumeArray, resumeCount, queues, fmt.Sprintf("resume %d queues of process %d", len(queues), pid))
}

// changeQueues makes a call on an array of queue ids, in which the driver marks the
// result for each queue. The count that the driver returns must agree with the marks.
func changeQueues(f Ioctler, arg []byte, atArray, atCount int, queues []uint32, what string) ([]error, error) {
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
	// Under HWS the driver counts all queues of a GPU or none. A count below the number
	// of unmarked queues is an error of the driver.
	if n < done {
		return errs, fmt.Errorf("%s: %d have no error, but the driver counts %d: %w", what, done, n, ErrHardware)
	}
	return errs, nil
}

// Snapshot lists the queue ids of a process in a debug session and clears the exceptions
// in mask. A queue is created with MaskQueueNew set, and cannot be suspended before that
// is cleared.
func Snapshot(f Ioctler, pid int, mask uint64) ([]uint32, error) {
	arg := trap(pid, OpQueueSnapshot)
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
		return nil, fmt.Errorf("snapshot of process %d: entries of %d bytes, want %d", pid, size, sizeSnapshotEntry)
	}
	ids := make([]uint32, min(le.Uint32(arg[snapshotCount:]), MaxQueues))
	for i := range ids {
		ids[i] = le.Uint32(buf[i*sizeSnapshotEntry+entryQueue:])
	}
	return ids, nil
}

// trap returns an argument of DBG_TRAP with pid and operation.
func trap(pid int, op uint32) []byte {
	arg := make([]byte, sizeDebugTrap)
	le.PutUint32(arg[trapPID:], uint32(int32(pid)))
	le.PutUint32(arg[trapOp:], op)
	return arg
}
