package kfdtest

import (
	"encoding/binary"

	"github.com/giveway/giveway/internal/amd/kfd"
)

const (
	noProcess = 4194303 // the highest pid of Linux
	badAddr   = 0x10
)

// words encodes values as the driver reads them.
func words(vs ...any) []byte {
	var b []byte
	for _, v := range vs {
		b, _ = binary.Append(b, le, v)
	}
	return b
}

// fixed returns an argument that does not depend on the run.
func fixed(vs ...any) func(*run) []byte { return func(*run) []byte { return words(vs...) } }

func pidOf(s *run, r role) uint32 { return uint32(s.pid(r)) }

// trapOf and the functions below return arguments of DBG_TRAP.
func trapOf(r role, op uint32) func(*run) []byte {
	return func(s *run) []byte { return words(pidOf(s, r), op, [24]byte{}) }
}

func enable(r role) func(*run) []byte {
	return func(s *run) []byte {
		info := make([]byte, 64) // larger than the driver's struct
		at := s.point(info)
		s.array = nil
		return words(pidOf(s, r), uint32(kfd.OpEnable), uint64(0), at, uint32(len(info)), uint32(s.events))
	}
}

func suspend(r role, ids ...uint32) func(*run) []byte {
	return func(s *run) []byte {
		return words(pidOf(s, r), uint32(kfd.OpSuspendQueues), uint64(0), s.point(words(ids)), uint32(len(ids)), uint32(1))
	}
}

func resume(r role, ids ...uint32) func(*run) []byte {
	return func(s *run) []byte {
		return words(pidOf(s, r), uint32(kfd.OpResumeQueues), s.point(words(ids)), uint32(len(ids)), uint32(0), uint64(0))
	}
}

func rawTrap(r role, op uint32, vs ...any) func(*run) []byte {
	return func(s *run) []byte {
		b := words(append([]any{pidOf(s, r), op}, vs...)...)
		return append(b, make([]byte, 32-len(b))...)
	}
}

func snapshot(r role, mask uint64, size uint32) func(*run) []byte {
	return func(s *run) []byte {
		at := s.point(make([]byte, 16*64))
		s.array = nil
		return words(pidOf(s, r), uint32(kfd.OpQueueSnapshot), mask, at, uint32(16), size)
	}
}

// first is the id of the target's first queue.
const first = 0

// entry is struct kfd_sched_queue of the patch.
type entry struct {
	GPU, Queue uint32
	Status     int32
	Pad        uint32
}

func batchOf(r role, grace, flags uint32, entries ...entry) func(*run) []byte {
	return func(s *run) []byte {
		for i := range entries {
			if entries[i].GPU == 1 { // stands for the GPU of the run
				entries[i].GPU = s.gpu
			}
		}
		return words(s.point(words(entries)), uint32(len(entries)), pidOf(s, r), grace, flags)
	}
}

func rawBatch(r role, ptr uint64, n, grace, flags uint32) func(*run) []byte {
	return func(s *run) []byte { return words(ptr, n, pidOf(s, r), grace, flags) }
}

func reserve(gpu, slots, priority, flags uint32) func(*run) []byte {
	return func(s *run) []byte {
		if gpu == 1 { // stands for the GPU of the run
			gpu = s.gpu
		}
		return words(gpu, slots, priority, flags, uint64(0))
	}
}

func seizeOf(r role) func(*run) []byte {
	return func(s *run) []byte {
		if err := s.seize(r); err != nil {
			s.t.Errorf("trace program %d: %v", r, err)
		}
		return nil
	}
}

func newQueue(s *run) []byte {
	return words(uint64(0x7f0000000000), [24]byte{}, uint32(4096), s.gpu, uint32(TypeComputeAQL), uint32(100), uint32(7), uint32(0), [40]byte{})
}

const (
	grace    = uint32(kfd.DefaultGrace)
	unmap    = uint32(kfd.ReqBatchUnmap)
	remap    = uint32(kfd.ReqFastRemap)
	hqd      = uint32(kfd.ReqHQDReservation)
	debug    = uint32(kfd.ReqDebugTrap)
	unknown  = 1001 // queues that no process has
	unknown2 = 1002
)

// table holds the answers of amdkfd in Linux 6.12, and of amdkfd with our patch. A real
// driver without a GPU can run all rows but those that need queues.
var table = []row{
	// Numbers and sizes.
	{name: "request number 0", req: 0xc0104b00, arg: fixed(uint64(0), uint64(0)), want: "ENOTTY"},
	{name: "request number 0x87", req: 0xc0104b87, arg: fixed(uint64(0), uint64(0)), want: "ENOTTY"},
	{name: "request number 0x88", req: 0xc0104b88, arg: fixed(uint64(0), uint64(0)), want: "ENOTTY"},
	{name: "version", req: kfd.ReqGetVersion, arg: fixed(uint64(0)), want: "0"},
	{name: "version with half of its argument", req: 0x80044b01, arg: fixed(uint32(0)), want: "0"},
	{name: "version with another magic", req: 0x80085801, arg: fixed(uint64(0)), want: "0"},
	{name: "version on an inherited descriptor", by: inheritor, req: kfd.ReqGetVersion, arg: fixed(uint64(0)), want: "EBADF"},

	// The caller's own queues.
	{name: "update an unknown queue", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(0), uint32(0), uint32(0)), want: "EFAULT"},
	{name: "update to 101 %", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(0), uint32(101), uint32(0)), want: "EINVAL"},
	{name: "update to priority 16", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(0), uint32(0), uint32(16)), want: "EINVAL"},
	{name: "update to a ring size of 3", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(3), uint32(0), uint32(0)), want: "EINVAL"},
	{name: "destroy an unknown queue", req: kfd.ReqDestroyQueue, arg: fixed(uint32(unknown), uint32(0)), want: "EINVAL"},
	{name: "create a queue on an unknown GPU", req: kfd.ReqCreateQueue, arg: fixed([96]byte{}), want: "EINVAL"},

	// Debug sessions: permissions and order of calls.
	{name: "suspend without a session", req: debug, arg: suspend(tester, unknown), want: "EINVAL"},
	{name: "suspend in an unknown process", req: debug, arg: fixed(uint32(noProcess), uint32(kfd.OpSuspendQueues), [24]byte{}), want: "ESRCH"},
	{name: "suspend in process 0", req: debug, arg: fixed(uint32(0), uint32(kfd.OpSuspendQueues), [24]byte{}), want: "ESRCH"},
	{name: "suspend in a process without KFD", req: debug, arg: suspend(withoutKFD, unknown), want: "ESRCH"},
	{name: "debug a process without KFD", req: debug, arg: enable(withoutKFD), want: "ESRCH"},
	{name: "enable the runtime", by: target, req: kfd.ReqRuntimeEnable, arg: fixed(uint64(0), uint32(1), uint32(0)), want: "0"},
	{name: "enable the runtime twice", by: target, req: kfd.ReqRuntimeEnable, arg: fixed(uint64(0), uint32(1), uint32(0)), want: "EBUSY"},
	{name: "create a queue", by: target, req: kfd.ReqCreateQueue, arg: newQueue, want: "0", need: queues},
	{name: "debug an untraced process", req: debug, arg: enable(target), want: "EPERM"},
	{name: "trace the target", by: withoutKFD, arg: seizeOf(target)},
	{name: "debug from a thread that is not the tracer", by: testerThread, req: debug, arg: enable(target), want: "EPERM"},
	{name: "debug with a bad descriptor", req: debug, arg: rawTrap(target, kfd.OpEnable, uint64(0), uint64(0), uint32(0), uint32(9999)), want: "EBADF"},
	{name: "debug", req: debug, arg: enable(target), want: "0"},
	{name: "debug twice", req: debug, arg: enable(target), want: "EALREADY"},

	// Debug sessions: operations.
	{name: "suspend unknown queues", req: debug, arg: suspend(target, unknown, unknown2), want: "0 invalid invalid"},
	{name: "suspend from another thread", by: testerThread, req: debug, arg: suspend(target, unknown), want: "0 invalid"},
	{name: "suspend a new queue", req: debug, arg: suspend(target, first), want: "0 invalid", need: queues},
	{name: "snapshot with an entry size of 0", req: debug, arg: snapshot(target, kfd.MaskQueueNew, 0), want: "EINVAL"},
	{name: "snapshot", req: debug, arg: snapshot(target, kfd.MaskQueueNew, 64), want: "0"},
	{name: "suspend 1025 queues", req: debug, arg: suspend(target, make([]uint32, 1025)...), want: "EINVAL"},
	{name: "suspend from a bad address", req: debug, arg: rawTrap(target, kfd.OpSuspendQueues, uint64(0), uint64(badAddr), uint32(2), uint32(1)), want: "EFAULT"},
	{name: "suspend from a null address", req: debug, arg: rawTrap(target, kfd.OpSuspendQueues, uint64(0), uint64(0), uint32(2), uint32(1)), want: "EINVAL"},
	{name: "suspend no queues", req: debug, arg: rawTrap(target, kfd.OpSuspendQueues, uint64(0), uint64(0), uint32(0), uint32(1)), want: "0"},
	{name: "suspend", req: debug, arg: suspend(target, first, unknown), want: "1 ok invalid", need: queues},
	{name: "suspend twice", req: debug, arg: suspend(target, first), want: "1 ok", need: queues},
	{name: "resume", req: debug, arg: resume(target, first, unknown), want: "1 ok invalid", need: queues},
	{name: "resume twice", req: debug, arg: resume(target, first), want: "1 ok", need: queues},
	{name: "resume unknown queues", req: debug, arg: resume(target, unknown), want: "0 invalid"},
	{name: "resume 1025 queues", req: debug, arg: resume(target, make([]uint32, 1025)...), want: "EINVAL"},
	{name: "resume from a bad address", req: debug, arg: rawTrap(target, kfd.OpResumeQueues, uint64(badAddr), uint32(2), uint32(0)), want: "EFAULT"},
	{name: "query events when none is pending", req: debug, arg: trapOf(target, kfd.OpQueryDebugEvent), want: "EAGAIN"},
	{name: "unknown operation", req: debug, arg: trapOf(target, 99), want: "EINVAL"},
	{name: "end the session", req: debug, arg: trapOf(target, kfd.OpDisable), want: "0"},
	{name: "end the session twice", req: debug, arg: trapOf(target, kfd.OpDisable), want: "EINVAL"},
	{name: "suspend after the session", req: debug, arg: suspend(target, unknown), want: "EINVAL"},

	// Another debugger, and a process whose runtime is not enabled.
	{name: "another debugger traces a program", by: withoutKFD, arg: func(s *run) []byte {
		if err := s.otherSeizes(); err != nil {
			s.t.Error(err)
		}
		return nil
	}},
	{name: "the other debugger opens a session", by: otherDebugger, req: debug, arg: rawTrap(noRuntime, kfd.OpEnable, uint64(0), uint64(0), uint32(0), uint32(0)), want: "0"},
	{name: "debug the other debugger's program", req: debug, arg: enable(noRuntime), want: "EPERM"},
	{name: "the other debugger dies", by: withoutKFD, arg: func(s *run) []byte { s.kill(otherDebugger); return nil }},
	{name: "trace the other debugger's program", by: withoutKFD, arg: seizeOf(noRuntime)},
	{name: "debug the other debugger's former program", req: debug, arg: enable(noRuntime), want: "0"},
	{name: "suspend without a runtime", req: debug, arg: suspend(noRuntime, unknown), want: "EPERM"},
	{name: "end that session", req: debug, arg: trapOf(noRuntime, kfd.OpDisable), want: "0"},

	// The test itself, which need not be traced.
	{name: "enable the test's own runtime", req: kfd.ReqRuntimeEnable, arg: fixed(uint64(0), uint32(1), uint32(0)), want: "0"},
	{name: "debug the test itself", req: debug, arg: enable(tester), want: "0"},
	{name: "suspend unknown queues of the test itself", req: debug, arg: suspend(tester, unknown), want: "0 invalid"},
	{name: "end the session of the test itself", req: debug, arg: trapOf(tester, kfd.OpDisable), want: "0"},

	// The patch.
	{name: "unmap on a stock driver", req: unmap, arg: rawBatch(tester, 0, 0, 0, 0), want: "ENOTTY", need: stock},
	{name: "remap on a stock driver", req: remap, arg: rawBatch(tester, 0, 0, 0, 0), want: "ENOTTY", need: stock},
	{name: "reserve on a stock driver", req: hqd, arg: reserve(0, 0, 0, 0), want: "ENOTTY", need: stock},
	{name: "probe", req: unmap, arg: fixed([24]byte{}), want: "0", need: patch},
	{name: "probe with a third of its argument", req: 0xc0084bf0, arg: fixed(uint64(0)), want: "EINVAL", need: patch},
	{name: "may unmap", req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "0", need: patch},
	{name: "unmap with a flag", req: unmap, arg: rawBatch(target, 0, 0, 0, 1), want: "EINVAL", need: patch},
	{name: "unmap 1025 queues", req: unmap, arg: batchOf(target, grace, 0, make([]entry, 1025)...), want: "EINVAL", need: patch},
	{name: "unmap from a null address", req: unmap, arg: rawBatch(target, 0, 1, grace, 0), want: "EINVAL", need: patch},
	{name: "unmap no queues from an address", req: unmap, arg: rawBatch(target, badAddr, 0, grace, 0), want: "EINVAL", need: patch},
	{name: "unmap from a bad address", req: unmap, arg: rawBatch(target, badAddr, 1, grace, 0), want: "EFAULT", need: patch},
	{name: "unmap from read-only memory", req: unmap, arg: func(s *run) []byte {
		return words(address(s.readOnly), uint32(1), pidOf(s, target), grace, uint32(0))
	}, want: "EFAULT", need: patch},
	{name: "unmap with nonzero padding", req: unmap, arg: batchOf(target, grace, 0, entry{Queue: unknown, Pad: 1}), want: "EINVAL", need: patch},
	{name: "unmap in an unknown process", req: unmap, arg: fixed(uint64(0), uint32(0), uint32(noProcess), uint64(0)), want: "ESRCH", need: patch},
	{name: "unmap in a process without KFD", req: unmap, arg: rawBatch(withoutKFD, 0, 0, 0, 0), want: "ESRCH", need: patch},
	{name: "another user unmaps", by: otherUser, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "EPERM", need: patch},
	{name: "another user unmaps in an unknown process", by: otherUser, req: unmap, arg: fixed(uint64(0), uint32(0), uint32(noProcess), uint64(0)), want: "ESRCH", need: patch},
	{name: "another user unmaps in its own process", by: otherUser, req: unmap, arg: rawBatch(otherUser, 0, 0, 0, 0), want: "0", need: patch},
	{name: "unmap unknown queues", req: unmap, arg: batchOf(target, grace, 0, entry{Queue: unknown}, entry{Queue: unknown2}), want: "0 ENOENT ENOENT", need: patch},
	{name: "another process may unmap, for the target is not claimed", by: noRuntime, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "0", need: patch},
	{name: "remap unknown queues", req: remap, arg: batchOf(target, 0, 0, entry{Queue: unknown}), want: "0 ENOENT", need: patch},
	{name: "remap with a grace period", req: remap, arg: rawBatch(target, 0, 0, 1, 0), want: "EINVAL", need: patch},
	{name: "remap with an unknown flag", req: remap, arg: rawBatch(target, 0, 0, 0, 2), want: "EINVAL", need: patch},
	{name: "remap all with an array", req: remap, arg: batchOf(target, 0, kfd.SchedAll, entry{Queue: unknown}), want: "EINVAL", need: patch},
	{name: "remap all", req: remap, arg: rawBatch(target, 0, 0, 0, kfd.SchedAll), want: "0", need: patch},
	{name: "another user remaps all", by: otherUser, req: remap, arg: rawBatch(target, 0, 0, 0, kfd.SchedAll), want: "EPERM", need: patch},
	{name: "unmap a queue", req: unmap, arg: batchOf(target, grace, 0, entry{GPU: 1, Queue: first}, entry{GPU: 2, Queue: first}), want: "1 ok ENOENT", need: patchedQueues},
	{name: "unmap a queue twice", req: unmap, arg: batchOf(target, grace, 0, entry{GPU: 1, Queue: first}, entry{GPU: 1, Queue: first}), want: "2 ok ok", need: patchedQueues},
	{name: "another process unmaps in a claimed process", by: noRuntime, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "EBUSY", need: patchedQueues},
	{name: "remap a queue", req: remap, arg: batchOf(target, 0, 0, entry{GPU: 1, Queue: first}), want: "1 ok", need: patchedQueues},
	{name: "another process may unmap again", by: noRuntime, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "0", need: patchedQueues},
	{name: "reserve on an unknown GPU", req: hqd, arg: reserve(0, 0, 0, 0), want: "ENODEV", need: patch},
	{name: "reserve with an unknown flag", req: hqd, arg: reserve(0, 0, 0, 2), want: "EINVAL", need: patch},
	{name: "another user reserves", by: otherUser, req: hqd, arg: reserve(0, 0, 0, 0), want: "EPERM", need: patch},
	{name: "another user queries", by: otherUser, req: hqd, arg: reserve(0, 0, 0, kfd.HQDQuery), want: "ENODEV", need: patch},
	{name: "reserve more slots than there are", req: hqd, arg: reserve(1, 1<<16, 7, 0), want: "EINVAL", need: patchedQueues},
	{name: "reserve for priority 16", req: hqd, arg: reserve(1, 1, 16, 0), want: "EINVAL", need: patchedQueues},
	{name: "reserve", req: hqd, arg: reserve(1, 1, 7, 0), want: "0", need: patchedQueues},
	{name: "another process reserves as well", by: noRuntime, req: hqd, arg: reserve(1, 1, 7, 0), want: "EBUSY", need: patchedQueues},
}
