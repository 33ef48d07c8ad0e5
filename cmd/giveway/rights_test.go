package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// rightsOf is what /proc says of the rights of a process.
type rightsOf struct {
	parent, uid, noNewPrivs, seccomp int
	capabilities                     uint64
	oomScore                         int
}

func readRights(t *testing.T, pid int) (r rightsOf) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	text, err := os.ReadFile(dir + "status")
	if err != nil {
		return r // it has exited
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		number, _ := strconv.Atoi(fields[0])
		switch name {
		case "PPid":
			r.parent = number
		case "Uid":
			r.uid = number
		case "NoNewPrivs":
			r.noNewPrivs = number
		case "Seccomp":
			r.seccomp = number
		case "CapEff":
			r.capabilities, _ = strconv.ParseUint(fields[0], 16, 64)
		}
	}
	score, _ := os.ReadFile(dir + "oom_score_adj")
	r.oomScore, _ = strconv.Atoi(strings.TrimSpace(string(score)))
	return r
}

// started returns the processes of a program's command that a process has started.
func started(t *testing.T, parent int, command string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, _ := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if args := bytes.Split(line, []byte{0}); len(args) > 1 && string(args[1]) == command && readRights(t, pid).parent == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestRightsOfTheDaemon: the daemon drops the rights that it does not need, and its front ends, which
// parse requests, have none. When memory runs out, the kernel kills the daemon before its guardian.
func TestRightsOfTheDaemon(t *testing.T) {
	const ownScore = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(ownScore)
	if err != nil {
		t.Fatal(err)
	}
	lowest := os.WriteFile(ownScore, []byte("-1000"), 0) == nil // as the unit does; it needs a capability
	program := build(t)
	n := &node{T: t, program: program, socket: filepath.Join(filepath.Dir(program), "s")}
	n.start()
	_ = os.WriteFile(ownScore, before, 0)
	pid := n.daemon.Process.Pid
	var frontEnds, guardians []int
	n.eventually("the daemon has a guardian and front ends", func() bool {
		frontEnds, guardians = started(t, pid, "front-end"), started(t, pid, "guardian")
		return len(frontEnds) > 0 && len(guardians) == 1
	})
	daemon := readRights(t, pid)
	if daemon.seccomp != 2 || daemon.noNewPrivs != 1 {
		t.Errorf("the daemon has %+v, want a filter of system calls and no new privileges", daemon)
	}
	const chown = 1 << 0 // which root has, and the daemon does not need
	if daemon.capabilities&chown != 0 {
		t.Errorf("the daemon has the capabilities %x", daemon.capabilities)
	}
	for _, f := range frontEnds {
		r := readRights(t, f)
		if r.seccomp != 2 || r.noNewPrivs != 1 || r.capabilities != 0 || os.Getuid() == 0 && r.uid == 0 {
			t.Errorf("a front end has %+v, want a filter of system calls, no capabilities and another user than root", r)
		}
	}
	if !lowest {
		t.Log("the score for running out of memory cannot be lowered here, so it was not checked")
		return
	}
	if guardian := readRights(t, guardians[0]); daemon.oomScore != -900 || guardian.oomScore != -1000 {
		t.Errorf("the scores for running out of memory are %d for the daemon and %d for its guardian, want -900 and -1000", daemon.oomScore, guardian.oomScore)
	}
}
