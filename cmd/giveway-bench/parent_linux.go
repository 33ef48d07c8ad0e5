package main

import (
	"fmt"
	"syscall"
)

// dieWithParent has the kernel end this process when the thread that started it
// ends. Work that saturates a GPU must not outlive whoever measures it. A parent
// that is gone already is noticed at the end of the input.
func dieWithParent() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		return fmt.Errorf("end with the parent: %w", errno)
	}
	return nil
}
