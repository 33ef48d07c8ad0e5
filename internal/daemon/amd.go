package daemon

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// amdNode is AMD's driver with its GPUs. It is fixed once the daemon runs.
type amdNode struct {
	driver *amd.Driver
	gpus   map[uint32]*gpu // by what KFD calls them
}

// kfdProcess is what we hold of a process with KFD queues. d.mu guards it.
type kfdProcess struct {
	pidfd     *os.File
	attaching bool
	again     bool  // somebody asked for something: try once more what did not work
	shim      bool  // what its shim can do has changed: look once more at that, too
	why       error // not all of its queues can be stopped; nil: they can, or nobody has tried
}

// queuesEvery is how often the queues of all processes are looked for: nobody tells us of
// a new one.
const queuesEvery = time.Second

// amdKey names what a process has on an AMD GPU. NVIDIA's clients have handles, so
// nothing of theirs has the client 0.
func amdKey(gpu uint32) groupKey { return groupKey{group: nvrm.Handle(gpu)} }

// openAMD opens AMD's driver, if it is there.
func (d *Daemon) openAMD() {
	if d.cfg.NoAMD {
		return
	}
	where := d.cfg.AMD
	where.Shim = d.shimOf
	driver, err := amd.Open(where)
	if errors.Is(err, hal.ErrNotSupported) {
		return // there is no AMD GPU
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.noAMD = err
		d.cfg.Log.Warn("AMD's driver cannot be used", "error", err)
		return
	}
	a := &amdNode{driver: driver, gpus: make(map[uint32]*gpu)}
	for i, dev := range driver.Devices() {
		info := dev.Info()
		a.gpus[dev.GPU()] = d.addGPU(&gpu{uuid: string(info.Device.ID), index: i, model: info.Model, amd: &amdGPU{dev}})
	}
	d.amd = a
}

// watchAMD looks for queues until ctx is done.
func (d *Daemon) watchAMD(ctx context.Context) {
	every := time.NewTicker(queuesEvery)
	defer every.Stop()
	for {
		d.lookForQueues()
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// closeAMD gives the driver up. If it hangs it is left alone: it undoes everything when
// we are gone.
func (d *Daemon) closeAMD() {
	d.mu.Lock()
	for _, p := range d.processes {
		if p.kfd != nil {
			p.kfd.pidfd.Close()
		}
	}
	d.mu.Unlock()
	closed := make(chan error, 1)
	go func() {
		d.exec.leaving.Wait()
		closed <- d.amd.driver.Close()
	}()
	select {
	case err := <-closed:
		if err != nil {
			d.cfg.Log.Warn("AMD's driver was not left in order", "error", err)
		}
	case <-time.After(settleTime):
		d.cfg.Log.Error("AMD's driver hangs: it puts everything back when we are gone")
	}
}

// foundQueues are the KFD queues of a process, by GPU.
type foundQueues map[uint32][]uint32

// lookForQueues brings what we have of all processes to what there is.
func (d *Daemon) lookForQueues() {
	queues, err := d.amd.driver.Queues()
	found := make(map[int]foundQueues)
	for _, q := range queues {
		if found[q.PID] == nil {
			found[q.PID] = make(foundQueues)
		}
		found[q.PID][q.GPU] = append(found[q.PID][q.GPU], q.ID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for pid, queues := range found {
		d.notice(pid, queues)
	}
	if err != nil {
		d.cfg.Log.Debug("not all KFD queues could be listed", "error", err)
		return // who is not in the list may be there all the same
	}
	for pid, p := range d.processes {
		if p.kfd != nil && found[pid] == nil {
			d.notice(pid, nil)
		}
	}
}

// notice takes in which KFD queues a process has. d.mu is held.
func (d *Daemon) notice(pid int, found foundQueues) {
	if !d.running {
		return
	}
	p := d.processes[pid]
	if p == nil || p.kfd == nil {
		if p = d.meet(pid); p == nil {
			return
		}
	}
	if exited(p.kfd.pidfd) {
		return // whoever waits for that sees to it
	}
	for gpu, ids := range found {
		dev := d.amd.gpus[gpu]
		if dev == nil {
			continue // it came after us
		}
		q := p.queues[amdKey(gpu)]
		if q == nil {
			q = d.list(p, dev)
			p.queues[amdKey(gpu)] = q
			d.arrange(p)
		}
		q.native = ids
	}
	for key, q := range p.queues {
		if q.bundle != nil && found[uint32(key.group)] == nil {
			delete(p.queues, key)
			d.drop(q, false)
			d.arrange(p)
		}
	}
	d.attach(p)
	if len(found) == 0 {
		p.kfd.pidfd.Close()
		p.kfd = nil
		d.forget(p)
	}
}

// meet makes the record of a process that has KFD queues, unless it has ended or is not
// ours to look after. d.mu is held.
func (d *Daemon) meet(pid int) *process {
	info, err := proc.Look(pid)
	if err != nil || d.cfg.Discover.Only != proc.Everyone && info.UID != uint32(d.cfg.Discover.Only) {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	// If it still is who it was, the descriptor is of it.
	if again, err := proc.Look(pid); err != nil || again.Start != info.Start || exited(pidfd) {
		pidfd.Close()
		return nil
	}
	p := d.process(info)
	p.kfd = &kfdProcess{pidfd: pidfd}
	go func() {
		if awaitExit(pidfd) {
			d.gone(&discover.Gone{PID: pid, Start: info.Start})
			pidfd.Close()
		}
	}()
	return p
}

// list opens a queue of which nothing is known but that it is there. d.mu is held.
func (d *Daemon) list(p *process, dev *gpu) *groupQueue {
	d.lastID++
	id := sched.QueueID(d.lastID)
	b := newBundle(dev.amd, id)
	d.exec.addBatched(id, b, dev.amd)
	d.box.post(sched.Event{Kind: sched.QueueOpened, Queue: id, Process: p.id, Device: dev.id(), Attr: p.attr})
	return &groupQueue{id: id, gpu: dev, plain: b, bundle: b}
}

// task is to have charge of these KFD queues of a process, and of no others.
type task struct {
	q   *groupQueue
	ids []uint32
}

// attach takes charge of the queues of a process where there is reason to, and gives them
// up where there is none any more. With a stock driver it takes a debug session, which
// everybody on the GPU feels when it begins, and which keeps other debuggers out: so it is
// for those only of whom somebody has said something. d.mu is held.
func (d *Daemon) attach(p *process) {
	k := p.kfd
	if k == nil || k.attaching {
		return
	}
	wanted := d.amd.driver.Quiet() || p.from != "default" || p.owned || p.attr != (sched.Attr{})
	again := retry{failed: (k.again || k.shim) && wanted, shim: k.shim && wanted}
	var tasks []task
	for _, q := range p.queues {
		ids := q.native
		if !wanted {
			ids = nil
		}
		if q.bundle != nil && (again.failed || !slices.Equal(q.held, ids)) {
			tasks = append(tasks, task{q, ids})
		}
	}
	if len(tasks) == 0 {
		return
	}
	k.attaching, k.again, k.shim = true, false, false
	t := amd.Target{PID: p.info.PID, Priority: priorities[p.attr.Class], Alive: func() bool { return !exited(k.pidfd) }}
	go d.carryOut(p, k, tasks, t, again) // the driver may take its time
}

func (d *Daemon) carryOut(p *process, k *kfdProcess, tasks []task, t amd.Target, again retry) {
	var why []error
	for _, task := range tasks {
		got, err := task.q.bundle.hold(task.ids, t, again)
		why = append(why, err)
		way := task.q.bundle.way()
		d.mu.Lock()
		task.q.held, task.q.way = task.ids, way
		d.attached(p, task.q, got)
		d.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k.attaching = false
	if k.why = errors.Join(why...); k.why != nil {
		d.cfg.Log.Warn("queues of a process can be stopped in some ways only, or in none", "pid", t.PID, "error", k.why)
	}
	if p.kfd == k && d.running {
		d.attach(p) // there may be more by now
	}
}

// attached tells of what can be done to a queue now. d.mu is held.
func (d *Daemon) attached(p *process, q *groupQueue, got hal.Queue) {
	if !d.running || p.queues[amdKey(q.gpu.amd.GPU())] != q {
		return
	}
	q.plain = got
	can := hal.Abilities(got)
	if q.gate != nil {
		d.exec.replace(q.id, hal.Combine(got, q.gate))
		if p.guest != nil {
			can |= hal.Abilities(q.gate)
		}
	} else {
		d.exec.replace(q.id, got)
	}
	d.box.post(sched.Event{Kind: sched.QueueOpened, Queue: q.id, Can: can})
}

// lookForQueuesOf looks for the queues of one process, which somebody asks for. d.mu is
// held.
func (d *Daemon) lookForQueuesOf(pid int) {
	if d.amd == nil || pid == os.Getpid() {
		return
	}
	queues, _ := d.amd.driver.QueuesOf(pid) // what cannot be listed is looked for again soon
	found := make(foundQueues)
	for _, q := range queues {
		found[q.GPU] = append(found[q.GPU], q.ID)
	}
	if len(found) > 0 {
		d.notice(pid, found)
	}
}

// attachAsked has queues of a process attached now, of which somebody has said something. d.mu
// is held.
func (d *Daemon) attachAsked(p *process) {
	if p.kfd != nil {
		p.kfd.again = p.kfd.why != nil
		d.attach(p)
	}
}

// exited reports whether a process has ended.
func exited(pidfd *os.File) bool {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return true
	}
	over := true
	_ = conn.Control(func(fd uintptr) { over = readable(fd) }) // closed: it has been seen off
	return over
}

// awaitExit returns true when the process has ended, false when pidfd was closed.
func awaitExit(pidfd *os.File) bool {
	conn, err := pidfd.SyscallConn()
	return err == nil && conn.Read(readable) == nil
}

func readable(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
