// Package discover tells which processes hold which compute groups on which
// NVIDIA GPU, and keeps that current.
//
// A process's descriptors of /dev/nvidiactl are copied with pidfd_getfd, and the
// resource manager is asked through the copy what its client holds. When to look
// is learnt from two eBPF programs that see allocations and frees, or, where
// those may not be loaded, by reading /proc again and again. Nothing is put into
// the process, and nothing of it is changed.
//
// Everything that comes from a process is hostile: names, command lines, and what
// the eBPF programs read from its memory. Such data say where to look; what is
// reported is what RM answers. Descriptors are used only when they are of the
// control device itself: a call on some other file could be made to hang.
package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// Group is a compute group of a process.
type Group struct {
	Process   proc.Process
	GPU       string // as nvidia-smi writes it
	Client    nvrm.Handle
	Handle    nvrm.Handle
	Subdevice nvrm.Handle
	Channels  []nvrm.Handle // none of an MPS server, whose clients' they are
	File      *nvrm.File    // our copy; the receiver closes it
	ID        uint32        // of the TSG, on its runlist
	MPSServer bool          // the process is nvidia-cuda-mps-server
}

// Event is one of its fields.
//
// A group is found again when its channels have changed: the later report takes
// the place of the earlier, and each has a File of its own to close. RM keeps
// what a process held until the last copy of its descriptor is closed, so
// whoever hears of Gone closes what it has at once.
type Event struct {
	Found *Group
	Gone  *Gone
}

// Gone says that a process went, or one group of it.
type Gone struct {
	PID    int
	Start  uint64
	Client nvrm.Handle
	Group  nvrm.Handle // zero: the whole process
}

// Config says where to look.
type Config struct {
	Proc    string        // "/proc" if empty
	Control string        // "/dev/nvidiactl" if empty
	Only    int           // the processes of this user, or proc.Everyone
	Poll    time.Duration // between looks at /proc, 2 s if zero
	NoBPF   bool
	Once    bool // look at all there is, however long that takes, and end
	// Ours says which processes besides this one hold copies of descriptors that
	// are other people's: they are not looked at. Nobody if nil.
	Ours func(pid int) bool
	Log  *slog.Logger // none if nil
}

// ours reports whether a process is one of ours.
func (c *Config) ours(pid int) bool {
	return pid == os.Getpid() || c.Ours != nil && c.Ours(pid)
}

// Check says whether something that discovery needs works.
type Check struct {
	Name   string
	OK     bool
	Detail string
	Fix    string // what to do about it, where not OK
}

// Watcher watches until its context ends, or has looked Once.
type Watcher struct {
	config Config
	proc   procfs
	log    *slog.Logger
	events chan Event
	exits  chan *holder
	calls  chan call
	done   <-chan struct{}
	stop   context.CancelFunc
	wake   chan struct{} // somebody asked for a Rescan
	tracer *tracer       // nil: /proc is polled

	guesses atomic.Uint64 // wrong ones

	mu      sync.Mutex // guards what follows, which other goroutines see
	asked   map[int]bool
	bpfErr  error
	procErr error
	denied  int // processes, at the last look

	// What follows is the loop's own.
	holders map[int]*holder
	owners  map[groupName]*holder
	seen    map[int]sighting    // by pid: processes that hold nothing
	refused map[int]uint64      // by pid, start times: processes we may not look into
	pending map[int]*pending    // by pid: calls not yet looked into
	clients map[nvrm.Handle]int // live clients, and by how many descriptors we know them
	census  census
	untold  bool        // it was said that RM does not tell
	noise   int         // wrong guesses of those that maxNoise bounds
	lowest  nvrm.Handle // the lowest client that was guessed
	highest nvrm.Handle
	traced  uint64 // of a process that started after this tick every call is seen
	lost    uint64 // calls that the tracer could not tell us of
	missed  bool   // calls that were too many for us
	nested  bool   // a scan within a scan, of a process that may own a group
	waiters sync.WaitGroup
}

// Watch starts to watch. The channel of Events is closed some time after the end;
// until then it must be read, for nothing is looked at while an event waits.
func Watch(ctx context.Context, c Config) (*Watcher, error) {
	w, err := newWatcher(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.NoBPF {
		w.bpfErr = errTurnedOff
	} else if w.tracer, w.bpfErr = trace(rmRequests); w.bpfErr == nil {
		w.traced = proc.BootTicks()
	} else {
		w.log.Info("eBPF is not available; reading /proc instead", "poll", w.config.Poll, "reason", w.bpfErr)
	}
	go w.run()
	return w, nil
}

func newWatcher(ctx context.Context, c Config) (*Watcher, error) {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Control == "" {
		c.Control = "/dev/nvidiactl"
	}
	if c.Poll <= 0 {
		c.Poll = 2 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{
		config: c, proc: procfs{proc.FS(c.Proc)}, log: c.Log,
		events: make(chan Event), exits: make(chan *holder), calls: make(chan call, 256),
		traced: math.MaxUint64, wake: make(chan struct{}, 1), asked: map[int]bool{},
		holders: map[int]*holder{}, owners: map[groupName]*holder{}, seen: map[int]sighting{},
		refused: map[int]uint64{}, pending: map[int]*pending{}, clients: map[nvrm.Handle]int{},
	}
	w.census = census{open: func() (controlFile, error) { return nvrm.Open(c.Control) }, within: sweepTime}
	if _, err := w.proc.PIDs(); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, fmt.Errorf("open a pidfd, which needs Linux 5.6: %w", err)
	}
	unix.Close(self)
	ctx, w.stop = context.WithCancel(ctx)
	w.done = ctx.Done()
	return w, nil
}

// Events returns the channel of what is found and what is gone.
func (w *Watcher) Events() <-chan Event { return w.events }

// Guesses returns how many wrong guesses at client handles there were, those that
// RM answers in silence left out. Each may have cost a line in the kernel's log.
func (w *Watcher) Guesses() uint64 { return w.guesses.Load() }

// Rescan has one process looked at soon. It does not wait.
func (w *Watcher) Rescan(pid int) {
	w.mu.Lock()
	w.asked[pid] = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Checks says what works at the moment.
func (w *Watcher) Checks() []Check {
	w.mu.Lock()
	bpfErr, procErr, denied := w.bpfErr, w.procErr, w.denied
	w.mu.Unlock()
	checks := []Check{
		{Name: "control device", OK: true, Detail: w.config.Control},
		{Name: "processes", OK: true, Detail: "listed in " + w.config.Proc},
		{Name: "permissions", OK: true, Detail: "every process could be looked at"},
		{Name: "eBPF", OK: true, Detail: "allocations are seen as they happen"},
	}
	if _, err := os.Stat(w.config.Control); err != nil {
		checks[0] = Check{checks[0].Name, false, err.Error(), "load NVIDIA's driver; in a container, have the device passed in"}
	}
	if procErr != nil {
		checks[1] = Check{checks[1].Name, false, procErr.Error(), "mount proc, without hidepid for this user"}
	}
	if denied > 0 {
		checks[2] = Check{
			checks[2].Name, false, fmt.Sprintf("%d processes may not be looked into", denied),
			"run as root or with CAP_SYS_PTRACE, or watch one user's processes as that user",
		}
	}
	if bpfErr != nil {
		checks[3] = Check{checks[3].Name, false, bpfErr.Error(), bpfFix(bpfErr)}
	}
	return checks
}

var errTurnedOff = errors.New("turned off")

func bpfFix(err error) string {
	switch {
	case errors.Is(err, errTurnedOff):
		return "have it turned on; until then /proc is polled"
	case errors.Is(err, errPIDNamespace):
		return "run in the host's pid namespace (hostPID: true, --pid=host); until then /proc is polled"
	case errors.Is(err, fs.ErrPermission):
		return "run as root or with CAP_BPF and CAP_PERFMON; until then /proc is polled"
	case runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64":
		return "none on this processor; /proc is polled"
	}
	return "needs Linux 5.8 with CONFIG_BPF_SYSCALL, and no lockdown of the kernel; until then /proc is polled"
}
