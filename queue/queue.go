// Package queue runs commands one after another, each when the gate of this process is open.
// With it the daemon can hold a Go program, into which the shim cannot be loaded.
// A program does not need a queue to be scheduled: queues are for work that the shim does
// not see, and for programs that want to suspend or drop commands that have not begun.
//
// Queues of one process are ordered by class, then by priority: a command does not begin while
// a higher queue has commands. So that no program stops for ever, a command waits for at most
// 100 ms, and for at most 20 ms in which no command of a higher queue is done. The daemon is
// told the class and the priority of the highest queue that has commands, as hints of the
// process, if they were set.
//
// Without a daemon there is no gate, and everything else works the same. If the shim is
// loaded in the process, a queue does not wait at the gate: the shim holds the process at the
// launches themselves.
package queue

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/shim/pageclient"
	"github.com/giveway/giveway/sched"
)

// ErrClosed is returned by a closed queue, ErrDropped by a command that was dropped before it
// began.
var (
	ErrClosed  = errors.New("the queue is closed")
	ErrDropped = errors.New("the command was dropped")
)

// State is the state of a queue.
type State int

// The states. A suspended queue is Suspended whether or not it has commands. Otherwise it is
// Idle when no command is waiting or in flight.
const (
	Idle State = iota
	Ready
	Suspended
)

// Counts are numbers of commands. Submitted = waiting + Launched + Dropped, and Launched = in
// flight + Completed.
type Counts struct {
	Submitted, Launched, Completed, Dropped uint64
}

// Queue runs commands in order. It is safe for concurrent use. A command may call all methods
// of its own queue except Close, and except waiting for itself or a later command: these
// would never return.
type Queue struct {
	page  *pageclient.Page
	ranks *ranks
	rank  *rank // not part of the queue, so that a queue that is not used any more can be freed

	mu        sync.Mutex
	waiting   []*Command
	inFlight  int
	bound     int
	suspended bool
	closed    bool
	working   bool // a goroutine runs commands, or waits at the gate
	counts    Counts
	open      map[*Command]struct{} // neither done nor dropped
}

// Command is a command that was submitted to a queue.
type Command struct {
	Work
	number    uint64
	submitted time.Time
	over      chan struct{}
	dropped   bool // set before over is closed

	// Guarded by Queue.mu.
	begun      bool
	returned   bool // Run has returned
	doneCalled bool
}

// New returns an empty queue.
func New() *Queue { return newQueue(pageclient.ProcessPage(), processRanks()) }

func newQueue(page *pageclient.Page, r *ranks) *Queue {
	q := &Queue{page: page, ranks: r, rank: &rank{}, open: map[*Command]struct{}{}}
	r.add(q.rank)
	runtime.AddCleanup(q, r.remove, q.rank)
	return q
}

// Kind says what a command does. Only Commands shows it.
type Kind int

// The kinds of commands.
const (
	Unknown Kind = iota
	Kernel
	Copy
	Event
	Sync
)

// Work is what a command does. Run is called when it may begin. The command is done when Run
// returns or, if Later is set, when done is called.
type Work struct {
	Kind  Kind
	Run   func(done func())
	Later bool
}

// SubmitWork adds a command.
func (q *Queue) SubmitWork(w Work) (*Command, error) { return q.submit(&Command{Work: w}) }

// Submit adds a command that is done when run returns.
func (q *Queue) Submit(run func()) (*Command, error) {
	return q.submit(&Command{Work: Work{Run: func(func()) { run() }}})
}

// SubmitLater adds a command that is done when done is called, during run or after it, by any
// goroutine. Only the first call of done counts. The next command does not wait for it,
// unless there is a bound.
func (q *Queue) SubmitLater(run func(done func())) (*Command, error) {
	return q.submit(&Command{Work: Work{Run: run, Later: true}})
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
	c.number, c.submitted = q.counts.Submitted, time.Now()
	q.changed()
	q.startWork()
	return c, nil
}

// changed tells the other queues whether this one has commands. q.mu is held.
func (q *Queue) changed() {
	q.ranks.update(q.rank, len(q.waiting) > 0 && !q.suspended, q.inFlight > 0, q.counts.Completed)
}

// startWork starts a goroutine that runs commands, if a command may begin. q.mu is held.
func (q *Queue) startWork() {
	if !q.working && q.mayBegin() {
		q.working = true
		go q.work()
	}
}

func (q *Queue) mayBegin() bool {
	return len(q.waiting) > 0 && !q.suspended && (q.bound == 0 || q.inFlight < q.bound)
}

// work runs commands as long as one may begin.
func (q *Queue) work() {
	for {
		q.mu.Lock()
		if !q.mayBegin() {
			q.working = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		if held, changed := q.ranks.holds(q.rank); held {
			select {
			case <-changed:
			case <-time.After(lookAgain):
			}
			continue
		}
		q.page.Enter()
		q.mu.Lock()
		// Suspended or dropped while it waited at the gate, or a higher queue has got commands.
		if held, _ := q.ranks.holds(q.rank); held || !q.mayBegin() {
			q.mu.Unlock()
			q.page.Cancel()
			continue
		}
		c := q.waiting[0]
		q.waiting = q.waiting[1:]
		c.begun = true
		q.inFlight++
		q.counts.Launched++
		q.changed()
		q.ranks.begun(q.rank)
		q.mu.Unlock()
		q.run(c)
	}
}

// run runs a command that has passed the gate. The page must count the command as launched
// before it counts it as completed, so a done that is called during run takes effect after
// run has returned.
func (q *Queue) run(c *Command) {
	q.page.Start()
	c.Run(func() { q.done(c) })
	q.page.Launched(!c.Later)
	q.mu.Lock()
	c.returned = true
	over := !c.Later || c.doneCalled
	q.mu.Unlock()
	if over {
		q.complete(c)
	}
}

func (q *Queue) done(c *Command) {
	q.mu.Lock()
	over := c.returned && !c.doneCalled
	c.doneCalled = true
	q.mu.Unlock()
	if over {
		q.complete(c)
	}
}

func (q *Queue) complete(c *Command) {
	if c.Later {
		q.page.Completed()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight--
	q.counts.Completed++
	q.end(c)
	q.changed()
	q.startWork()
}

// end marks a command as over. q.mu is held.
func (q *Queue) end(c *Command) {
	delete(q.open, c)
	close(c.over)
}

// Over returns a channel that is closed when the command is done or dropped.
func (c *Command) Over() <-chan struct{} { return c.over }

// Wait waits until the command is done or dropped, and returns ErrDropped if it was dropped.
// On a suspended queue it waits until the queue is resumed or the command is dropped.
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

// Wait waits until all commands that were submitted before this call are done or dropped.
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

// Suspend stops commands from beginning; those that have begun go on. After it returns no
// command begins until Resume. Calls do not nest: one Resume ends any number of them.
func (q *Queue) Suspend() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.suspended = true
	q.changed()
}

// Resume lets commands begin again.
func (q *Queue) Resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.suspended = false
	q.changed()
	q.startWork()
}

// Drop drops all commands that have not begun, including one that waits at the gate. It
// returns how many it dropped.
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
	q.changed()
	return n
}

// Close drops all commands that have not begun and waits until the others are done. Further
// calls do nothing.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.drop()
	q.mu.Unlock()
	_ = q.Wait(context.Background()) // this context is never cancelled
	q.ranks.remove(q.rank)
}

// Level returns the level at which a queue can be stopped: 1, between two commands.
func (q *Queue) Level() int { return 1 }

// SetBound sets how many commands may be in flight: begun and not done. Zero, the initial
// value, is no bound. The daemon's bound, which counts all work of the process, applies in
// addition.
func (q *Queue) SetBound(limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bound = max(limit, 0)
	q.startWork()
}

// SetClass sets the class of the queue: online before standard, the initial one, before batch
// before idle.
func (q *Queue) SetClass(c sched.Class) {
	q.ranks.set(func() { q.rank.class, q.rank.classGiven = c, true })
}

// SetPriority sets the priority of the queue among those of its class: a higher one runs first.
func (q *Queue) SetPriority(priority int32) {
	q.ranks.set(func() { q.rank.priority, q.rank.priorityGiven = priority, true })
}

// CommandInfo describes a command that is not over.
type CommandInfo struct {
	Number    uint64 // in the queue, counted from 1
	Kind      Kind
	Submitted time.Time
	Begun     bool // it is in flight
}

// Commands returns the commands in flight and those that wait, by their numbers.
func (q *Queue) Commands() []CommandInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	var all []CommandInfo
	for c := range q.open {
		all = append(all, CommandInfo{c.number, c.Kind, c.submitted, c.begun})
	}
	slices.SortFunc(all, func(a, b CommandInfo) int { return cmp.Compare(a.Number, b.Number) })
	return all
}

// State returns the state of the queue.
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

// Counts returns the numbers of commands so far.
func (q *Queue) Counts() Counts {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.counts
}
