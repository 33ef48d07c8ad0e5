//go:build !linux

package main

import "time"

// monotonic returns 0: hints are for Linux only.
func monotonic() time.Duration { return 0 }
