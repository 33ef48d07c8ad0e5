package guardian

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// Task undoes the changes of one queue.
type Task struct {
	Name    string                    // of the queue, for messages
	Open    func() (hal.Queue, error) // an error that wraps hal.ErrGone: nothing is left to undo
	Actions []sched.Action            // in the order of journal.Journal.Undo
	Undone  func()                    // called when everything is undone; nil: nothing
}

// A call that fails is tried again after undoPause, for undoTime at most.
const (
	undoPause = 2 * time.Millisecond
	undoTime  = time.Second
)

// callTimeout is how long a driver call may take. Afterwards its queue is given up: it is
// reported, and stays in the journal. Tests set it.
var callTimeout = 5 * time.Second

var errHangs = errors.New("the driver call does not return")

// UndoLeft undoes the changes that a journal on disk lists, of which neither a daemon nor a
// guardian holds descriptors any more. It returns how many queues were changed, and the
// highest number of a queue in the journal. What could not be undone stays in the journal.
func UndoLeft(s *journal.Store, backends []hal.Backend, log *slog.Logger) (changed int, last sched.QueueID, err error) {
	all, last, err := s.Left()
	var tasks []Task
	for _, l := range all {
		tasks = append(tasks, Task{
			Name:    fmt.Sprintf("queue %d of process %d (%s)", l.ID, l.Queue.Process.PID, l.Queue.Backend),
			Open:    func() (hal.Queue, error) { return reopen(backends, l.Queue) },
			Actions: l.Change.Undo(l.ID),
			Undone:  func() { _ = s.ForgetQueue(l.ID) }, // if it stays, it is undone again
		})
	}
	if len(tasks) > 0 {
		log.Warn("an earlier daemon and its guardian were killed; restoring", "queues", len(tasks))
	}
	return len(tasks), last, errors.Join(err, Undo(tasks, log))
}

func reopen(backends []hal.Backend, q journal.Queue) (hal.Queue, error) {
	for _, b := range backends {
		if r, ok := b.(hal.Reopener); ok && b.Name() == q.Backend {
			return r.Reopen(q.Process, q.State)
		}
	}
	return nil, fmt.Errorf("backend %q cannot find its queues again", q.Backend)
}

// Undo undoes changes of many queues, all at the same time, and returns when each is undone
// or given up. So a call that hangs delays only its own queue.
//
// Each queue gets its slice back before it is started. That is enough to avoid the livelock
// of two running queues with the minimum slice: the scheduler permits at most one such
// queue, and no queue is added to those that run with a short slice.
func Undo(tasks []Task, log *slog.Logger) error {
	errs := make([]error, len(tasks))
	var running sync.WaitGroup
	for i, t := range tasks {
		running.Go(func() {
			if err := t.run(); err != nil {
				errs[i] = fmt.Errorf("%s: %w", t.Name, err)
				log.Error("queue could not be restored", "queue", t.Name, "error", err)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (t *Task) run() error {
	var q hal.Queue
	err := within(callTimeout, func() (err error) {
		q, err = t.Open()
		return err
	})
	if err == nil {
		err = undoAll(q, t.Actions)
	}
	if errors.Is(err, hal.ErrGone) {
		err = nil
	}
	if err == nil && t.Undone != nil {
		t.Undone()
	}
	return err
}

// undoAll carries out actions on a queue and releases it. It does not wait for close(2), in which
// the driver may hang: the queue is undone before.
func undoAll(q hal.Queue, actions []sched.Action) (err error) {
	for _, a := range actions {
		if err = errors.Join(err, undo(q, a)); errors.Is(err, errHangs) {
			return err // a further call for the queue would wait for the one that hangs
		}
	}
	go func() { _ = hal.Abandon(q) }()
	return err
}

// undo carries out one action, and tries again if it fails.
func undo(q hal.Queue, a sched.Action) (err error) {
	for end := time.Now().Add(undoTime); ; time.Sleep(undoPause) {
		err = within(callTimeout, func() error { return hal.Do(q, a) })
		if err == nil || errors.Is(err, hal.ErrGone) || errors.Is(err, errHangs) || time.Now().After(end) {
			return err
		}
	}
}

// within calls f and returns its error, or errHangs if f does not return in time.
func within(limit time.Duration, f func() error) error {
	returned := make(chan error, 1)
	go func() { returned <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-returned:
		return err
	case <-timer.C:
		return fmt.Errorf("%w within %v", errHangs, limit)
	}
}
