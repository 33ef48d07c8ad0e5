package kfd

import "encoding/binary"

// Requests of the stock driver.
const (
	ReqGetVersion    = 2<<30 | sizeVersion<<16 | 'K'<<8 | 0x01
	ReqCreateQueue   = 3<<30 | sizeCreateQueue<<16 | 'K'<<8 | 0x02
	ReqDestroyQueue  = 3<<30 | sizeDestroyQueue<<16 | 'K'<<8 | 0x03
	ReqUpdateQueue   = 1<<30 | sizeUpdateQueue<<16 | 'K'<<8 | 0x07
	ReqRuntimeEnable = 3<<30 | sizeRuntimeEnable<<16 | 'K'<<8 | 0x25
	ReqDebugTrap     = 3<<30 | sizeDebugTrap<<16 | 'K'<<8 | 0x26
)

// Sizes of the structs that requests take, and of the structs that those point at.
const (
	sizeVersion       = 8  // kfd_ioctl_get_version_args
	sizeCreateQueue   = 96 // kfd_ioctl_create_queue_args; 88 before KFD 1.17
	sizeDestroyQueue  = 8  // kfd_ioctl_destroy_queue_args
	sizeUpdateQueue   = 24 // kfd_ioctl_update_queue_args
	sizeRuntimeEnable = 16 // kfd_ioctl_runtime_enable_args
	sizeDebugTrap     = 32 // kfd_ioctl_dbg_trap_args
	sizeRuntimeInfo   = 16 // kfd_runtime_info
	sizeSnapshotEntry = 64 // kfd_queue_snapshot_entry
)

// Operations of DBG_TRAP, from enum kfd_dbg_trap_operations.
const (
	OpEnable           = 0
	OpDisable          = 1
	OpSendRuntimeEvent = 2
	OpSuspendQueues    = 6
	OpResumeQueues     = 7
	OpQueryDebugEvent  = 11
	OpQueueSnapshot    = 13
)

// Offsets of fields.
//
//	kfd_ioctl_dbg_trap_args    0 pid   4 op   8 one of:
//	  enable                   8 exception_mask   16 rinfo_ptr         24 rinfo_size   28 dbg_fd
//	  send_runtime_event       8 exception_mask   16 gpu_id            20 queue_id
//	  suspend_queues           8 exception_mask   16 queue_array_ptr   24 num_queues   28 grace_period
//	  resume_queues            8 queue_array_ptr  16 num_queues        20 pad
//	  query_debug_event        8 exception_mask   16 gpu_id            20 queue_id
//	  queue_snapshot           8 exception_mask   16 snapshot_buf_ptr  24 num_queues   28 entry_size
const (
	trapPID = 0
	trapOp  = 4

	enableMask     = 8
	enableInfoPtr  = 16
	enableInfoSize = 24
	enableFD       = 28

	eventMask = 8

	suspendArray = 16
	suspendCount = 24
	suspendGrace = 28

	resumeArray = 8
	resumeCount = 16

	snapshotMask      = 8
	snapshotBuf       = 16
	snapshotCount     = 24
	snapshotEntrySize = 28

	runtimeState = 8 // kfd_runtime_info: 0 r_debug, 8 runtime_state, 12 ttmp_setup

	entryQueue = 40 // kfd_queue_snapshot_entry: queue_id
)

// Exceptions, as bits of a mask: KFD_EC_MASK(code) is 1 << (code-1).
const (
	MaskQueueNew       uint64 = 1 << 30 // EC_QUEUE_NEW
	MaskProcessRuntime uint64 = 1 << 47 // EC_PROCESS_RUNTIME
)

// Bits that the driver sets in queue ids to report the result for each queue.
const (
	queueError   uint32 = 1 << 30 // KFD_DBG_QUEUE_ERROR_MASK: the hardware failed
	queueInvalid uint32 = 1 << 31 // KFD_DBG_QUEUE_INVALID_MASK: unknown, new, or being destroyed
)

// Limits of the driver.
const (
	MaxQueues   = 1024 // KFD_MAX_NUM_OF_QUEUES_PER_PROCESS; also the limit of one call
	MaxPriority = 15   // KFD_MAX_QUEUE_PRIORITY
)

// runtimeEnabled is DEBUG_RUNTIME_STATE_ENABLED.
const runtimeEnabled = 1

var le = binary.LittleEndian
