package nvidia

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/sched"
)

// traceReader is a *nvtrace.Trace, or a test's.
type traceReader interface {
	Started() int64
	AllUsers() bool
	Clock() (int64, error)
	Read() ([]nvtrace.Switch, error)
	Dropped() uint64
	Close() error
}

func openTrace(c nvtrace.Config) (traceReader, error) {
	t, err := nvtrace.Open(c)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Reasons for which the trace is not opened.
var (
	// Tracing makes every context switch about 6 us longer (H200).
	errTraceOff      = errors.New("turned off by the configuration")
	errUnknownDriver = errors.New("not opened: the driver is unknown, and reading with a wrong layout could damage its state")
)

// openTraceOf opens the trace of a GPU if that is allowed.
func (b *Backend) openTraceOf(g *gpu, driver driverState) (traceReader, error) {
	switch {
	case b.cfg.NoTrace:
		return nil, errTraceOff
	case !driver.known:
		return nil, errUnknownDriver
	}
	return b.cfg.openTrace(b.accessTo(g))
}

// accessTo says how to open a GPU.
func (b *Backend) accessTo(g *gpu) nvtrace.Config {
	return nvtrace.Config{Control: b.cfg.Control, DevicePattern: b.cfg.GPUPattern, Index: g.info.Index, UUID: string(g.info.Device.ID)}
}

// process is a process with a queue on a GPU. The trace knows processes, not queues: the
// first queue of a process stands for all.
type process struct {
	queue *queue
	more  bool // it has further queues there
}

// due reports whether the trace was last read at least the time every ago.
func (g *gpu) due(now sched.Time, every time.Duration) bool {
	return g.readAt == 0 || now.Sub(g.readAt) >= every
}

// poll reads the trace and reports the spans. known is false if the trace cannot be read,
// or does not say what is on the GPU now. g.mu is held.
func (g *gpu) poll(now sched.Time, f hal.Facts, serverOf map[uint32]uint32) (known bool, err error) {
	g.readAt = now
	if g.account == nil {
		return false, nil // the trace was never opened
	}
	g.timeline.begin(now)
	if g.trace != nil {
		err = g.readTrace(serverOf)
	}
	known = g.trace != nil && err == nil
	if !known {
		g.timeline.add(hal.Span{End: now})
	}
	if len(g.timeline.spans) > 0 {
		f.Spans(g, g.timeline.spans)
		g.timeline.spans = g.timeline.spans[:0]
	}
	return known && g.account.Known(), err
}

// readTrace brings the account up to date. The time of the processes in serverOf counts for
// their servers. g.mu is held.
func (g *gpu) readTrace(serverOf map[uint32]uint32) error {
	before := time.Now()
	clock, err := g.trace.Clock() // before Read, which then has every switch up to it
	if err != nil {
		return err
	}
	g.timeline.synchronize(clock, before, time.Now())
	switches, err := g.trace.Read()
	for i := range switches {
		if server, ok := serverOf[switches[i].PID]; ok {
			switches[i].PID = server
		}
	}
	g.account.Add(switches)
	g.account.Advance(clock)
	return err
}

// report reports the device time of a process by its queue, or that its measurement is lost.
// g.mu is held.
func (g *gpu) report(q *queue, known bool, f hal.Facts) {
	var u nvtrace.Usage
	if known {
		u, known = g.account.Usage(uint32(q.name.pid))
	}
	if q.mps && u.SwitchIns == 0 && u.Resident == 0 {
		known = false // its clients, whose pids the trace has, are not known yet
	}
	switch {
	case known:
		visits := u.Visits
		visits.Known = true
		if u.Arrived > 0 {
			visits.Arrived = g.timeline.at(u.Arrived)
		}
		if u.Left > 0 {
			visits.Left = g.timeline.at(u.Left)
		}
		q.measured = true
		f.DeviceTime(q.handle, u.Resident, visits)
	case q.measured:
		q.measured = false
		f.MeasurementLost(q.handle)
	}
}

// forget drops the usage of a process that has no queue left: its pid may be used again.
func (g *gpu) forget(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.account != nil {
		g.account.Forget(uint32(pid))
	}
}

// How long a trace that has failed, or could not be opened, is left closed before it is opened again. The time doubles
// with each failure, unless the trace was read for maxReopen in between. Each attempt takes
// the locks of all GPUs, and one that fails may disturb other readers of the trace.
const (
	minReopen = time.Second
	maxReopen = 5 * time.Minute
)

// reopening is when a trace that has failed, or could not be opened, is opened again.
type reopening struct {
	at       time.Time     // zero: it is open, or cannot be
	wait     time.Duration // the last one
	openedAt time.Time
	failed   traceReader // to be closed; nil: none
}

// later sets the time of the next attempt.
func (r *reopening) later(now time.Time) {
	r.wait = min(max(2*r.wait, minReopen), maxReopen)
	r.at = now.Add(r.wait)
}

// fail ends the use of a trace that cannot be read. It is closed and opened again by run,
// for that takes many driver calls. g.mu is held.
func (g *gpu) fail(err error, now time.Time) {
	if now.Sub(g.reopen.openedAt) >= maxReopen {
		g.reopen.wait = 0
	}
	g.reopen.failed, g.trace, g.traceErr = g.trace, nil, err
	g.reopen.later(now)
}

// reopenTraces closes the traces that have failed, and opens those whose time has come.
func (b *Backend) reopenTraces(now time.Time) {
	b.mu.Lock()
	gpus := slices.Clone(b.gpus)
	b.mu.Unlock()
	for _, g := range gpus {
		g.mu.Lock()
		failed, due := g.reopen.failed, !g.reopen.at.IsZero() && !g.reopen.at.After(now)
		g.reopen.failed = nil
		g.mu.Unlock()
		if failed != nil {
			_ = failed.Close()
		}
		if due {
			t, err := b.openTraceOf(g, b.driver.state())
			g.opened(t, err, now)
			if err == nil {
				b.log.Info("context-switch trace is read now", "gpu", g.info.Device.ID)
			}
		}
	}
}

// opened takes in the result of an attempt to open the trace.
func (g *gpu) opened(t traceReader, err error, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reopen.at = time.Time{}
	if g.traceErr = err; err != nil {
		if g.account != nil || !isFinal(err) { // a driver that let us have it once may do so again
			g.reopen.later(now)
		}
		return
	}
	g.trace, g.reopen.openedAt = t, now
	if g.account != nil {
		g.account.Reopen(t.Started())
		return
	}
	g.account = nvtrace.NewAccount(t.Started())
	g.account.MinAbsence = sched.MinAbsence
	g.account.Slice = g.sliceOf
	g.account.Left, g.account.Cut, g.account.Spent = g.left, g.cut, g.timeline.spent
}

// isFinal reports whether a trace that could not be opened cannot be opened later either.
func isFinal(err error) bool {
	return errors.Is(err, errTraceOff) || errors.Is(err, errUnknownDriver) || errors.Is(err, nvtrace.ErrRefused)
}

// nextReopen returns when the trace is to be opened again; zero: it is open, or cannot be.
func (g *gpu) nextReopen() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reopen.at
}

// close closes the trace, because the daemon shuts down.
func (g *gpu) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range []traceReader{g.trace, g.reopen.failed} {
		if t != nil {
			_ = t.Close()
		}
	}
	g.trace, g.reopen = nil, reopening{}
}

// check says whether the trace is read.
func (g *gpu) check() hal.Check {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := hal.Check{Name: "context-switch trace of " + string(g.info.Device.ID)}
	switch {
	case g.trace != nil:
		t := g.account.Totals()
		c.OK = true
		c.Detail = fmt.Sprintf("%d switches, P50 %v, P99 %v, %d lost", t.Switches, t.P50, t.P99, g.trace.Dropped())
		if !g.trace.AllUsers() {
			c.Detail += "; processes of this user only"
		}
	case errors.Is(g.traceErr, errTraceOff):
		c.OK, c.Detail = true, "turned off by the configuration: device time is estimated"
	case g.traceErr != nil:
		c.Detail = g.traceErr.Error() + ": device time is estimated"
		c.Fix = "run the daemon as root; under MIG or confidential computing the driver has no trace"
		switch {
		case errors.Is(g.traceErr, errUnknownDriver):
			c.Fix = "use a driver that docs/DRIVERS.md lists as compared"
		case !g.reopen.at.IsZero():
			c.Fix = fmt.Sprintf("wait: the daemon opens it again, up to %v after a failure; see its log and the kernel's", maxReopen)
		}
	default:
		c.OK, c.Detail = true, "closed"
	}
	return c
}
