package nvrm

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// address returns the address of b, which the caller has pinned.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// ioctl makes the call on f. It repeats a call that a signal interrupted: the Go
// runtime sends signals to its own threads, and RM's calls may be repeated.
func ioctl(f *os.File, request uint32, arg []byte) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(unsafe.Pointer(&arg[0])))
		runtime.KeepAlive(f)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}
