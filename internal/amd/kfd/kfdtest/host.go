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

// Host is what the kernel knows of processes.
type Host interface {
	// Leader is the process that a thread belongs to; 0 if there is none.
	Leader(tid int) int
	// Tracer is the thread that traces the first thread of a process, or 0.
	Tracer(pid int) int
	// Users are its real, effective and saved user.
	Users(pid int) [3]int
	// Privileged reports whether it has CAP_SYS_ADMIN.
	Privileged(pid int) bool
	// Died is closed when it has ended.
	Died(pid int) <-chan struct{}
	// Signal writes a byte to a descriptor of a process; false: it has none such.
	Signal(pid, fd int) bool
	// Holds reports whether a process has a descriptor.
	Holds(pid, fd int) bool
}

// machine is the one that the test runs on.
type machine struct{}

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

// Leader implements Host. A thread of the kernel has no memory, and neither has
// one that has ended.
func (machine) Leader(tid int) int {
	if tid <= 0 || status(tid, "VmSize") == nil {
		return 0
	}
	return number(status(tid, "Tgid"), 0)
}

// Tracer implements Host.
func (machine) Tracer(pid int) int { return number(status(pid, "TracerPid"), 0) }

// Users implements Host.
func (machine) Users(pid int) [3]int {
	f := status(pid, "Uid")
	return [3]int{number(f, 0), number(f, 1), number(f, 2)}
}

// Privileged implements Host.
func (machine) Privileged(pid int) bool {
	f := status(pid, "CapEff")
	if len(f) == 0 {
		return false
	}
	caps, _ := strconv.ParseUint(f[0], 16, 64)
	return caps>>unix.CAP_SYS_ADMIN&1 == 1
}

// Died implements Host.
func (machine) Died(pid int) <-chan struct{} {
	died := make(chan struct{})
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		close(died) // already
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

// Holds implements Host.
func (machine) Holds(pid, fd int) bool {
	_, err := os.Readlink(descriptor(pid, fd))
	return err == nil
}

// Signal implements Host.
func (machine) Signal(pid, fd int) bool {
	f, err := os.OpenFile(descriptor(pid, fd), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Write([]byte{'.'})
	return err == nil
}

// World is a Host of processes that are made up.
type World struct {
	mu    sync.Mutex
	procs map[int]*citizen
}

type citizen struct {
	uid    int
	tracer int
	died   chan struct{}
}

// NewWorld returns one without processes.
func NewWorld() *World { return &World{procs: make(map[int]*citizen)} }

// Start makes a process. User 0 is privileged.
func (w *World) Start(pid, uid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[pid] = &citizen{uid: uid, died: make(chan struct{})}
}

// Kill ends a process. What it traced is not traced any more: see Trace.
func (w *World) Kill(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.procs[pid]; c != nil {
		close(c.died)
		delete(w.procs, pid)
	}
}

// Trace has a thread trace a process; 0: nobody does. It reports whether the
// process is there and is not another's.
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

func (w *World) of(pid int) citizen {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.procs[pid]; c != nil {
		return *c
	}
	return citizen{uid: -1, died: make(chan struct{})}
}

// Leader implements Host: they have one thread each.
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

// Holds implements Host. Their descriptors are the test's.
func (w *World) Holds(_, fd int) bool { return machine{}.Holds(os.Getpid(), fd) }

// Signal implements Host.
func (w *World) Signal(_, fd int) bool { return machine{}.Signal(os.Getpid(), fd) }
