package shimpage

import (
	"slices"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// The daemon cannot stop or reprioritize a process's KFD queues on AMD GPUs if the driver
// lets only the process do so. It then asks the shim in the process, through the page:
// shim/kfd.c.

// queueRequest is what the daemon asks for. The zero value asks for nothing.
type queueRequest struct {
	stop     []uint32 // GPUs on which the compute queues are to be stopped
	priority uint32   // as on the page: KFD priority + 1, or 0
	seq      uint32   // number of the last change
	lease    uint64   // when the lease ends
}

func (r *queueRequest) empty() bool { return len(r.stop) == 0 && r.priority == 0 }

// SetQueuesStopped asks the process to stop or start its compute queues on a GPU. The request
// holds until the lease ends; RenewQueueLease renews it. The returned seq is for Applied. ok
// is false if the page is closed, gpu is zero, or the page has no entry left.
func (p *Page) SetQueuesStopped(gpu uint32, stopped bool, lease time.Duration) (seq uint32, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.queues.stop, gpu)
	if p.page == nil || gpu == 0 || stopped && at < 0 && len(p.queues.stop) == pageabi.GPUEntries {
		return 0, false
	}
	switch {
	case stopped && at < 0:
		p.queues.stop = append(p.queues.stop, gpu)
	case !stopped && at >= 0:
		p.queues.stop = slices.Delete(p.queues.stop, at, at+1)
	}
	return p.writeQueueRequest(lease), true
}

// SetQueuePriority asks the process to give its queues a KFD priority. With a negative one
// the queues get back the priority that the process chose.
func (p *Page) SetQueuePriority(priority int, lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.queues.priority = uint32(max(priority, -1) + 1)
		p.writeQueueRequest(lease)
	}
}

// RenewQueueLease renews the lease of the requests for the process's queues if there are any
// and less than three quarters of it are left. After a lease has ended it repeats the
// requests, because the process has undone them.
func (p *Page) RenewQueueLease(lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil || p.queues.empty() {
		return
	}
	switch now := pageabi.Now(); {
	case p.queues.lease <= now:
		p.writeQueueRequest(lease)
	case p.queues.lease < now+uint64(lease)*3/4:
		p.renewQueueLease(lease)
	}
}

// ReleaseQueues withdraws all requests for the process's queues.
func (p *Page) ReleaseQueues() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.releaseQueues()
	}
}

func (p *Page) releaseQueues() {
	if !p.queues.empty() {
		p.queues.stop, p.queues.priority = nil, 0
		p.writeQueueRequest(0)
	}
}

// writeQueueRequest writes all requests, whatever the process has made of the words, and
// wakes the process. p.mu is held.
func (p *Page) writeQueueRequest(lease time.Duration) (seq uint32) {
	for i := range p.page.StopGPUs {
		gpu := uint32(0)
		if i < len(p.queues.stop) {
			gpu = p.queues.stop[i]
		}
		p.page.StopGPUs[i].Store(gpu)
	}
	p.page.QueuePriority.Store(p.queues.priority)
	p.renewQueueLease(lease)
	p.queues.seq++
	p.page.QueueSeq.Store(p.queues.seq) // after the words that it announces
	pageabi.WakeAll(&p.page.QueueSeq)
	return p.queues.seq
}

func (p *Page) renewQueueLease(lease time.Duration) {
	p.queues.lease = leaseEnd(lease)
	p.page.QueueLease.Store(p.queues.lease)
}

// Applied reports whether the process says that it has applied the request with that seq.
func (p *Page) Applied(seq uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.page != nil && int32(p.page.QueueAppliedSeq.Load()-seq) >= 0
}

// QueueCounts says how many compute queues a process has on an AMD GPU, according to its
// shim.
type QueueCounts struct {
	Queues, Stopped int
	Failed          int    // queues whose change the driver refused
	Errno           uint32 // of the last change that the driver refused, on any GPU
}

// maxQueues is KFD_MAX_NUM_OF_QUEUES_PER_PROCESS: no process has more queues.
const maxQueues = 1024

// QueueCounts returns the counts for a GPU. Stopped and Failed are at most Queues.
func (p *Page) QueueCounts(gpu uint32) (c QueueCounts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil || gpu == 0 {
		return c
	}
	for i := range p.page.GPUs {
		if g := &p.page.GPUs[i]; g.GPU.Load() == gpu {
			c.Queues = int(min(g.Queues.Load(), maxQueues))
			c.Stopped = min(int(min(g.Stopped.Load(), maxQueues)), c.Queues)
			c.Failed = min(int(min(g.Failed.Load(), maxQueues)), c.Queues)
			c.Errno = p.page.QueueErrno.Load()
			break
		}
	}
	return c
}

// GPUs returns the AMD GPUs on which the process has compute queues, sorted.
func (p *Page) GPUs() (gpus []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return nil
	}
	for i := range p.page.GPUs {
		g := &p.page.GPUs[i]
		gpu := g.GPU.Load()
		if gpu == 0 {
			break // the shim uses the entries in order
		}
		if g.Queues.Load() != 0 {
			gpus = append(gpus, gpu)
		}
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}
