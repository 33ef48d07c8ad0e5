// Package daemon is the node's daemon. It joins the backends, which find queues and
// carry out actions, the control API and the rules to the scheduler's loop. It knows no
// vendor: internal/backends names them.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/extpolicy"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/loop"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// Config is what the daemon is started with.
type Config struct {
	Version  string
	File     config.Config // policies, rules and the scheduler's limits
	Guardian []string      // the program that calls guardian.Run on descriptor 3
	Backends []hal.Backend
	Notes    []hal.Check // what the configuration leaves out, for Status
	// DeviceFiles are files of which a machine with a device has one; empty: the daemon's devices
	// have none.
	DeviceFiles []string
	// StartedInPool reports from the environment of a process whether 'giveway run' started it in a
	// pool; nil: it started none.
	StartedInPool func(env []string) bool
	Proc          ProcSource     // nil: the processes of this machine
	Journal       *journal.Store // changes and orders are kept there; nil: they end with the daemon. Run closes it
	Log           *slog.Logger
}

// ProcSource reads the processes of the operating system.
type ProcSource interface {
	Process(pid int) (proc.Process, error)
	Stat(pid int) (proc.Stat, error)
}

// Daemon is a running daemon. It implements server.Node and hal.Host.
type Daemon struct {
	cfg      Config
	procs    ProcSource
	start    time.Time
	events   eventQueue
	exec     *executor
	guardian *supervisor
	sched    *sched.Scheduler // used by the loop only
	pollers  []hal.Poller
	facts    facts // used by the loop only
	recorder *recorder
	external map[string]*extpolicy.Connection // used by the loop only: by device, or "" for all
	ready    chan struct{}                    // closed when Run is under way
	leftErr  error                            // why changes of an earlier daemon may still be in force; set before ready
	lastID   atomic.Uint64                    // of queues and processes
	users    users
	callers  callers
	exits    chan struct{} // a process may have exited: see followExits
	reduced  chan reducedAttr

	// What the API shows. Callers share each computation: see shared.
	queueStates   shared[map[sched.QueueID]sched.Queue]
	snapshot      shared[[]api.Process]
	status        shared[api.Status]
	policyInForce shared[api.Policy]
	delays        shared[api.Delays]
	pressure      shared[api.Pressure]
	counted       shared[struct{}]
	memory        memoryReader

	mu        sync.Mutex
	running   bool // between the beginning of Run and its end
	processes map[int]*process
	devices   map[sched.DeviceID]*device
	failed    map[string]error         // backends that could not be started
	runs      map[proc.ID][]*treeAttrs // of giveway run, by root
	trees     map[proc.ID]*treeAttrs   // of giveway set --tree, by root
	policy    api.Policy               // of the devices that have none of their own
	conf      *config.Config           // its policies and rules are in force; it never changes
	confFile  string                   // empty: none
	confErr   error                    // why the file was refused when it was last read; nil: it is in force
	// When the file was refused, the last times, and why the last time.
	confRefused []time.Time
	confReason  error

	nextBackgroundCheck sched.Time // see late.go
	claims              struct {   // see claim.go
		checked sched.Time
		queues  []sched.Queue // of the scheduler, at the last check that needed them
	}

	journalOrder func(order) error // nil, or writes the result of an order to the journal; called with orders held only
	orders       sync.RWMutex      // held for reading while an order is carried out and written; taken before all others

	containers  atomic.Pointer[containers] // never nil; stored with mu held
	inside      string                     // the containers that the daemon itself is in, as proc.Process.Containers has them
	registering sync.Mutex                 // held while what the administrator has for processes changes; taken before mu

	pendingPolicies map[string]keptPolicy // by device: to be in force when the device is found
	markCheck       time.Duration         // markCheckTime; tests set it before the daemon runs

	keeping    sync.Mutex                      // held while the journal is brought up to date; taken before mu
	kept       orderLog                        // what the journal has; guarded by keeping
	keptClosed bool                            // the journal has what the next daemon is to take over; guarded by keeping
	runContext atomic.Pointer[context.Context] // of Run; nil before

	choosing sync.Mutex // held while a policy is put in force; taken before mu
}

// device is a device that a backend announced.
type device struct {
	hal.Device
	info   hal.Info
	policy api.Policy // its own; without a name it has the daemon's
	// backgroundUntil is until when it counts as having batch or idle work: see late.go.
	backgroundUntil sched.Time
	switching       switchMeter
	ledger          hal.Ledger // of its spans
}

// undoTimeout is how long the daemon waits for all changes to be undone, when it ends or
// restores, before it leaves the rest to the guardian.
const undoTimeout = 2 * time.Second

// New makes a daemon that does nothing yet.
func New(cfg Config) (*Daemon, error) {
	d := &Daemon{
		cfg: cfg, start: time.Now(), policy: cfg.File.Policy, conf: &cfg.File,
		ready: make(chan struct{}), external: make(map[string]*extpolicy.Connection),
		processes: make(map[int]*process), devices: make(map[sched.DeviceID]*device), failed: make(map[string]error),
		runs: make(map[proc.ID][]*treeAttrs), trees: make(map[proc.ID]*treeAttrs), exits: make(chan struct{}, 1), reduced: make(chan reducedAttr, 64),
		pendingPolicies: make(map[string]keptPolicy), markCheck: markCheckTime,
	}
	d.inside, _ = proc.ContainersOf(os.Getpid()) // unreadable: the machine counts as no container
	d.containers.Store(&containers{})
	d.recorder = newRecorder(d)
	d.queueStates.compute, d.snapshot.compute = d.readQueueStates, d.describeAll
	d.delays.compute, d.pressure.compute = d.readDelays, d.readPressure
	d.counted.compute = func() (none struct{}) {
		d.events.inLoop(func() { d.recorder.count(d.Now()) })
		return none
	}
	d.status.compute, d.policyInForce.compute = d.readStatus, d.readPolicy
	if d.procs = cfg.Proc; d.procs == nil {
		d.procs = proc.System
	}
	d.facts.d, d.events.sleeper = d, make(channelSleeper, 1)
	for _, b := range cfg.Backends {
		if s, ok := b.(hal.Sleeper); ok {
			d.events.sleeper = s
		}
		if p, ok := b.(hal.Poller); ok {
			d.pollers = append(d.pollers, p)
		}
	}
	choice, connection, err := d.newPolicy(cfg.File.Policy, false)
	if err != nil {
		return nil, err
	}
	if connection != nil {
		d.external[""] = connection
	}
	d.sched = sched.New(cfg.File.Sched, choice)
	return d, nil
}

// Now implements loop.Clock.
func (d *Daemon) Now() sched.Time { return sched.Time(time.Since(d.start)) }

// afterTurn asks external policies and runs the functions given to eventQueue.inLoop. The
// loop calls it after each turn.
func (d *Daemon) afterTurn() {
	for _, c := range d.external {
		c.Flush()
	}
	d.events.runCalls()
}

// Run drives the node until ctx is done, and then undoes every change.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.cfg.Journal.Close()
	d.undoLeft()
	d.runContext.Store(&ctx)
	d.guardian = newSupervisor(d.cfg.Guardian, d.cfg.Journal, d.cfg.Log, func(text string) {
		if d.recorder.rec.Note("", 0, "guardian", text); text == guardianRuns {
			d.recorder.tally.GuardianStarted()
		}
	})
	d.exec = newExecutor(d.guardian, d.events.post)
	d.mu.Lock()
	d.running = true
	d.mu.Unlock()

	// The loop outlives ctx, because it has changes to undo.
	looping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var ended sync.WaitGroup
	ended.Go(func() {
		// The loop sleeps in a system call. A thread of its own is running again as soon
		// as that call returns.
		runtime.LockOSThread()
		defer d.events.close() // at once: the goroutines that Run waits for may be in inLoop
		l := loop.Loop{Sched: d.sched, Transport: d, Executor: d.exec, Recorder: d.recorder}
		_ = l.Run(looping, d, d.events.sleeper)
	})
	d.takeOver()
	ended.Go(func() { d.followExits(looping) })
	ended.Go(func() { d.followMarks(looping) })
	for _, b := range d.cfg.Backends {
		d.startBackend(ctx, b)
	}
	close(d.ready)
	<-ctx.Done()
	d.endOrders()
	d.release() // before the log: a log that is not read must not delay it
	d.cfg.Log.Info("daemon ends and undoes its changes", "reason", context.Cause(ctx))
	stop()
	ended.Wait()
	for _, c := range d.external {
		c.Close()
	}
	d.abandonQueues()
	d.closeBackends()
	return d.guardian.close()
}

// startBackend starts a backend. One that fails is reported by Status, and the daemon
// goes on without it.
func (d *Daemon) startBackend(ctx context.Context, b hal.Backend) {
	err := b.Start(ctx, d)
	if err == nil || errors.Is(err, hal.ErrNotSupported) {
		return
	}
	d.cfg.Log.Error("backend could not be started", "backend", b.Name(), "error", err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed[b.Name()] = err
}

// release undoes all changes. What is not undone in time stays in the journal.
func (d *Daemon) release() {
	d.events.post(sched.Event{Kind: sched.ShutdownStarted})
	if !d.settle() {
		d.cfg.Log.Error("some changes could not be undone in time; they are left to the guardian", "waited", undoTimeout)
	}
}

// settle waits until the scheduler has no action under way or due, for undoTimeout at
// most, and reports whether that is so.
func (d *Daemon) settle() (settled bool) {
	for end := time.Now().Add(undoTimeout); !settled && time.Now().Before(end); time.Sleep(time.Millisecond) {
		d.events.inLoop(func() { settled = d.sched.Settled() })
	}
	return settled
}

// abandonQueues gives up all queues at the end: their changes are undone, or left to
// the guardian.
func (d *Daemon) abandonQueues() {
	d.exec.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = false
	for _, p := range d.processes {
		for _, q := range p.queues {
			d.exec.remove(q.id, removal{exited: true, removed: func(bool) {}})
		}
	}
}

// closeBackends closes the backends once no action is under way. A call that hangs is left
// alone, with what it changes in the journal: when this process has exited, the guardian undoes
// that, or the driver itself where no journal is kept.
func (d *Daemon) closeBackends() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.exec.closing.Wait()
		for _, b := range d.cfg.Backends {
			if err := b.Close(); err != nil {
				d.cfg.Log.Warn("backend could not be closed", "backend", b.Name(), "error", err)
			}
		}
	}()
	select {
	case <-closed:
	case <-time.After(undoTimeout):
		d.cfg.Log.Error("a driver call does not return; its changes are undone when the daemon has exited")
	}
}

// Drain implements loop.Transport: it returns the facts of all backends and the events
// that were posted. Facts come last: a queue may have been opened while its backend was
// polled.
func (d *Daemon) Drain(buf []sched.Event) []sched.Event {
	d.events.beginTurn()
	d.facts.reset()
	buf = emptied(buf)
	now := d.Now()
	for _, p := range d.pollers {
		p.Poll(now, &d.facts)
	}
	d.mu.Lock()
	buf, again := d.facts.takeIn(d.events.take(buf))
	buf = d.checkClaims(now, buf)
	changed := d.checkBackground(now)
	d.mu.Unlock()
	if again || changed {
		d.Wake()
	}
	return buf
}
