package kfdtest

import (
	"slices"

	"github.com/giveway/giveway/internal/amd/kfd"
	"golang.org/x/sys/unix"
)

// The ioctls of our patch, as kernel/amdkfd/ABI.md defines them. The real driver applies
// ptrace's rule to decide which process may control another. The double allows it to root
// and to the same user.

const entrySize = 16 // kfd_sched_queue: gpu_id 0, queue_id 4, status 8, pad 12

// schedCall is a valid call on queues of a process.
type schedCall struct {
	target *process
	ptr    uint64
	array  []byte
	all    bool
}

// parseSched checks kfd_ioctl_sched_queues_args: queues_ptr 0, num_queues 8, pid 12,
// grace_period 16, flags 20.
func (k *KFD) parseSched(f *File, c caller, arg []byte, remap bool) (schedCall, unix.Errno) {
	s := schedCall{ptr: le.Uint64(arg[0:])}
	n, pid, grace, flags := le.Uint32(arg[8:]), int(int32(le.Uint32(arg[12:]))), le.Uint32(arg[16:]), le.Uint32(arg[20:])
	if k.cfg.NoHWS {
		return s, unix.EOPNOTSUPP
	}
	s.all = remap && flags == kfd.SchedAll
	if flags != 0 && !s.all || s.all && n > 0 || n > kfd.MaxQueues || (n == 0) != (s.ptr == 0) || remap && grace != 0 || grace > 255 && grace != uint32(kfd.DefaultGrace) {
		return s, unix.EINVAL
	}
	s.array = make([]byte, n*entrySize)
	if c.memory.Read(s.ptr, s.array) != nil || c.memory.Write(s.ptr, s.array) != nil {
		return s, unix.EFAULT
	}
	for e := range slices.Chunk(s.array, entrySize) {
		if le.Uint32(e[12:]) != 0 {
			return s, unix.EINVAL
		}
	}
	if pid == 0 {
		pid = f.owner.pid
	}
	k.reap()
	leader := k.cfg.Host.Leader(pid)
	if leader == 0 || leader != pid {
		return s, unix.ESRCH
	}
	if !k.mayControl(c.pid, leader) {
		return s, unix.EPERM
	}
	if s.target = k.processes[leader]; s.target == nil {
		return s, unix.ESRCH
	}
	if s.target.claim != nil && s.target.claim != f {
		return s, unix.EBUSY
	}
	return s, 0
}

func (k *KFD) mayControl(pid, target int) bool {
	if k.cfg.Host.Privileged(pid) {
		return true
	}
	as := k.cfg.Host.Users(pid)[1]
	return k.cfg.Host.Users(target) == [3]int{as, as, as}
}

// apply calls do for each queue in the array, and returns how many have no error.
func (k *KFD) apply(c caller, s schedCall, do func(*queue) unix.Errno) int {
	done := 0
	changed := map[uint32]int{}
	for e := range slices.Chunk(s.array, entrySize) {
		errno := unix.ENOENT
		if q := s.target.queue(le.Uint32(e[4:])); q != nil && q.gpu == le.Uint32(e[0:]) {
			if errno = do(q); k.refresh(q) {
				changed[q.gpu]++
			}
		}
		if errno == 0 {
			done++
		}
		le.PutUint32(e[8:], -uint32(errno))
	}
	k.updateEach(changed)
	_ = c.memory.Write(s.ptr, s.array) // parseSched has written it once already
	return done
}

func (k *KFD) batchUnmap(f *File, c caller, fault Fault, arg []byte) (int, unix.Errno) {
	s, errno := k.parseSched(f, c, arg, false)
	if errno != 0 {
		return 0, errno
	}
	return k.apply(c, s, func(q *queue) unix.Errno {
		switch {
		case fault.Hardware:
			return unix.EIO
		case q.destroying:
			return unix.EBUSY
		}
		q.preempted = true
		s.target.claim = f
		return 0
	}), 0
}

func (k *KFD) fastRemap(f *File, c caller, fault Fault, arg []byte) (int, unix.Errno) {
	s, errno := k.parseSched(f, c, arg, true)
	if errno != 0 {
		return 0, errno
	}
	if s.all {
		return k.remapAll(s.target), 0
	}
	n := k.apply(c, s, func(q *queue) unix.Errno {
		switch {
		case fault.Hardware:
			return unix.EIO
		case q.preempted && !k.admits(q):
			return unix.ENOSPC
		}
		q.preempted = false
		return 0
	})
	k.endClaim(s.target)
	return n, 0
}

// remapAll remaps all queues of a process and returns their number.
func (k *KFD) remapAll(p *process) int {
	n := 0
	changed := map[uint32]int{}
	for _, q := range p.queues {
		if !q.preempted {
			continue
		}
		n++
		q.preempted = false
		if k.refresh(q) {
			changed[q.gpu]++
		}
	}
	k.updateEach(changed)
	p.claim = nil
	return n
}

// endClaim ends the claim on a process that has no unmapped queue.
func (k *KFD) endClaim(p *process) {
	if !slices.ContainsFunc(p.queues, func(q *queue) bool { return q.preempted }) {
		p.claim = nil
	}
}

// admits reports whether remapping a queue leaves the reserved slots free.
func (k *KFD) admits(q *queue) bool {
	r := k.reserved[q.gpu]
	if r == nil || !q.kind.isCompute() || q.priority >= r.priority {
		return true
	}
	low := k.countActive(q.gpu, func(o *queue) bool { return o.priority < r.priority })
	return low+r.slots < k.node(q.gpu).Slots
}

// countActive counts the active compute queues of a GPU that satisfy the condition.
func (k *KFD) countActive(gpu uint32, holds func(*queue) bool) uint32 {
	n := uint32(0)
	for _, p := range k.processes {
		for _, q := range p.queues {
			if q.gpu == gpu && q.kind.isCompute() && q.active() && holds(q) {
				n++
			}
		}
	}
	return n
}

// hqdReservation takes kfd_ioctl_hqd_reservation_args: gpu_id 0, reserved_slots 4,
// min_priority 8, flags 12, num_slots 16, active_slots 20.
func (k *KFD) hqdReservation(f *File, c caller, _ Fault, arg []byte) (int, unix.Errno) {
	gpu, slots, priority, flags := le.Uint32(arg[0:]), le.Uint32(arg[4:]), le.Uint32(arg[8:]), le.Uint32(arg[12:])
	if flags&^kfd.HQDQuery != 0 {
		return 0, unix.EINVAL
	}
	query := flags == kfd.HQDQuery
	if !query && !k.cfg.Host.Privileged(c.pid) {
		return 0, unix.EPERM
	}
	n := k.node(gpu)
	if n == nil {
		return 0, unix.ENODEV
	}
	now := k.reserved[gpu]
	switch {
	case query:
		slots, priority = 0, 0
		if now != nil {
			slots, priority = now.slots, now.priority
		}
	case priority > kfd.MaxPriority || slots >= n.Slots:
		return 0, unix.EINVAL
	case now != nil && now.owner != f:
		return 0, unix.EBUSY
	case slots == 0:
		delete(k.reserved, gpu)
	default:
		k.reserved[gpu] = &reservation{f, slots, priority}
	}
	le.PutUint32(arg[4:], slots)
	le.PutUint32(arg[8:], priority)
	le.PutUint32(arg[16:], n.Slots)
	le.PutUint32(arg[20:], k.countActive(gpu, func(*queue) bool { return true }))
	return 0, 0
}
