package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pageclient"
	"github.com/giveway/giveway/internal/shim/pageclient/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), pagetest.Hang)
	t.Cleanup(cancel)
	return ctx
}

// alone is a queue without a daemon.
func alone(t testing.TB) *Queue {
	t.Setenv("GIVEWAY_SOCKET", filepath.Join(t.TempDir(), "none"))
	return newQueue(pageclient.NewPage())
}

// behind is a queue behind a daemon's gate.
func behind(t testing.TB, prepare func(*shimpage.Page)) (*Queue, *pagetest.Daemon, *shimpage.Page) {
	t.Helper()
	d := pagetest.New(t, prepare)
	page := pageclient.NewPage()
	if err := page.Connect(within(t)); err != nil {
		t.Fatal(err)
	}
	return newQueue(page), d, d.Page()
}

func submit(t testing.TB, q *Queue, run func()) *Command {
	t.Helper()
	c, err := q.Submit(run)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// later submits a command that is done when the function returned is called.
func later(t testing.TB, q *Queue) (*Command, func()) {
	t.Helper()
	begun := make(chan func(), 1)
	c, err := q.SubmitLater(func(done func()) { begun <- done })
	if err != nil {
		t.Fatal(err)
	}
	return c, func() { (<-begun)() }
}

func (c Counts) want(t testing.TB, q *Queue) {
	t.Helper()
	if got := q.Counts(); got != c {
		t.Errorf("counts are %+v, want %+v", got, c)
	}
}

func wait(t testing.TB, q *Queue) {
	t.Helper()
	if err := q.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestOrder(t *testing.T) {
	q := alone(t)
	if q.State() != Idle || q.Level() != 1 {
		t.Errorf("a new queue is %v", q.State())
	}
	wait(t, q)
	var ran []int
	for i := range 1000 {
		submit(t, q, func() { ran = append(ran, i) })
	}
	wait(t, q)
	for i, n := range ran {
		if n != i {
			t.Fatalf("command %d ran in place %d", n, i)
		}
	}
	Counts{1000, 1000, 1000, 0}.want(t, q)
	q.Close()
	q.Close()
	if _, err := q.Submit(func() {}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed queue takes commands: %v", err)
	}
}

// TestSuspendAndDrop: what has begun goes on, nothing begins; what is dropped never does.
func TestSuspendAndDrop(t *testing.T) {
	q := alone(t)
	begun, release := make(chan struct{}), make(chan struct{})
	first := submit(t, q, func() { close(begun); <-release })
	<-begun
	q.Suspend()
	q.Suspend()
	var ran atomic.Int32
	second := submit(t, q, func() { ran.Add(1) })
	close(release)
	if err := first.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := second.Wait(soon); !errors.Is(err, context.DeadlineExceeded) || ran.Load() != 0 || q.State() != Suspended {
		t.Errorf("a suspended queue runs: %v", err)
	}
	if n := q.Drop(); n != 1 || q.Drop() != 0 {
		t.Errorf("%d dropped, want 1 and then none", n)
	}
	if err := second.Wait(within(t)); !errors.Is(err, ErrDropped) {
		t.Errorf("a dropped command: %v", err)
	}
	third := submit(t, q, func() { ran.Add(1) })
	q.Resume()
	if err := third.Wait(within(t)); err != nil || ran.Load() != 1 {
		t.Errorf("after Resume: %v, %d ran", err, ran.Load())
	}
	Counts{3, 2, 2, 1}.want(t, q)
}

// TestLater: done when told, in any order, even before it returns; the bound holds.
func TestLater(t *testing.T) {
	q := alone(t)
	one, endOne := later(t, q)
	two, endTwo := later(t, q)
	endTwo()
	if err := two.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-one.Over():
		t.Error("it is done before anybody said so")
	default:
	}
	if q.State() != Ready {
		t.Errorf("with a command under way the queue is %v", q.State())
	}
	endOne()
	early, err := q.SubmitLater(func(done func()) { done(); done() })
	if err != nil || early.Wait(within(t)) != nil {
		t.Fatal(err)
	}
	q.SetBound(1)
	_, endThree := later(t, q)
	four, endFour := later(t, q)
	pagetest.Until(t, "one begins", func() bool { return q.Counts().Launched == 4 })
	time.Sleep(20 * time.Millisecond)
	Counts{5, 4, 3, 0}.want(t, q)
	endThree()
	endFour()
	if err := four.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	Counts{5, 5, 5, 0}.want(t, q)
}

// TestClose: it drops what waits, and comes back when what has begun is done.
func TestClose(t *testing.T) {
	q := alone(t)
	c, end := later(t, q)
	pagetest.Until(t, "it begins", func() bool { return q.Counts().Launched == 1 })
	q.Suspend()
	dropped := submit(t, q, func() { t.Error("it runs") })
	closed := make(chan struct{})
	go func() { q.Close(); close(closed) }()
	if err := dropped.Wait(within(t)); !errors.Is(err, ErrDropped) {
		t.Errorf("what waits: %v", err)
	}
	select {
	case <-closed:
		t.Error("Close did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	end()
	<-closed
	if err := c.Wait(within(t)); err != nil {
		t.Error(err)
	}
}

// TestGate: the process's gate holds commands; what is held can be dropped, and its queue
// closed.
func TestGate(t *testing.T) {
	q, d, page := behind(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
	var ran atomic.Int32
	first := submit(t, q, func() { ran.Add(1) })
	held := func() {
		pagetest.Until(t, "it is held", func() bool { return page.Counters().Flags == shimpage.Held|shimpage.Ready })
	}
	held()
	time.Sleep(2 * pagetest.Lease)
	if ran.Load() != 0 {
		t.Fatal("it ran behind a gate that is shut")
	}
	page.Release()
	if err := first.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	if c := page.Counters(); c.Launched != 1 || c.Completed != 1 || c.Holds != 1 || c.Runtimes != 1<<3 {
		t.Errorf("the daemon reads %+v", c)
	}
	page.Hold(pagetest.Lease)
	submit(t, q, func() { ran.Add(1) })
	held()
	if n := q.Drop(); n != 1 {
		t.Errorf("%d dropped of what is held", n)
	}
	last := submit(t, q, func() { ran.Add(1) })
	held()
	d.Die()
	if err := last.Wait(within(t)); err != nil || ran.Load() != 2 {
		t.Errorf("with the daemon dead: %v, %d ran", err, ran.Load())
	}
	q.Close()
}

// TestReady: the daemon sees a program as ready, and the command as in flight and a
// queue's, while it runs or is to be done later.
func TestReady(t *testing.T) {
	q, _, page := behind(t, nil)
	begun, release := make(chan struct{}), make(chan struct{})
	c := submit(t, q, func() { close(begun); <-release })
	<-begun
	if c := page.Counters(); c.Flags != shimpage.Ready || c.Launched != 1 || c.Completed != 0 || c.Runtimes != 1<<3 {
		t.Errorf("while it runs the daemon reads %+v", c)
	}
	close(release)
	_ = c.Wait(within(t))
	if c := page.Counters(); c.Flags != 0 || c.Launched != 1 || c.Completed != 1 {
		t.Errorf("when it has run the daemon reads %+v", c)
	}
	c, end := later(t, q)
	pagetest.Until(t, "it is in flight", func() bool {
		c := page.Counters()
		return c.Launched == 2 && c.Completed == 1 && c.Flags == shimpage.Ready
	})
	end()
	_ = c.Wait(within(t))
	if c := page.Counters(); c.Flags != 0 || c.Completed != 2 {
		t.Errorf("when all is done the daemon reads %+v", c)
	}
}

// TestManyThreads: whatever many do at once, each command that was not dropped runs once,
// alone and in order, and nobody waits for ever.
func TestManyThreads(t *testing.T) {
	q, _, page := behind(t, func(p *shimpage.Page) { p.SetBound(3, 1) })
	const threads, turns = 6, 300
	var all sync.WaitGroup
	var ran, busy atomic.Int64
	for i := range threads {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for turn := range turns {
				run := func() {
					if busy.Add(1) != 1 {
						t.Error("two run at once")
					}
					ran.Add(1)
					busy.Add(-1)
				}
				var c *Command
				var err error
				if turn%3 == 0 {
					c, err = q.SubmitLater(func(done func()) { run(); go done() })
				} else {
					c, err = q.Submit(run)
				}
				if err != nil {
					t.Error(err)
					return
				}
				switch random.IntN(8) {
				case 0:
					q.Suspend()
					q.Resume()
				case 1:
					q.Drop()
				case 2:
					q.SetBound(random.IntN(3))
				case 3:
					if err := c.Wait(within(t)); err != nil && !errors.Is(err, ErrDropped) {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	q.Close()
	got := q.Counts()
	if got.Submitted != threads*turns || got.Launched != uint64(ran.Load()) || got.Completed != got.Launched || got.Submitted != got.Launched+got.Dropped {
		t.Errorf("%d ran; counts are %+v", ran.Load(), got)
	}
	pagetest.Until(t, "the daemon sees it idle", func() bool {
		c := page.Counters()
		return c.Flags == 0 && c.Launched == got.Launched && c.Completed == got.Launched
	})
}
