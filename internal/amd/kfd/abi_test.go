package kfd

import "testing"

// TestRequests: the numbers that gcc makes of the header of Linux 6.12, and those of
// our patch.
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
			t.Errorf("%s is %#x, want %#x", tt.name, tt.got, tt.want)
		}
	}
}

// TestOffsets: where gcc puts the fields of the header of Linux 6.12.
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
		{"suspend_queues.exception_mask", suspendMask, 8},
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
		{"send_runtime_event.gpu_id", eventGPU, 16},
		{"send_runtime_event.queue_id", eventQueue, 20},

		{"sizeof kfd_queue_snapshot_entry", sizeSnapshotEntry, 64},
		{"exception_status", entryStatus, 0},
		{"ring_base_address", entryRing, 8},
		{"write_pointer_address", entryWrite, 16},
		{"read_pointer_address", entryRead, 24},
		{"ctx_save_restore_address", entrySave, 32},
		{"queue_id", entryQueue, 40},
		{"gpu_id", entryGPU, 44},
		{"ring_size", entryRingSize, 48},
		{"queue_type", entryType, 52},
		{"ctx_save_restore_area_size", entrySaveSize, 56},

		{"sizeof kfd_runtime_info", sizeRuntimeInfo, 16},
		{"runtime_state", runtimeState, 8},
		{"sizeof kfd_ioctl_runtime_enable_args", sizeRuntimeEnable, 16},
		{"r_debug", runtimeDebug, 0},
		{"mode_mask", runtimeMode, 8},

		{"sizeof kfd_ioctl_update_queue_args", sizeUpdateQueue, 24},
		{"update ring_base_address", updateRing, 0},
		{"update queue_id", updateQueue, 8},
		{"update ring_size", updateRingSize, 12},
		{"queue_percentage", updatePercent, 16},
		{"queue_priority", updatePriority, 20},

		{"sizeof kfd_ioctl_create_queue_args", sizeCreateQueue, 96},
		{"create ring_base_address", createRing, 0},
		{"create write_pointer_address", createWrite, 8},
		{"create read_pointer_address", createRead, 16},
		{"create doorbell_offset", createDoorbell, 24},
		{"create ring_size", createRingSize, 32},
		{"create gpu_id", createGPU, 36},
		{"create queue_type", createType, 40},
		{"create queue_percentage", createPercent, 44},
		{"create queue_priority", createPriority, 48},
		{"create queue_id", createQueue, 52},

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
		{"pad", schedQueuePad, 12},
		{"sizeof kfd_ioctl_hqd_reservation_args", sizeReservation, 24},
		{"gpu_id", reserveGPU, 0},
		{"reserved_slots", reserveSlots, 4},
		{"min_priority", reservePriority, 8},
		{"flags", reserveFlags, 12},
		{"num_slots", reserveTotal, 16},
		{"active_slots", reserveActive, 20},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}
