package server

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
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
