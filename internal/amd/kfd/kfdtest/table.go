package kfdtest

import (
	"encoding/binary"

	"github.com/giveway/giveway/internal/amd/kfd"
)

const (
	noProcess = 4194303 // the last that Linux can have
	badAddr   = 0x10
)

func words(vs ...any) []byte {
	var b []byte
	for _, v := range vs {
		b, _ = binary.Append(b, le, v)
	}
	return b
}

// fixed is an argument that depends on nothing.
func fixed(vs ...any) func(*scene) []byte { return func(*scene) []byte { return words(vs...) } }

func pidOf(s *scene, w who) uint32 { return uint32(s.pid(w)) }

// Arguments of DBG_TRAP.
func trapOf(w who, op uint32) func(*scene) []byte {
	return func(s *scene) []byte { return words(pidOf(s, w), op, [24]byte{}) }
}

func enable(w who) func(*scene) []byte {
	return func(s *scene) []byte {
		info := make([]byte, 64) // more than the driver has
		at := s.point(info)
		s.array = nil
		return words(pidOf(s, w), uint32(kfd.OpEnable), uint64(0), at, uint32(len(info)), uint32(s.events))
	}
}

func suspend(w who, ids ...uint32) func(*scene) []byte {
	return func(s *scene) []byte {
		return words(pidOf(s, w), uint32(kfd.OpSuspendQueues), uint64(0), s.point(words(ids)), uint32(len(ids)), uint32(1))
	}
}

func resume(w who, ids ...uint32) func(*scene) []byte {
	return func(s *scene) []byte {
		return words(pidOf(s, w), uint32(kfd.OpResumeQueues), s.point(words(ids)), uint32(len(ids)), uint32(0), uint64(0))
	}
}

func rawTrap(w who, op uint32, vs ...any) func(*scene) []byte {
	return func(s *scene) []byte {
		b := words(append([]any{pidOf(s, w), op}, vs...)...)
		return append(b, make([]byte, 32-len(b))...)
	}
}

func snapshot(w who, mask uint64, size uint32) func(*scene) []byte {
	return func(s *scene) []byte {
		at := s.point(make([]byte, 16*64))
		s.array = nil
		return words(pidOf(s, w), uint32(kfd.OpQueueSnapshot), mask, at, uint32(16), size)
	}
}

// own is what the target's first queue is called.
const own = 0

// Arguments of the patch.
type entry struct {
	GPU, Queue uint32
	Status     int32
	Pad        uint32
}

func batchOf(w who, grace, flags uint32, entries ...entry) func(*scene) []byte {
	return func(s *scene) []byte {
		for i := range entries {
			if entries[i].GPU == 1 {
				entries[i].GPU = s.gpu
			}
		}
		return words(s.point(words(entries)), uint32(len(entries)), pidOf(s, w), grace, flags)
	}
}

func rawBatch(w who, ptr uint64, n, grace, flags uint32) func(*scene) []byte {
	return func(s *scene) []byte { return words(ptr, n, pidOf(s, w), grace, flags) }
}

func reserve(gpu, slots, priority, flags uint32) func(*scene) []byte {
	return func(s *scene) []byte {
		if gpu == 1 {
			gpu = s.gpu
		}
		return words(gpu, slots, priority, flags, uint64(0))
	}
}

func seizeOf(w who) func(*scene) []byte {
	return func(s *scene) []byte {
		if err := s.seize(w); err != nil {
			s.t.Errorf("trace program %d: %v", w, err)
		}
		return nil
	}
}

func newQueue(s *scene) []byte {
	return words(uint64(0x7f0000000000), [24]byte{}, uint32(4096), s.gpu, uint32(kfd.TypeComputeAQL), uint32(100), uint32(7), uint32(0), [40]byte{})
}

const (
	grace    = uint32(kfd.DefaultGrace)
	unmap    = uint32(kfd.ReqBatchUnmap)
	remap    = uint32(kfd.ReqFastRemap)
	hqd      = uint32(kfd.ReqHQDReservation)
	debug    = uint32(kfd.ReqDebugTrap)
	unknown  = 1001 // a queue that nobody has
	unknown2 = 1002
)

// table is what amdkfd answers, of Linux 6.12 and with our patch. What a driver
// without a GPU can show is all but the rows that need queues.
var table = []row{
	// Numbers and sizes.
	{name: "the first number that is none", req: 0xc0104b00, arg: fixed(uint64(0), uint64(0)), want: "ENOTTY"},
	{name: "a number far out", req: 0xc0104b87, arg: fixed(uint64(0), uint64(0)), want: "ENOTTY"},
	{name: "a number farther out", req: 0xc0104b88, arg: fixed(uint64(0), uint64(0)), want: "ENOTTY"},
	{name: "version", req: kfd.ReqGetVersion, arg: fixed(uint64(0)), want: "0"},
	{name: "version, half of it", req: 0x80044b01, arg: fixed(uint32(0)), want: "0"},
	{name: "version, of another magic", req: 0x80085801, arg: fixed(uint64(0)), want: "0"},
	{name: "a descriptor of another process", by: heir, req: kfd.ReqGetVersion, arg: fixed(uint64(0)), want: "EBADF"},

	// One's own queues.
	{name: "update a queue that is not", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(0), uint32(0), uint32(0)), want: "EFAULT"},
	{name: "update to 101 %", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(0), uint32(101), uint32(0)), want: "EINVAL"},
	{name: "update to priority 16", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(0), uint32(0), uint32(16)), want: "EINVAL"},
	{name: "update to a ring of 3", req: kfd.ReqUpdateQueue, arg: fixed(uint64(0), uint32(unknown), uint32(3), uint32(0), uint32(0)), want: "EINVAL"},
	{name: "destroy a queue that is not", req: kfd.ReqDestroyQueue, arg: fixed(uint32(unknown), uint32(0)), want: "EINVAL"},
	{name: "create a queue on no GPU", req: kfd.ReqCreateQueue, arg: fixed([96]byte{}), want: "EINVAL"},

	// Debugging: who and when.
	{name: "suspend without a session", req: debug, arg: suspend(self, unknown), want: "EINVAL"},
	{name: "suspend of no process", req: debug, arg: fixed(uint32(noProcess), uint32(kfd.OpSuspendQueues), [24]byte{}), want: "ESRCH"},
	{name: "suspend of process 0", req: debug, arg: fixed(uint32(0), uint32(kfd.OpSuspendQueues), [24]byte{}), want: "ESRCH"},
	{name: "suspend of a process without KFD", req: debug, arg: suspend(nobody, unknown), want: "ESRCH"},
	{name: "debug a process without KFD", req: debug, arg: enable(nobody), want: "ESRCH"},
	{name: "enable the runtime", by: target, req: kfd.ReqRuntimeEnable, arg: fixed(uint64(0), uint32(1), uint32(0)), want: "0"},
	{name: "enable the runtime twice", by: target, req: kfd.ReqRuntimeEnable, arg: fixed(uint64(0), uint32(1), uint32(0)), want: "EBUSY"},
	{name: "create a queue", by: target, req: kfd.ReqCreateQueue, arg: newQueue, want: "0", need: queues},
	{name: "debug who is not traced", req: debug, arg: enable(target), want: "EPERM"},
	{name: "trace the target", by: nobody, arg: seizeOf(target)},
	{name: "debug from a thread that does not trace", by: thread, req: debug, arg: enable(target), want: "EPERM"},
	{name: "debug with no descriptor", req: debug, arg: rawTrap(target, kfd.OpEnable, uint64(0), uint64(0), uint32(0), uint32(9999)), want: "EBADF"},
	{name: "debug", req: debug, arg: enable(target), want: "0"},
	{name: "debug twice", req: debug, arg: enable(target), want: "EALREADY"},

	// Debugging: what.
	{name: "suspend queues that are not", req: debug, arg: suspend(target, unknown, unknown2), want: "0 invalid invalid"},
	{name: "suspend from another thread", by: thread, req: debug, arg: suspend(target, unknown), want: "0 invalid"},
	{name: "suspend a new queue", req: debug, arg: suspend(target, own), want: "0 invalid", need: queues},
	{name: "snapshot in entries of nothing", req: debug, arg: snapshot(target, kfd.MaskQueueNew, 0), want: "EINVAL"},
	{name: "snapshot", req: debug, arg: snapshot(target, kfd.MaskQueueNew, 64), want: "0"},
	{name: "suspend 1025 queues", req: debug, arg: suspend(target, make([]uint32, 1025)...), want: "EINVAL"},
	{name: "suspend from a bad address", req: debug, arg: rawTrap(target, kfd.OpSuspendQueues, uint64(0), uint64(badAddr), uint32(2), uint32(1)), want: "EFAULT"},
	{name: "suspend from no address", req: debug, arg: rawTrap(target, kfd.OpSuspendQueues, uint64(0), uint64(0), uint32(2), uint32(1)), want: "EINVAL"},
	{name: "suspend nothing", req: debug, arg: rawTrap(target, kfd.OpSuspendQueues, uint64(0), uint64(0), uint32(0), uint32(1)), want: "0"},
	{name: "suspend", req: debug, arg: suspend(target, own, unknown), want: "1 ok invalid", need: queues},
	{name: "suspend twice", req: debug, arg: suspend(target, own), want: "1 ok", need: queues},
	{name: "resume", req: debug, arg: resume(target, own, unknown), want: "1 ok invalid", need: queues},
	{name: "resume twice", req: debug, arg: resume(target, own), want: "1 ok", need: queues},
	{name: "resume queues that are not", req: debug, arg: resume(target, unknown), want: "0 invalid"},
	{name: "resume 1025 queues", req: debug, arg: resume(target, make([]uint32, 1025)...), want: "EINVAL"},
	{name: "resume from a bad address", req: debug, arg: rawTrap(target, kfd.OpResumeQueues, uint64(badAddr), uint32(2), uint32(0)), want: "EFAULT"},
	{name: "no event", req: debug, arg: trapOf(target, kfd.OpQueryDebugEvent), want: "EAGAIN"},
	{name: "an operation that is none", req: debug, arg: trapOf(target, 99), want: "EINVAL"},
	{name: "end the session", req: debug, arg: trapOf(target, kfd.OpDisable), want: "0"},
	{name: "end it twice", req: debug, arg: trapOf(target, kfd.OpDisable), want: "EINVAL"},
	{name: "suspend after the end", req: debug, arg: suspend(target, unknown), want: "EINVAL"},

	// A process whose runtime is not enabled.
	{name: "another debugger has it", by: nobody, arg: func(s *scene) []byte {
		if err := s.holds(); err != nil {
			s.t.Error(err)
		}
		return nil
	}},
	{name: "the other debugs", by: holder, req: debug, arg: rawTrap(bare, kfd.OpEnable, uint64(0), uint64(0), uint32(0), uint32(0)), want: "0"},
	{name: "debug what the other does", req: debug, arg: enable(bare), want: "EPERM"},
	{name: "the other dies", by: nobody, arg: func(s *scene) []byte { s.kill(holder); return nil }},
	{name: "trace what the other did", by: nobody, arg: seizeOf(bare)},
	{name: "debug what the other did", req: debug, arg: enable(bare), want: "0"},
	{name: "suspend without a runtime", req: debug, arg: suspend(bare, unknown), want: "EPERM"},
	{name: "end that session", req: debug, arg: trapOf(bare, kfd.OpDisable), want: "0"},

	// Oneself: nobody need trace.
	{name: "one's own runtime", req: kfd.ReqRuntimeEnable, arg: fixed(uint64(0), uint32(1), uint32(0)), want: "0"},
	{name: "debug oneself", req: debug, arg: enable(self), want: "0"},
	{name: "suspend one's own", req: debug, arg: suspend(self, unknown), want: "0 invalid"},
	{name: "end one's own session", req: debug, arg: trapOf(self, kfd.OpDisable), want: "0"},

	// The patch.
	{name: "unmap on a stock driver", req: unmap, arg: rawBatch(self, 0, 0, 0, 0), want: "ENOTTY", need: stock},
	{name: "remap on a stock driver", req: remap, arg: rawBatch(self, 0, 0, 0, 0), want: "ENOTTY", need: stock},
	{name: "reserve on a stock driver", req: hqd, arg: reserve(0, 0, 0, 0), want: "ENOTTY", need: stock},
	{name: "probe", req: unmap, arg: fixed([24]byte{}), want: "0", need: patch},
	{name: "probe, half an argument", req: 0xc0084bf0, arg: fixed(uint64(0)), want: "EINVAL", need: patch},
	{name: "may unmap", req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "0", need: patch},
	{name: "unmap with a flag", req: unmap, arg: rawBatch(target, 0, 0, 0, 1), want: "EINVAL", need: patch},
	{name: "unmap 1025 queues", req: unmap, arg: batchOf(target, grace, 0, make([]entry, 1025)...), want: "EINVAL", need: patch},
	{name: "unmap from no address", req: unmap, arg: rawBatch(target, 0, 1, grace, 0), want: "EINVAL", need: patch},
	{name: "unmap nothing from an address", req: unmap, arg: rawBatch(target, badAddr, 0, grace, 0), want: "EINVAL", need: patch},
	{name: "unmap from a bad address", req: unmap, arg: rawBatch(target, badAddr, 1, grace, 0), want: "EFAULT", need: patch},
	{name: "unmap from what cannot be written", req: unmap, arg: func(s *scene) []byte {
		return words(address(s.readOnly), uint32(1), pidOf(s, target), grace, uint32(0))
	}, want: "EFAULT", need: patch},
	{name: "unmap with padding", req: unmap, arg: batchOf(target, grace, 0, entry{Queue: unknown, Pad: 1}), want: "EINVAL", need: patch},
	{name: "unmap of no process", req: unmap, arg: fixed(uint64(0), uint32(0), uint32(noProcess), uint64(0)), want: "ESRCH", need: patch},
	{name: "unmap of a process without KFD", req: unmap, arg: rawBatch(nobody, 0, 0, 0, 0), want: "ESRCH", need: patch},
	{name: "another user unmaps", by: stranger, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "EPERM", need: patch},
	{name: "another user unmaps of no process", by: stranger, req: unmap, arg: fixed(uint64(0), uint32(0), uint32(noProcess), uint64(0)), want: "ESRCH", need: patch},
	{name: "another user unmaps its own", by: stranger, req: unmap, arg: rawBatch(stranger, 0, 0, 0, 0), want: "0", need: patch},
	{name: "unmap queues that are not", req: unmap, arg: batchOf(target, grace, 0, entry{Queue: unknown}, entry{Queue: unknown2}), want: "0 ENOENT ENOENT", need: patch},
	{name: "another may, for nothing was unmapped", by: bare, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "0", need: patch},
	{name: "remap queues that are not", req: remap, arg: batchOf(target, 0, 0, entry{Queue: unknown}), want: "0 ENOENT", need: patch},
	{name: "remap with grace", req: remap, arg: rawBatch(target, 0, 0, 1, 0), want: "EINVAL", need: patch},
	{name: "remap with an unknown flag", req: remap, arg: rawBatch(target, 0, 0, 0, 2), want: "EINVAL", need: patch},
	{name: "remap all, and one", req: remap, arg: batchOf(target, 0, kfd.SchedAll, entry{Queue: unknown}), want: "EINVAL", need: patch},
	{name: "remap all", req: remap, arg: rawBatch(target, 0, 0, 0, kfd.SchedAll), want: "0", need: patch},
	{name: "another user remaps all", by: stranger, req: remap, arg: rawBatch(target, 0, 0, 0, kfd.SchedAll), want: "EPERM", need: patch},
	{name: "unmap a queue", req: unmap, arg: batchOf(target, grace, 0, entry{GPU: 1, Queue: own}, entry{GPU: 2, Queue: own}), want: "1 ok ENOENT", need: patchedQueues},
	{name: "unmap it twice", req: unmap, arg: batchOf(target, grace, 0, entry{GPU: 1, Queue: own}, entry{GPU: 1, Queue: own}), want: "2 ok ok", need: patchedQueues},
	{name: "what is another's", by: bare, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "EBUSY", need: patchedQueues},
	{name: "remap it", req: remap, arg: batchOf(target, 0, 0, entry{GPU: 1, Queue: own}), want: "1 ok", need: patchedQueues},
	{name: "what was another's", by: bare, req: unmap, arg: rawBatch(target, 0, 0, 0, 0), want: "0", need: patchedQueues},
	{name: "reserve on no GPU", req: hqd, arg: reserve(0, 0, 0, 0), want: "ENODEV", need: patch},
	{name: "reserve with an unknown flag", req: hqd, arg: reserve(0, 0, 0, 2), want: "EINVAL", need: patch},
	{name: "another user reserves", by: stranger, req: hqd, arg: reserve(0, 0, 0, 0), want: "EPERM", need: patch},
	{name: "another user asks", by: stranger, req: hqd, arg: reserve(0, 0, 0, kfd.HQDQuery), want: "ENODEV", need: patch},
	{name: "reserve all there is", req: hqd, arg: reserve(1, 1<<16, 7, 0), want: "EINVAL", need: patchedQueues},
	{name: "reserve for priority 16", req: hqd, arg: reserve(1, 1, 16, 0), want: "EINVAL", need: patchedQueues},
	{name: "reserve", req: hqd, arg: reserve(1, 1, 7, 0), want: "0", need: patchedQueues},
	{name: "another reserves", by: bare, req: hqd, arg: reserve(1, 1, 7, 0), want: "EBUSY", need: patchedQueues},
}
