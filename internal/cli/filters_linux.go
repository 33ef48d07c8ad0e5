package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// filtersVariable tells the shim under how many seccomp filters run has tried its calls. A
// process under the same number has the same filters: exec passes them on, and a process can
// only add to them.
const filtersVariable = "GIVEWAY_FILTERS="

// tryFilters adds the variable to env if this process is under seccomp filters that permit
// what giveway needs. A filter may kill for a forbidden call, so a child tries them.
func tryFilters(env []string) ([]string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return env, nil // the shim cannot read it either
	}
	f := filtersOf(string(status))
	if !f.any {
		return env, nil
	}
	if err := exec.Command("/proc/self/exe", tryCommand).Run(); err != nil {
		return env, fmt.Errorf("a seccomp filter forbids what giveway needs (%w); permit unix sockets, memfd and eventfd", err)
	}
	return withFilters(env, f.count), nil
}

// withFilters returns env with the variable set to that number, or without it for zero.
func withFilters(env []string, count int) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, filtersVariable) })
	if count == 0 {
		return env
	}
	return append(env, filtersVariable+strconv.Itoa(count))
}

// filters are the seccomp filters of a process.
type filters struct {
	any   bool
	count int // zero before Linux 5.9, which does not show it
}

// filtersOf returns the filters in the text of /proc/PID/status.
func filtersOf(status string) (f filters) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "Seccomp":
			f.any = value != "0"
		case "Seccomp_filters":
			f.count, _ = strconv.Atoi(value)
		}
	}
	return f
}

const tryCommand = "try-filters"

func newTryFilters() *cobra.Command {
	return &cobra.Command{
		Use: tryCommand, Hidden: true, Args: noArgs,
		Short: "Make the system calls of the shim, to find out whether seccomp filters permit them",
		RunE:  func(*cobra.Command, []string) error { return tryCalls() },
	}
}

// tryCalls makes the system calls of shim/connect.c, page.c, log.c and bias.c. A call that is
// refused, or ends this process, is one that the shim may not make.
func tryCalls() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	memory, err := unix.MemfdCreate("giveway", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	message, control := []byte{0}, make([]byte, unix.CmsgSpace(4))
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"connect", func() error { return permitted(unix.Connect(socket, &unix.SockaddrUnix{Name: "/proc/self/nothing"})) }},
		{"getsockopt", func() error { _, err := unix.GetsockoptUcred(pair[0], unix.SOL_SOCKET, unix.SO_PEERCRED); return err }},
		{"sendto", func() error { return unix.Send(pair[0], message, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) }},
		{"ppoll", func() error {
			_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(pair[1]), Events: unix.POLLIN}}, &unix.Timespec{}, nil)
			return err
		}},
		{"recvfrom", func() error {
			_, _, err := unix.Recvfrom(pair[1], message, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return err
		}},
		{"recvmsg", func() error {
			_, _, _, _, err := unix.Recvmsg(pair[1], message, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			return err
		}},
		{"lseek", func() error { _, err := unix.Seek(memory, 0, unix.SEEK_END); return err }},
		{"fstat", func() error { return unix.Fstat(memory, &unix.Stat_t{}) }},
		{"fcntl", func() error { _, err := unix.FcntlInt(uintptr(memory), unix.F_GET_SEALS, 0); return err }},
		{"prlimit64", func() error { return unix.Getrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{}) }},
		{"rt_sigpending", func() error { return signalCall(unix.SYS_RT_SIGPENDING, 0) }},
		{"rt_sigtimedwait", func() error { return signalCall(unix.SYS_RT_SIGTIMEDWAIT, signalSetBytes) }},
		{"membarrier", func() error {
			_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, 0, 0, 0)
			if errno == 0 || errno == syscall.ENOSYS { // a kernel without it
				return nil
			}
			return errno
		}},
	} {
		if err := c.call(); err != nil {
			return os.NewSyscallError(c.name, err)
		}
	}
	_, _ = unix.Getpid(), unix.Geteuid()
	return nil
}

const signalSetBytes = 8

// signalCall makes a system call about signals without memory for a set of them. If filters permit
// the call, the kernel refuses it for that reason.
func signalCall(number, fourth uintptr) error {
	_, _, errno := unix.Syscall6(number, 0, signalSetBytes, 0, fourth, 0, 0)
	if errno == unix.EFAULT {
		return nil
	}
	return errno
}

// permitted drops errors of a call that was made. A filter refuses with others.
func permitted(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}
