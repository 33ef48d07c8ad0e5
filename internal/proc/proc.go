// Package proc describes operating-system processes: their user, command, container and
// start time, and when they exit.
//
// Everything below /proc/PID is under the control of the process itself. It can
// change or vanish while it is read, so sizes are bounded, text is made printable,
// and a pid is trusted only together with its start time or a pidfd.
package proc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Process is a process as it was when it was last read. PID and Start together
// identify it: a pid alone is reused.
type Process struct {
	PID     int
	Start   uint64 // since boot, in clock ticks
	UID     uint32 // its owner: see owner.go
	GID     uint32 // its owner's group
	Starter uint32 // its real uid: the user who started it, who is not the owner of a setuid program
	// Groups has the groups that it is in, as numbers with spaces between them: its real gid and the
	// supplementary ones. The group of a setgid program, which is its effective gid, is not among them.
	Groups    string
	Parent    int
	Command   string // at most 4 KiB, control characters replaced
	Container string // the container id, 64 hex digits; empty: none
	Pod       string // the Kubernetes pod's UID; empty: none
	// Containers has the ids of all containers that the cgroup is in, from the outermost to
	// the innermost, joined by "/". A process can add to its end, but not change its begin.
	Containers string
	Cgroup     string // the path of its cgroup (version 2), or of its first controller; empty: unknown
	Nice       int8   // CPU nice value, -20 to 19
	RealTime   uint8  // CPU real-time priority, 1 to 99; zero: not a real-time process
}

// ID identifies a process for as long as the machine runs: no later process with the same
// pid has the same start time.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // since boot, in clock ticks
}

// ID returns what identifies the process.
func (p *Process) ID() ID { return ID{p.PID, p.Start} }

// Everyone, where a uid selects processes, selects the processes of all users.
const Everyone = -1

// FS is the directory where procfs is mounted.
type FS string

// System is the procfs of this machine.
const System FS = "/proc"

// Limits on what is read.
const (
	maxCommand = 4 << 10
	maxText    = 64 << 10 // stat, status, cgroup
	maxDepth   = 64       // of a process tree
)

// Look describes a process of this machine. The pid still names that process later if a
// second Look has the same Start, or if the caller had a pidfd before.
func Look(pid int) (Process, error) { return System.Process(pid) }

// Ancestors calls f with pid and then each of its parents, nearest first, until f
// returns true. A process whose parent has exited has been given a new parent.
func Ancestors(pid int, f func(pid int) (stop bool)) {
	for range maxDepth {
		if pid <= 1 || f(pid) {
			return
		}
		s, err := System.Stat(pid)
		if err != nil {
			return
		}
		pid = s.Parent
	}
}

// cgroups returns where the cgroups can be seen that a procfs tells of.
func (p FS) cgroups() cgroupTree {
	if p == System {
		return systemCgroups()
	}
	return cgroupTree{}
}

// Path returns the path of a file below /proc/PID.
func (p FS) Path(pid int, name string) string {
	return filepath.Join(string(p), strconv.Itoa(pid), name)
}

// read returns at most limit bytes of a file.
func (p FS) read(pid int, name string, limit int64) (string, error) {
	f, err := os.Open(p.Path(pid, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return string(b), err
}

// PIDs lists the processes.
func (p FS) PIDs() ([]int, error) {
	d, err := os.Open(string(p))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return Numbers(names), err
}

// Numbers returns those names of a directory, such as /proc or /proc/PID/fd, that are
// decimal numbers.
func Numbers(names []string) []int {
	var ns []int
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 31); err == nil {
			ns = append(ns, int(n))
		}
	}
	return ns
}

// Stat holds fields of /proc/PID/stat.
type Stat struct {
	Parent       int
	KernelThread bool
	Exiting      bool // the main thread has exited: /proc/PID/fd is empty from then on
	Start        uint64
	Nice         int8
	RealTime     uint8
}

// Flags, from linux/sched.h.
const (
	flagExiting      = 0x00000004 // PF_EXITING
	flagKernelThread = 0x00200000 // PF_KTHREAD
)

// Stat reads /proc/PID/stat.
func (p FS) Stat(pid int) (Stat, error) {
	text, err := p.read(pid, "stat", maxText)
	if err != nil {
		return Stat{}, err
	}
	return parseStat(text)
}

// BootTicks returns the current time in the unit of Process.Start. User space sees
// 100 ticks a second on every architecture that Go supports.
func BootTicks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return math.MaxUint64
	}
	return uint64(ts.Nano()) / 1e7
}

// parseStat reads "pid (name) state ppid ...". The name may contain anything, so
// fields are counted from the last parenthesis; the first one after it is number 3.
func parseStat(text string) (Stat, error) {
	i := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[i+1:])
	if i < 0 || len(fields) < 20 {
		return Stat{}, errors.New("stat is cut short")
	}
	parent, err1 := strconv.Atoi(fields[4-3])
	flags, err2 := strconv.ParseUint(fields[9-3], 10, 64)
	nice, err3 := strconv.ParseInt(fields[19-3], 10, 8)
	start, err4 := strconv.ParseUint(fields[22-3], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Stat{}, fmt.Errorf("stat: %w", err)
	}
	s := Stat{
		Parent: parent, KernelThread: flags&flagKernelThread != 0, Exiting: flags&flagExiting != 0,
		Start: start, Nice: int8(nice),
	}
	if len(fields) > 40-3 {
		if n, err := strconv.ParseUint(fields[40-3], 10, 8); err == nil {
			s.RealTime = uint8(n)
		}
	}
	return s, nil
}

// Process describes a process. Labels that cannot be read are left empty.
func (p FS) Process(pid int) (Process, error) {
	s, err := p.Stat(pid)
	if err != nil {
		return Process{}, err
	}
	owner, err := p.owner(pid)
	if err != nil {
		return Process{}, err
	}
	out := Process{
		PID: pid, Start: s.Start, UID: owner.uid, GID: owner.gid, Starter: owner.starter, Groups: owner.groups, Parent: s.Parent, Nice: s.Nice, RealTime: s.RealTime,
	}
	if text, err := p.read(pid, "cgroup", maxText); err == nil {
		out.Container, out.Pod = container(text)
		out.Containers = containersIn(text, p.cgroups())
		out.Cgroup = Printable(cgroupPath(text))
	}
	if text, err := p.ReadMemory(&out, pid, "cmdline", maxCommand); err == nil {
		out.Command = Printable(strings.TrimRight(text, "\x00"))
	}
	if out.Command == "" {
		name, _ := p.read(pid, "comm", maxCommand)
		out.Command = "[" + Printable(strings.TrimSuffix(name, "\n")) + "]"
	}
	return out, nil
}

// Printable returns a command line as one line of text: NUL separators become spaces,
// and every character that could move a cursor or reorder text is replaced.
func Printable(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == 0:
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
	for len(s) > maxCommand { // a replacement is longer than what it replaces
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}
