package amd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// Backend finds processes with KFD compute queues and offers them to the daemon. All
// compute queues of a process on a GPU are one queue there: a bundle. Backend implements
// hal.Backend, hal.Poller, hal.Finder and hal.Prober.
//
// On a stock driver Backend attaches the queues of managed processes only. Attaching
// takes a debug session, which stalls the whole GPU for a moment when it begins and keeps
// other debuggers out. On a driver with our patch it attaches all queues.
type Backend struct {
	cfg Config
	log *slog.Logger

	// Set by Start, with mu held.
	driver *driver
	host   hal.Host
	done   <-chan struct{} // closed when the daemon shuts down
	gpus   map[uint32]*gpu // by KFD's gpu_id

	discovery sync.Mutex     // held while queues are listed and compared with the records
	calls     sync.WaitGroup // goroutines that call the driver

	mu        sync.Mutex // never held while the driver, sysfs or procfs is read
	processes map[int]*process
}

// listInterval is how often the queues of all processes are listed. KFD has no
// notification for a new queue.
const listInterval = time.Second

// closeTimeout is how long Close waits for the driver.
const closeTimeout = 2 * time.Second

// New returns a backend that is not started.
func New(cfg Config) *Backend {
	b := &Backend{cfg: cfg, log: cfg.Log, gpus: make(map[uint32]*gpu), processes: make(map[int]*process)}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	return b
}

// Name implements hal.Backend.
func (b *Backend) Name() string { return "amd" }

// Start implements hal.Backend.
func (b *Backend) Start(ctx context.Context, h hal.Host) error {
	d, err := open(b.cfg)
	if err != nil {
		return err
	}
	for _, g := range d.gpus {
		b.gpus[g.node.GPU] = g
		h.DeviceFound(g)
	}
	b.mu.Lock()
	b.driver, b.host, b.done = d, h, ctx.Done()
	b.mu.Unlock()
	b.calls.Go(func() {
		every := time.NewTicker(listInterval)
		defer every.Stop()
		for {
			b.listAll()
			b.reserveSlots()
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
		}
	})
	return nil
}

// Close implements hal.Backend. If the driver does not return, Close gives up: the driver
// restores everything when the daemon's process exits.
func (b *Backend) Close() error {
	if !b.started() {
		return nil
	}
	b.mu.Lock()
	for _, p := range b.processes {
		p.handle.Close()
	}
	b.mu.Unlock()
	closed := make(chan error, 1)
	go func() {
		b.calls.Wait()
		closed <- b.driver.close()
	}()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeTimeout):
		return fmt.Errorf("close KFD: no answer within %v; it restores all queues when the daemon exits", closeTimeout)
	}
}

// started reports whether Start has succeeded. The daemon may call the other methods
// before.
func (b *Backend) started() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.driver != nil
}

// stopping reports whether the daemon shuts down.
func (b *Backend) stopping() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// process is a process with KFD queues.
type process struct {
	info    proc.Process
	handle  *proc.Pidfd
	entries map[uint32]*entry // by KFD's gpu_id

	// Backend.mu guards what follows.
	settings      *hal.Settings // as last seen
	attaching     bool          // a goroutine attaches queues
	retryFailed   bool          // attach again the queues that could not be stopped
	shimChanged   bool          // attach again the queues that the shim stops, or could stop
	shimChangedAt time.Time     // when shimChanged was last set
	why           error         // why some queues cannot be stopped; nil: all can, or none was attached
}

// entry is the bundle of a process on one GPU. Backend.mu guards it.
type entry struct {
	bundle    *bundle
	queue     hal.Queue // the bundle, as it was last given to the daemon
	handle    hal.QueueHandle
	listed    []uint32 // the queues that KFD lists
	attached  []uint32 // the queues that attach was last called for
	method    string   // how they are stopped
	shimKnows bool     // the shim of the process knows queues on this GPU
	reserved  int      // slots that are reserved for the process and other online ones
}

func (e *entry) detail() hal.Detail {
	return hal.Detail{NativeQueues: len(e.listed), StopMethod: e.method, ReservedSlots: e.reserved}
}

// queuesByGPU holds the KFD queue ids of a process, by gpu_id.
type queuesByGPU map[uint32][]uint32

func (q queuesByGPU) add(k kfd.Queue) { q[k.GPU] = append(q[k.GPU], k.ID) }

// listAll compares the queues of all processes with the records.
func (b *Backend) listAll() {
	b.discovery.Lock()
	defer b.discovery.Unlock()
	queues, err := b.driver.queues()
	found := make(map[int]queuesByGPU)
	for _, q := range queues {
		if found[q.PID] == nil {
			found[q.PID] = make(queuesByGPU)
		}
		found[q.PID].add(q)
	}
	for pid, queues := range found {
		b.update(pid, queues)
	}
	if err != nil {
		b.log.Debug("not all KFD queues could be listed", "error", err)
		return // a process that is missing from the list may still have queues
	}
	for _, pid := range b.pids() {
		if found[pid] == nil {
			b.update(pid, nil)
		}
	}
}

// Find implements hal.Finder. It offers the queues before it returns.
func (b *Backend) Find(pid int) hal.Found {
	if !b.started() || pid == os.Getpid() {
		return hal.Found{}
	}
	b.discovery.Lock()
	defer b.discovery.Unlock()
	queues, _ := b.driver.queuesOf(pid) // after an error the next listing finds them
	found := make(queuesByGPU)
	for _, q := range queues {
		found.add(q)
	}
	if len(found) > 0 {
		b.update(pid, found)
	}
	return hal.Found{}
}

// pids returns the processes that have a record.
func (b *Backend) pids() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	var pids []int
	for pid := range b.processes {
		pids = append(pids, pid)
	}
	return pids
}

// update compares the queues of one process with its record. b.discovery is held.
func (b *Backend) update(pid int, found queuesByGPU) {
	b.mu.Lock()
	p := b.processes[pid]
	b.mu.Unlock()
	if p == nil {
		if p = b.open(pid); p == nil {
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping() || p.handle.Exited() {
		if b.processes[pid] != p {
			p.handle.Close()
		}
		return // if it is recorded, exited removes it
	}
	b.processes[pid] = p
	for id, listed := range found {
		g := b.gpus[id]
		if g == nil {
			continue // a GPU that appeared after the daemon started
		}
		if p.entries[id] == nil && !b.offer(p, id, g, listed) {
			continue
		}
		if e := p.entries[id]; !slices.Equal(e.listed, listed) {
			e.listed = listed
			e.handle.SetDetail(e.detail())
		}
	}
	for id, e := range p.entries {
		if found[id] == nil {
			delete(p.entries, id)
			e.handle.Withdraw(false)
		}
	}
	if len(p.entries) == 0 {
		delete(b.processes, pid)
		p.handle.Close()
		return
	}
	b.attach(p)
}

// open returns the record of a process, or nil if it has exited or belongs to a user
// whose processes are not managed.
func (b *Backend) open(pid int) *process {
	info, err := proc.Look(pid)
	if err != nil || b.cfg.Only != proc.Everyone && info.UID != uint32(b.cfg.Only) {
		return nil
	}
	handle, err := proc.System.OpenPidfd(pid, info.Start)
	if err != nil {
		return nil
	}
	p := &process{info: info, handle: handle, entries: make(map[uint32]*entry)}
	go func() {
		if handle.WaitExit() {
			b.exited(p)
		}
	}()
	return p
}

// exited withdraws the queues of a process that has exited.
func (b *Backend) exited(p *process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.processes[p.info.PID] == p {
		delete(b.processes, p.info.PID)
		if !b.stopping() {
			for _, e := range p.entries {
				e.handle.Withdraw(true)
			}
		}
	}
	p.handle.Close()
}

// offer offers a new bundle, which has no attached queues yet, to the daemon. b.mu is
// held.
func (b *Backend) offer(p *process, id uint32, g *gpu, listed []uint32) bool {
	e := &entry{bundle: newBundle(g), listed: listed}
	e.queue = e.bundle
	handle, err := b.host.QueueFound(hal.Offer{
		Process: p.info, Device: g, Batcher: g, Detail: e.detail(),
		Attach: func(hal.Queue) (hal.Queue, error) { return e.bundle, nil },
	})
	if err != nil {
		b.log.Warn("a KFD process was not accepted", "pid", p.info.PID, "error", err)
		return false
	}
	e.handle = handle
	p.entries[id] = e
	p.settings = handle.Process().Settings()
	return true
}

// Poll implements hal.Poller. It has no facts to report: it notices that the settings or
// the shim of a process have changed.
func (b *Backend) Poll(sched.Time, hal.Facts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.processes {
		changed := b.checkShim(p)
		for _, e := range p.entries {
			if s := e.handle.Process().Settings(); s != p.settings {
				p.settings, changed = s, true
				p.retryFailed = p.retryFailed || p.why != nil
			}
			break // all queues of a process have the same settings
		}
		if changed {
			b.attach(p)
		}
	}
}

// checkShim reports whether the shim of a process can now stop queues that it could not
// stop before, or no longer can. Attaching again may stall the GPU, so it reports a
// change at most once per listInterval, except when the shim is gone. b.mu is held.
func (b *Backend) checkShim(p *process) bool {
	if b.cfg.Shim == nil || b.stopping() {
		return false
	}
	shim := b.cfg.Shim(p.info.PID)
	changed := false
	for id, e := range p.entries {
		knows := shim != nil && shim.QueueCount(id) > 0
		changed = changed || knows != e.shimKnows || knows && e.method == ""
	}
	if !changed || shim != nil && time.Since(p.shimChangedAt) < listInterval {
		return false
	}
	for id, e := range p.entries {
		e.shimKnows = shim != nil && shim.QueueCount(id) > 0
	}
	p.shimChanged, p.shimChangedAt = true, time.Now()
	return true
}

// attach brings the attached queues of a process in line with the listed ones: all of
// them if the process is managed, else none. The driver is called on another goroutine.
// b.mu is held.
func (b *Backend) attach(p *process) {
	if p.attaching || b.stopping() || b.processes[p.info.PID] != p {
		return
	}
	wanted := !b.driver.attachingStalls() || p.settings.Managed
	again := retry{failed: (p.retryFailed || p.shimChanged) && wanted, shim: p.shimChanged && wanted}
	type task struct {
		gpu uint32
		e   *entry
		ids []uint32
	}
	var tasks []task
	for id, e := range p.entries {
		ids := e.listed
		if !wanted {
			ids = nil
		}
		if again.failed || !slices.Equal(e.attached, ids) {
			tasks = append(tasks, task{id, e, ids})
		}
	}
	if len(tasks) == 0 {
		return
	}
	p.attaching, p.retryFailed, p.shimChanged = true, false, false
	t := target{pid: p.info.PID, alive: func() bool { return !p.handle.Exited() }}
	b.calls.Go(func() {
		var errs []error
		for _, task := range tasks {
			q, err := task.e.bundle.attach(task.ids, t, again)
			errs = append(errs, err)
			method := task.e.bundle.methods()
			b.mu.Lock()
			task.e.attached, task.e.method, task.e.queue = task.ids, method, q
			if !b.stopping() && p.entries[task.gpu] == task.e && b.processes[p.info.PID] == p {
				task.e.handle.Replace(q)
				task.e.handle.SetDetail(task.e.detail())
			}
			b.mu.Unlock()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		p.attaching = false
		if p.why = errors.Join(errs...); p.why != nil {
			b.log.Warn("the best method to stop queues of a process does not work", "pid", p.info.PID, "error", p.why)
		}
		b.attach(p) // the listing or the settings may have changed meanwhile
	})
}

var (
	_ hal.Backend = (*Backend)(nil)
	_ hal.Poller  = (*Backend)(nil)
	_ hal.Finder  = (*Backend)(nil)
	_ hal.Prober  = (*Backend)(nil)
)
