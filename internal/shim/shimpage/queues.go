package shimpage

import (
	"slices"
	"time"
)

// What the daemon wants of a program's own queues on AMD GPUs, and what the program's
// shim says that it has done: shim/kfd.c.

// wish is what is wanted. Its zero value is nothing.
type wish struct {
	off      []uint32 // GPUs on which they are to be off
	priority uint32   // as the page has it
	turn     uint32   // of the last change
	until    uint64   // the lease
}

func (w *wish) nothing() bool { return len(w.off) == 0 && w.priority == 0 }

// SetQueuesStopped says whether the program's compute queues on a GPU are to be off it. It counts
// until the end of the lease, which RenewQueueLease puts off. The turn is for Applied; ok
// reports whether there is a page that has room for it.
func (p *Page) SetQueuesStopped(gpu uint32, off bool, lease time.Duration) (turn uint32, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.wish.off, gpu)
	if p.page == nil || gpu == 0 || off && at < 0 && len(p.wish.off) == maxGPUs {
		return 0, false
	}
	switch {
	case off && at < 0:
		p.wish.off = append(p.wish.off, gpu)
	case !off && at >= 0:
		p.wish.off = slices.Delete(p.wish.off, at, at+1)
	}
	return p.tellWish(lease), true
}

// SetQueuePriority says which priority the queues are to have, as KFD counts; negative:
// that which the program gave them.
func (p *Page) SetQueuePriority(priority int, lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.wish.priority = uint32(max(priority, -1) + 1)
		p.tellWish(lease)
	}
}

// RenewQueueLease puts off the end of the lease, if anything is wanted and less than three
// quarters of it is left. A program that has taken it to be over is told anew.
func (p *Page) RenewQueueLease(lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil || p.wish.nothing() {
		return
	}
	switch t := now(); {
	case p.wish.until <= t:
		p.tellWish(lease)
	case p.wish.until < t+uint64(lease)*3/4:
		p.extendWish(lease)
	}
}

// ReleaseQueues wants nothing of them any more.
func (p *Page) ReleaseQueues() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.releaseQueues()
	}
}

func (p *Page) releaseQueues() {
	if !p.wish.nothing() {
		p.wish.off, p.wish.priority = nil, 0
		p.tellWish(0)
	}
}

// tellWish writes all of it, whatever became of what was written before, and wakes the
// program. p.mu is held.
func (p *Page) tellWish(lease time.Duration) (turn uint32) {
	for i := range p.page.off {
		gpu := uint32(0)
		if i < len(p.wish.off) {
			gpu = p.wish.off[i]
		}
		p.page.off[i].Store(gpu)
	}
	p.page.queuePriority.Store(p.wish.priority)
	p.extendWish(lease)
	p.wish.turn++
	p.page.queueTurn.Store(p.wish.turn) // after what it is about
	wakeAll(&p.page.queueTurn)
	return p.wish.turn
}

func (p *Page) extendWish(lease time.Duration) {
	p.wish.until = now() + min(uint64(lease), leaseMost)
	p.page.queueLease.Store(p.wish.until)
}

// Applied reports whether the program says that it has done what was wanted in a turn.
func (p *Page) Applied(turn uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.page != nil && int32(p.page.queueObeyed.Load()-turn) >= 0
}

// QueueCounts is what a program has on an AMD GPU, by its own account.
type QueueCounts struct {
	Queues, Stopped, Failed int    // Failed: the driver would not
	Errno                   uint32 // of the last that the driver would not do, on whichever GPU
}

// mostQueues is what no process has more of: KFD_MAX_NUM_OF_QUEUES_PER_PROCESS.
const mostQueues = 1024

// QueueCounts reads it.
func (p *Page) QueueCounts(gpu uint32) (o QueueCounts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil || gpu == 0 {
		return o
	}
	for i := range p.page.gpus {
		if g := &p.page.gpus[i]; g.gpu.Load() == gpu {
			o.Queues = int(min(g.queues.Load(), mostQueues))
			o.Stopped = min(int(min(g.off.Load(), mostQueues)), o.Queues)
			o.Failed = min(int(min(g.failed.Load(), mostQueues)), o.Queues)
			o.Errno = p.page.queueError.Load()
			break
		}
	}
	return o
}

// GPUs are the AMD GPUs on which it has queues, in order.
func (p *Page) GPUs() (gpus []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return nil
	}
	for i := range p.page.gpus {
		g := &p.page.gpus[i]
		gpu := g.gpu.Load()
		if gpu == 0 {
			break // places are taken in order
		}
		if g.queues.Load() != 0 {
			gpus = append(gpus, gpu)
		}
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}
