// Package daemon is the node's daemon: it joins discovery, the backends and the
// control API to the scheduler's loop.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/loop"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// Config is what the daemon is started with.
type Config struct {
	Version  string
	Policy   api.Policy
	Sched    sched.Config
	Guardian []string // the program that calls guardian.Keep on descriptor 3
	Discover discover.Config
	Blind    bool // the hardware's record of who ran is not kept
	NoNVIDIA bool // NVIDIA's driver is left alone: nothing is discovered
	NoAMD    bool // so is AMD's
	AMD      amd.Config
	// Rule says what a process is to have that nobody has said anything about.
	Rule func(proc.Process, sched.Attr) (sched.Attr, bool)
	// Own says which policy a device is to have of its own. Nobody's if nil.
	Own func(uuid string, index int) (api.Policy, bool)
	Log *slog.Logger
}

// Daemon is a running daemon. It implements server.Node.
type Daemon struct {
	cfg   Config
	start time.Time
	board *shimpage.StatusPage
	ear   *shimpage.Doorbells
	box   *mailbox
	exec  *executor
	ward  *ward
	watch *discover.Watcher
	amd   *amdNode         // nil: there is no AMD GPU, or it cannot be used; fixed once it runs
	noAMD error            // it cannot be used
	sched *sched.Scheduler // the loop's
	ready chan struct{}    // closed when Run is under way

	mu        sync.Mutex
	lastID    uint64
	coming    map[groupName]*arrival
	processes map[int]*process
	leaving   map[groupKey]leaving
	gpus      map[string]*gpu
	runs      map[int][]*word // by the pid at the root of the tree
	trees     map[int]*word   // the same
	policy    api.Policy
	guests    []*guest
	running   bool // between the beginning of Run and its end
}

// quiet is how long a group must have been as it is before we take charge of it.
// While CUDA makes a context it sets the group's slice itself: whoever reads it
// before that, and writes it back after, leaves the program with half.
const quiet = 250 * time.Millisecond

// groupName names a group of any process.
type groupName struct {
	pid   int
	start uint64
	groupKey
}

// arrival is a group that was found a moment ago.
type arrival struct {
	group *discover.Group
	timer *time.Timer
}

// settleTime is how long the daemon waits, when it ends, for everything to be
// undone before it leaves the rest to the guardian.
const settleTime = 2 * time.Second

// New makes a daemon that does nothing yet.
func New(cfg Config) (*Daemon, error) {
	choice, err := policy.Choose(cfg.Policy.Name, cfg.Policy.Params)
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		cfg: cfg, start: time.Now(), policy: cfg.Policy, sched: sched.New(cfg.Sched, choice), ready: make(chan struct{}),
		coming: make(map[groupName]*arrival), processes: make(map[int]*process), leaving: make(map[groupKey]leaving), gpus: make(map[string]*gpu), runs: make(map[int][]*word), trees: make(map[int]*word),
	}
	if d.board, err = shimpage.NewStatusPage(); err != nil {
		return nil, err
	}
	if d.ear, err = shimpage.NewDoorbells(d.board); err != nil {
		d.board.Close()
		return nil, err
	}
	d.box = newMailbox(d.ear, d.look)
	return d, nil
}

// Now implements loop.Clock.
func (d *Daemon) Now() sched.Time { return sched.Time(time.Since(d.start)) }

// Record implements loop.Recorder: after each turn questions are answered.
func (d *Daemon) Record(sched.Time, []sched.Event, []sched.Action) { d.box.answer() }

// Run drives the node until ctx is done, and then puts everything back.
func (d *Daemon) Run(ctx context.Context) error {
	d.ward = newWard(d.cfg.Guardian, d.cfg.Log)
	d.exec = newExecutor(d.ward, d.box.post)
	d.cfg.Discover.Ours = d.ward.is
	var watch *discover.Watcher
	var found <-chan discover.Event
	if !d.cfg.NoNVIDIA {
		var err error
		if watch, err = discover.Watch(ctx, d.cfg.Discover); err != nil {
			return errors.Join(err, d.ward.close(true))
		}
		found = watch.Events()
	}
	d.openAMD()
	d.mu.Lock()
	d.watch, d.running = watch, true
	d.mu.Unlock()
	close(d.ready)

	// The loop outlives ctx: it has everything to undo.
	looping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var ended sync.WaitGroup
	ended.Go(func() {
		// It sleeps in a system call of its own: a thread that is its alone is
		// there at once when that returns.
		runtime.LockOSThread()
		l := loop.Loop{Sched: d.sched, Transport: d.box, Executor: d.exec, Recorder: d}
		_ = l.Run(looping, d, d.box)
	})
	if d.amd != nil {
		ended.Go(func() { d.watchAMD(ctx) })
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case ev, ok := <-found:
			if !ok {
				<-ctx.Done()
				break
			}
			d.take(ev)
		}
	}
	undone := d.letGo()
	stop()
	ended.Wait()
	d.box.close()
	d.closeAll()
	if d.amd != nil {
		d.closeAMD()
	}
	d.ear.Close()
	d.board.Close()
	return d.ward.close(undone)
}

// letGo puts everything back and reports whether it is.
func (d *Daemon) letGo() bool {
	d.box.post(sched.Event{Kind: sched.ShutdownStarted})
	settled := false
	for end := time.Now().Add(settleTime); !settled && time.Now().Before(end); time.Sleep(time.Millisecond) {
		d.box.ask(func() { settled = d.sched.Settled() })
	}
	if !settled {
		d.cfg.Log.Error("not everything could be put back in time: it is left to the guardian")
	}
	return settled
}

func (d *Daemon) closeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = false
	d.turnAway(func(groupName) bool { return true })
	for len(d.guests) > 0 {
		d.seeOff(d.guests[0])
	}
	for _, p := range d.processes {
		for _, q := range p.queues {
			d.exec.remove(q.id, true, func() {}) // all is undone, or the guardian's
		}
	}
	for _, g := range d.gpus {
		g.close()
	}
}

// take takes in what discovery has found.
func (d *Daemon) take(ev discover.Event) {
	switch {
	case ev.Found != nil:
		d.await(ev.Found)
	case ev.Gone != nil:
		d.gone(ev.Gone)
	}
}

// await has a group opened when it has been quiet for a while.
func (d *Daemon) await(g *discover.Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := groupName{g.Process.PID, g.Process.Start, groupKey{g.Client, g.Handle}}
	if old := d.coming[name]; old != nil {
		old.timer.Stop()
		_ = old.group.File.Close()
	}
	a := &arrival{group: g}
	d.coming[name] = a
	a.timer = time.AfterFunc(quiet, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.coming[name] != a {
			return
		}
		delete(d.coming, name)
		if err := d.open(g); err != nil {
			d.cfg.Log.Warn("a group cannot be controlled", "pid", g.Process.PID, "error", err)
			_ = g.File.Close()
		}
	})
}

// turnAway gives up groups of a process that had not been opened yet: one, or
// all. d.mu is held.
func (d *Daemon) turnAway(match func(groupName) bool) {
	for name, a := range d.coming {
		if match(name) {
			a.timer.Stop()
			delete(d.coming, name)
			_ = a.group.File.Close()
		}
	}
}

// open takes charge of a group. d.mu is held.
func (d *Daemon) open(g *discover.Group) error {
	key := groupKey{g.Client, g.Handle}
	p := d.process(g.Process)
	if old := p.queues[key]; old != nil {
		// Its channels have changed: what we have of it is out of date.
		delete(p.queues, key)
		d.giveBack(key, old)
	}
	dev := d.gpu(g.GPU)
	d.lastID++
	id := sched.QueueID(d.lastID)
	before := d.givenBack(key)
	dev.device.Offer(id, nvidia.Target{
		File: g.File, Client: g.Client, Group: g.Handle, Subdevice: g.Subdevice, Channels: g.Channels, Found: before.found,
	})
	q, err := dev.device.Attach(hal.Spec{Queue: id})
	if err != nil {
		return err
	}
	gq := &groupQueue{id: id, gpu: dev, plain: q}
	if f, ok := q.(interface{ Found() time.Duration }); ok {
		gq.found = f.Found()
	}
	if g.MPSServer {
		gq.shared = "mps"
	}
	can := hal.Abilities(q)
	if err := d.ward.adopt(id, adoption{g.Client, g.Handle, g.Subdevice, g.Channels, gq.found}, g.File.Fd()); err != nil {
		d.cfg.Log.Warn("the guardian cannot have a queue: it is only watched", "pid", p.info.PID, "error", err)
	}
	p.queues[key] = gq
	d.exec.addAfter(id, q, before.done)
	d.box.post(sched.Event{Kind: sched.QueueOpened, Queue: id, Process: p.id, Device: dev.id(), Can: can, Attr: p.attr})
	d.arrange(p)
	return nil
}

// gone gives up what has gone: a group, or a process with all of its.
func (d *Daemon) gone(g *discover.Gone) {
	d.mu.Lock()
	defer d.mu.Unlock()
	whole := g.Client == 0 && g.Group == 0
	d.turnAway(func(n groupName) bool {
		return n.pid == g.PID && n.start == g.Start && (whole || n.groupKey == groupKey{g.Client, g.Group})
	})
	p := d.processes[g.PID]
	if p == nil || p.info.Start != g.Start || !d.running {
		return
	}
	for key, q := range p.queues {
		if whole || key == (groupKey{g.Client, g.Group}) {
			delete(p.queues, key)
			if whole {
				d.drop(q, true)
			} else {
				d.giveBack(key, q) // another process may have it still
			}
		}
	}
	if whole {
		delete(d.processes, g.PID)
	} else {
		d.arrange(p)
		d.forget(p)
	}
	d.bury()
}

// forget forgets a process that holds nothing and of which nobody has said
// anything. d.mu is held.
func (d *Daemon) forget(p *process) {
	if len(p.queues) == 0 && p.guest == nil && !p.owned && d.processes[p.info.PID] == p {
		delete(d.processes, p.info.PID)
	}
}

// bury forgets processes that hold nothing and are no more. Those that live are
// remembered for what was said of them: they may make another context. d.mu is
// held.
func (d *Daemon) bury() {
	d.buryTrees()
	for pid, p := range d.processes {
		if len(p.queues) == 0 && unix.Kill(pid, 0) == unix.ESRCH {
			delete(d.processes, pid)
		}
	}
}

// drop gives a queue up. gone says that there is nothing left to undo. What it returns
// is closed when all is undone; until then the guardian has it in its charge too.
func (d *Daemon) drop(q *groupQueue, gone bool) <-chan struct{} {
	undone := make(chan struct{})
	d.exec.remove(q.id, gone, func() {
		d.ward.forget(q.id)
		close(undone)
	})
	d.box.post(sched.Event{Kind: sched.QueueClosed, Queue: q.id})
	return undone
}

// leaving is a group that we have given up and that is being put back as it was found.
// Whoever opens it meanwhile waits until that is done, and goes by what we had found.
type leaving struct {
	found time.Duration
	done  <-chan struct{}
}

// giveBack gives up a group that may still be there. d.mu is held.
func (d *Daemon) giveBack(key groupKey, q *groupQueue) {
	d.leaving[key] = leaving{q.found, d.drop(q, false)}
}

// givenBack is what is to be known of a group before it is opened. d.mu is held.
func (d *Daemon) givenBack(key groupKey) leaving {
	maps.DeleteFunc(d.leaving, func(_ groupKey, p leaving) bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	return d.leaving[key]
}

// process returns our record of a process, made if there is none. A pid that was
// somebody else's is somebody new. d.mu is held.
func (d *Daemon) process(info proc.Process) *process {
	if p := d.processes[info.PID]; p != nil && p.info.Start == info.Start {
		return p
	}
	p := d.newProcess(info)
	d.processes[info.PID] = p
	return p
}

// newProcess is a process as it is by what has been said so far. d.mu is held.
func (d *Daemon) newProcess(info proc.Process) *process {
	d.lastID++
	p := &process{info: info, id: sched.ProcessID(d.lastID), queues: make(map[groupKey]*groupQueue)}
	for _, w := range d.treesOf(&info) {
		p.say(w.change)
	}
	p.run = d.runOf(&info)
	d.settle(p)
	return p
}

// gpu returns our record of a GPU, made if there is none. d.mu is held.
func (d *Daemon) gpu(uuid string) *gpu {
	if g := d.gpus[uuid]; g != nil {
		return g
	}
	return d.addGPU(newGPU(uuid, d.cfg.Blind, d.cfg.Log))
}

// addGPU makes a device known. d.mu is held.
func (d *Daemon) addGPU(g *gpu) *gpu {
	d.gpus[g.uuid] = g
	about := g.info().Device
	d.box.post(sched.Event{Kind: sched.DeviceOpened, Device: about.ID, About: about})
	d.own(g)
	return g
}

// own gives a GPU the policy that is its own, if it has one. d.mu is held.
func (d *Daemon) own(g *gpu) {
	if d.cfg.Own == nil {
		return
	}
	p, yes := d.cfg.Own(g.uuid, g.index)
	if !yes {
		return
	}
	choice, err := policy.Choose(p.Name, p.Params)
	if err != nil {
		d.cfg.Log.Error("the device's own policy", "device", g.uuid, "error", err)
		return
	}
	d.box.post(sched.Event{Kind: sched.PolicyChosen, Device: g.id(), Choice: choice})
}
