//go:build linux

package pageabi

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wakeThreads lets n threads wait on a word and wakes them. It returns how long the call took, once
// all are awake.
func wakeThreads(t *testing.T, n int, wakeThem func(*atomic.Uint32)) time.Duration {
	t.Helper()
	word := new(atomic.Uint32)
	var waiting, awake sync.WaitGroup
	for range n {
		waiting.Add(1)
		awake.Go(func() {
			waiting.Done()
			for word.Load() == 0 {
				Wait(word, 0, 10*time.Second)
			}
		})
	}
	waiting.Wait()
	time.Sleep(50 * time.Millisecond) // until the last one waits
	began := time.Now()
	word.Store(1)
	wakeThem(word)
	took := time.Since(began)
	awake.Wait()
	if late := time.Since(began); late > 5*time.Second {
		t.Errorf("%d threads were awake after %v", n, late)
	}
	return took
}

// TestWakeAllDoesNotWaitForManyThreads: all threads are woken, and the caller does not wait until the
// last one is.
func TestWakeAllDoesNotWaitForManyThreads(t *testing.T) {
	for _, n := range []int{1, wakeAtOnce, wakeAtOnce + 1} {
		wakeThreads(t, n, WakeAll)
	}
	part, whole := time.Hour, time.Hour
	for range 5 {
		part = min(part, wakeThreads(t, 1000, WakeAll))
		whole = min(whole, wakeThreads(t, 1000, func(word *atomic.Uint32) { wake(word, math.MaxInt32) }))
	}
	t.Logf("1000 threads: WakeAll took %v, waking all in one call %v", part, whole)
	if part > whole/2 {
		t.Errorf("WakeAll took %v, want much less than the %v of waking all in one call", part, whole)
	}
}
