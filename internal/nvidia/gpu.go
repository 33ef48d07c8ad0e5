package nvidia

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/sched"
)

// Measured on an H200. Other GPUs are not known to differ.
const (
	defaultSlice = 2048 * time.Microsecond // of a compute group, as CUDA sets it
	minSlice     = time.Microsecond        // zero acts alike
	// minSharedSlice is well above what two groups need to make progress in turn. A group
	// that is switched in spends its first 31 us on that.
	minSharedSlice = 200 * time.Microsecond
	stopTime       = 800 * time.Microsecond
)

// deviceInfo describes a GPU to the daemon.
func deviceInfo(uuid, model string, index int) hal.Info {
	return hal.Info{
		Device: sched.Device{
			ID: sched.DeviceID(uuid), Slice: defaultSlice, MinSharedSlice: minSharedSlice, StopTime: stopTime,
		},
		Backend: "nvidia", Model: model, Index: index,
	}
}

// gpu is one GPU and, where the driver permits it, its context-switch trace. It implements
// hal.Device and hal.Tracing.
type gpu struct {
	info hal.Info

	mu       sync.Mutex
	trace    traceReader // nil: not read
	traceErr error       // why not
	account  *nvtrace.Account
	clock    int64 // the GPU's time at the last read
	read     sched.Time
}

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
	errTraceOff           = errors.New("turned off by the configuration")
	errTraceUnknownDriver = errors.New("not opened, for the driver is unknown and a wrong layout could do harm")
)

// gpu returns the record of a GPU, which is made and announced if it is new.
func (b *Backend) gpu(uuid string, driver driverState) *gpu {
	b.mu.Lock()
	for _, g := range b.gpus {
		if g.info.Device.ID == sched.DeviceID(uuid) {
			b.mu.Unlock()
			return g
		}
	}
	b.mu.Unlock()
	model, index := describeGPU(b.cfg.Root, uuid)
	g := &gpu{info: deviceInfo(uuid, model, index)}
	switch {
	case b.cfg.NoTrace:
		g.traceErr = errTraceOff
	case !driver.known:
		g.traceErr = errTraceUnknownDriver
	default:
		g.trace, g.traceErr = b.cfg.openTrace(nvtrace.Config{
			Control: b.cfg.Control, DevicePattern: b.cfg.GPUPattern, Index: index, UUID: uuid,
		})
	}
	if g.trace != nil {
		g.account = nvtrace.NewAccount(g.trace.Started())
		g.account.MinAbsence = sched.MinAbsence
		g.account.IsFull = func(visit time.Duration) bool { return sched.IsFull(visit, defaultSlice) }
	} else {
		b.log.Warn("context-switch trace cannot be read: device time is estimated", "gpu", uuid, "reason", g.traceErr)
	}
	b.mu.Lock()
	b.gpus = append(b.gpus, g)
	b.mu.Unlock()
	b.host.DeviceFound(g)
	return g
}

// describeGPU returns what the driver states about a GPU in
// /proc/driver/nvidia/gpus/*/information. index is the number of its device file; -1 if
// unknown.
func describeGPU(root fs.FS, uuid string) (model string, index int) {
	model, index = "NVIDIA GPU", -1
	files, _ := fs.Glob(root, "proc/driver/nvidia/gpus/*/information") // the pattern is valid
	for _, file := range files {
		text, err := fs.ReadFile(root, file)
		if err != nil || !bytes.Contains(text, []byte(uuid)) {
			continue
		}
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			key, value, _ := strings.Cut(lines.Text(), ":")
			value = strings.TrimSpace(value)
			switch key {
			case "Model":
				model = value
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					index = n
				}
			}
		}
	}
	return model, index
}

// Info implements hal.Device.
func (g *gpu) Info() hal.Info { return g.info }

// Tracing implements hal.Tracing.
func (g *gpu) Tracing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trace != nil
}

// due reports whether the trace was last read at least the time every ago.
func (g *gpu) due(now sched.Time, every time.Duration) bool {
	return g.read == 0 || now.Sub(g.read) >= every
}

// presence is when a process was on a GPU.
type presence struct {
	resident time.Duration
	visits   sched.Visits
}

// readTrace reads the trace and returns when each process was on the GPU so far, by pid.
// ok is false without a trace, and before the first context switch, when the process on
// the GPU is unknown. A trace that cannot be read is closed. The time of the processes in
// serverOf counts for their servers.
func (g *gpu) readTrace(now sched.Time, serverOf map[uint32]uint32) (processes map[int]presence, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.read = now
	if g.trace == nil {
		return nil, false
	}
	clock, err := g.trace.Clock() // before Read, which then has every switch up to it
	var switches []nvtrace.Switch
	if err == nil {
		switches, err = g.trace.Read()
	}
	if err != nil {
		g.closeTrace(err)
		return nil, false
	}
	g.clock = clock
	for i := range switches {
		if server, ok := serverOf[switches[i].PID]; ok {
			switches[i].PID = server
		}
	}
	g.account.Add(switches)
	processes = make(map[int]presence)
	for _, u := range g.account.Usage(clock) {
		p := presence{u.Resident, sched.Visits{Count: u.SwitchIns, Full: u.Full, Known: true}}
		if u.Arrived > 0 {
			p.visits.Arrived = now.Add(time.Duration(u.Arrived - clock))
		}
		processes[int(u.PID)] = p
	}
	return processes, len(processes) > 0
}

// switching returns the time lost in context switches up to the last read, and their number.
func (g *gpu) switching() (time.Duration, uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.account.Switching()
}

// closeTrace ends the trace. err is why; nil if the daemon shuts down. g.mu is held.
func (g *gpu) closeTrace(err error) {
	if g.trace != nil {
		_ = g.trace.Close()
		g.trace, g.traceErr = nil, err
	}
}

// check says whether the trace is read.
func (g *gpu) check() hal.Check {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := hal.Check{Name: "context-switch trace of " + string(g.info.Device.ID)}
	switch {
	case g.trace != nil:
		t := g.account.Totals(g.clock)
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
		if errors.Is(g.traceErr, errTraceUnknownDriver) {
			c.Fix = "use a driver that docs/DRIVERS.md lists as compared"
		}
	default:
		c.OK, c.Detail = true, "closed"
	}
	return c
}
