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
	End(sched.Action, sched.Outcome) error
}

// executor carries out actions. Each queue has a goroutine of its own, so that
// a driver's call that hangs holds up nobody else.
type executor struct {
	keep keeper
	post func(...sched.Event)

	mu      sync.Mutex
	workers map[sched.QueueID]*worker
	leaving sync.WaitGroup // queues that are being given up
}

type worker struct {
	queue   hal.Queue
	actions chan sched.Action // the scheduler has one under way for a queue at most
	done    chan struct{}

	// What stops and starts many queues in one call, if anything does, and what it
	// knows this one as.
	batcher hal.Batcher
	plain   hal.Queue
	busy    sync.WaitGroup // while it is in such a call
}

func newExecutor(keep keeper, post func(...sched.Event)) *executor {
	return &executor{keep: keep, post: post, workers: make(map[sched.QueueID]*worker)}
}

// add takes charge of a queue.
func (e *executor) add(id sched.QueueID, q hal.Queue) { e.addAfter(id, q, nil) }

// addAfter takes charge of a queue, and does nothing to it before somebody else is done.
func (e *executor) addAfter(id sched.QueueID, q hal.Queue, after <-chan struct{}) {
	w := &worker{queue: q, actions: make(chan sched.Action, 1), done: make(chan struct{})}
	e.mu.Lock()
	e.workers[id] = w
	e.mu.Unlock()
	go func() {
		if after != nil {
			<-after
		}
		e.work(w)
	}()
}

// addBatched takes charge of a queue that is stopped and started along with others.
// Whoever does that sees to it that it is undone if we die: nobody else is told.
func (e *executor) addBatched(id sched.QueueID, q hal.Queue, b hal.Batcher) {
	e.add(id, q)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.workers[id].batcher, e.workers[id].plain = b, q
}

// remove gives a queue up when the call under way on it, if there is one, is
// over. gone says that its program is no more; otherwise it is put back as it was
// found. Then removed is called.
func (e *executor) remove(id sched.QueueID, gone bool, removed func()) {
	e.mu.Lock()
	w := e.workers[id]
	delete(e.workers, id)
	e.mu.Unlock()
	if w == nil {
		removed()
		return
	}
	close(w.actions)
	e.leaving.Go(func() {
		<-w.done
		w.busy.Wait()
		if q := e.queueOf(w); gone {
			_ = hal.Abandon(q)
		} else {
			_ = q.Close()
		}
		removed()
	})
}

// replace puts another in the place of a queue that is under our charge.
func (e *executor) replace(id sched.QueueID, q hal.Queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.workers[id]; w != nil {
		w.queue = q
	}
}

// Execute implements loop.Executor.
func (e *executor) Execute(actions []sched.Action) {
	e.mu.Lock()
	defer e.mu.Unlock()
	turns := make(map[hal.Batcher]*turn)
	for _, a := range actions {
		w := e.workers[a.Queue]
		switch {
		case w == nil:
			e.post(sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Outcome: sched.Gone})
		case a.Level == sched.LevelHold || a.Verb == sched.SetBound:
			// A gate is only memory: to hand it on would take longer than to do it.
			// Nobody need be told, for it opens by itself when we are gone.
			e.post(sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Outcome: hal.Outcome(hal.Do(w.queue, a))})
		case w.batcher != nil && a.Level == sched.LevelInterrupt && (a.Verb == sched.Stop || a.Verb == sched.Start):
			if turns[w.batcher] == nil {
				turns[w.batcher] = &turn{}
			}
			turns[w.batcher].add(w, a)
		default:
			w.actions <- a
		}
	}
	for b, t := range turns {
		go e.takeTurn(b, t)
	}
}

// turn is what was decided together for the queues of one device.
type turn struct{ off, on side }

// side is the queues that are to be stopped, or to be started.
type side struct {
	actions []sched.Action
	workers []*worker
	queues  []hal.Queue
}

func (t *turn) add(w *worker, a sched.Action) {
	s := &t.on
	if a.Verb == sched.Stop {
		s = &t.off
	}
	w.busy.Add(1)
	s.actions, s.workers, s.queues = append(s.actions, a), append(s.workers, w), append(s.queues, w.plain)
}

// takeTurn carries out a turn. A call that hangs holds up those of its turn only: the
// next has queues of which nothing is under way, and a goroutine of its own.
func (e *executor) takeTurn(b hal.Batcher, t *turn) {
	errs := b.Switch(t.off.queues, t.on.queues)
	var evs []sched.Event
	for i, a := range append(t.off.actions, t.on.actions...) {
		evs = append(evs, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Outcome: hal.Outcome(errs[i])})
	}
	for _, w := range append(t.off.workers, t.on.workers...) {
		w.busy.Done()
	}
	e.post(evs...)
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
		e.post(sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Outcome: came})
	}
}
