package discover

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// procfs is where proc is mounted. Everything below it that belongs to a process
// is the process's to choose, and may change or vanish while it is read.
type procfs string

// Bounds on what is read.
const (
	maxCommand  = 4 << 10
	maxText     = 64 << 10 // stat, status, cgroup
	maxOpen     = 64 << 10 // descriptors of one process
	maxControls = 64       // descriptors of the control device, of one process
)

func (p procfs) path(pid int, name string) string {
	return filepath.Join(string(p), strconv.Itoa(pid), name)
}

// read returns at most limit bytes of a file.
func (p procfs) read(pid int, name string, limit int64) (string, error) {
	f, err := os.Open(p.path(pid, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return string(b), err
}

// pids lists the processes.
func (p procfs) pids() ([]int, error) {
	d, err := os.Open(string(p))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return numbers(names), err
}

func numbers(names []string) []int {
	var ns []int
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 31); err == nil {
			ns = append(ns, int(n))
		}
	}
	return ns
}

// stat is what we use of /proc/PID/stat.
type stat struct {
	parent  int
	kernel  bool // a thread of the kernel
	exiting bool // its first thread is, and shows no descriptors any more
	start   uint64
}

// Flags, from linux/sched.h.
const (
	flagExiting      = 0x00000004 // PF_EXITING
	flagKernelThread = 0x00200000 // PF_KTHREAD
)

func (p procfs) stat(pid int) (stat, error) {
	text, err := p.read(pid, "stat", maxText)
	if err != nil {
		return stat{}, err
	}
	return parseStat(text)
}

// bootTicks is the time now, as start times are given. The kernel's clock ticks
// for user space are 100 a second on every processor that Go knows.
func bootTicks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return math.MaxUint64
	}
	return uint64(ts.Nano()) / 1e7
}

// parseStat reads "pid (name) state ppid ...". The name may hold anything, so the
// fields are counted from the last parenthesis; the first after it is number 3.
func parseStat(text string) (stat, error) {
	i := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[i+1:])
	if i < 0 || len(fields) < 20 {
		return stat{}, errors.New("stat is cut short")
	}
	parent, err1 := strconv.Atoi(fields[4-3])
	flags, err2 := strconv.ParseUint(fields[9-3], 10, 64)
	start, err3 := strconv.ParseUint(fields[22-3], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return stat{}, fmt.Errorf("stat: %w", err)
	}
	return stat{parent: parent, kernel: flags&flagKernelThread != 0, exiting: flags&flagExiting != 0, start: start}, nil
}

// uid returns the real user of a process.
func (p procfs) uid(pid int) (uint32, error) {
	text, err := p.read(pid, "status", maxText)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Uid:")
		if fields := strings.Fields(rest); ok && len(fields) > 0 {
			n, err := strconv.ParseUint(fields[0], 10, 32)
			return uint32(n), err
		}
	}
	return 0, errors.New("status has no Uid")
}

// process describes a process. What cannot be read of its labels is left out.
func (p procfs) process(pid int) (Process, error) {
	s, err := p.stat(pid)
	if err != nil {
		return Process{}, err
	}
	uid, err := p.uid(pid)
	if err != nil {
		return Process{}, err
	}
	out := Process{PID: pid, Start: s.start, UID: uid, Parent: s.parent}
	if text, err := p.read(pid, "cmdline", maxCommand); err == nil {
		out.Command = printable(strings.TrimRight(text, "\x00"))
	}
	if out.Command == "" {
		name, _ := p.read(pid, "comm", maxCommand)
		out.Command = "[" + printable(strings.TrimSuffix(name, "\n")) + "]"
	}
	if text, err := p.read(pid, "cgroup", maxText); err == nil {
		out.Container, out.Pod = container(text)
	}
	return out, nil
}

// printable makes a line of what a process calls itself: arguments parted by
// spaces, everything that could move a cursor or reorder text replaced.
func printable(s string) string {
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

// isMPSServer goes by the program, not by the name, which the kernel cuts to 15
// letters: the same 15 as the control daemon's.
func (p procfs) isMPSServer(pid int) bool {
	exe, err := os.Readlink(p.path(pid, "exe"))
	return err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "nvidia-cuda-mps-server"
}

// controls returns the descriptors of a process that claim to be of the control
// device, lowest first. The text of a link is of the process's own mount
// namespace, so it is a reason to look closer and no more.
func (p procfs) controls(pid int, control string) ([]int, error) {
	d, err := os.Open(p.path(pid, "fd"))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var found []int
	for read := 0; read < maxOpen; {
		names, err := d.Readdirnames(1024)
		read += len(names)
		for _, fd := range numbers(names) {
			if p.isControl(pid, fd, control) {
				found = append(found, fd)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(found)
	return found[:min(len(found), maxControls)], nil
}

func (p procfs) isControl(pid, fd int, control string) bool {
	link, err := os.Readlink(p.path(pid, "fd/"+strconv.Itoa(fd)))
	link = strings.TrimSuffix(link, " (deleted)")
	return err == nil && (link == control || strings.HasSuffix(link, "/nvidiactl"))
}
