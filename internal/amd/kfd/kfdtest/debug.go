package kfdtest

import (
	"slices"

	"github.com/giveway/giveway/internal/amd/kfd"
	"golang.org/x/sys/unix"
)

// Marks that the driver sets in queue ids.
const (
	idError   = 1 << 30
	idInvalid = 1 << 31
)

// runtimeEnable takes kfd_ioctl_runtime_enable_args: r_debug 0, mode_mask 8. In a debug
// session it raises an exception and waits for the debugger's answer.
func (k *KFD) runtimeEnable(f *File, c caller, _ Fault, arg []byte) (int, unix.Errno) {
	p := f.owner
	if le.Uint32(arg[8:])&1 != 0 {
		if p.runtime {
			return 0, unix.EBUSY
		}
		if len(p.queues) > 0 {
			return 0, unix.EEXIST
		}
		p.runtime = true
	} else {
		if p.debugged && p.runtime {
			k.resumeAll(p)
		}
		p.runtime = false
	}
	if !p.debugged {
		return 0, 0
	}
	k.raise(p, kfd.MaskProcessRuntime)
	errno := k.wait(c, func() bool { return p.answers > 0 })
	if errno == 0 {
		p.answers--
	}
	return 0, errno
}

// raise reports an exception to the debugger, if its mask includes it.
func (k *KFD) raise(p *process, exception uint64) {
	p.pending |= exception
	if p.mask&exception == 0 {
		return
	}
	debugger := p
	if p.debugger != nil {
		debugger = p.debugger
	}
	k.cfg.Host.Signal(debugger.pid, p.events)
}

// debugTrap takes kfd_ioctl_dbg_trap_args. It checks for errors in the order of the real
// driver.
func (k *KFD) debugTrap(f *File, c caller, fault Fault, arg []byte) (int, unix.Errno) {
	pid, op := int(int32(le.Uint32(arg[0:]))), le.Uint32(arg[4:])
	if k.cfg.NoHWS {
		return 0, unix.EINVAL
	}
	k.reap()
	leader := k.cfg.Host.Leader(pid)
	if leader == 0 {
		return 0, unix.ESRCH
	}
	traced := k.cfg.Host.Tracer(leader) == c.tid
	if op == kfd.OpEnable && traced {
		k.register(leader)
	}
	target := k.processes[leader]
	if target == nil {
		return 0, unix.ESRCH
	}
	if target != f.owner && !traced && target.debugger != f.owner {
		return 0, unix.EPERM
	}
	if op != kfd.OpEnable && !target.debugged {
		return 0, unix.EINVAL
	}
	if !target.runtime && (op == kfd.OpSuspendQueues || op == kfd.OpResumeQueues) {
		return 0, unix.EPERM
	}
	switch op {
	case kfd.OpEnable:
		return k.enableDebug(f, c, target, arg)
	case kfd.OpDisable:
		k.endSession(target)
		return 0, 0
	case kfd.OpSendRuntimeEvent:
		if le.Uint64(arg[8:])&kfd.MaskProcessRuntime != 0 {
			target.answers++
			k.changed.Broadcast()
		}
		return 0, 0
	case kfd.OpSuspendQueues:
		return k.suspend(c, target, fault, le.Uint64(arg[16:]), le.Uint32(arg[24:]))
	case kfd.OpResumeQueues:
		return k.resume(c, target, fault, le.Uint64(arg[8:]), le.Uint32(arg[16:]))
	case kfd.OpQueryDebugEvent:
		return k.queryEvent(target, arg)
	case kfd.OpQueueSnapshot:
		return k.snapshot(c, target, arg)
	}
	return 0, unix.EINVAL
}

func (k *KFD) enableDebug(f *File, c caller, target *process, arg []byte) (int, unix.Errno) {
	if target != f.owner {
		target.debugger = f.owner // even if the call fails
	}
	if target.debugged {
		return 0, unix.EALREADY
	}
	if slices.ContainsFunc(k.cfg.GPUs, func(n kfd.Node) bool { return n.GFX.Major() < 9 }) {
		return 0, unix.ENODEV
	}
	fd := int(int32(le.Uint32(arg[28:])))
	if !k.cfg.Host.HasFD(c.pid, fd) {
		return 0, unix.EBADF
	}
	info := make([]byte, 16)
	if target.runtime {
		info[8] = 1
	}
	if c.memory.Write(le.Uint64(arg[16:]), info[:min(le.Uint32(arg[24:]), 16)]) != nil {
		return 0, unix.EFAULT
	}
	le.PutUint32(arg[24:], 16)
	target.debugged, target.events, target.mask = true, fd, le.Uint64(arg[8:])
	for _, n := range k.cfg.GPUs {
		k.update(n.GPU, 1) // the real driver refreshes the runlist
	}
	return 0, 0
}

// endSession ends a debug session, which resumes every queue.
func (k *KFD) endSession(target *process) {
	if !target.debugged {
		return
	}
	k.resumeAll(target)
	target.debugged, target.debugger, target.mask, target.pending = false, nil, 0, 0
	for _, q := range target.queues {
		q.exceptions = 0
	}
}

func (k *KFD) resumeAll(p *process) {
	changed := map[uint32]int{}
	for _, q := range p.queues {
		q.suspended = false
		if k.refresh(q) {
			changed[q.gpu]++
		}
	}
	k.updateEach(changed)
	k.changed.Broadcast()
}

func (k *KFD) updateEach(changed map[uint32]int) {
	for gpu, n := range changed {
		k.update(gpu, n)
	}
}

// readIDs reads an array of queue ids.
func readIDs(c caller, ptr uint64, n uint32) ([]byte, unix.Errno) {
	if ptr == 0 {
		if n > 0 {
			return nil, unix.EINVAL
		}
		return nil, 0
	}
	if n > kfd.MaxQueues {
		return nil, unix.EINVAL
	}
	buf := make([]byte, 4*n)
	if c.memory.Read(ptr, buf) != nil {
		return nil, unix.EFAULT
	}
	return buf, 0
}

// forEach calls do for the queues in an array and marks the results in the array. The
// second of two equal ids is marked as invalid.
func forEach(p *process, array []byte, do func(*queue) uint32) int {
	done := 0
	seen := map[uint32]bool{}
	for i := 0; i < len(array); i += 4 {
		id := le.Uint32(array[i:]) &^ idInvalid
		mark := uint32(idInvalid)
		if q := p.queue(id); q != nil && !seen[id] {
			seen[id] = true
			mark = do(q)
		}
		if mark == 0 {
			done++
		}
		le.PutUint32(array[i:], id|mark)
	}
	return done
}

func (k *KFD) suspend(c caller, p *process, fault Fault, ptr uint64, n uint32) (int, unix.Errno) {
	array, errno := readIDs(c, ptr, n)
	if errno != 0 {
		return 0, errno
	}
	changed := map[uint32]int{}
	done := forEach(p, array, func(q *queue) uint32 {
		if !q.suspended && (q.exceptions&kfd.MaskQueueNew != 0 || q.destroying) {
			return idInvalid
		}
		q.suspended = true
		if k.refresh(q) {
			changed[q.gpu]++
		}
		if fault.Hardware { // the queue stays suspended
			return idError
		}
		return 0
	})
	k.updateEach(changed)
	_ = c.memory.Write(ptr, array) // the real driver only logs a failure
	return done, 0
}

func (k *KFD) resume(c caller, p *process, fault Fault, ptr uint64, n uint32) (int, unix.Errno) {
	if ptr == 0 && n == 0 {
		k.resumeAll(p)
		return len(p.queues), 0
	}
	array, errno := readIDs(c, ptr, n)
	if errno != 0 {
		return 0, errno
	}
	changed := map[uint32]int{}
	done := forEach(p, array, func(q *queue) uint32 {
		if fault.Hardware {
			return idError
		}
		q.suspended = false
		if k.refresh(q) {
			changed[q.gpu]++
		}
		return 0
	})
	k.updateEach(changed)
	k.changed.Broadcast()
	_ = c.memory.Write(ptr, array)
	return done, 0
}

// queryEvent returns a pending exception that is in the debugger's mask.
func (k *KFD) queryEvent(p *process, arg []byte) (int, unix.Errno) {
	clear := le.Uint64(arg[8:])
	le.PutUint64(arg[8:], 0)
	le.PutUint64(arg[16:], 0)
	for _, q := range p.queues {
		if q.exceptions&p.mask != 0 {
			le.PutUint64(arg[8:], q.exceptions)
			le.PutUint32(arg[16:], q.gpu)
			le.PutUint32(arg[20:], q.id)
			q.exceptions &^= clear
			return 0, 0
		}
	}
	if p.pending&p.mask == 0 {
		return 0, unix.EAGAIN
	}
	le.PutUint64(arg[8:], p.pending)
	p.pending &^= clear
	return 0, 0
}

// snapshot writes kfd_queue_snapshot_entry: exception_status 0, ring_base 8, queue_id 40,
// gpu_id 44, ring_size 48, queue_type 52.
func (k *KFD) snapshot(c caller, p *process, arg []byte) (int, unix.Errno) {
	clear, ptr := le.Uint64(arg[8:]), le.Uint64(arg[16:])
	room, stride := le.Uint32(arg[24:]), le.Uint32(arg[28:])
	le.PutUint32(arg[24:], 0)
	if stride == 0 {
		return 0, unix.EINVAL
	}
	size := min(stride, 64)
	le.PutUint32(arg[28:], size)
	for i, q := range p.queues {
		if uint32(i) < room {
			e := make([]byte, 64)
			le.PutUint64(e[0:], q.exceptions)
			le.PutUint64(e[8:], q.ring)
			le.PutUint32(e[40:], q.id)
			le.PutUint32(e[44:], q.gpu)
			le.PutUint32(e[48:], q.ringSize)
			le.PutUint32(e[52:], uint32(q.kind))
			q.exceptions &^= clear
			if c.memory.Write(ptr+uint64(i)*uint64(stride), e[:size]) != nil {
				return 0, unix.EFAULT
			}
		}
		le.PutUint32(arg[24:], uint32(i+1))
	}
	return 0, 0
}
