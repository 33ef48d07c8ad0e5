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

// control calls f with the descriptor of a connection.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

// peerOf returns the process that connected, as the kernel recorded it then. On an error
// its user and group are noUser.
func peerOf(c net.Conn) peer {
	p := peer{local: true, uid: noUser, gid: noUser}
	u, ok := c.(*net.UnixConn)
	if !ok {
		p.err = errNoPeer
		return p
	}
	p.err = control(u, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return fmt.Errorf("identify the caller: %w", err)
		}
		p.uid, p.gid, p.pid = cred.Uid, cred.Gid, int(cred.Pid)
		return nil
	})
	return p
}

// ownerOf returns the user that a process runs as. A process with more rights than the
// user who started it belongs to root.
func ownerOf(pid int) (uint32, bool) {
	info, err := os.Stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return 0, false
	}
	st := info.Sys().(*syscall.Stat_t) // it always is, on Linux
	return st.Uid, true
}

// peerProcess returns a handle of the process that connected. Before Linux 6.5 the
// kernel has no pidfd of a socket's peer, and a process that exited since could be
// mistaken for a later one with its pid: that one must at least be the same user's.
func peerProcess(c *net.UnixConn, pid int) (*proc.Pidfd, error) {
	fd := -1
	err := control(c, func(s int) (err error) {
		fd, err = unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return err
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			p := peerOf(c)
			if owner, ok := ownerOf(pid); p.err != nil || !ok || owner != p.uid {
				_ = unix.Close(fd)
				err = errors.New("it has exited")
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return proc.NewPidfd(fd)
}
