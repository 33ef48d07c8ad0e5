package amd

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
)

// Config configures the backend.
type Config struct {
	Only int          // the uid whose processes are managed, or proc.Everyone
	Log  *slog.Logger // nil: nothing is logged
	// Shim returns the shim of a process, or nil. A nil Shim means that no process has one.
	Shim func(pid int) Shim

	// OnlineSlots is how many hardware slots of each GPU batch work leaves free for online
	// processes, or AutoSlots or NoSlots.
	OnlineSlots int

	Dev  string    // empty: /dev/kfd
	Sys  kfd.Sysfs // empty: /sys
	Proc string    // empty: /proc

	// File replaces Dev, and Tracer replaces ptrace, in tests.
	File   File
	Tracer Tracer
}

// File is an open /dev/kfd that the driver closes.
type File interface {
	kfd.Ioctler
	io.Closer
}

// driver is the KFD driver of this machine.
type driver struct {
	file        File
	sys         kfd.Sysfs
	proc        string
	features    kfd.Features
	topologyErr error // some GPUs could not be parsed
	onlineSlots int   // Config.OnlineSlots
	gpus        []*gpu
	methods     []method         // that work here, best first
	refused     map[string]error // why the other methods do not work here
	stats       stats

	mu       sync.Mutex
	attached map[int]int // number of attached queues by pid
}

// method is one method to stop queues.
type method interface {
	name() string
	// prove returns an error if a queue cannot be stopped. It does not stop the queue.
	prove(*gpu, target) error
	// stop and start act on queues of one process and return the result for each.
	stop(pid int, queues []*queue) []error
	start(pid int, queues []*queue) []error
	// release undoes everything that was done to a process.
	release(pid int) error
}

// open opens the driver and finds out what it offers. It changes nothing. A driver that
// offers no method to stop queues is opened as well, to list queues and to say why.
func open(cfg Config) (*driver, error) {
	setDefault(&cfg.Dev, "/dev/kfd")
	setDefault(&cfg.Sys, "/sys")
	setDefault(&cfg.Proc, "/proc")
	if cfg.Tracer == nil {
		cfg.Tracer = Ptrace{}
	}
	nodes, topologyErr := cfg.Sys.Nodes()
	if len(nodes) == 0 {
		return nil, errors.Join(fmt.Errorf("no AMD GPU: %w", hal.ErrNotSupported), topologyErr)
	}
	d := &driver{
		file: cfg.File, sys: cfg.Sys, proc: cfg.Proc, topologyErr: topologyErr, onlineSlots: cfg.OnlineSlots,
		refused: make(map[string]error), attached: make(map[int]int),
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
	for _, m := range []struct {
		method method
		err    error
	}{
		{&batchMethod{d}, d.features.Batch},
		{newDebugMethod(d, cfg.Tracer), errors.Join(d.features.Debug, sessionError(nodes, topologyErr))},
	} {
		if m.err != nil {
			d.refused[m.method.name()] = m.err
			continue
		}
		d.methods = append(d.methods, m.method)
	}
	if cfg.Shim != nil {
		d.methods = append(d.methods, newOwnMethod(d, cfg.Shim))
	}
	enabled, enabledErr := cfg.Sys.CWSREnabled()
	for i, n := range nodes {
		d.gpus = append(d.gpus, newGPU(d, i, n, probeCWSR(n, enabled, enabledErr)))
	}
	return d, nil
}

func setDefault[S ~string](s *S, value S) {
	if *s == "" {
		*s = value
	}
}

// queues lists the compute queues of all processes but this one.
func (d *driver) queues() ([]kfd.Queue, error) {
	pids, err := d.sys.Processes()
	if err != nil {
		return nil, err
	}
	var found []kfd.Queue
	var errs []error
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		queues, err := d.queuesOf(pid)
		errs = append(errs, err)
		found = append(found, queues...)
	}
	return found, errors.Join(errs...)
}

// queuesOf lists the compute queues of a process: none if it does not use KFD.
func (d *driver) queuesOf(pid int) ([]kfd.Queue, error) {
	queues, err := d.sys.Queues(pid)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return slices.DeleteFunc(queues, func(q kfd.Queue) bool { return !q.IsCompute() }), err
}

// attachingStalls reports whether attaching a queue stalls the GPU for a moment: without
// the batch ioctls it takes a debug session, which makes the GPU load its runlist again.
func (d *driver) attachingStalls() bool { return d.features.Batch != nil }

// close undoes everything and closes the driver.
func (d *driver) close() error {
	d.mu.Lock()
	pids := d.attached
	d.attached = make(map[int]int)
	d.mu.Unlock()
	var errs []error
	for pid := range pids {
		errs = append(errs, d.release(pid))
	}
	return errors.Join(append(errs, d.file.Close())...)
}

func (d *driver) release(pid int) error {
	var errs []error
	for _, m := range d.methods {
		errs = append(errs, m.release(pid))
	}
	return errors.Join(errs...)
}

// detach counts an attached queue of a process down, and releases the process with the
// last of them.
func (d *driver) detach(pid int) error {
	d.mu.Lock()
	d.attached[pid]--
	last := d.attached[pid] == 0
	if last {
		delete(d.attached, pid)
	}
	d.mu.Unlock()
	if last {
		return d.release(pid)
	}
	return nil
}

// sessionError says why debug sessions are harmful on this machine, or returns nil. A
// session of a process covers all GPUs, used or not, so one unsuitable GPU is enough.
func sessionError(nodes []kfd.Node, topologyErr error) error {
	if topologyErr != nil {
		return fmt.Errorf("a GPU could not be parsed: %w", topologyErr)
	}
	for _, n := range nodes {
		if why := sessionHarm(n); why != "" {
			return fmt.Errorf("GPU %d is %v: %s: %w", n.GPU, n.GFX, why, hal.ErrNotSupported)
		}
	}
	return nil
}

// sessionHarm says why a debug session is impossible or harmful on a GPU. The versions are
// those of kfd_dbg_is_per_vmid_supported and kfd_dbg_has_cwsr_workaround.
func sessionHarm(n kfd.Node) string {
	const needed = kfd.CapTrapDebug | kfd.CapTrapDebugFirmware
	switch {
	case n.Capability&needed != needed:
		return "its driver or firmware does not offer queue suspension"
	case n.GFX >= 110000 && n.GFX <= 110003:
		return "a debug session there halves the compute units of the process"
	case n.GFX == 90010, n.GFX >= 90400 && n.GFX < 100000, n.GFX >= 110000:
		return ""
	}
	return "only one process at a time can be debugged there, and the session takes a VMID from all others"
}
