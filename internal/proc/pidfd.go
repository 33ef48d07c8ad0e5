package proc

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrReplaced means that the process has exited and another one has its pid.
var ErrReplaced = errors.New("the pid belongs to another process now")

// Pidfd is a descriptor of a process. It names the same process after the pid is reused.
type Pidfd struct{ file *os.File }

// OpenPidfd returns a pidfd of the process with that pid and start time. The start time is
// read after the pidfd is open: if it still matches, the pidfd is of that process.
func (f FS) OpenPidfd(pid int, start uint64) (*Pidfd, error) {
	fd, err := unix.PidfdOpen(pid, 0) // sets close-on-exec
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	p, err := NewPidfd(fd)
	if err != nil {
		return nil, err
	}
	s, err := f.Stat(pid)
	if err == nil && s.Start != start {
		err = ErrReplaced
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// NewPidfd returns a Pidfd that owns a descriptor which the kernel gave, such as
// SO_PEERPIDFD. On an error the descriptor is closed.
func NewPidfd(fd int) (*Pidfd, error) {
	if err := unix.SetNonblock(fd, true); err != nil { // to wait in the Go runtime's poller
		_ = unix.Close(fd)
		return nil, err
	}
	return &Pidfd{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Fd returns the descriptor, which p keeps.
func (p *Pidfd) Fd() int { return int(p.file.Fd()) }

// Close closes the descriptor. WaitExit then returns.
func (p *Pidfd) Close() error { return p.file.Close() }

// WaitExit returns true when the process has exited, false when p was closed.
func (p *Pidfd) WaitExit() bool {
	conn, err := p.file.SyscallConn()
	return err == nil && conn.Read(readable) == nil
}

// Exited reports whether the process has exited, without waiting. It is true if p was
// closed.
func (p *Pidfd) Exited() bool {
	conn, err := p.file.SyscallConn()
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
