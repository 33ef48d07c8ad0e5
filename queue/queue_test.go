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
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), pagetest.Timeout)
	t.Cleanup(cancel)
	return ctx
}

// newAlone returns a queue without a daemon.
func newAlone(t testing.TB) *Queue {
	t.Setenv("GIVEWAY_SOCKET", filepath.Join(t.TempDir(), "none"))
	page := pageclient.NewPage()
	return newQueue(page, newRanks(page))
}

// newGated returns a queue behind a daemon's gate.
func newGated(t testing.TB, prepare func(*shimpage.Page)) (*Queue, *pagetest.Daemon, *shimpage.Page) {
	t.Helper()
	d := pagetest.New(t, prepare)
	page := pageclient.NewPage()
	if err := page.Connect(timeout(t)); err != nil {
		t.Fatal(err)
	}
	// A command may have begun to connect in the background. It must not go on in the next test,
	// whose daemon it would take for its own.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pagetest.Timeout)
		defer cancel()
		_ = page.Connect(ctx)
	})
	return newQueue(page, newRanks(page)), d, d.Page()
}

func submit(t testing.TB, q *Queue, run func()) *Command {
	t.Helper()
	c, err := q.Submit(run)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// submitLater submits a command that is done when the returned function is called.
func submitLater(t testing.TB, q *Queue) (*Command, func()) {
	t.Helper()
	begun := make(chan func(), 1)
	c, err := q.SubmitLater(func(done func()) { begun <- done })
	if err != nil {
		t.Fatal(err)
	}
	return c, func() { (<-begun)() }
}

func expectCounts(t testing.TB, q *Queue, want Counts) {
	t.Helper()
	if got := q.Counts(); got != want {
		t.Errorf("counts are %+v, want %+v", got, want)
	}
}

func wait(t testing.TB, q *Queue) {
	t.Helper()
	if err := q.Wait(timeout(t)); err != nil {
		t.Fatal(err)
	}
}

func TestCommandsRunInOrder(t *testing.T) {
	q := newAlone(t)
	if q.State() != Idle || q.Level() != 1 {
		t.Errorf("a new queue has state %v and level %d, want %v and 1", q.State(), q.Level(), Idle)
	}
	wait(t, q)
	var ran []int
	for i := range 1000 {
		submit(t, q, func() { ran = append(ran, i) })
	}
	wait(t, q)
	for i, n := range ran {
		if n != i {
			t.Fatalf("command %d ran at position %d", n, i)
		}
	}
	expectCounts(t, q, Counts{1000, 1000, 1000, 0})
	q.Close()
	q.Close()
	if _, err := q.Submit(func() {}); !errors.Is(err, ErrClosed) {
		t.Errorf("Submit to a closed queue: got %v, want %v", err, ErrClosed)
	}
}

// TestSuspendAndDropSpareBegunCommands: on a suspended queue the command that has begun goes
// on and no other begins. A dropped command never begins.
func TestSuspendAndDropSpareBegunCommands(t *testing.T) {
	q := newAlone(t)
	begun, release := make(chan struct{}), make(chan struct{})
	first := submit(t, q, func() { close(begun); <-release })
	<-begun
	q.Suspend()
	q.Suspend()
	var ran atomic.Int32
	second := submit(t, q, func() { ran.Add(1) })
	close(release)
	if err := first.Wait(timeout(t)); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := second.Wait(soon); !errors.Is(err, context.DeadlineExceeded) || ran.Load() != 0 || q.State() != Suspended {
		t.Errorf("suspended: error %v, %d ran, state %v; want none to run", err, ran.Load(), q.State())
	}
	if n := q.Drop(); n != 1 || q.Drop() != 0 {
		t.Errorf("dropped %d, want 1 and then 0", n)
	}
	if err := second.Wait(timeout(t)); !errors.Is(err, ErrDropped) {
		t.Errorf("Wait for a dropped command: got %v, want %v", err, ErrDropped)
	}
	third := submit(t, q, func() { ran.Add(1) })
	q.Resume()
	if err := third.Wait(timeout(t)); err != nil || ran.Load() != 1 {
		t.Errorf("after Resume: error %v, %d ran, want nil and 1", err, ran.Load())
	}
	expectCounts(t, q, Counts{3, 2, 2, 1})
}

// TestLaterCommands: done may be called in any order, and before run returns. The bound
// counts commands that are not done.
func TestLaterCommands(t *testing.T) {
	q := newAlone(t)
	one, endOne := submitLater(t, q)
	two, endTwo := submitLater(t, q)
	endTwo()
	if err := two.Wait(timeout(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-one.Over():
		t.Error("the command is over before done was called")
	default:
	}
	if q.State() != Ready {
		t.Errorf("with a command in flight the state is %v, want %v", q.State(), Ready)
	}
	endOne()
	early, err := q.SubmitLater(func(done func()) { done(); done() })
	if err != nil || early.Wait(timeout(t)) != nil {
		t.Fatal(err)
	}
	q.SetBound(1)
	_, endThree := submitLater(t, q)
	four, endFour := submitLater(t, q)
	pagetest.Until(t, "the third command begins", func() bool { return q.Counts().Launched == 4 })
	time.Sleep(20 * time.Millisecond)
	expectCounts(t, q, Counts{5, 4, 3, 0})
	endThree()
	endFour()
	if err := four.Wait(timeout(t)); err != nil {
		t.Fatal(err)
	}
	expectCounts(t, q, Counts{5, 5, 5, 0})
}

// TestCloseDropsAndWaits: Close drops waiting commands and returns when the others are done.
func TestCloseDropsAndWaits(t *testing.T) {
	q := newAlone(t)
	c, end := submitLater(t, q)
	pagetest.Until(t, "the command begins", func() bool { return q.Counts().Launched == 1 })
	q.Suspend()
	dropped := submit(t, q, func() { t.Error("a dropped command ran") })
	closed := make(chan struct{})
	go func() { q.Close(); close(closed) }()
	if err := dropped.Wait(timeout(t)); !errors.Is(err, ErrDropped) {
		t.Errorf("Wait for a waiting command: got %v, want %v", err, ErrDropped)
	}
	select {
	case <-closed:
		t.Error("Close did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	end()
	<-closed
	if err := c.Wait(timeout(t)); err != nil {
		t.Error(err)
	}
}

// TestGateHoldsCommands: a closed gate holds commands. A held command can be dropped, and its
// queue closed.
func TestGateHoldsCommands(t *testing.T) {
	q, d, page := newGated(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
	var ran atomic.Int32
	first := submit(t, q, func() { ran.Add(1) })
	waitUntilHeld := func() {
		pagetest.Until(t, "a command is held", func() bool { return page.Counters().Flags == shimpage.Held|shimpage.Ready })
	}
	waitUntilHeld()
	time.Sleep(2 * pagetest.Lease)
	if ran.Load() != 0 {
		t.Fatal("a command ran behind a closed gate")
	}
	page.Release()
	if err := first.Wait(timeout(t)); err != nil {
		t.Fatal(err)
	}
	if c := page.Counters(); c.Launched != 1 || c.Completed != 1 || c.Holds != 1 || c.Runtimes != 1<<3 {
		t.Errorf("the daemon reads %+v, want 1 launched, 1 completed, 1 hold", c)
	}
	page.Hold(pagetest.Lease)
	submit(t, q, func() { ran.Add(1) })
	waitUntilHeld()
	if n := q.Drop(); n != 1 {
		t.Errorf("dropped %d held commands, want 1", n)
	}
	last := submit(t, q, func() { ran.Add(1) })
	waitUntilHeld()
	d.Die()
	if err := last.Wait(timeout(t)); err != nil || ran.Load() != 2 {
		t.Errorf("with the daemon dead: error %v, %d ran; want nil, 2", err, ran.Load())
	}
	q.Close()
}

// TestDaemonSeesCommandInFlight: while a command runs or is not done yet, the daemon reads
// that the process is ready and that the command is in flight.
func TestDaemonSeesCommandInFlight(t *testing.T) {
	q, _, page := newGated(t, nil)
	begun, release := make(chan struct{}), make(chan struct{})
	c := submit(t, q, func() { close(begun); <-release })
	<-begun
	if c := page.Counters(); c.Flags != shimpage.Ready || c.Launched != 1 || c.Completed != 0 || c.Runtimes != 1<<3 {
		t.Errorf("while the command runs the daemon reads %+v, want ready, 1 launched, 0 completed", c)
	}
	close(release)
	_ = c.Wait(timeout(t))
	if c := page.Counters(); c.Flags != 0 || c.Launched != 1 || c.Completed != 1 {
		t.Errorf("after the command the daemon reads %+v, want idle, 1 completed", c)
	}
	c, end := submitLater(t, q)
	pagetest.Until(t, "the command is in flight", func() bool {
		c := page.Counters()
		return c.Launched == 2 && c.Completed == 1 && c.Flags == shimpage.Ready
	})
	end()
	_ = c.Wait(timeout(t))
	if c := page.Counters(); c.Flags != 0 || c.Completed != 2 {
		t.Errorf("at the end the daemon reads %+v, want idle, 2 completed", c)
	}
}

// TestConcurrentUse: under concurrent calls of everything, each command that is not dropped
// runs once, no two run at the same time, and no call hangs.
func TestConcurrentUse(t *testing.T) {
	q, _, page := newGated(t, func(p *shimpage.Page) { p.SetBound(3, 1) })
	const goroutines, rounds = 6, 300
	var all sync.WaitGroup
	var ran, busy atomic.Int64
	for i := range goroutines {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for round := range rounds {
				run := func() {
					if busy.Add(1) != 1 {
						t.Error("two commands run at the same time")
					}
					ran.Add(1)
					busy.Add(-1)
				}
				var c *Command
				var err error
				if round%3 == 0 {
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
					if err := c.Wait(timeout(t)); err != nil && !errors.Is(err, ErrDropped) {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	q.Close()
	got := q.Counts()
	if got.Submitted != goroutines*rounds || got.Launched != uint64(ran.Load()) || got.Completed != got.Launched || got.Submitted != got.Launched+got.Dropped {
		t.Errorf("%d commands ran, counts are %+v", ran.Load(), got)
	}
	pagetest.Until(t, "the daemon reads an idle process", func() bool {
		c := page.Counters()
		return c.Flags == 0 && c.Launched == got.Launched && c.Completed == got.Launched
	})
}
