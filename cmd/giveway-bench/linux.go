package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill this process when the thread that started it
// exits. Work that fills a GPU must not outlive the benchmark. If the parent has
// exited already, the input has ended.
func dieWithParent() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("set the parent-death signal: %w", err)
	}
	return nil
}

// monotonic returns the time of CLOCK_MONOTONIC, which hints use.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // CLOCK_MONOTONIC always exists
	return time.Duration(t.Nano())
}
