package kfdtest

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Host answers what the kernel knows about processes.
type Host interface {
	// Leader returns the process that a thread belongs to, or 0.
	Leader(tid int) int
	// Tracer returns the thread that traces the first thread of a process, or 0.
	Tracer(pid int) int
	// Users returns the real, effective and saved user of a process.
	Users(pid int) [3]int
	// Privileged reports whether a process has CAP_SYS_ADMIN.
	Privileged(pid int) bool
	// Died returns a channel that is closed when a process has ended.
	Died(pid int) <-chan struct{}
	// Signal writes a byte to a descriptor of a process and reports whether it could.
	Signal(pid, fd int) bool
	// HasFD reports whether a process has a descriptor open.
	HasFD(pid, fd int) bool
}

// machineHost is the Host of the machine that runs the test.
type machineHost struct{}

// status returns the fields of one line of /proc/PID/status.
func status(pid int, name string) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return strings.Fields(string(rest))
		}
	}
	return nil
}

func number(fields []string, i int) int {
	if i >= len(fields) {
		return 0
	}
	n, _ := strconv.Atoi(fields[i])
	return n
}

// Leader implements Host. Kernel threads and threads that have ended have no memory and
// are not reported.
func (machineHost) Leader(tid int) int {
	if tid <= 0 || status(tid, "VmSize") == nil {
		return 0
	}
	return number(status(tid, "Tgid"), 0)
}

// Tracer implements Host.
func (machineHost) Tracer(pid int) int { return number(status(pid, "TracerPid"), 0) }

// Users implements Host.
func (machineHost) Users(pid int) [3]int {
	f := status(pid, "Uid")
	return [3]int{number(f, 0), number(f, 1), number(f, 2)}
}

// Privileged implements Host.
func (machineHost) Privileged(pid int) bool {
	f := status(pid, "CapEff")
	if len(f) == 0 {
		return false
	}
	caps, _ := strconv.ParseUint(f[0], 16, 64)
	return caps>>unix.CAP_SYS_ADMIN&1 == 1
}

// Died implements Host.
func (machineHost) Died(pid int) <-chan struct{} {
	died := make(chan struct{})
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		close(died) // it has ended already
		return died
	}
	go func() {
		defer close(died)
		defer unix.Close(fd)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err != unix.EINTR {
				return
			}
		}
	}()
	return died
}

func descriptor(pid, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

// HasFD implements Host.
func (machineHost) HasFD(pid, fd int) bool {
	_, err := os.Readlink(descriptor(pid, fd))
	return err == nil
}

// Signal implements Host.
func (machineHost) Signal(pid, fd int) bool {
	f, err := os.OpenFile(descriptor(pid, fd), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Write([]byte{'.'})
	return err == nil
}

// World is a Host of simulated processes.
type World struct {
	mu    sync.Mutex
	procs map[int]*simProcess
}

type simProcess struct {
	uid    int
	tracer int
	died   chan struct{}
}

// NewWorld returns a World without processes.
func NewWorld() *World { return &World{procs: make(map[int]*simProcess)} }

// Start adds a process. User 0 is privileged.
func (w *World) Start(pid, uid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[pid] = &simProcess{uid: uid, died: make(chan struct{})}
}

// Kill ends a process. The processes that it traced stay traced until Trace is called.
func (w *World) Kill(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.procs[pid]; c != nil {
		close(c.died)
		delete(w.procs, pid)
	}
}

// Trace makes a thread trace a process; thread 0 ends the tracing. It reports whether the
// process exists and no other thread traces it.
func (w *World) Trace(tid, pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.procs[pid]
	if c == nil || tid != 0 && c.tracer != 0 {
		return false
	}
	c.tracer = tid
	return true
}

func (w *World) of(pid int) simProcess {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.procs[pid]; c != nil {
		return *c
	}
	return simProcess{uid: -1, died: make(chan struct{})}
}

// Leader implements Host. Each process has one thread.
func (w *World) Leader(tid int) int {
	if w.of(tid).uid < 0 {
		return 0
	}
	return tid
}

// Tracer implements Host.
func (w *World) Tracer(pid int) int { return w.of(pid).tracer }

// Users implements Host.
func (w *World) Users(pid int) [3]int { u := w.of(pid).uid; return [3]int{u, u, u} }

// Privileged implements Host.
func (w *World) Privileged(pid int) bool { return w.of(pid).uid == 0 }

// Died implements Host.
func (w *World) Died(pid int) <-chan struct{} { return w.of(pid).died }

// HasFD implements Host. Descriptors are those of the test.
func (w *World) HasFD(_, fd int) bool { return machineHost{}.HasFD(os.Getpid(), fd) }

// Signal implements Host.
func (w *World) Signal(_, fd int) bool { return machineHost{}.Signal(os.Getpid(), fd) }
