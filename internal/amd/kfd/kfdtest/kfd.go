package kfdtest

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// Config says what kind of driver to make.
type Config struct {
	Version kfd.Version // zero: 1.17, of Linux 6.12
	Patched bool        // it has our ioctls
	NoHWS   bool        // sched_policy=2
	GPUs    []kfd.Node  // nil: one MI300X
	Engine  Engine      // runs the queues; nil: nothing does
	Host    Host        // who the processes are; nil: this machine's
	Sys     string      // a folder to keep sysfs in; "": there is none
	Sleep   func(time.Duration)
}

// MI300X is what the topology tells of one, in part.
var MI300X = kfd.Node{
	Index: 1, GPU: 51545, Name: "ip discovery", GFX: 90402, Slots: 24, XCCs: 8, ClockMHz: 2100,
	Capability: kfd.CapTrapDebug | kfd.CapTrapDebugFirmware, Render: 128, UniqueID: 0xabcdef,
}

// QueueID names a queue on the machine.
type QueueID struct {
	PID   int
	Queue uint32
}

// Engine runs queues. The driver calls it for compute queues, one call at a time.
type Engine interface {
	Opened(QueueID)
	Closed(QueueID)
	Stop(QueueID) // it is taken off the GPU, waves and all
	Run(QueueID)
}

// KFD is a driver in memory. Its methods may be called at any time.
type KFD struct {
	cfg Config

	mu        sync.Mutex
	changed   *sync.Cond // somebody may go on who waits
	processes map[int]*process
	reserved  map[uint32]*reserved
	updates   map[uint32]int // of each GPU's runlist
	faults    map[Call]*Fault
	calls     map[Call]int
}

// reserved are a GPU's slots that an open file reserved.
type reserved struct {
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
		cfg.Host = machine{}
	}
	if cfg.Sleep == nil {
		cfg.Sleep = time.Sleep
	}
	k := &KFD{
		cfg: cfg, processes: make(map[int]*process), reserved: make(map[uint32]*reserved), updates: make(map[uint32]int),
		faults: make(map[Call]*Fault), calls: make(map[Call]int),
	}
	k.changed = sync.NewCond(&k.mu)
	k.writeTopology()
	return k
}

// process is a process that uses KFD. It is there until it dies, open files or not.
type process struct {
	pid     int
	queues  []*queue // in order of id
	runtime bool

	// Of the debug session that it is the target of.
	debugged bool
	debugger *process // nil: itself
	events   int      // descriptor, of whoever debugs
	mask     uint64   // exceptions that the debugger wants
	pending  uint64   // of the process
	answers  int      // of the debugger's to its runtime

	claim *File // that unmapped queues of it
	dead  bool
}

// queue is a queue of a process. It runs if nothing speaks against it.
type queue struct {
	owner      *process
	id         uint32
	gpu        uint32
	kind       kfd.QueueType
	ring       uint64
	ringSize   uint32
	priority   uint32
	percent    uint32
	exceptions uint64
	suspended  bool // by a debugger
	preempted  bool // by the patch
	destroyed  bool // is being
	ran        bool // as the engine was last told
}

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

// caller is who makes a call.
type caller struct {
	pid, tid    int
	memory      fusedev.Memory
	interrupted <-chan struct{}
}

// open opens the device for a process.
func (k *KFD) open(pid int) *File {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &File{kfd: k, owner: k.enter(pid)}
}

// enter makes a process one of KFD's. k.mu is held.
func (k *KFD) enter(pid int) *process {
	if p := k.processes[pid]; p != nil {
		return p
	}
	p := &process{pid: pid}
	k.processes[pid] = p
	k.writeProcess(p)
	died := k.cfg.Host.Died(pid)
	go func() {
		<-died
		k.died(p)
	}()
	return p
}

// died is what the driver does when the memory of a process is gone.
func (k *KFD) died(p *process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bury(p)
}

// reap buries those who have died and of whom we were not told yet: the driver does
// so before anybody else can know. k.mu is held.
func (k *KFD) reap() {
	for _, p := range k.processes {
		if k.cfg.Host.Leader(p.pid) == 0 {
			k.bury(p)
		}
	}
}

func (k *KFD) bury(p *process) {
	if p.dead {
		return
	}
	p.dead = true
	delete(k.processes, p.pid)
	k.endDebug(p)
	for _, target := range k.processes {
		if target.debugger == p {
			k.endDebug(target)
		}
	}
	k.letGo(func(f *File) bool { return f.owner == p })
	for _, q := range slices.Clone(p.queues) {
		k.drop(q)
	}
	k.removeProcess(p)
	k.changed.Broadcast()
}

// release is the end of an open file. Its process stays.
func (f *File) release() {
	f.kfd.mu.Lock()
	defer f.kfd.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.kfd.letGo(func(o *File) bool { return o == f })
	}
}

// letGo undoes what was done through the open files that are meant. k.mu is held.
func (k *KFD) letGo(meant func(*File) bool) {
	for _, p := range k.processes {
		if p.claim != nil && meant(p.claim) {
			k.remapAll(p)
		}
	}
	for gpu, r := range k.reserved {
		if meant(r.owner) {
			delete(k.reserved, gpu)
		}
	}
}

// settle tells the engine of a queue that runs now, or does not any more, and
// reports whether that is so. k.mu is held.
func (k *KFD) settle(q *queue) bool {
	now := q.active()
	if now == q.ran {
		return false
	}
	q.ran = now
	if k.cfg.Engine != nil && q.kind.IsCompute() {
		if now {
			k.cfg.Engine.Run(q.name())
		} else {
			k.cfg.Engine.Stop(q.name())
		}
	}
	return true
}

// update counts what a call that changed n queues of a GPU costs: one runlist
// under HWS, a packet for each under MES. k.mu is held.
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

// wait waits until something is so, or a signal comes for who waits. k.mu is held.
func (k *KFD) wait(c caller, so func() bool) unix.Errno {
	stop, over := false, make(chan struct{})
	defer close(over)
	if c.interrupted != nil {
		go func() {
			select {
			case <-c.interrupted:
				k.mu.Lock()
				stop = true
				k.changed.Broadcast()
				k.mu.Unlock()
			case <-over:
			}
		}()
	}
	for !so() && !stop {
		k.changed.Wait()
	}
	if so() {
		return 0
	}
	return unix.EINTR
}
