package sandbox

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// bpf makes the system call bpf(2).
func bpf(command int, attr []uint32) error {
	_, _, failed := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(&attr[0])), uintptr(4*len(attr)))
	if failed != 0 {
		return failed
	}
	return nil
}

// filterThread puts a seccomp filter in force for the calling thread only.
func filterThread(program []unix.SockFilter) error {
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}
