package proc

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrReplaced means that the process has exited and another one has its pid.
var ErrReplaced = errors.New("the pid belongs to another process now")

// Handle is a pidfd: it keeps naming the same process after the pid is reused.
type Handle struct{ file *os.File }

// Open returns a handle of the process with that pid and start time. The start time is
// read after the pidfd is open: if it still matches, the pidfd is of that process.
func (p FS) Open(pid int, start uint64) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0) // sets close-on-exec
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	h, err := NewHandle(fd)
	if err != nil {
		return nil, err
	}
	s, err := p.Stat(pid)
	if err == nil && s.Start != start {
		err = ErrReplaced
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Fd returns the pidfd. The handle keeps it.
func (h *Handle) Fd() int { return int(h.file.Fd()) }

// Close releases the handle. WaitExit then returns.
func (h *Handle) Close() error { return h.file.Close() }

// WaitExit returns true when the process has exited, false when the handle was closed.
func (h *Handle) WaitExit() bool {
	conn, err := h.file.SyscallConn()
	return err == nil && conn.Read(readable) == nil
}

// Exited reports whether the process has exited, without waiting. A closed handle
// reports true.
func (h *Handle) Exited() bool {
	conn, err := h.file.SyscallConn()
	if err != nil {
		return true
	}
	exited := true
	_ = conn.Control(func(fd uintptr) { exited = readable(fd) })
	return exited
}

func readable(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// NewHandle returns a handle that owns a pidfd which the kernel gave, such as
// SO_PEERPIDFD. On an error the pidfd is closed.
func NewHandle(fd int) (*Handle, error) {
	if err := unix.SetNonblock(fd, true); err != nil { // to wait in the Go runtime's poller
		_ = unix.Close(fd)
		return nil, err
	}
	return &Handle{os.NewFile(uintptr(fd), "pidfd")}, nil
}
