package sandbox

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter puts a seccomp filter in force for all threads.
func setFilter(program []unix.SockFilter) error {
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	thread, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	switch {
	case failed != 0:
		return failed
	case thread != 0:
		return fmt.Errorf("thread %d has another filter", thread)
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
