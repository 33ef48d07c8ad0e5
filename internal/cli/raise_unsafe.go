//go:build linux

package cli

import (
	"syscall"
	"unsafe"
)

// setDefault restores the kernel's default action for a signal. Go's runtime keeps its
// own handler for some signals (SIGQUIT, SIGSEGV: print all stacks; SIGUSR1: nothing).
func setDefault(s syscall.Signal) {
	// struct sigaction, all zero: SIG_DFL, no flags, no restorer, an empty mask.
	// Larger than that of any architecture.
	var act [16]uint64
	const maskBytes = 8
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&act[0])), 0, maskBytes, 0, 0)
}
