// Package queue runs commands one after another, each when the gate of this process lets
// it: the daemon can hold a program in Go that the preload library cannot be loaded into
// as it holds any other. Nobody needs a queue to be scheduled; it is for work that the
// library does not see, and for who wants to suspend or drop what has not begun.
//
// Without a daemon there is no gate, and all else is the same. Where the preload library
// is in the process, its gate is the one that holds, at the launches themselves.
package queue

import (
	"context"
	"errors"
	"sync"

	"github.com/giveway/giveway/internal/shim/pageclient"
)

// ErrClosed is what a queue answers after Close, ErrDropped what a command does that
// was forgotten before it had begun.
var (
	ErrClosed  = errors.New("the queue is closed")
	ErrDropped = errors.New("the command was dropped")
)

// State is how a queue is.
type State int

// The states. Suspended comes first; idle: nothing waits and nothing is under way.
const (
	Idle State = iota
	Ready
	Suspended
)

// Counts are of commands: Submitted = waiting + Launched + Dropped, and Launched = under
// way + Completed.
type Counts struct {
	Submitted, Launched, Completed, Dropped uint64
}

// Queue is one. It is safe for concurrent use, and all of it may be called from a command
// but for waiting for that command or a later one, and Close: those would wait for ever.
type Queue struct {
	page *pageclient.Page

	mu        sync.Mutex
	waiting   []*Command
	underWay  int
	bound     int
	suspended bool
	closed    bool
	running   bool // a goroutine runs commands, or waits at the gate with the first
	counts    Counts
	open      map[*Command]struct{} // not over
}

// Command is what was submitted to a queue.
type Command struct {
	run     func(done func())
	later   bool
	over    chan struct{}
	dropped bool // before over was closed

	// Under Queue.mu.
	returned bool // run has
	told     bool // that it is done
}

// New returns a queue with nothing in it.
func New() *Queue { return newQueue(pageclient.OfProcess()) }

func newQueue(page *pageclient.Page) *Queue { return &Queue{page: page, open: map[*Command]struct{}{}} }

// Submit adds a command, which is done when run has returned.
func (q *Queue) Submit(run func()) (*Command, error) {
	return q.submit(&Command{run: func(func()) { run() }})
}

// SubmitLater adds a command that is done when done was called: by anybody, during run or
// after it; twice equals once. The next command does not wait for that, unless there is
// a bound.
func (q *Queue) SubmitLater(run func(done func())) (*Command, error) {
	return q.submit(&Command{run: run, later: true})
}

func (q *Queue) submit(c *Command) (*Command, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, ErrClosed
	}
	c.over = make(chan struct{})
	q.waiting = append(q.waiting, c)
	q.open[c] = struct{}{}
	q.counts.Submitted++
	q.goOn()
	return c, nil
}

// goOn has commands run, if any may. q.mu is held.
func (q *Queue) goOn() {
	if !q.running && q.mayBegin() {
		q.running = true
		go q.work()
	}
}

func (q *Queue) mayBegin() bool {
	return len(q.waiting) > 0 && !q.suspended && (q.bound == 0 || q.underWay < q.bound)
}

// work runs commands for as long as any may begin.
func (q *Queue) work() {
	for {
		q.mu.Lock()
		if !q.mayBegin() {
			q.running = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		q.page.Enter()
		q.mu.Lock()
		if !q.mayBegin() { // suspended or dropped while it was held
			q.mu.Unlock()
			q.page.Withdraw()
			continue
		}
		c := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.underWay++
		q.counts.Launched++
		q.mu.Unlock()
		q.do(c)
	}
}

// do runs a command that was let in. The gate counts one that is done later when it has
// returned, and must not hear before that that it is done.
func (q *Queue) do(c *Command) {
	q.page.Run()
	c.run(func() { q.done(c) })
	q.page.Leave(!c.later)
	q.mu.Lock()
	c.returned = true
	over := !c.later || c.told
	q.mu.Unlock()
	if over {
		q.finish(c)
	}
}

func (q *Queue) done(c *Command) {
	q.mu.Lock()
	over := c.returned && !c.told
	c.told = true
	q.mu.Unlock()
	if over {
		q.finish(c)
	}
}

func (q *Queue) finish(c *Command) {
	if c.later {
		q.page.Done()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.underWay--
	q.counts.Completed++
	q.end(c)
	q.goOn()
}

// end is for a command that is over. q.mu is held.
func (q *Queue) end(c *Command) {
	delete(q.open, c)
	close(c.over)
}

// Over is closed when the command is done or dropped.
func (c *Command) Over() <-chan struct{} { return c.over }

// Wait waits until the command is over, and returns ErrDropped if it has never begun. On a
// suspended queue it waits until somebody resumes the queue or drops the command.
func (c *Command) Wait(ctx context.Context) error {
	select {
	case <-c.over:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.dropped {
		return ErrDropped
	}
	return nil
}

// Wait waits until all that were submitted before it are over: done or dropped.
func (q *Queue) Wait(ctx context.Context) error {
	q.mu.Lock()
	all := make([]*Command, 0, len(q.open))
	for c := range q.open {
		all = append(all, c)
	}
	q.mu.Unlock()
	for _, c := range all {
		if err := c.Wait(ctx); err != nil && !errors.Is(err, ErrDropped) {
			return err
		}
	}
	return nil
}

// Suspend has no more commands begin; what has begun goes on. Twice equals once, and one
// Resume ends it. When it returns no command begins any more.
func (q *Queue) Suspend() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.suspended = true
}

// Resume ends what Suspend began.
func (q *Queue) Resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.suspended = false
	q.goOn()
}

// Drop forgets all that has not begun, what is held at the gate included. It returns how
// many.
func (q *Queue) Drop() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.drop()
}

func (q *Queue) drop() int {
	n := len(q.waiting)
	for _, c := range q.waiting {
		c.dropped = true
		q.end(c)
	}
	q.waiting = nil
	q.counts.Dropped += uint64(n)
	return n
}

// Close drops what has not begun and waits until what has is done. Twice equals once.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.drop()
	q.mu.Unlock()
	_ = q.Wait(context.Background()) // it is never cancelled
}

// Level is the level at which a queue can be stopped: 1, between two commands.
func (q *Queue) Level() int { return 1 }

// SetBound sets the most commands that have begun and are not done; 0, as at first: no
// bound. The daemon's own bound, over all that the process does, is beside this.
func (q *Queue) SetBound(most int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bound = max(most, 0)
	q.goOn()
}

// State is how the queue is now.
func (q *Queue) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.suspended:
		return Suspended
	case len(q.open) > 0:
		return Ready
	}
	return Idle
}

// Counts are those of all commands so far.
func (q *Queue) Counts() Counts {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.counts
}
