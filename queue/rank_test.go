package queue

import (
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pageclient"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// newPair returns two queues of one process without a daemon.
func newPair(t *testing.T) (a, b *Queue) {
	t.Helper()
	t.Setenv("GIVEWAY_SOCKET", filepath.Join(t.TempDir(), "none"))
	page := pageclient.NewPage()
	r := newRanks(page)
	return newQueue(page, r), newQueue(page, r)
}

// highFirst reports whether all commands of the high queue run before those of the low one.
func highFirst(t *testing.T, high, low *Queue) bool {
	t.Helper()
	var mu sync.Mutex
	var order []*Queue
	high.Suspend()
	low.Suspend()
	for range 5 {
		for _, q := range []*Queue{low, high} {
			submit(t, q, func() {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, q)
			})
		}
	}
	high.Resume()
	low.Resume()
	wait(t, low)
	wait(t, high)
	return !slices.Contains(order[:5], low)
}

// TestHigherQueuesFirst: queues are ordered by class, then by priority.
func TestHigherQueuesFirst(t *testing.T) {
	a, b := newPair(t)
	for _, c := range []struct {
		change    func()
		high, low *Queue
	}{
		{func() { a.SetPriority(1) }, a, b},
		{func() { b.SetPriority(2) }, b, a},
		{func() { a.SetClass(sched.Online); b.SetClass(sched.Batch) }, a, b},
		{func() { a.SetClass(sched.Idle) }, b, a},
	} {
		c.change()
		// A machine with other work may let a queue wait for so long that the other is let go.
		if !slices.ContainsFunc(make([]int, 50), func(int) bool { return highFirst(t, c.high, c.low) }) {
			t.Errorf("the commands of the lower queue ran first, %d times", 50)
		}
	}
}

// TestLowerQueueIsLetGo: neither a command that depends on a lower queue nor a queue that always
// has commands stops the lower one for ever.
func TestLowerQueueIsLetGo(t *testing.T) {
	high, low := newPair(t)
	high.SetPriority(1)
	for range 3 {
		c, done := submitLater(t, high)
		began := time.Now()
		submit(t, low, done)
		if err := c.Wait(timeout(t)); err != nil {
			t.Fatal(err)
		}
		wait(t, low)
		t.Logf("let go after %v", time.Since(began))
	}
	stop := make(chan struct{})
	var again func()
	again = func() {
		time.Sleep(time.Millisecond)
		select {
		case <-stop:
		default:
			submit(t, high, again)
		}
	}
	submit(t, high, again)
	began := time.Now()
	submit(t, low, func() {})
	wait(t, low)
	t.Logf("beside a queue that always has commands: after %v", time.Since(began))
	close(stop)
	wait(t, high)
	// A suspended queue and a closed one hold no others.
	high.Suspend()
	submit(t, high, func() {})
	submit(t, low, func() {})
	wait(t, low)
	high.Close()
	submit(t, low, func() {})
	wait(t, low)
}

// TestWaitEndsWithoutCommand: when the command that waits is dropped or its queue suspended, the
// wait of the next one begins anew.
func TestWaitEndsWithoutCommand(t *testing.T) {
	high, low := newPair(t)
	high.SetPriority(1)
	since := func() time.Time {
		low.ranks.mu.Lock()
		defer low.ranks.mu.Unlock()
		return low.rank.heldSince
	}
	for _, end := range []func(){func() { low.Drop() }, func() { low.Suspend(); low.Drop() }} {
		for attempt := 0; ; attempt++ { // on a machine with other work the command may be let go before it is seen
			_, done := submitLater(t, high)
			pagetest.Until(t, "the high command is in flight", func() bool { return high.State() == Ready && high.Counts().Launched > high.Counts().Completed })
			submit(t, low, func() {})
			seen := false
			pagetest.Until(t, "the low command waits or has begun", func() bool {
				seen = !since().IsZero()
				return seen || low.State() == Idle
			})
			end()
			if at := since(); !at.IsZero() {
				t.Errorf("no command waits, but since %v one does", at)
			}
			done()
			wait(t, high)
			low.Resume()
			wait(t, low)
			if seen || attempt == 50 {
				break
			}
		}
	}
}

// TestCommands: kinds and times of commands that are not over.
func TestCommands(t *testing.T) {
	q, _ := newPair(t)
	before := time.Now()
	begun := make(chan func(), 1)
	if _, err := q.SubmitWork(Work{Kind: Kernel, Later: true, Run: func(done func()) { begun <- done }}); err != nil {
		t.Fatal(err)
	}
	done := <-begun
	q.Suspend()
	if _, err := q.SubmitWork(Work{Kind: Copy, Run: func(func()) {}}); err != nil {
		t.Fatal(err)
	}
	got := q.Commands()
	if len(got) != 2 || got[0].Number != 1 || got[0].Kind != Kernel || !got[0].Begun || got[1].Number != 2 || got[1].Kind != Copy || got[1].Begun {
		t.Errorf("got %+v, want a kernel in flight and a copy that waits", got)
	}
	for _, c := range got {
		if c.Submitted.Before(before) || c.Submitted.After(time.Now()) {
			t.Errorf("%+v was submitted at another time", c)
		}
	}
	done()
	q.Resume()
	wait(t, q)
	if got := q.Commands(); len(got) != 0 {
		t.Errorf("got %+v, want none", got)
	}
}

// TestDaemonIsToldTheHighestQueue: the class and priority of the highest queue that has commands
// are hints of the process.
func TestDaemonIsToldTheHighestQueue(t *testing.T) {
	low, _, page := newGated(t, func(*shimpage.Page) {})
	high := newQueue(low.page, low.ranks)
	high.SetClass(sched.Online)
	high.SetPriority(3)
	low.SetClass(sched.Batch)
	_, endLow := submitLater(t, low)
	pagetest.Until(t, "the low command is in flight", func() bool { return low.Counts().Launched == 1 })
	_, endHigh := submitLater(t, high)
	pagetest.Until(t, "the high command is in flight", func() bool { return high.Counts().Launched == 1 })
	endHigh()
	wait(t, high)
	endLow()
	wait(t, low)
	var got []shimpage.Hint
	page.Hints(func(h shimpage.Hint) { got = append(got, h) })
	var kinds []shimpage.HintKind
	var values []int64
	for _, h := range got {
		kinds, values = append(kinds, h.Kind), append(values, h.Value)
	}
	if !slices.Equal(kinds, []shimpage.HintKind{shimpage.HintClass, shimpage.HintClass, shimpage.HintPriority, shimpage.HintClass}) ||
		!slices.Equal(values, []int64{int64(sched.Batch), int64(sched.Online), 3, int64(sched.Batch)}) {
		t.Errorf("got hints %v with values %v, want batch, online, priority 3, batch", kinds, values)
	}
}
