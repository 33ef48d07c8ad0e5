//go:build linux

package pageabi

import (
	"encoding/binary"
	"math"
	"sync"
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

// wakeAtOnce is how many threads WakeAll itself wakes. Each takes the kernel some microseconds, and
// the caller is the daemon's loop: a process can have thousands of threads that wait.
const wakeAtOnce = 16

// WakeAll wakes every thread, of any process, that waits on the word: the first few before it
// returns, and any others on another goroutine. The word may be unmapped meanwhile.
func WakeAll(word *atomic.Uint32) {
	if wake(word, wakeAtOnce) == wakeAtOnce {
		wakeRest(word)
	}
}

// WakeAllThen is WakeAll for a word that is unmapped by then, which is called when all threads are
// awake: before WakeAllThen returns if there are few.
func WakeAllThen(word *atomic.Uint32, then func()) {
	if wake(word, wakeAtOnce) < wakeAtOnce {
		then()
		return
	}
	go func() {
		wake(word, math.MaxInt32)
		then()
	}()
}

// waking has the words whose threads a goroutine wakes, and whether it is to do so once more.
var waking = struct {
	sync.Mutex
	again map[*atomic.Uint32]bool
}{again: make(map[*atomic.Uint32]bool)}

// wakeRest wakes all threads that wait on the word, on a goroutine. A word has one at most.
func wakeRest(word *atomic.Uint32) {
	waking.Lock()
	defer waking.Unlock()
	if _, busy := waking.again[word]; busy {
		waking.again[word] = true
		return
	}
	waking.again[word] = false
	go func() {
		for again := true; again; {
			// One call: a loop of smaller ones would not end while threads come back to wait.
			wake(word, math.MaxInt32)
			waking.Lock()
			if again = waking.again[word]; again {
				waking.again[word] = false
			} else {
				delete(waking.again, word)
			}
			waking.Unlock()
		}
	}()
}

// wake wakes at most n threads that wait on the word and returns how many those were.
func wake(word *atomic.Uint32, n int) int {
	const futexWake = 1 // FUTEX_WAKE, not private: the waiters are in another process
	woken, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, uintptr(n), 0, 0, 0)
	if errno != 0 {
		return 0 // the word is not mapped any more
	}
	return int(woken)
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
