package kfd

import "testing"

// TestRequests holds the request numbers that gcc computes from the header of Linux 6.12,
// and those of our patch.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uint32
	}{
		{"GET_VERSION", ReqGetVersion, 0x80084b01},
		{"CREATE_QUEUE", ReqCreateQueue, 0xc0604b02},
		{"DESTROY_QUEUE", ReqDestroyQueue, 0xc0084b03},
		{"UPDATE_QUEUE", ReqUpdateQueue, 0x40184b07},
		{"RUNTIME_ENABLE", ReqRuntimeEnable, 0xc0104b25},
		{"DBG_TRAP", ReqDebugTrap, 0xc0204b26},
		{"BATCH_UNMAP_QUEUES", ReqBatchUnmap, 0xc0184bf0},
		{"FAST_REMAP_QUEUES", ReqFastRemap, 0xc0184bf1},
		{"SET_HQD_RESERVATION", ReqHQDReservation, 0xc0184bf2},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %#x, want %#x", tt.name, tt.got, tt.want)
		}
	}
}

// TestOffsets holds the offsets that gcc computes from the header of Linux 6.12, and those
// of our patch.
func TestOffsets(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want int
	}{
		{"sizeof kfd_ioctl_dbg_trap_args", sizeDebugTrap, 32},
		{"pid", trapPID, 0},
		{"op", trapOp, 4},
		{"enable.exception_mask", enableMask, 8},
		{"enable.rinfo_ptr", enableInfoPtr, 16},
		{"enable.rinfo_size", enableInfoSize, 24},
		{"enable.dbg_fd", enableFD, 28},
		{"suspend_queues.queue_array_ptr", suspendArray, 16},
		{"suspend_queues.num_queues", suspendCount, 24},
		{"suspend_queues.grace_period", suspendGrace, 28},
		{"resume_queues.queue_array_ptr", resumeArray, 8},
		{"resume_queues.num_queues", resumeCount, 16},
		{"queue_snapshot.exception_mask", snapshotMask, 8},
		{"queue_snapshot.snapshot_buf_ptr", snapshotBuf, 16},
		{"queue_snapshot.num_queues", snapshotCount, 24},
		{"queue_snapshot.entry_size", snapshotEntrySize, 28},
		{"send_runtime_event.exception_mask", eventMask, 8},

		{"sizeof kfd_queue_snapshot_entry", sizeSnapshotEntry, 64},
		{"queue_id", entryQueue, 40},

		{"sizeof kfd_runtime_info", sizeRuntimeInfo, 16},
		{"runtime_state", runtimeState, 8},
		{"sizeof kfd_ioctl_runtime_enable_args", sizeRuntimeEnable, 16},

		{"sizeof kfd_ioctl_update_queue_args", sizeUpdateQueue, 24},

		{"sizeof kfd_ioctl_create_queue_args", sizeCreateQueue, 96},

		{"sizeof kfd_ioctl_sched_queues_args", sizeSched, 24},
		{"queues_ptr", schedArray, 0},
		{"num_queues", schedCount, 8},
		{"pid", schedPID, 12},
		{"grace_period", schedGrace, 16},
		{"flags", schedFlags, 20},
		{"sizeof kfd_sched_queue", sizeSchedQueue, 16},
		{"gpu_id", schedQueueGPU, 0},
		{"queue_id", schedQueueID, 4},
		{"status", schedQueueStatus, 8},
		{"sizeof kfd_ioctl_hqd_reservation_args", sizeReservation, 24},
		{"gpu_id", reserveGPU, 0},
		{"flags", reserveFlags, 12},
		{"active_slots", reserveActive, 20},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}
