package kfd

// The ABI of our patch to amdkfd (kernel/amdkfd). It lets one process take the
// queues of another off the hardware and put them back, with neither a debug
// session nor ptrace, and keeps hardware slots free. All numbers are little
// endian, as the machine is.
//
// Requests, _IOWR('K', nr, 24 bytes). The range 0xf0 to 0xf2 is far from
// upstream's (from 0x01) and from that of ROCm's own module (from 0x80). A stock
// driver answers ENOTTY.
//
//	0xf0 BATCH_UNMAP_QUEUES    0xc0184bf0   struct kfd_ioctl_sched_queues_args
//	0xf1 FAST_REMAP_QUEUES     0xc0184bf1   struct kfd_ioctl_sched_queues_args
//	0xf2 SET_HQD_RESERVATION   0xc0184bf2   struct kfd_ioctl_hqd_reservation_args
//
//	struct kfd_ioctl_sched_queues_args {      // 24 bytes
//		__u64 queues_ptr;      //  0  in   array of struct kfd_sched_queue
//		__u32 num_queues;      //  8  in   at most 1024
//		__u32 pid;             // 12  in   the process whose queues they are; 0: the caller
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
//		__u32 reserved_slots;  //  4  in   slots that queues below min_priority leave free; QUERY: out
//		__u32 min_priority;    //  8  in   0 to 15; QUERY: out
//		__u32 flags;           // 12  in   KFD_HQD_QUERY (1): change nothing, need no right
//		__u32 num_slots;       // 16  out  compute slots of the GPU
//		__u32 active_slots;    // 20  out  compute queues that may run now
//	};
//
// BATCH_UNMAP_QUEUES sets a state of its own in each queue, beside eviction and a
// debugger's suspension: a queue runs when it is in none of the three, whatever
// order they come and go in. Under HWS there is one runlist update for each GPU
// that an entry changes, for any number of entries; MES takes each queue apart.
// FAST_REMAP_QUEUES undoes it. Each returns how many entries have status 0; those
// that were so already count. An entry that is there twice is done twice.
//
// FAST_REMAP with KFD_SCHED_ALL, no array and no count puts back everything of
// that process, reservation or not, and returns how many queues that were.
// Without the flag no array and no count is nothing to do: 0, once pid was found
// and the caller may control it. That is how the patch is probed for.
//
// Who unmaps owns. The target is claimed by the open file that a queue of it was
// unmapped through, until the last of its queues is mapped again. The file's
// release, and the death of the process that opened it, map everything that was
// unmapped through it, so that nothing stays stopped when its controller dies or
// lets go. A queue that is unmapped can be destroyed without waiting.
//
// kernel/amdkfd/ABI.md says who may, and what every wrong input is answered.
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
	schedQueuePad    = 12

	reserveGPU      = 0
	reserveSlots    = 4
	reservePriority = 8
	reserveFlags    = 12
	reserveTotal    = 16
	reserveActive   = 20

	// SchedAll is the flag of FAST_REMAP that puts back everything.
	SchedAll = 1
	// HQDQuery is the flag of SET_HQD_RESERVATION that only asks.
	HQDQuery = 1
)
