package sandbox

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter puts a seccomp filter in force for all threads.
func setFilter(program []unix.SockFilter) error {
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if failed != 0 {
		return failed
	}
	return nil
}

// setCapabilities sets the capabilities of all threads.
func setCapabilities(header *unix.CapUserHeader, data *[2]unix.CapUserData) error {
	_, _, failed := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(data)), 0)
	if failed != 0 {
		return failed
	}
	return nil
}
