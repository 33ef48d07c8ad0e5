//go:build !linux

package pageabi

import (
	"sync/atomic"
	"time"
)

// The daemon runs on Linux only, so other systems have no page to wait on or to wake.

// Wait does nothing on this system.
func Wait(*atomic.Uint32, uint32, time.Duration) {}

// WakeAll does nothing on this system.
func WakeAll(*atomic.Uint32) {}

// Ring does nothing on this system.
func Ring(int) {}

func machineClock() uint64 { return 0 }
