//go:build linux

package main

import (
	"syscall"
	"time"
	"unsafe"
)

// monotonic returns the time of CLOCK_MONOTONIC, which hints use.
func monotonic() time.Duration {
	var t syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&t)), 0) // it cannot fail
	return time.Duration(t.Nano())
}
