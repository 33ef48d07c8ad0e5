//go:build linux

package pageclient

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func pageAt(b []byte) *page   { return (*page)(unsafe.Pointer(&b[0])) }
func boardAt(b []byte) *board { return (*board)(unsafe.Pointer(&b[0])) }

// one is what an eventfd is to be written.
var one = func() (b [8]byte) { binary.NativeEndian.PutUint64(b[:], 1); return b }()

// wait returns when the word is not value, somebody wakes, or d is over.
func wait(word *atomic.Uint32, value uint32, d time.Duration) {
	const futexWait = 0 // not private: the daemon wakes
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wakeAll wakes who waits on a word.
func wakeAll(word *atomic.Uint32) {
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}
