package daemon

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// TestBucket: a burst passes at once, then orders wait, and those that would wait too long
// are refused. Time fills the bucket again.
func TestBucket(t *testing.T) {
	var b bucket
	r, now := rate{perSecond: 2, burst: 3}, time.Unix(1000, 0)
	take := func(want time.Duration, ok bool) {
		t.Helper()
		if got, yes := b.take(r, now); yes != ok || ok && got != want {
			t.Errorf("got a wait of %v, %v; want %v, %v", got, yes, want, ok)
		}
	}
	for range 3 {
		take(0, true)
	}
	for _, wait := range []time.Duration{500 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second} {
		take(wait, true)
	}
	take(0, false)
	if b.full(r, now.Add(time.Second)) {
		t.Error("got a full bucket after a second")
	}
	now = now.Add(4 * time.Second) // 8 tokens, of which 7 were missing
	if !b.full(r, now) {
		t.Error("got a bucket that is not full after 4 s")
	}
	take(0, true)
}

// TestCallersTakeTurns: one order of an account is under way at a time, whatever uid gives
// it. Other accounts and root do not wait for it.
func TestCallersTakeTurns(t *testing.T) {
	var c callers
	enter := func(by server.Caller) func() {
		t.Helper()
		var leave func()
		within(t, "another account enters", func() {
			var err error
			if leave, err = c.enter(by); err != nil {
				t.Error(err)
			}
		})
		return leave
	}
	first := enter(of(alice))
	var entered atomic.Bool
	var ended sync.WaitGroup
	sub := server.Caller{UID: 100_005, GID: 100_005, Account: alice}
	ended.Go(func() {
		leave, err := c.enter(sub)
		if err != nil {
			t.Error(err)
			return
		}
		entered.Store(true)
		leave()
	})
	enter(of(bob))()
	enter(ourselves)()
	if entered.Load() {
		t.Error("two orders of one account are under way")
	}
	first()
	ended.Wait()
}

// countingFinder counts how often it looks for a process.
type countingFinder struct {
	*fakeBackend
	n atomic.Int64
}

func (f *countingFinder) Find(int) hal.Found {
	f.n.Add(1)
	return hal.Found{Note: "it is not here"}
}

// TestScansAreLimited: orders of a user for processes that are not known make the backends
// look for them only so often.
func TestScansAreLimited(t *testing.T) {
	f, s := &countingFinder{fakeBackend: newFakeBackend(t.TempDir())}, newSlowProc()
	d := newTestDaemon(f)
	d.procs = s
	defer runDaemon(t, d)()
	s.add(proc.Process{PID: 10_000, Start: 1, UID: alice, GID: alice, Parent: 1})
	began := time.Now()
	over := func() bool { return time.Since(began) > 1500*time.Millisecond }
	var ended sync.WaitGroup
	for range 4 {
		ended.Go(func() {
			for !over() {
				_, err := d.Change(of(alice), 10_000, given("class=batch"))
				if err == nil || !strings.Contains(err.Error(), "not known here") && !strings.Contains(err.Error(), "too many") {
					t.Errorf("got %v, want that the process is not known", err)
				}
			}
		})
	}
	ended.Wait()
	most := rates[scans].burst + rates[scans].perSecond*time.Since(began).Seconds() + 1
	if n := f.n.Load(); float64(n) > most || n < int64(rates[scans].burst) {
		t.Errorf("got %d searches in %v, want from %v to %.0f", n, time.Since(began), rates[scans].burst, most)
	}
}
