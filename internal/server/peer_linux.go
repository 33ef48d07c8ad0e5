package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who connected. It answers for the moment of connecting:
// what the peer has become since changes nothing. Without an answer the user is
// one that nobody is.
func peerOf(c net.Conn) (uid uint32, pid int, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nobody, 0, errNoPeer
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nobody, 0, fmt.Errorf("look at who is calling: %w", err)
	}
	var cred *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nobody, 0, fmt.Errorf("look at who is calling: %w", err)
	}
	return cred.Uid, int(cred.Pid), nil
}

// ownerOf is the user that a process runs as. A program with more rights than
// the user who started it belongs to root.
func ownerOf(pid int) (uint32, bool) {
	info, err := os.Stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}

// life is a process that can be seen to end, and cannot be taken for another.
type life struct{ pidfd *os.File }

// lifeOf is the life of who connected. Before Linux 6.5 the kernel does not tell it
// of a socket, and a process that ended since may be taken for one that came after.
// That one must at least be the same user's.
func lifeOf(c *net.UnixConn, pid int) (*life, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, failed := -1, error(nil)
	if err := raw.Control(func(s uintptr) { fd, failed = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD) }); err != nil {
		return nil, err
	}
	if errors.Is(failed, unix.ENOPROTOOPT) {
		if fd, failed = unix.PidfdOpen(pid, 0); failed == nil {
			uid, _, err := peerOf(c)
			if owner, ok := ownerOf(pid); err != nil || !ok || owner != uid {
				failed = errors.New("it has ended")
			}
		}
	}
	if failed == nil {
		failed = unix.SetNonblock(fd, true) // to wait in Go's poller
	}
	if failed != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, failed
	}
	return &life{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// over reports whether it has ended.
func (l *life) over() (yes bool) {
	raw, err := l.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) { yes = ended(fd) })
	return yes || err != nil
}

// wait returns when it has ended, or close was called.
func (l *life) wait() {
	if raw, err := l.pidfd.SyscallConn(); err == nil {
		_ = raw.Read(ended)
	}
}

func (l *life) close() { _ = l.pidfd.Close() }

func ended(pidfd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
