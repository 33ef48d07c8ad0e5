package kfd

// The ABI of our patch to amdkfd (kernel/amdkfd). With it one process takes queues of
// another off the hardware and puts them back, without a debug session or ptrace. It can
// also keep hardware slots free. All numbers are little endian.
//
// Requests are _IOWR('K', nr, 24 bytes). The numbers 0xf0 to 0xf2 are far from upstream's
// (from 0x01) and from those of ROCm's own module (from 0x80). A stock driver returns
// ENOTTY.
//
//	0xf0 BATCH_UNMAP_QUEUES    0xc0184bf0   struct kfd_ioctl_sched_queues_args
//	0xf1 FAST_REMAP_QUEUES     0xc0184bf1   struct kfd_ioctl_sched_queues_args
//	0xf2 SET_HQD_RESERVATION   0xc0184bf2   struct kfd_ioctl_hqd_reservation_args
//
//	struct kfd_ioctl_sched_queues_args {      // 24 bytes
//		__u64 queues_ptr;      //  0  in   array of struct kfd_sched_queue
//		__u32 num_queues;      //  8  in   at most 1024
//		__u32 pid;             // 12  in   the process that owns the queues; 0: the caller
//		__u32 grace_period;    // 16  in   BATCH_UNMAP: as in SUSPEND_QUEUES; FAST_REMAP: 0
//		__u32 flags;           // 20  in   FAST_REMAP: KFD_SCHED_ALL (1); else 0
//	};
//
//	struct kfd_sched_queue {                  // 16 bytes
//		__u32 gpu_id;          //  0  in
//		__u32 queue_id;        //  4  in
//		__s32 status;          //  8  out  0, or a negative errno
//		__u32 pad;             // 12  in   0
//	};
//
//	struct kfd_ioctl_hqd_reservation_args {   // 24 bytes
//		__u32 gpu_id;          //  0  in
//		__u32 reserved_slots;  //  4  in   slots kept free of queues below min_priority; QUERY: out
//		__u32 min_priority;    //  8  in   0 to 15; QUERY: out
//		__u32 flags;           // 12  in   KFD_HQD_QUERY (1): only read; needs no privilege
//		__u32 num_slots;       // 16  out  compute slots of the GPU
//		__u32 active_slots;    // 20  out  compute queues that are not stopped
//	};
//
// BATCH_UNMAP_QUEUES sets a state of its own in each queue, beside eviction and a
// debugger's suspension. A queue runs when it is in none of the three states, in whatever
// order they are set and cleared. Under HWS the call makes one runlist update for each GPU
// with a changed queue, for any number of entries; MES takes a packet for each queue.
// FAST_REMAP_QUEUES undoes it. Both return the number of entries with status 0; an entry
// that was already in the requested state counts. An entry that is listed twice is
// processed twice.
//
// FAST_REMAP with KFD_SCHED_ALL, without array and count, remaps all queues of the
// process, even into reserved slots, and returns their number. Without the flag, a call
// without array and count does nothing and returns 0 if the process exists and the caller
// may control it. This is how Probe finds out whether the driver has the patch.
//
// The open file through which queues of a process were unmapped claims that process until
// the last of its queues is remapped. Closing the file, and the death of the process that
// opened it, remap everything that was unmapped through it. A queue that is unmapped can
// be destroyed without waiting.
//
// kernel/amdkfd/ABI.md lists the permissions and the error for every invalid input.
const (
	ReqBatchUnmap     = 3<<30 | sizeSched<<16 | 'K'<<8 | 0xf0
	ReqFastRemap      = 3<<30 | sizeSched<<16 | 'K'<<8 | 0xf1
	ReqHQDReservation = 3<<30 | sizeReservation<<16 | 'K'<<8 | 0xf2

	sizeSched       = 24
	sizeReservation = 24
	sizeSchedQueue  = 16

	schedArray = 0
	schedCount = 8
	schedPID   = 12
	schedGrace = 16
	schedFlags = 20

	schedQueueGPU    = 0
	schedQueueID     = 4
	schedQueueStatus = 8

	reserveGPU      = 0
	reserveSlots    = 4
	reservePriority = 8
	reserveFlags    = 12
	reserveActive   = 20

	// SchedAll is the flag of FAST_REMAP that remaps all queues of a process.
	SchedAll = 1
	// HQDQuery is the flag of SET_HQD_RESERVATION that only reads.
	HQDQuery = 1
)
