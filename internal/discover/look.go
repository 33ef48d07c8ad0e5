package discover

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Look describes a process. Whoever asks for a pid must have something that tells
// whether it is still the same process afterwards.
func Look(pid int) (Process, error) { return procfs("/proc").process(pid) }

// Ancestors calls f with a process and its parents, nearest first, until f says
// so. The chain is as it is now: a process whose parent has died has another.
func Ancestors(pid int, f func(pid int) (enough bool)) {
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
