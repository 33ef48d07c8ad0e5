package daemon

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/discover"
	"github.com/giveway/giveway/internal/nvrm"
	"github.com/giveway/giveway/sched"
)

// process is a program that holds compute groups.
type process struct {
	info   discover.Process
	id     sched.ProcessID
	attr   sched.Attr
	from   string // whence attr: default, rule, run, set
	queues map[groupKey]*groupQueue
}

// groupKey names a group of a process.
type groupKey struct{ client, group nvrm.Handle }

// groupQueue is a group under control.
type groupQueue struct {
	id     sched.QueueID
	gpu    *gpu
	found  time.Duration
	shared string
}

// change applies what was asked for to attributes. It refuses what makes no
// sense and then changes nothing.
func change(attr *sched.Attr, c api.Change) error {
	next := *attr
	if c.Class != nil {
		class, err := sched.ParseClass(*c.Class)
		if err != nil {
			return err
		}
		next.Class = class
	}
	if c.Weight != nil {
		if *c.Weight < 1 || *c.Weight > 10000 {
			return fmt.Errorf("weight %d is not from 1 to 10000", *c.Weight)
		}
		next.Weight = *c.Weight
	}
	if c.Priority != nil {
		next.Priority = *c.Priority
	}
	if c.Deadline != nil {
		if *c.Deadline < 0 {
			return fmt.Errorf("deadline %v is before the request", *c.Deadline)
		}
		next.Deadline = *c.Deadline
	}
	if c.Paused != nil {
		next.Paused = *c.Paused
	}
	*attr = next
	return nil
}

// ancestors calls f with a process and its parents, nearest first, until f says
// so. The chain is as it is now: a process whose parent has died has another.
func ancestors(pid int, f func(pid int) (enough bool)) {
	for range 64 { // no tree of people's making is deeper
		if pid <= 1 || f(pid) {
			return
		}
		pid = parentOf(pid)
	}
}

func parentOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// pid (comm) state ppid ...: comm may hold anything, parentheses too.
	_, rest, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
