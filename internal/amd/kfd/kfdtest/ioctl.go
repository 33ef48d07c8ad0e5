package kfdtest

import (
	"cmp"
	"os"
	"slices"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

// Close closes the file. The process stays known to KFD.
func (f *File) Close() error {
	f.release()
	return nil
}

// Ioctl implements kfd.Ioctler. The caller is the current thread.
func (f *File) Ioctl(request uint32, arg []byte) (int, error) {
	n, errno := f.ioctl(caller{pid: f.owner.pid, tid: unix.Gettid(), memory: fusedev.Memory(os.Getpid())}, request, arg)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// request is an ioctl that the double implements, with the size of its argument.
type request struct {
	nr   uint8
	size int
	do   func(*KFD, *File, caller, Fault, []byte) (int, unix.Errno)
}

var requests = []request{
	{0x01, 8, (*KFD).getVersion},
	{0x02, 96, (*KFD).createQueue},
	{0x03, 8, (*KFD).destroyQueue},
	{0x07, 24, (*KFD).updateQueue},
	{0x25, 16, (*KFD).runtimeEnable},
	{0x26, 32, (*KFD).debugTrap},
	{0xf0, 24, (*KFD).batchUnmap},
	{0xf1, 24, (*KFD).fastRemap},
	{0xf2, 24, (*KFD).hqdReservation},
}

// requestEnd returns the first number after the requests of the stock driver.
func (k *KFD) requestEnd() uint8 {
	if k.cfg.Version.Minor < 13 {
		return 0x25
	}
	return 0x27
}

// ioctl makes a call. Like the real driver it identifies a request by its number, and
// treats an argument that is too short as if zeros followed. The requests of our patch
// must match in type and size as well.
func (f *File) ioctl(c caller, code uint32, arg []byte) (int32, unix.Errno) {
	k := f.kfd
	nr, size := uint8(code), int(code>>16&0x3fff)
	isOurs := nr >= 0xf0 && nr <= 0xf2 && k.cfg.Patched
	if (nr == 0 || nr >= k.requestEnd()) && !isOurs {
		if k.cfg.ROCm {
			return 0, unix.EINVAL
		}
		return 0, unix.ENOTTY
	}
	if isOurs && code&^0xff != kfd.ReqBatchUnmap&^0xff { // ours differ only in their number
		return 0, unix.EINVAL
	}
	if c.pid != f.owner.pid {
		return 0, unix.EBADF
	}
	if size > len(arg) {
		return 0, unix.EFAULT
	}
	i := slices.IndexFunc(requests, func(r request) bool { return r.nr == nr })
	if i < 0 {
		return 0, unix.ENOSYS
	}
	full := append(slices.Clone(arg[:size]), make([]byte, max(0, requests[i].size-size))...)
	kind := Call{nr: nr}
	if nr == uint8(kfd.ReqDebugTrap&0xff) {
		kind.op = le.Uint32(full[4:])
	}
	fault := k.faults.Arrive(kind)
	if fault.Latency > 0 {
		k.cfg.Sleep(fault.Latency)
	}
	if fault.Hang != nil {
		<-fault.Hang
	}
	if fault.Errno != 0 {
		return 0, fault.Errno
	}
	k.mu.Lock()
	n, errno := 0, unix.EBADF
	if !f.closed && !f.owner.dead {
		n, errno = requests[i].do(k, f, c, fault, full)
	}
	k.mu.Unlock()
	if fault.After != nil {
		<-fault.After
	}
	copy(arg[:size], full)
	return int32(n), errno
}

func (k *KFD) getVersion(_ *File, _ caller, _ Fault, arg []byte) (int, unix.Errno) {
	le.PutUint32(arg[0:], k.cfg.Version.Major)
	le.PutUint32(arg[4:], k.cfg.Version.Minor)
	return 0, 0
}

func (p *process) queue(id uint32) *queue {
	if i := slices.IndexFunc(p.queues, func(q *queue) bool { return q.id == id }); i >= 0 {
		return p.queues[i]
	}
	return nil
}

// createQueueID is the offset of queue_id in kfd_ioctl_create_queue_args.
const createQueueID = 52

// createQueue takes kfd_ioctl_create_queue_args: ring_base 0, ring_size 32, gpu_id 36,
// queue_type 40, percentage 44, priority 48, queue_id 52.
func (k *KFD) createQueue(f *File, _ caller, _ Fault, arg []byte) (int, unix.Errno) {
	q := &queue{
		owner: f.owner, ring: le.Uint64(arg[0:]), ringSize: le.Uint32(arg[32:]), gpu: le.Uint32(arg[36:]),
		kind: QueueType(le.Uint32(arg[40:])), percent: le.Uint32(arg[44:]), priority: le.Uint32(arg[48:]),
		exceptions: kfd.MaskQueueNew,
	}
	if q.percent > 100 || q.priority > kfd.MaxPriority || q.kind > typeSDMAXGMI || q.ringSize&(q.ringSize-1) != 0 {
		return 0, unix.EINVAL
	}
	if k.node(q.gpu) == nil {
		return 0, unix.EINVAL
	}
	if len(f.owner.queues) == kfd.MaxQueues {
		return 0, unix.ENOMEM
	}
	for f.owner.queue(q.id) != nil {
		q.id++
	}
	f.owner.queues = append(f.owner.queues, q)
	slices.SortFunc(f.owner.queues, func(a, b *queue) int { return cmp.Compare(a.id, b.id) })
	le.PutUint32(arg[createQueueID:], q.id)
	k.writeQueue(q)
	if k.cfg.Engine != nil && q.kind.isCompute() {
		k.cfg.Engine.Opened(q.name())
	}
	q.runs = true
	k.refresh(q)
	return 0, 0
}

// destroyQueue waits until a queue that a debugger suspended is resumed.
func (k *KFD) destroyQueue(f *File, c caller, _ Fault, arg []byte) (int, unix.Errno) {
	q := f.owner.queue(le.Uint32(arg))
	if q == nil {
		return 0, unix.EINVAL
	}
	if q.destroying {
		return 0, unix.EBUSY
	}
	q.destroying = true
	if errno := k.wait(c, func() bool { return !q.suspended || f.owner.dead }); errno != 0 {
		q.destroying = false
		return 0, errno
	}
	k.drop(q)
	return 0, 0
}

// drop removes a queue. k.mu is held.
func (k *KFD) drop(q *queue) {
	p := q.owner
	if p.queue(q.id) != q {
		return
	}
	p.queues = slices.DeleteFunc(p.queues, func(o *queue) bool { return o == q })
	if k.cfg.Engine != nil && q.kind.isCompute() {
		k.cfg.Engine.Closed(q.name())
	}
	k.removeQueue(q)
	k.endClaim(p)
}

// updateQueue takes kfd_ioctl_update_queue_args: ring_base 0, queue_id 8, ring_size 12,
// percentage 16, priority 20.
func (k *KFD) updateQueue(f *File, _ caller, _ Fault, arg []byte) (int, unix.Errno) {
	ring, size := le.Uint64(arg[0:]), le.Uint32(arg[12:])
	percent, priority := le.Uint32(arg[16:])&0xff, le.Uint32(arg[20:])
	if percent > 100 || priority > kfd.MaxPriority || size&(size-1) != 0 {
		return 0, unix.EINVAL
	}
	q := f.owner.queue(le.Uint32(arg[8:]))
	if q == nil {
		return 0, unix.EFAULT
	}
	q.ring, q.ringSize, q.percent, q.priority = ring, size, percent, priority
	k.refresh(q)
	k.update(q.gpu, 1)
	return 0, 0
}
