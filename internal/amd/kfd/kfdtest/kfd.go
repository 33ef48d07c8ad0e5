package kfdtest

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// Config says what kind of driver to make.
type Config struct {
	Version kfd.Version // zero: 1.17, of Linux 6.12
	Patched bool        // it has the ioctls of our patch
	ROCm    bool        // it is the module of amdgpu-dkms, which has another error for unknown numbers
	NoHWS   bool        // sched_policy=2
	GPUs    []kfd.Node  // nil: one MI300X
	Engine  Engine      // runs the queues; nil: nothing does
	Host    Host        // knows the processes; nil: those of this machine
	Sys     string      // directory for the files of sysfs; empty: none are written
	Sleep   func(time.Duration)
}

// QueueID identifies a queue on the machine.
type QueueID struct {
	PID   int
	Queue uint32
}

// Engine runs queues. The driver calls it for compute queues, one call at a time.
type Engine interface {
	Opened(QueueID)
	Closed(QueueID)
	Interrupt(QueueID)
	Restore(QueueID)
}

// KFD is a driver in memory. Its methods may be called from any goroutine.
type KFD struct {
	cfg    Config
	faults drivertest.Faults[Call, Fault]

	mu        sync.Mutex
	changed   *sync.Cond // a waiting call may be able to continue
	processes map[int]*process
	reserved  map[uint32]*reservation // by GPU
	updates   map[uint32]int          // runlist updates by GPU
}

// reservation keeps slots of a GPU free for queues of a priority and above.
type reservation struct {
	owner    *File
	slots    uint32
	priority uint32
}

// New returns a driver that no process uses.
func New(cfg Config) *KFD {
	if cfg.Version == (kfd.Version{}) {
		cfg.Version = kfd.Version{Major: 1, Minor: 17}
	}
	if cfg.GPUs == nil {
		cfg.GPUs = []kfd.Node{MI300X}
	}
	if cfg.Host == nil {
		cfg.Host = machineHost{}
	}
	if cfg.Sleep == nil {
		cfg.Sleep = time.Sleep
	}
	k := &KFD{
		cfg: cfg, processes: make(map[int]*process), reserved: make(map[uint32]*reservation), updates: make(map[uint32]int),
	}
	k.changed = sync.NewCond(&k.mu)
	k.writeTopology()
	return k
}

// process is a process that uses KFD. It stays until the process dies, even without open
// files.
type process struct {
	pid     int
	queues  []*queue // in order of id
	runtime bool     // enabled

	// The debug session of which the process is the target.
	debugged bool
	debugger *process // nil: itself
	events   int      // descriptor of the debugger
	mask     uint64   // exceptions that the debugger wants
	pending  uint64   // exceptions of the process
	answers  int      // of the debugger to the runtime, not consumed yet

	claim *File // that unmapped queues of the process
	dead  bool
}

// queue is a queue of a process.
type queue struct {
	owner      *process
	id         uint32
	gpu        uint32
	kind       QueueType
	ring       uint64
	ringSize   uint32
	priority   uint32
	percent    uint32
	exceptions uint64
	suspended  bool // by a debugger
	preempted  bool // by the patch
	destroying bool
	runs       bool // what the engine was last told
}

// active reports whether nothing keeps the queue from running.
func (q *queue) active() bool {
	return q.percent > 0 && q.ring != 0 && q.ringSize != 0 && !q.suspended && !q.preempted
}

func (q *queue) name() QueueID { return QueueID{q.owner.pid, q.id} }

// File is an open /dev/kfd.
type File struct {
	kfd    *KFD
	owner  *process
	closed bool
}

// caller is the thread that makes a call.
type caller struct {
	pid, tid    int
	memory      fusedev.Memory
	interrupted <-chan struct{}
}

// Open opens the device for a process of a World, or for the test itself.
func (k *KFD) Open(pid int) *File {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &File{kfd: k, owner: k.register(pid)}
}

// register makes the record of a process. k.mu is held.
func (k *KFD) register(pid int) *process {
	if p := k.processes[pid]; p != nil {
		return p
	}
	p := &process{pid: pid}
	k.processes[pid] = p
	k.writeProcess(p)
	died := k.cfg.Host.Died(pid)
	go func() {
		<-died
		k.mu.Lock()
		defer k.mu.Unlock()
		k.removeDead(p)
	}()
	return p
}

// reap removes the processes that have died but whose death was not reported yet. The real
// driver removes them before any other process can notice the death. k.mu is held.
func (k *KFD) reap() {
	for _, p := range k.processes {
		if k.cfg.Host.Leader(p.pid) == 0 {
			k.removeDead(p)
		}
	}
}

// removeDead does what the driver does when the memory of a process is released. k.mu is
// held.
func (k *KFD) removeDead(p *process) {
	if p.dead {
		return
	}
	p.dead = true
	delete(k.processes, p.pid)
	k.endSession(p)
	for _, target := range k.processes {
		if target.debugger == p {
			k.endSession(target)
		}
	}
	k.undo(func(f *File) bool { return f.owner == p })
	for _, q := range slices.Clone(p.queues) {
		k.drop(q)
	}
	k.removeProcess(p)
	k.changed.Broadcast()
}

// release closes an open file. The record of its process stays.
func (f *File) release() {
	f.kfd.mu.Lock()
	defer f.kfd.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.kfd.undo(func(o *File) bool { return o == f })
	}
}

// undo undoes what was done through the selected files. k.mu is held.
func (k *KFD) undo(selected func(*File) bool) {
	for _, p := range k.processes {
		if p.claim != nil && selected(p.claim) {
			k.remapAll(p)
		}
	}
	for gpu, r := range k.reserved {
		if selected(r.owner) {
			delete(k.reserved, gpu)
		}
	}
}

// refresh tells the engine whether a queue runs, if that has changed, and reports whether
// it has. k.mu is held.
func (k *KFD) refresh(q *queue) bool {
	now := q.active()
	if now == q.runs {
		return false
	}
	q.runs = now
	if k.cfg.Engine != nil && q.kind.isCompute() {
		if now {
			k.cfg.Engine.Restore(q.name())
		} else {
			k.cfg.Engine.Interrupt(q.name())
		}
	}
	return true
}

// update counts the cost of a call that changed n queues of a GPU: one runlist under HWS,
// a packet for each queue under MES. k.mu is held.
func (k *KFD) update(gpu uint32, n int) {
	if n > 0 && k.node(gpu) != nil && k.node(gpu).GFX.Major() < 11 {
		n = 1
	}
	k.updates[gpu] += n
}

func (k *KFD) node(gpu uint32) *kfd.Node {
	if i := slices.IndexFunc(k.cfg.GPUs, func(n kfd.Node) bool { return n.GPU == gpu }); i >= 0 {
		return &k.cfg.GPUs[i]
	}
	return nil
}

// wait waits until the condition holds, or until a signal interrupts the caller. k.mu is
// held.
func (k *KFD) wait(c caller, holds func() bool) unix.Errno {
	interrupted, over := false, make(chan struct{})
	defer close(over)
	if c.interrupted != nil {
		go func() {
			select {
			case <-c.interrupted:
				k.mu.Lock()
				interrupted = true
				k.changed.Broadcast()
				k.mu.Unlock()
			case <-over:
			}
		}()
	}
	for !holds() && !interrupted {
		k.changed.Wait()
	}
	if holds() {
		return 0
	}
	return unix.EINTR
}
