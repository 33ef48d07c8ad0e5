package kfd

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pointer returns the address of b, or 0 if b is empty. The caller has pinned b.
func pointer(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}

// ioctl makes the call on f. It repeats a call that a signal interrupted: the Go runtime
// sends signals to its own threads, and every request here may be repeated.
func ioctl(f *os.File, request uint32, arg []byte) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(unsafe.Pointer(&arg[0])))
		runtime.KeepAlive(f)
		switch errno {
		case 0:
			return int(int32(r)), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
