package pageabi

import "time"

// anchor is one moment on Go's clock and on the machine's. Both are CLOCK_MONOTONIC, but
// Go does not say where its clock starts. Of five readings it keeps the pair that was
// read in the shortest time.
var anchor = func() (a struct {
	goTime  time.Time
	machine uint64
},
) {
	shortest := time.Hour
	for range 5 {
		before := time.Now()
		machine := machineClock()
		if took := time.Since(before); took < shortest {
			shortest, a.goTime, a.machine = took, before, machine
		}
	}
	return a
}()

// Monotonic converts t to the page's clock: CLOCK_MONOTONIC in nanoseconds.
func Monotonic(t time.Time) uint64 { return anchor.machine + uint64(t.Sub(anchor.goTime)) }

// Now returns the current time on the page's clock.
func Now() uint64 { return anchor.machine + uint64(time.Since(anchor.goTime)) }
