// Package sandbox takes rights from the current process, for good. FrontEnd leaves it
// what parsing needs; Daemon takes what no part of the daemon needs.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unprivileged is the uid and gid of the user "nobody".
const unprivileged = 65534

// FrontEnd leaves this process what a front end needs: to read and write descriptors that
// it has or is given, memory, threads and the clock, at nice value 0. From then on it cannot open files, make sockets,
// start programs, or signal or trace processes. The error says what could not be taken; all
// else has been.
func FrontEnd() error {
	_ = time.Now().String() // reads the time zone's file while it can
	return errors.Join(
		os.WriteFile("/proc/self/oom_score_adj", []byte("200"), 0), // the daemon must not be killed in its place
		dropPriority(),
		dropUser(),
		limitCapabilities(0),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), // no other process of the same user traces it
		syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}),
		install(allow(frontEndCalls)),
	)
}

// kept are the daemon's capabilities. docs/SECURITY.md says what each is for, and
// packaging/giveway.service.in gives the same ones but the last.
const kept = 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON |
	1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL | 1<<unix.CAP_SYS_RESOURCE

// Daemon takes from this process and those that it starts: capabilities that the daemon
// does not need, system calls that control the machine and not a device, and the right to
// gain rights by starting a program. The errors say why the capabilities, or the system calls,
// could not be taken. Capabilities cannot be if this program was built with cgo; the error is
// then errors.ErrUnsupported.
func Daemon() (capabilities, calls error) {
	return limitCapabilities(kept), install(deny(daemonDenied))
}

// dropPriority takes the CPU priority that the service gives to the daemon: a front end works for callers,
// and must not delay other programs for them. A process without priority keeps its nice value. Linux has a
// nice value for each thread, which new threads inherit, so it looks again until no thread has priority.
func dropPriority() error {
	const zero = 20 // the kernel returns 20 less the nice value
	for found := true; found; {
		found = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		for _, thread := range threads {
			id, _ := strconv.Atoi(thread.Name())
			if raw, err := unix.Getpriority(unix.PRIO_PROCESS, id); err != nil || raw <= zero {
				continue // an error: the thread has ended
			}
			found = true
			if err := unix.Setpriority(unix.PRIO_PROCESS, id, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("set nice value 0: %w", err)
			}
		}
	}
	return nil
}

// dropUser becomes another user, if this process is root's and may. Without the capability
// it stays root, without capabilities.
func dropUser() error {
	if os.Geteuid() != 0 {
		return nil
	}
	err := syscall.Setgroups(nil)
	if err == nil {
		err = syscall.Setresgid(unprivileged, unprivileged, unprivileged)
	}
	if err == nil {
		err = syscall.Setresuid(unprivileged, unprivileged, unprivileged)
	}
	if err != nil && !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("become user %d: %w", unprivileged, err)
	}
	return nil
}

// limitCapabilities drops all capabilities of all threads but those in a set.
func limitCapabilities(keep uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var want [2]unix.CapUserData
	for i := range want {
		mask := uint32(keep >> (32 * i))
		want[i] = unix.CapUserData{Effective: have[i].Effective & mask, Permitted: have[i].Permitted & mask, Inheritable: have[i].Inheritable & mask}
	}
	if want == have {
		return nil
	}
	if err := setCapabilities(&header, &want); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
