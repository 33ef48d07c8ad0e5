package guardian

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Task undoes the changes of one queue.
type Task struct {
	Name    string                    // of the queue, for messages
	Open    func() (hal.Queue, error) // an error that wraps hal.ErrGone: nothing is left to undo
	Actions []sched.Action            // in the order of journal.Journal.Undo
	Undone  func()                    // called when everything is undone; nil: nothing
}

// A call that fails is tried again undoTries times, with undoPause in between.
const (
	undoPause = 2 * time.Millisecond
	undoTries = 400
)

// callTimeout is how long a driver call may take. Afterwards its queue is given up: it is
// reported, and stays in the journal. Tests set it.
var callTimeout = 5 * time.Second

var errHangs = errors.New("the driver call does not return")

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
	for _, a := range t.Actions {
		if q == nil || errors.Is(err, errHangs) {
			break // a further call for the queue would wait for the one that hangs
		}
		err = errors.Join(err, undo(q, a))
	}
	if errors.Is(err, hal.ErrGone) {
		err = nil
	}
	if err == nil && t.Undone != nil {
		t.Undone()
	}
	return err
}

// undo carries out one action, and tries again if it fails.
func undo(q hal.Queue, a sched.Action) (err error) {
	for range undoTries {
		err = within(callTimeout, func() error { return hal.Do(q, a) })
		if err == nil || errors.Is(err, hal.ErrGone) || errors.Is(err, errHangs) {
			return err
		}
		time.Sleep(undoPause)
	}
	return err
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
