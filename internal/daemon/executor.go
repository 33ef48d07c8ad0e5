package daemon

import (
	"sync"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// keeper is told of every change before it is made, so that somebody can undo
// it whatever becomes of us.
type keeper interface {
	Begin(sched.Action) error
	End(sched.Action, sched.Failure) error
}

// executor carries out actions. Each queue has a goroutine of its own, so that
// a driver's call that hangs holds up nobody else.
type executor struct {
	keep keeper
	post func(...sched.Event)

	mu      sync.Mutex
	workers map[sched.QueueID]*worker
}

type worker struct {
	queue   hal.Queue
	actions chan sched.Action // the scheduler has one under way for a queue at most
	done    chan struct{}
}

func newExecutor(keep keeper, post func(...sched.Event)) *executor {
	return &executor{keep: keep, post: post, workers: make(map[sched.QueueID]*worker)}
}

// add takes charge of a queue.
func (e *executor) add(id sched.QueueID, q hal.Queue) {
	w := &worker{queue: q, actions: make(chan sched.Action, 1), done: make(chan struct{})}
	e.mu.Lock()
	e.workers[id] = w
	e.mu.Unlock()
	go e.work(w)
}

// remove gives a queue up when the call under way on it, if there is one, is
// over. gone says that its program is no more.
func (e *executor) remove(id sched.QueueID, gone bool) {
	e.mu.Lock()
	w := e.workers[id]
	delete(e.workers, id)
	e.mu.Unlock()
	if w == nil {
		return
	}
	close(w.actions)
	go func() {
		<-w.done
		if q := e.queueOf(w); gone {
			_ = hal.Abandon(q)
		} else {
			_ = q.Close()
		}
	}()
}

// replace puts another in the place of a queue that is under our charge.
func (e *executor) replace(id sched.QueueID, q hal.Queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.workers[id]; w != nil {
		w.queue = q
	}
}

// Execute implements node.Executor.
func (e *executor) Execute(actions []sched.Action) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range actions {
		w := e.workers[a.Queue]
		switch {
		case w == nil:
			e.post(sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Failure: sched.Gone})
		case a.Level == sched.LevelHold || a.Verb == sched.SetWindow:
			// A gate is only memory: to hand it on would take longer than to do it.
			// Nobody need be told, for it opens by itself when we are gone.
			e.post(sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Failure: hal.Outcome(hal.Do(w.queue, a))})
		default:
			w.actions <- a
		}
	}
}

func (e *executor) queueOf(w *worker) hal.Queue {
	e.mu.Lock()
	defer e.mu.Unlock()
	return w.queue
}

func (e *executor) work(w *worker) {
	defer close(w.done)
	for a := range w.actions {
		came := sched.Refused
		// What cannot be put in the journal is not done.
		if e.keep.Begin(a) == nil {
			came = hal.Outcome(hal.Do(e.queueOf(w), a))
			_ = e.keep.End(a, came)
		}
		e.post(sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Failure: came})
	}
}
