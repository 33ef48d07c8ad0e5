package client

import (
	"errors"
	"net"
	"syscall"
)

// peerUser returns the user that started the listener, as the kernel recorded it.
func peerUser(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var cred *syscall.Ucred
		if cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); failed == nil {
			uid = cred.Uid
		}
	})
	return uid, errors.Join(err, failed)
}
