package main

import (
	"fmt"
	"syscall"
)

// dieWithParent makes the kernel kill this process when the thread that started it
// exits. Work that fills a GPU must not outlive the benchmark. If the parent has
// exited already, the input has ended.
func dieWithParent() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		return fmt.Errorf("set the parent-death signal: %w", errno)
	}
	return nil
}
