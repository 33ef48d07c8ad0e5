package pagetest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// Process plays the process's side of a page: what the shim does in C, without a device. In
// contrast to pageclient it can play every runtime, answer for KFD queues, and misbehave.
type Process struct {
	// Page is the shared memory. A test may write to it whatever it likes.
	Page *pageabi.Page

	// Descriptors as the daemon has sent them.
	PageFD, StatusFD, Doorbell int

	mu           sync.Mutex
	status       *pageabi.Status
	pageMemory   []byte
	statusMemory []byte
}

// NewProcess maps the memory that a daemon has sent. It takes over the descriptors.
func NewProcess(page, status, doorbell int) (*Process, error) {
	p := &Process{PageFD: page, StatusFD: status, Doorbell: doorbell}
	var err error
	if p.pageMemory, err = unix.Mmap(page, 0, pageabi.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap", err), p.Close())
	}
	if p.statusMemory, err = unix.Mmap(status, 0, pageabi.StatusSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap", err), p.Close())
	}
	p.Page, p.status = pageabi.PageAt(p.pageMemory), pageabi.StatusAt(p.statusMemory)
	if p.Page.Magic.Load() != pageabi.Magic || p.status.Magic.Load() != pageabi.Magic || !pageabi.Understood.Accepts(p.Page.ABI.Load(), p.status.ABI.Load()) {
		return nil, errors.Join(fmt.Errorf("not a page of version %v", pageabi.Understood), p.Close())
	}
	return p, nil
}

// Close unmaps the memory and closes the descriptors. No other method may be running.
func (p *Process) Close() error {
	var err error
	for _, m := range [][]byte{p.pageMemory, p.statusMemory} {
		if m != nil {
			err = errors.Join(err, unix.Munmap(m))
		}
	}
	return errors.Join(err, unix.Close(p.PageFD), unix.Close(p.StatusFD), unix.Close(p.Doorbell))
}

// Launch waits at the gate as a launch does, and counts the command. It reports whether it
// had to wait.
func (p *Process) Launch() (waited bool) {
	for p.gateClosed() {
		if !waited {
			waited = true
			p.Page.Holds.Add(1)
			p.Page.Flags.Or(pageabi.Held)
			p.ringFor(pageabi.WatchReady)
		}
		time.Sleep(50 * time.Microsecond) // the shim waits on a futex
	}
	p.Page.Flags.And(^uint32(pageabi.Held))
	p.AddLaunched(1)
	return waited
}

func (p *Process) gateClosed() bool {
	return p.Page.Gate.Load() == pageabi.GateClosed && leaseValid(p.Page.Lease.Load())
}

func leaseValid(until uint64) bool {
	now := pageabi.Now()
	return until > now && until-now <= pageabi.MaxLeaseNS
}

// InFlight returns how many commands are launched and not completed, the bound and the
// batch.
func (p *Process) InFlight() (n uint64, bound, batch uint32) {
	return p.Page.Launched.Load() - p.Page.Completed.Load(), p.Page.Bound.Load(), p.Page.Batch.Load()
}

// AddLaunched counts commands as put on the device.
func (p *Process) AddLaunched(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.Page.Launched.Load() == p.Page.Completed.Load()
	p.Page.Launched.Add(n)
	if idle {
		p.Page.Flags.Or(pageabi.Ready)
		p.ringFor(pageabi.WatchReady)
	}
}

// AddCompleted counts commands as done.
func (p *Process) AddCompleted(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Page.Completed.Add(n)
	if p.Page.Launched.Load() == p.Page.Completed.Load() {
		p.Page.Flags.And(^uint32(pageabi.Ready))
		p.ringFor(pageabi.WatchReady)
	}
}

// LaunchLate counts a command as put on a stream that waits to enter late.
func (p *Process) LaunchLate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Page.Flags.Or(pageabi.Ready | pageabi.WaitsLate)
	p.Page.Launched.Add(1)
}

// EnterLate releases that stream.
func (p *Process) EnterLate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Page.Flags.And(^uint32(pageabi.WaitsLate))
	p.Page.LateRequests.Add(1)
	p.ringFor(pageabi.WatchReady)
}

// Hint gives a hint and rings the doorbell.
func (p *Process) Hint(kind pageabi.HintKind, value int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.Page.Hints.Load()
	e := &p.Page.Ring[n%pageabi.HintEntries]
	e.Seq.Store(0)
	e.Kind, e.Value, e.At = uint32(kind), value, pageabi.Now()
	e.Seq.Store(uint32(n + 1))
	p.Page.Hints.Store(n + 1)
	p.ring()
}

// Begin begins a request; the returned function ends it.
func (p *Process) Begin() (end func()) {
	begin := pageabi.Now()
	p.Page.OpenRequests.Add(1)
	p.ringFor(pageabi.WatchRequests)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := p.Page.Requests.Load()
		e := &p.Page.Log[n%pageabi.RequestEntries]
		e.Begin.Store(begin)
		e.End.Store(pageabi.Now())
		p.Page.Requests.Store(n + 1)
		p.Page.OpenRequests.Add(^uint32(0))
		p.ringFor(pageabi.WatchRequests)
	}
}

// ringFor rings the doorbell if the daemon watches for one of these bits.
func (p *Process) ringFor(bits uint32) {
	if p.Page.Watch.Load()&bits != 0 {
		p.ring()
	}
}

func (p *Process) ring() {
	p.Page.Doorbell.Add(1)
	if p.status.Asleep.Load() != 0 {
		pageabi.Ring(p.Doorbell)
	}
}

// Scribble overwrites the whole page, as a defective process does.
func (p *Process) Scribble(next func() byte) {
	for i := range p.pageMemory {
		p.pageMemory[i] = next()
	}
	p.ring()
}

// WriteAt writes bytes at an offset of the page, as a hostile process does. What does not
// fit is left out.
func (p *Process) WriteAt(offset int, b []byte) {
	if offset < len(p.pageMemory) {
		copy(p.pageMemory[offset:], b)
	}
}

// SetQueues sets how many compute queues the process has on an AMD GPU, in an entry of the
// caller's choice, and rings the doorbell.
func (p *Process) SetQueues(entry int, gpu, queues uint32) {
	p.Page.GPUs[entry].Queues.Store(queues)
	p.Page.GPUs[entry].GPU.Store(gpu)
	p.ring()
}

// SetQueueResults sets how many of those queues are stopped, and for how many the driver
// refused the change.
func (p *Process) SetQueueResults(entry int, stopped, failed uint32) {
	p.Page.GPUs[entry].Stopped.Store(stopped)
	p.Page.GPUs[entry].Failed.Store(failed)
}

// QueueRequest is what the daemon asks of the process's own queues.
type QueueRequest struct {
	Stop     []uint32 // GPUs on which to stop the compute queues
	Priority uint32   // KFD priority + 1; 0: the priority that the process chose
	Seq      uint32
}

// QueueRequest reads the current request. It is empty when the lease has ended.
func (p *Process) QueueRequest() (r QueueRequest) {
	r.Seq = p.Page.QueueSeq.Load() // before the words that it announces
	if !leaseValid(p.Page.QueueLease.Load()) {
		return r
	}
	for i := range p.Page.StopGPUs {
		if gpu := p.Page.StopGPUs[i].Load(); gpu != 0 {
			r.Stop = append(r.Stop, gpu)
		}
	}
	r.Priority = p.Page.QueuePriority.Load()
	return r
}

// Apply says that the request with that seq is applied.
func (p *Process) Apply(seq uint32) { p.Page.QueueAppliedSeq.Store(seq) }
