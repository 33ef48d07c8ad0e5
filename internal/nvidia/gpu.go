package nvidia

import (
	"bufio"
	"bytes"
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
	// minSharedSlice is well above what two groups need to make progress in turn: a group makes
	// none in the first 40 us after it was switched in.
	minSharedSlice = 200 * time.Microsecond
	switchTime     = 165 * time.Microsecond
	stopTime       = 800 * time.Microsecond
)

// deviceInfo describes a GPU to the daemon.
func deviceInfo(uuid, model string, index int) hal.Info {
	return hal.Info{
		Device: sched.Device{
			ID: sched.DeviceID(uuid), Slice: defaultSlice, MinSharedSlice: minSharedSlice, SwitchTime: switchTime, StopTime: stopTime,
		},
		Backend: "nvidia", Model: model, Index: index,
	}
}

// gpu is one GPU and, where the driver permits it, its context-switch trace. It implements
// hal.Device, hal.Tracing and hal.MemoryReader.
type gpu struct {
	info    hal.Info
	backend *Backend

	mu        sync.Mutex
	trace     traceReader      // nil: not read
	traceErr  error            // why not
	reopen    reopening        // of a trace that failed, or could not be opened
	account   *nvtrace.Account // nil: the trace was never opened
	timeline  timeline
	readAt    sched.Time      // when the trace was last read
	processes map[int]process // with a queue on the GPU, by pid; of the present Poll
}

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
	g := &gpu{backend: b, info: deviceInfo(uuid, model, index), processes: make(map[int]process)}
	t, err := b.openTraceOf(g, driver)
	if g.opened(t, err, time.Now()); err != nil {
		b.log.Warn("context-switch trace cannot be read: device time is estimated", "gpu", uuid, "reason", err)
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

// Memory implements hal.MemoryReader.
func (g *gpu) Memory(pids []int) (map[int]uint64, error) {
	if !g.backend.driver.state().known {
		return nil, errUnknownDriver
	}
	return g.backend.cfg.readMemory(g.backend.accessTo(g), pids)
}
