package amd

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
)

// File is an open /dev/kfd that is ours to close.
type File interface {
	kfd.Ioctler
	io.Closer
}

// Config says where things are. Its zero value is for the machine that we are on.
type Config struct {
	Dev   string        // "": /dev/kfd
	Sys   kfd.Sysfs     // "": /sys
	Proc  string        // "": /proc
	Grace time.Duration // how long waves may go on before they are taken off; at most some 100 us
	Only  int           // the uid whose processes are managed, or proc.Everyone
	Log   *slog.Logger  // nil: nothing is logged
	// Shim returns the shim of a process, or nil. nil: no process has one.
	Shim func(pid int) Shim
	// File stands for Dev, Tracer for ptrace: for tests. nil: the real ones.
	File   File
	Tracer Tracer
}

// Driver is the driver of this machine, with all its GPUs.
type Driver struct {
	file     File
	sys      kfd.Sysfs
	proc     string
	grace    time.Duration
	features kfd.Features
	nodes    []kfd.Node
	strange  error // of the topology
	ways     []way
	refused  map[string]error // ways that cannot be used at all, and why
	devices  []*Device
	stats    stats

	mu       sync.Mutex
	attached map[int]int // queues of each process
}

// way is one way to stop queues of a process.
type way interface {
	name() string
	// prove reports whether a queue can be stopped, without stopping it.
	prove(*Device, Target) error
	// stop and start are one call on queues of one process, with an error for each.
	stop(pid int, queues []*queue) []error
	start(pid int, queues []*queue) []error
	// leave gives a process up with everything of it undone.
	leave(pid int) error
}

// Open opens the driver. It finds out what it can do, and changes nothing. A
// driver with which nothing can be done is opened all the same: its queues can be
// looked at, and Doctor says why.
func Open(cfg Config) (*Driver, error) {
	if cfg.Dev == "" {
		cfg.Dev = "/dev/kfd"
	}
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Tracer == nil {
		cfg.Tracer = Ptrace{}
	}
	d := &Driver{file: cfg.File, sys: cfg.Sys, proc: cfg.Proc, grace: cfg.Grace, refused: map[string]error{}, attached: map[int]int{}}
	d.nodes, d.strange = cfg.Sys.Nodes()
	if len(d.nodes) == 0 {
		return nil, errors.Join(fmt.Errorf("no AMD GPU: %w", hal.ErrNotSupported), d.strange)
	}
	if d.file == nil {
		f, err := kfd.Open(cfg.Dev)
		if err != nil {
			return nil, err
		}
		d.file = f
	}
	var err error
	if d.features, err = kfd.Probe(d.file); err != nil {
		return nil, errors.Join(err, d.file.Close())
	}
	debug := &debugWay{driver: d, tracer: cfg.Tracer, sessions: map[int]*held{}}
	for _, w := range []struct {
		way way
		err error
	}{
		{&batchWay{d}, d.features.Batch},
		{debug, errors.Join(d.features.Debug, suitable(d.nodes, d.strange))},
	} {
		if w.err != nil {
			d.refused[w.way.name()] = w.err
			continue
		}
		d.ways = append(d.ways, w.way)
	}
	if cfg.Shim != nil {
		d.ways = append(d.ways, &ownWay{driver: d, shim: cfg.Shim, places: map[place]*standstill{}})
	}
	for i, n := range d.nodes {
		d.devices = append(d.devices, newDevice(d, i, n))
	}
	return d, nil
}

// Devices returns the GPUs.
func (d *Driver) Devices() []*Device { return slices.Clone(d.devices) }

// Queues lists the compute queues of all processes but our own.
func (d *Driver) Queues() ([]kfd.Queue, error) {
	pids, err := d.sys.Processes()
	if err != nil {
		return nil, err
	}
	var found []kfd.Queue
	var wrong []error
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		queues, err := d.QueuesOf(pid)
		wrong = append(wrong, err)
		found = append(found, queues...)
	}
	return found, errors.Join(wrong...)
}

// QueuesOf lists the compute queues of a process: none, if it does not use KFD.
func (d *Driver) QueuesOf(pid int) ([]kfd.Queue, error) {
	queues, err := d.sys.Queues(pid)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return slices.DeleteFunc(queues, func(q kfd.Queue) bool { return !q.Type.IsCompute() }), err
}

// Quiet reports whether to attach a queue disturbs nobody.
func (d *Driver) Quiet() bool { return d.features.Batch == nil }

// Close gives everything up, undone.
func (d *Driver) Close() error {
	d.mu.Lock()
	pids := d.attached
	d.attached = map[int]int{}
	d.mu.Unlock()
	var errs []error
	for pid := range pids {
		errs = append(errs, d.leave(pid))
	}
	return errors.Join(append(errs, d.file.Close())...)
}

func (d *Driver) leave(pid int) error {
	var errs []error
	for _, w := range d.ways {
		errs = append(errs, w.leave(pid))
	}
	return errors.Join(errs...)
}

// detach notes that a queue of a process is given up; with the last of them the
// process is.
func (d *Driver) detach(pid int) error {
	d.mu.Lock()
	d.attached[pid]--
	last := d.attached[pid] == 0
	if last {
		delete(d.attached, pid)
	}
	d.mu.Unlock()
	if last {
		return d.leave(pid)
	}
	return nil
}

// suitable says why debug sessions would hurt on GPUs. A session is of a process
// with all the GPUs of the machine, used or not, so one is enough.
func suitable(nodes []kfd.Node, strange error) error {
	if strange != nil {
		return fmt.Errorf("a GPU is not understood: %w", strange)
	}
	for _, n := range nodes {
		if why := unsuitable(n); why != "" {
			return fmt.Errorf("GPU %d is %v: %s: %w", n.GPU, n.GFX, why, hal.ErrNotSupported)
		}
	}
	return nil
}

// unsuitable says why a debug session would hurt on a GPU. The versions are those
// of kfd_dbg_is_per_vmid_supported and kfd_dbg_has_cwsr_workaround.
func unsuitable(n kfd.Node) string {
	const can = kfd.CapTrapDebug | kfd.CapTrapDebugFirmware
	switch {
	case n.Capability&can != can:
		return "its driver or firmware does not offer queue suspension"
	case n.GFX >= 110000 && n.GFX <= 110003:
		return "a debug session there halves the compute units of the process"
	case n.GFX == 90010, n.GFX >= 90400 && n.GFX < 100000, n.GFX >= 110000:
		return ""
	}
	return "only one process at a time can be debugged there, and the session takes a VMID from all others"
}

// Check is a thing that a doctor looks at.
type Check struct {
	Name   string
	OK     bool
	Detail string
}

// Doctor says what works here and what does not, and why.
func (d *Driver) Doctor() []Check {
	checks := []Check{{"driver", true, fmt.Sprintf("KFD %v, %d GPUs", d.features.Version, len(d.nodes))}}
	if d.strange != nil {
		checks = append(checks, Check{"topology", false, d.strange.Error()})
	}
	for _, w := range []struct{ name, works string }{
		{"batch", "the driver has the batch ioctls: queues of any process of ours are stopped by one call"},
		{"debug", "queues are suspended through the debugger interface: each process needs to let us trace it"},
	} {
		c := Check{w.name, true, w.works}
		if err := d.refused[w.name]; err != nil {
			c.OK, c.Detail = false, err.Error()
		}
		checks = append(checks, c)
	}
	if slices.ContainsFunc(d.ways, func(w way) bool { return w.name() == ownName }) {
		checks = append(checks, Check{ownName, true, "programs that were started with the shim stop their own queues, where we cannot"})
	}
	checks = append(checks, d.ptraceCheck())
	for _, dev := range d.devices {
		u, err := dev.Usage()
		c := Check{"slots of " + string(dev.info.Device.ID), err == nil && !u.Oversubscribed(), u.String()}
		if err != nil {
			c.Detail = err.Error()
		}
		checks = append(checks, c)
	}
	return checks
}

// ptraceCheck looks at the rule of the system for who may trace whom (Yama).
func (d *Driver) ptraceCheck() Check {
	text, err := os.ReadFile(filepath.Join(d.proc, "sys/kernel/yama/ptrace_scope"))
	switch scope := strings.TrimSpace(string(text)); {
	case err != nil, scope == "0":
		return Check{"ptrace", true, "processes of the same user may be traced, and by root all"}
	case scope == "3":
		return Check{"ptrace", false, "nobody may trace anybody here (ptrace_scope is 3): without the batch ioctls only programs with the shim can be stopped"}
	default:
		return Check{"ptrace", true, "only who has CAP_SYS_PTRACE may trace others (ptrace_scope)"}
	}
}
