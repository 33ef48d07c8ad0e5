package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/sched"
)

// gpu is one GPU and, where the driver lets us, its own record of who ran. What
// programs with a shim use, and nobody knows more of, stands here as well.
type gpu struct {
	uuid  string // or the runtime
	index int    // -1: not known
	model string
	// One of these.
	device *nvidia.Device
	shims  *shim.Device
	amd    *amdGPU

	// The loop's alone.
	trace   *nvtrace.Trace // nil: refused
	why     error          // it was
	account *nvtrace.Account
	looked  time.Time
}

// lookEvery is how often the record is fetched at most, where there are jobs that take
// turns and one that lets its turn pass must be found; and lookRarely is where there
// are not. Each time takes the driver's locks, and a request that comes just then may
// wait for some 10 us more.
const (
	lookEvery  = 10 * time.Millisecond
	lookRarely = 25 * time.Millisecond
)

// errBlind is why the record is not read where the administrator does not want it:
// keeping it makes every switch some 6 us longer (H200).
var errBlind = errors.New("the configuration says eyes: false")

func newGPU(uuid string, blind bool, log *slog.Logger) *gpu {
	g := &gpu{uuid: uuid, index: -1, model: "NVIDIA GPU"}
	g.describe("/proc/driver/nvidia/gpus")
	g.device = nvidia.New(uuid, g.model)
	if blind {
		g.why = errBlind
		return g
	}
	g.trace, g.why = nvtrace.Open(nvtrace.Config{Index: g.index, UUID: uuid})
	if g.why == nil {
		g.account = nvtrace.NewAccount(g.trace.Started())
	} else {
		log.Warn("the hardware's record of who ran cannot be read: time is estimated", "gpu", uuid, "error", g.why)
	}
	return g
}

// newShims is what stands for the devices of a runtime.
func newShims(runtime string) *gpu {
	d := shim.New(runtime)
	return &gpu{uuid: runtime, index: -1, model: d.Info().Model, shims: d}
}

// info is what its backend says of it.
func (g *gpu) info() hal.Info {
	switch {
	case g.shims != nil:
		return g.shims.Info()
	case g.amd != nil:
		return g.amd.Info()
	}
	return g.device.Info()
}

func (g *gpu) id() sched.DeviceID { return sched.DeviceID(g.uuid) }

// describe reads what the driver tells of its GPUs.
func (g *gpu) describe(root string) {
	files, _ := filepath.Glob(filepath.Join(root, "*", "information"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte(g.uuid)) {
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for lines.Scan() {
			key, value, _ := strings.Cut(lines.Text(), ":")
			value = strings.TrimSpace(value)
			switch key {
			case "Model":
				g.model = value
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					g.index = n
				}
			}
		}
	}
}

// usage returns how long each process has been on the GPU so far, if it is time
// to look and somebody can tell.
func (g *gpu) usage(every time.Duration) ([]nvtrace.Usage, bool) {
	if g.trace == nil || time.Since(g.looked) < every {
		return nil, false
	}
	g.looked = time.Now()
	now, err := g.trace.Clock() // before Read, which then has all until now
	var switches []nvtrace.Switch
	if err == nil {
		switches, err = g.trace.Read()
	}
	if err != nil {
		g.why = err
		g.close()
		return nil, false
	}
	g.account.Add(switches)
	usage := g.account.Usage(now)
	return usage, len(usage) > 0 // before the first switch nobody knows whose the GPU is
}

func (g *gpu) close() {
	if g.trace != nil {
		_ = g.trace.Close()
		g.trace = nil
	}
}

// look gathers what was posted, what programs tell through their pages, and what
// the hardware says of who ran. Queues are opened with d.mu held, so nothing is told
// here of a queue before that it was opened.
func (d *Daemon) look(buf []sched.Event) []sched.Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	buf = d.box.take(buf)
	now := d.Now()
	for _, g := range d.guests {
		buf = d.hear(g, now, buf)
	}
	return d.watchHardware(buf)
}

// watchHardware tells for every queue on a GPU whose record can be read how long it
// ran, changed or not. The record tells processes, so where one has several groups
// on a GPU the first stands for all. d.mu is held.
func (d *Daemon) watchHardware(buf []sched.Event) []sched.Event {
	for _, g := range d.gpus {
		usage, ok := g.usage(d.lookAt(g))
		if !ok {
			continue
		}
		had := make(map[int]time.Duration)
		for _, u := range usage {
			had[int(u.PID)] = u.Resident
		}
		for pid, p := range d.processes {
			for _, q := range p.queues {
				if _, seen := had[pid]; q.gpu == g && q.shared != "" && !seen {
					break // the record has its clients' names
				}
				if q.gpu == g {
					buf = append(buf, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: q.id, Duration: had[pid]})
					break
				}
			}
		}
	}
	return buf
}

// lookAt is how often to look at a GPU. Standard processes are left alone by some
// policies, and take turns under the others. d.mu is held.
func (d *Daemon) lookAt(g *gpu) time.Duration {
	turns := 0
	for _, p := range d.processes {
		for _, q := range p.queues {
			untouched := p.attr.Class == sched.Online || p.attr.Class == sched.Standard && d.bySlices()
			if q.gpu == g && !untouched {
				turns++
			}
		}
	}
	if turns < 2 {
		return lookRarely
	}
	return lookEvery
}
