// Package nvidia is the backend for NVIDIA GPUs on a stock driver. It finds the compute
// channel groups of all processes, sets their slices and interrupts them through copies
// of the descriptors that made them, and reads the hardware's context-switch trace.
//
// NVA06C_CTRL_CMD_PREEMPT is not used: a preempted group comes back at once.
package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// Config configures a Backend.
type Config struct {
	Only    int          // the uid whose processes are managed, or proc.Everyone
	NoTrace bool         // the configuration turns the context-switch trace off
	Log     *slog.Logger // nil: none

	// What follows is for tests. The zero value is for production.
	Control    string        // empty: nvrm.ControlPath
	GPUPattern string        // empty: nvrm.GPUPattern
	Root       fs.FS         // where the driver states its version and GPUs; nil: os.DirFS("/")
	Poll       time.Duration // between looks at /proc; zero: 2 s
	NoBPF      bool          // look at /proc only

	openTrace  func(nvtrace.Config) (traceReader, error)           // nil: nvtrace.Open
	readMemory func(nvtrace.Config, []int) (map[int]uint64, error) // nil: nvtrace.DeviceMemory
}

// discover returns the configuration of discovery.
func (c *Config) discover() discover.Config {
	return discover.Config{Only: c.Only, Control: c.Control, Poll: c.Poll, NoBPF: c.NoBPF, Log: c.Log}
}

// Backend implements hal.Backend, hal.Poller, hal.Finder, hal.Adopter, hal.Reopener,
// hal.Restorer, hal.Prober and hal.KernelLogger.
//
// One goroutine, run, takes the events of discovery and offers the groups. It holds no
// lock while it calls the driver, so that Poll never waits for a call.
type Backend struct {
	cfg       Config
	log       *slog.Logger
	driver    loadedDriver
	host      hal.Host
	ended     sync.WaitGroup
	restoring map[discover.Key]restoration // used by run only

	mu       sync.Mutex
	watch    *discover.Watcher // nil: no driver was seen yet
	watchErr error             // why discovery cannot run
	claimed  *os.File          // see claim
	arrivals map[groupName]*arrival
	settled  map[groupName]settled // groups that were settling since settledSince
	queues   []*queue              // in the order in which they were accepted
	gpus     []*gpu
	members  map[groupName][]proc.Process // of MPS servers: their clients
	servers  map[uint32]uint32            // of clients on one GPU, their MPS servers; of the present Poll

	settledSince time.Time

	traceFailed chan struct{} // a trace is to be closed, and opened again later
}

// groupName identifies a group of a process.
type groupName struct {
	pid   int
	start uint64
	discover.Key
}

func nameOf(g *discover.Group) groupName { return groupName{g.Process.PID, g.Process.Start, g.Key} }

// arrival is a group that is settling: it can be controlled when it has not changed for settleTime,
// or after maxSettleTime.
type arrival struct {
	group      *discover.Group
	due        time.Time     // when it can be controlled; a change of the group postpones it
	last       time.Time     // the latest value of due, however often the group changes
	wait       time.Duration // before the next attempt, after one that the driver refused for now
	tries      int           // attempts that the driver refused for now
	controlled bool          // it has a queue of an earlier report that is controlled meanwhile
}

// settled is what is kept of an arrival, for the case that its group is reported as gone and found
// again.
type settled struct {
	left  time.Duration // how long the group may be settling again
	tries int           // as in arrival
}

// queue is a group that was offered and accepted.
type queue struct {
	name   groupName
	gpu    *gpu
	handle hal.QueueHandle
	group  *group        // nil: it is settling
	found  time.Duration // its slice before it was attached
	mps    bool          // it belongs to an MPS server
	pool   string        // the label of the server's pool; empty: none

	measured bool // its device time was reported, and not that the measurement is lost
}

// restoration is the restoring of a group that was withdrawn. An offer of the same group must wait for done, and takes over the slice that was found first.
type restoration struct {
	found time.Duration
	done  <-chan struct{}
}

// settleTime is how long a group must be unchanged before it is controlled. CUDA sets the
// slice itself while it makes a context. A group that was attached before that, and
// restored afterwards, was left with half its slice (seen on an H200).
//
// A process that changes its group all the time would never be controlled, so that ends after
// maxSettleTime. A process can also forge frees of its group, so that discovery reports it as gone
// and found as often as the process likes. So a group may be settling for maxSettleTime in all in
// each settlePeriod.
const (
	settleTime    = 250 * time.Millisecond
	maxSettleTime = 2 * time.Second
	settlePeriod  = time.Minute
)

// New returns a backend that is not started.
func New(cfg Config) *Backend {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Root == nil {
		cfg.Root = os.DirFS("/")
	}
	cfg.Control, cfg.GPUPattern = cmp.Or(cfg.Control, nvrm.ControlPath), cmp.Or(cfg.GPUPattern, nvrm.GPUPattern)
	if cfg.readMemory == nil {
		cfg.readMemory = nvtrace.DeviceMemory
	}
	if cfg.openTrace == nil {
		cfg.openTrace = openTrace
	}
	b := &Backend{
		cfg: cfg, log: cfg.Log, restoring: make(map[discover.Key]restoration), arrivals: make(map[groupName]*arrival), settled: make(map[groupName]settled), members: make(map[groupName][]proc.Process),
		servers: make(map[uint32]uint32), traceFailed: make(chan struct{}, 1),
	}
	b.driver = loadedDriver{root: cfg.Root, control: cfg.Control, pattern: cfg.GPUPattern}
	return b
}

// Name implements hal.Backend.
func (b *Backend) Name() string { return "nvidia" }

// Start implements hal.Backend. A driver may be loaded later, so Start succeeds without
// one and waits for its control device.
func (b *Backend) Start(ctx context.Context, h hal.Host) error {
	b.host = h
	if _, err := os.Stat(b.cfg.Control); err == nil {
		switch err := b.discover(ctx); {
		case errors.Is(err, errClaimed):
			b.log.Warn("NVIDIA GPUs are not controlled until the other daemon ends", "error", err)
		case err != nil:
			return err
		}
	}
	b.ended.Go(func() { b.run(ctx) })
	return nil
}

// discover starts discovery, unless another daemon controls the GPUs.
func (b *Backend) discover(ctx context.Context) error {
	claimed, err := claim(b.cfg.Control)
	if errors.Is(err, errClaimed) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.watchErr = err
		return err
	}
	if s := b.driver.state(); !s.mayChange() {
		b.log.Warn("NVIDIA driver is unknown and its self-test failed: nothing is changed", "version", s.Version, "error", s.selfTest)
	}
	c := b.cfg.discover()
	c.Ignore, c.Slice, c.Account = b.host.IsGuardian, b.sliceOf, b.host.Account
	w, err := discover.Watch(ctx, c)
	if err != nil {
		_ = claimed.Close() // nil: an error
		claimed = nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watch, b.watchErr, b.claimed = w, err, claimed
	return err
}

// sliceOf returns the slice that was set for a group; zero: none was, or a call is under way.
func (b *Backend) sliceOf(p proc.ID, key discover.Key) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := groupName{p.PID, p.Start, key}
	i := slices.IndexFunc(b.queues, func(q *queue) bool { return q.name == name && q.group != nil })
	if i < 0 {
		return 0
	}
	return time.Duration(b.queues[i].group.set.Load())
}

// run handles the events of discovery until ctx is done.
func (b *Backend) run(ctx context.Context) {
	defer b.dropArrivals(func(groupName) bool { return true })
	if !b.waitForDriver(ctx) {
		return
	}
	events := b.watch.Events()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if due, any := b.nextDue(); any {
			timer.Reset(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			b.offerDue(time.Now())
			b.reopenTraces(time.Now())
		case <-b.traceFailed:
			b.reopenTraces(time.Now())
		case ev, ok := <-events:
			switch {
			case !ok: // discovery has ended, because ctx is done
				events = nil
			case ev.Found != nil:
				b.arrived(ev.Found, time.Now())
			case ev.Gone != nil:
				b.gone(ev.Gone, time.Now())
			case ev.Joined != nil:
				b.setMember(ev.Joined, true)
			case ev.Left != nil:
				b.setMember(ev.Left, false)
			}
		}
	}
}

// driverInterval is how often the control device is looked for while there is none. Tests
// set it.
var driverInterval = 2 * time.Second

// waitForDriver returns true when discovery has started: there is a driver, and no other daemon
// controls the GPUs.
func (b *Backend) waitForDriver(ctx context.Context) bool {
	for b.watch == nil {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(driverInterval):
		}
		if _, err := os.Stat(b.cfg.Control); err != nil {
			continue
		}
		if err := b.discover(ctx); err != nil && !errors.Is(err, errClaimed) {
			b.log.Error("NVIDIA processes cannot be discovered", "error", err)
			return false
		}
	}
	return true
}

// Close implements hal.Backend.
func (b *Backend) Close() error {
	b.ended.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.gpus {
		g.close()
	}
	_ = b.claimed.Close() // nil: an error
	return nil
}

// Find implements hal.Finder. Discovery looks at the process soon; Find does not wait.
func (b *Backend) Find(pid int) hal.Found {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, a := range b.arrivals {
		if name.pid == pid {
			return hal.Found{Pending: &a.group.Process}
		}
	}
	if b.watch != nil {
		b.watch.Rescan(pid)
	}
	for _, q := range b.queues {
		if q.mps {
			return hal.Found{Note: fmt.Sprintf("if it is a client of MPS, its work runs in the channel group of the MPS server, process %d, which is one queue for all clients: set that process", q.name.pid)}
		}
	}
	return hal.Found{}
}

// KernelLogLines implements hal.KernelLogger.
func (b *Backend) KernelLogLines() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watch == nil {
		return 0
	}
	return b.watch.WrongGuesses()
}

// How often the trace of a GPU is read. Each read takes the driver's locks for a moment,
// and a request that arrives just then waits about 10 us longer.
const (
	turnInterval = 5 * time.Millisecond  // a batch queue shares the GPU: how it uses its turns, and ping-pong, must be noticed
	idleInterval = 25 * time.Millisecond // otherwise
)

// Poll implements hal.Poller. It reports the device time of every process with a queue on
// a GPU whose trace is read, changed or not.
func (b *Backend) Poll(now sched.Time, f hal.Facts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.gpus {
		if g.due(now, turnInterval) && g.due(now, b.interval(g)) {
			b.pollGPU(g, now, f)
		}
	}
}

// pollGPU reads the trace of g and reports what it says. b.mu is held.
func (b *Backend) pollGPU(g *gpu, now sched.Time, f hal.Facts) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b.findProcesses(g)
	known, err := g.poll(now, f, b.servers)
	for _, q := range b.queues {
		if q.gpu == g && g.processes[q.name.pid].queue == q {
			g.report(q, known, f)
		}
	}
	if err == nil {
		return
	}
	b.log.Warn("context-switch trace has failed: device time is estimated until it can be opened again", "gpu", g.info.Device.ID, "error", err)
	g.fail(err, time.Now())
	select {
	case b.traceFailed <- struct{}{}:
	default: // run knows already
	}
}

// findProcesses finds the processes with a queue on g, which are tracked, and the pid of the
// MPS server of each client of one there. The trace has the pid of the process that made a
// channel. All clients of a server use one context, on channels of their own. b.mu and g.mu
// are held.
func (b *Backend) findProcesses(g *gpu) {
	clear(g.processes)
	clear(b.servers)
	for _, q := range b.queues {
		if q.gpu != g {
			continue
		}
		p, known := g.processes[q.name.pid]
		if p.more = known; !known {
			p.queue = q
			if g.account != nil {
				g.account.Track(uint32(q.name.pid))
			}
		}
		g.processes[q.name.pid] = p
		if q.mps {
			for _, m := range b.members[q.name] {
				b.servers[uint32(m.PID)] = uint32(q.name.pid)
			}
		}
	}
}

// interval returns how often the trace of g is read. b.mu is held.
func (b *Backend) interval(g *gpu) time.Duration {
	turns, queues := 0, 0
	for _, q := range b.queues {
		if q.gpu != g {
			continue
		}
		queues++
		if q.handle.Process().Settings().TakesTurns {
			turns++
		}
	}
	if turns == 0 || queues < 2 {
		return idleInterval
	}
	return turnInterval
}

// Checks implements hal.Backend.
func (b *Backend) Checks() []hal.Check {
	b.mu.Lock()
	watch, watchErr, gpus := b.watch, b.watchErr, slices.Clone(b.gpus)
	b.mu.Unlock()
	driver, _ := b.driver.check()
	checks := []hal.Check{driver}
	switch {
	case errors.Is(watchErr, errClaimed):
		checks = append(checks, hal.Check{
			Name: "NVIDIA GPUs", Detail: watchErr.Error() + "; this one does not",
			Fix: "use the other daemon, or end it: this one takes its place at once",
		})
	case watchErr != nil:
		checks = append(checks, hal.Check{Name: "discovery", Detail: watchErr.Error()})
	}
	if watch != nil {
		checks = append(checks, discoverChecks(watch)...)
	}
	for _, g := range gpus {
		checks = append(checks, g.check())
	}
	return checks
}

// discoverChecks returns the checks of discovery.
func discoverChecks(w *discover.Watcher) []hal.Check {
	checks := w.Checks()
	if n := w.WrongGuesses(); n > 0 {
		checks = append(checks, hal.Check{
			Name: "kernel log", OK: true,
			Detail: fmt.Sprintf("%d lines, each from a wrong guess at a handle of a process that is older than the daemon", n),
		})
	}
	return checks
}

var (
	_ hal.Backend      = (*Backend)(nil)
	_ hal.Poller       = (*Backend)(nil)
	_ hal.Finder       = (*Backend)(nil)
	_ hal.Adopter      = (*Backend)(nil)
	_ hal.Reopener     = (*Backend)(nil)
	_ hal.Restorer     = (*Backend)(nil)
	_ hal.Prober       = (*Backend)(nil)
	_ hal.KernelLogger = (*Backend)(nil)
	_ hal.Tracing      = (*gpu)(nil)
)
