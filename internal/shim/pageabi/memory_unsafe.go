//go:build linux

package pageabi

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageAt returns the page in memory, which holds PageSize bytes.
func PageAt(memory []byte) *Page { return (*Page)(unsafe.Pointer(&memory[0])) }

// StatusAt returns the status page in memory, which holds StatusSize bytes.
func StatusAt(memory []byte) *Status { return (*Status)(unsafe.Pointer(&memory[0])) }

// Wait returns when the word differs from value, a thread calls WakeAll on the word, or d
// is over. A signal also ends it.
func Wait(word *atomic.Uint32, value uint32, d time.Duration) {
	const futexWait = 0 // FUTEX_WAIT, not private: the waker is another process
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// WakeAll wakes every thread, of any process, that waits on the word.
func WakeAll(word *atomic.Uint32) {
	const futexWake = 1 // FUTEX_WAKE, not private: the waiters are in another process
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

// one is the value written to an eventfd, in the machine's byte order.
var one = func() (b [8]byte) { binary.NativeEndian.PutUint64(b[:], 1); return b }()

// Ring writes to a doorbell's eventfd. The write fails only when the eventfd's counter is
// full, and then the eventfd is readable already.
func Ring(doorbell int) { _, _ = unix.Write(doorbell, one[:]) }

func machineClock() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // CLOCK_MONOTONIC always exists
	return uint64(ts.Nano())
}
