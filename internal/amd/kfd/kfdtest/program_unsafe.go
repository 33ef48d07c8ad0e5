package kfdtest

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func credential(uid int) *syscall.Credential {
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}

// ioctl makes a call on a descriptor that the caller does not own.
func ioctl(fd int, request uint32, arg []byte) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&arg[0])))
		switch errno {
		case 0:
			return int(int32(n)), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// address returns the address of b, or 0 if b is empty. The caller has pinned b.
func address(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}
