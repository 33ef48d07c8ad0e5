package shimpage

import (
	"time"

	"golang.org/x/sys/unix"
)

// anchor is one moment on both clocks. Go's monotonic clock is CLOCK_MONOTONIC, but
// Go does not tell where it began.
var anchor = func() (a struct {
	go_  time.Time
	mono uint64
},
) {
	var ts unix.Timespec
	a.go_ = time.Now()
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail
	a.mono = uint64(ts.Nano())
	return a
}()

// Monotonic is a moment as programs write it: CLOCK_MONOTONIC in nanoseconds.
func Monotonic(t time.Time) uint64 { return anchor.mono + uint64(t.Sub(anchor.go_)) }

func now() uint64 { return Monotonic(time.Now()) }
