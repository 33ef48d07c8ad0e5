// Package discover finds the compute channel groups of all processes on NVIDIA GPUs and
// reports changes.
//
// It copies a process's descriptors of /dev/nvidiactl with pidfd_getfd and asks the resource
// manager (RM), through the copy, for the objects of its client. Two eBPF programs report
// allocations and frees, so that it knows when to look. Where eBPF is not permitted it reads
// /proc at regular intervals. Nothing is injected into a process and nothing of it is
// changed.
//
// All data of a process is treated as hostile: its name, its command line, and the memory
// that the eBPF programs read. Such data only says where to look; what is reported comes
// from RM. A copied descriptor is used only if it is of the control device: a call on
// another file could be made to hang.
package discover

import (
	"cmp"
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

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// Key identifies a compute group while it exists. RM gives a client handle to one open file,
// which several processes may share.
type Key struct {
	Client nvrm.Handle
	Handle nvrm.Handle // of the group
}

// Group is a compute group of a process.
type Group struct {
	Key
	Process   proc.Process
	ID        uint32 // number of the group on its runlist
	GPU       string // its UUID, as nvidia-smi writes it
	Device    nvrm.Handle
	Subdevice nvrm.Handle
	Channels  []nvrm.Handle // none for an MPS server: its clients own them
	File      *nvrm.File    // a copied descriptor; the receiver closes it
	MPSServer bool          // the process is nvidia-cuda-mps-server
	Pool      string        // it is the server of a pool with this label; empty: of none

	fd     int  // the descriptor of the process through which it was found
	remade bool // reported, and freed since: one with the same handles and number is another
}

// Event has one field set.
//
// A group is reported again when its channels have changed. The later report replaces the
// earlier one; each has a File of its own. RM keeps the objects of a process until the last
// copy of its descriptor is closed, so a receiver of Gone should close its copies at once.
type Event struct {
	Found  *Group
	Gone   *Gone
	Joined *Member
	Left   *Member
}

// Member is a client of an MPS server: it holds a group of the server under a handle of its
// own. Joined is reported once for each group, which may be reported later. Left is reported
// when the client exits, frees its handle, closes the control device or executes another
// program; not when the server exits or frees the group.
type Member struct {
	Process proc.Process
	Server  proc.ID
	Group   Key // of the server
}

// Gone means that a process no longer has a group, which another process may still have, or
// that the process has exited. A group that is known to be another's as well is reported by
// its key before the exit: it is still there.
type Gone struct {
	PID   int
	Start uint64
	Key   // zero: the process has exited
}

// Config configures a Watcher.
type Config struct {
	Proc    string        // empty: /proc
	Control string        // empty: /dev/nvidiactl
	Only    int           // the uid whose processes are watched, or proc.Everyone
	Poll    time.Duration // between scans of /proc; zero: 2 s
	NoBPF   bool          // do not use eBPF
	Once    bool          // end when all processes were scanned, however long that takes
	// Ignore reports whether a process besides this one is to be ignored, because it holds
	// copies of other processes' descriptors. nil: none is.
	Ignore func(pid int) bool
	// Slice returns the slice that was set for a group of a process; zero: none was, or a call
	// is under way. A group with another one was freed and made again. nil: not known.
	Slice func(proc.ID, Key) time.Duration
	// Account returns the user that a uid counts for, such as the owner of a subordinate uid.
	// nil: each uid counts for itself.
	Account func(uid uint32) uint32
	Log     *slog.Logger // nil: none

	places int // for openers without a group: see keep.go; zero: mostPlaces()
}

// ignores reports whether a process is not scanned.
func (c *Config) ignores(pid int) bool {
	return pid == os.Getpid() || c.Ignore != nil && c.Ignore(pid)
}

// Watcher watches until its context is done, or until it has scanned once (Config.Once).
type Watcher struct {
	config Config
	proc   procfs
	log    *slog.Logger
	events chan Event
	exits  chan *opener
	calls  chan call
	ctx    context.Context // done when the Watcher ends
	stop   context.CancelFunc
	rescan chan int // pids of Rescan
	tracer *tracer  // nil: no eBPF

	guesses atomic.Uint64 // wrong guesses
	looks   atomic.Uint64 // descriptors that were looked at

	mu         sync.Mutex // guards what follows, which other goroutines use
	bpfErr     error
	listErr    error
	refused    map[int]uint64 // by pid: start times of processes that may not be inspected; written by the loop only
	sweeps     map[int]sweep  // by pid: processes with more than lookWindow descriptors; written by the loop only
	unkept     map[int]unkept // by pid: openers for which there was no place; written by the loop only
	unkeptMore bool           // there are more of these

	// What follows is used by the loop's goroutine only.
	openers       map[int]*opener
	owners        map[Key]*opener     // the openers for which groups were reported
	nonOpeners    map[int]nonOpener   // by pid: processes without the control device, or that are not kept
	pending       map[int]*pending    // by pid: traced calls that wait for a scan
	queued        map[int]bool        // by pid: processes in the queues of accounts; true: handles may be guessed
	accounts      map[uint32]*account // by account
	used          time.Duration       // by the account whose turn was last, before that turn
	pass          []int               // pids of which the pass over all processes has not found out whether they are due
	passed        int                 // the last process of a pass that had been scanned before
	scanSince     time.Time           // processes that were not scanned since then are due
	places        int                 // for openers without a group: see keep.go
	placesTaken   int                 // by all accounts but root's
	knownClients  map[nvrm.Handle]int // clients, with the number of descriptors that lead to them
	allClients    clientList
	warnedGuesses bool        // the warning about guesses was logged
	guessesMade   int         // wrong guesses that count against maxGuessesTotal
	lowest        nvrm.Handle // the lowest client that was found by guessing
	highest       nvrm.Handle
	tracedSince   uint64 // every call of a process that started after this tick is traced
	lost          uint64 // calls that the tracer lost
	overflowed    bool   // a process was left out of a table, so all are to be scanned
	inOwnerScan   bool   // a scan of a likely owner is under way, within another scan
	inHeirSearch  bool   // findHeirs is under way
	waiters       sync.WaitGroup
}

// Watch starts a Watcher. The caller must read Events until the channel is closed, some time
// after ctx is done: no process is scanned while an event waits.
func Watch(ctx context.Context, c Config) (*Watcher, error) {
	w, err := newWatcher(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.NoBPF {
		w.bpfErr = errTurnedOff
	} else if w.tracer, w.bpfErr = trace(rmRequests); w.bpfErr == nil {
		w.tracedSince = proc.BootTicks()
	} else {
		w.log.Info("eBPF is not available: scanning /proc", "interval", w.config.Poll, "reason", w.bpfErr)
	}
	go w.run()
	return w, nil
}

func newWatcher(ctx context.Context, c Config) (*Watcher, error) {
	c.Proc, c.Control, c.Poll = cmp.Or(c.Proc, "/proc"), cmp.Or(c.Control, nvrm.ControlPath), cmp.Or(c.Poll, 2*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{
		config: c, proc: procfs{proc.FS(c.Proc)}, log: c.Log,
		events: make(chan Event), exits: make(chan *opener), calls: make(chan call, maxPending),
		tracedSince: math.MaxUint64, rescan: make(chan int, 64),
		openers: map[int]*opener{}, owners: map[Key]*opener{}, nonOpeners: map[int]nonOpener{},
		refused: map[int]uint64{}, sweeps: map[int]sweep{}, unkept: map[int]unkept{}, pending: map[int]*pending{}, queued: map[int]bool{},
		accounts: map[uint32]*account{}, knownClients: map[nvrm.Handle]int{}, places: cmp.Or(c.places, mostPlaces()),
	}
	w.allClients = clientList{open: func() (controlFile, error) { return nvrm.Open(c.Control) }, budget: updateBudget}
	if _, err := w.proc.PIDs(); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, fmt.Errorf("open a pidfd (needs Linux 5.6): %w", err)
	}
	unix.Close(self)
	w.ctx, w.stop = context.WithCancel(ctx)
	return w, nil
}

// Events returns the channel of events.
func (w *Watcher) Events() <-chan Event { return w.events }

// WrongGuesses returns how many client handles were guessed wrong. Each wrong guess may have
// added a line to the kernel's log.
func (w *Watcher) WrongGuesses() uint64 { return w.guesses.Load() }

// Rescan makes the Watcher scan a process soon. It does not wait for it, and does nothing if
// many processes wait already.
func (w *Watcher) Rescan(pid int) {
	select {
	case w.rescan <- pid:
	default:
	}
}

// Checks returns what works at the moment and what does not.
func (w *Watcher) Checks() []hal.Check {
	w.mu.Lock()
	bpfErr, procErr, refused, large, beyond := w.bpfErr, w.listErr, len(w.refused), len(w.sweeps), w.unkeptDetail()
	w.mu.Unlock()
	_, controlErr := os.Stat(w.config.Control)
	var refusedErr error
	if refused > 0 {
		refusedErr = fmt.Errorf("%d processes may not be inspected", refused)
	}
	return []hal.Check{
		check("control device", w.config.Control, controlErr, "load NVIDIA's driver; in a container, pass the device in"),
		check("processes", "listed in "+w.config.Proc, procErr, "mount proc, without hidepid for this user"),
		check("permissions", "every process could be inspected", refusedErr,
			"run as root or with CAP_SYS_PTRACE, or watch one user's processes as that user"),
		check("descriptors", sweepDetail(large), nil, ""),
		check("open control devices", beyond, nil, ""),
		check("eBPF", "allocations are traced as they happen", bpfErr, bpfFix(bpfErr)),
	}
}

func check(name, detail string, err error, fix string) hal.Check {
	if err != nil {
		return hal.Check{Name: name, Detail: err.Error(), Fix: fix}
	}
	return hal.Check{Name: name, OK: true, Detail: detail}
}

var errTurnedOff = errors.New("turned off")

func bpfFix(err error) string {
	switch {
	case errors.Is(err, errTurnedOff):
		return "turn it on; until then /proc is scanned at intervals"
	case errors.Is(err, errPIDNamespace):
		return "run in the host's pid namespace (hostPID: true, --pid=host); until then /proc is scanned at intervals"
	case errors.Is(err, fs.ErrPermission):
		return "run as root or with CAP_BPF and CAP_PERFMON; until then /proc is scanned at intervals"
	case runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64":
		return "not available on this processor; /proc is scanned at intervals"
	}
	return "use Linux 5.8 or later with CONFIG_BPF_SYSCALL and without kernel lockdown; until then /proc is scanned at intervals"
}
