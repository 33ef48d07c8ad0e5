package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	serviceNice   = -10 // in the unit
	frontEndScore = 200 // see sandbox.FrontEnd
)

// rightsOf is what /proc says of the rights of a process.
type rightsOf struct {
	parent, uid, noNewPrivs, seccomp int
	capabilities                     uint64
	oomScore                         int
	nice                             []int // of each thread
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
	threads, _ := filepath.Glob(dir + "task/*/stat")
	for _, file := range threads {
		text, _ := os.ReadFile(file)
		if fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(fields) > 16 {
			nice, _ := strconv.Atoi(string(fields[16])) // proc(5): the 19th, of which two are before the ')'
			r.nice = append(r.nice, nice)
		}
	}
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
// parse requests, have none. When memory runs out, the kernel kills front ends before the daemon, and the
// daemon before its guardian. Front ends do not have the daemon's priority on the CPU.
func TestRightsOfTheDaemon(t *testing.T) {
	// The unit's scores are below that of this test, which may not lower its own. So the program has others,
	// and is started as the unit starts it: with the guardian's.
	const ownScore = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(ownScore)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := strconv.Atoi(strings.TrimSpace(string(before)))
	guardianScore, daemonScore := own+50, own+100
	const scores = "github.com/giveway/giveway/internal/guardian."
	program := build(t, "-ldflags", fmt.Sprintf("-X %sguardianScore=%d -X %sdaemonScore=%d", scores, guardianScore, scores, daemonScore))
	if err := os.WriteFile(ownScore, []byte(strconv.Itoa(guardianScore)), 0); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // which starts the daemon
	defer runtime.UnlockOSThread()
	boosted := syscall.Setpriority(syscall.PRIO_PROCESS, 0, serviceNice) == nil // the same
	n := &node{T: t, program: program, socket: filepath.Join(filepath.Dir(program), "s")}
	n.start()
	_, _ = os.WriteFile(ownScore, before, 0), syscall.Setpriority(syscall.PRIO_PROCESS, 0, 0)
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
	for name, pids := range map[string][]int{"daemon": {pid}, "guardian": guardians, "front end": frontEnds} {
		want := serviceNice
		if name == "front end" {
			want = 0
		}
		for _, pid := range pids {
			if got := readRights(t, pid).nice; boosted && (len(got) == 0 || slices.Min(got) != want || slices.Max(got) != want) {
				t.Errorf("the threads of a %s have the nice values %v, want %d", name, got, want)
			}
		}
	}
	for _, f := range frontEnds {
		if got := readRights(t, f).oomScore; got != frontEndScore {
			t.Errorf("the score of a front end for running out of memory is %d, want %d", got, frontEndScore)
		}
	}
	if guardian := readRights(t, guardians[0]); daemon.oomScore != daemonScore || guardian.oomScore != guardianScore {
		t.Errorf("the scores for running out of memory are %d for the daemon and %d for its guardian, want %d and %d", daemon.oomScore, guardian.oomScore, daemonScore, guardianScore)
	}
}
