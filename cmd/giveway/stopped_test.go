package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// children returns the children of a process.
func children(pid int) (all []string) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range threads {
		text, _ := os.ReadFile(file)
		all = append(all, strings.Fields(string(text))...)
	}
	slices.Sort(all)
	return all
}

// A daemon that was stopped for longer than a front end may be silent, or whose clock was set, does not
// take its front ends for silent: their connections would be lost.
func TestStoppedDaemonKeepsItsFrontEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s: a front end may be silent for 10 s")
	}
	program := build(t)
	n := &node{T: t, program: program, socket: filepath.Join(filepath.Dir(program), "giveway.sock")}
	n.start()
	before := children(n.daemon.Process.Pid)
	if err := n.daemon.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(12 * time.Second)
	if err := n.daemon.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond) // a ping is sent every 2 s
	if after := children(n.daemon.Process.Pid); !slices.Equal(before, after) {
		t.Errorf("the daemon's children: got %v, want %v as before", after, before)
	}
}
