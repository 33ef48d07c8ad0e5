package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/giveway/giveway/internal/proc"
	"golang.org/x/sys/unix"
)

// peerOf asks the kernel which process connected and its user at that moment. On an
// error the user is noUser.
func peerOf(c net.Conn) (uid uint32, pid int, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return noUser, 0, errNoPeer
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return noUser, 0, fmt.Errorf("identify the caller: %w", err)
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
		return noUser, 0, fmt.Errorf("identify the caller: %w", err)
	}
	return cred.Uid, int(cred.Pid), nil
}

// ownerOf returns the user that a process runs as. A process with more rights than the
// user who started it belongs to root.
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

// peerProcess returns a handle of the process that connected. Before Linux 6.5 the
// kernel has no pidfd of a socket's peer, and a process that exited since could be
// mistaken for a later one with its pid: that one must at least be the same user's.
func peerProcess(c *net.UnixConn, pid int) (*proc.Pidfd, error) {
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
				_ = unix.Close(fd)
				failed = errors.New("it has exited")
			}
		}
	}
	if failed != nil {
		return nil, failed
	}
	return proc.NewPidfd(fd)
}
