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
