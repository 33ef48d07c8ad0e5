package daemon

import (
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// journalKeeper records every change before it is made, so that the guardian can undo it if
// this process dies.
type journalKeeper interface {
	Begin(sched.Action) error
	End(sched.Action, sched.Outcome) error
}

// executor carries out actions. Each queue has a goroutine of its own, so that a driver
// call that hangs delays no other queue.
type executor struct {
	journal journalKeeper
	post    func(...sched.Event)

	mu      sync.Mutex
	workers map[sched.QueueID]*worker
	closing sync.WaitGroup // queues that are being closed
}

// worker carries out the actions for one queue.
type worker struct {
	workerConfig
	queue    hal.Queue
	attached hal.Queue         // as added: the batcher knows the queue by it
	actions  chan sched.Action // the scheduler has at most one under way for a queue
	done     chan struct{}
	batched  sync.WaitGroup // calls of the batcher that are under way
}

// workerConfig says how actions for a queue are carried out.
type workerConfig struct {
	after     <-chan struct{} // nil, or closed when the queue may be changed
	batcher   hal.Batcher     // nil, or stops and starts the queue together with others
	journaled bool            // changes do not undo themselves when this process dies
}

func newExecutor(j journalKeeper, post func(...sched.Event)) *executor {
	return &executor{journal: j, post: post, workers: make(map[sched.QueueID]*worker)}
}

// add starts to carry out actions for a queue.
func (e *executor) add(id sched.QueueID, q hal.Queue, c workerConfig) {
	w := &worker{workerConfig: c, queue: q, attached: q, actions: make(chan sched.Action, 1), done: make(chan struct{})}
	e.mu.Lock()
	e.workers[id] = w
	e.mu.Unlock()
	go func() {
		if c.after != nil {
			<-c.after
		}
		e.work(w)
	}()
}

// remove closes a queue once the call under way for it has returned. exited says that
// its process has exited, so that nothing is restored. Then removed is called.
func (e *executor) remove(id sched.QueueID, exited bool, removed func()) {
	e.mu.Lock()
	w := e.workers[id]
	delete(e.workers, id)
	e.mu.Unlock()
	if w == nil {
		removed()
		return
	}
	close(w.actions)
	e.closing.Go(func() {
		<-w.done
		w.batched.Wait()
		if q := e.queueOf(w); exited {
			_ = hal.Abandon(q)
		} else {
			_ = q.Close()
		}
		removed()
	})
}

// replace puts q in the place of a queue that was added.
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
	batches := make(map[hal.Batcher]*batch)
	for _, a := range actions {
		w := e.workers[a.Queue]
		switch {
		case w == nil:
			e.post(actionDone(a, sched.Gone, 0))
		case a.Level == sched.LevelHold || a.Verb == sched.SetBound:
			// A gate is only memory, so writing it takes less time than handing it to a
			// worker. It needs no journal: its lease ends when this process dies.
			outcome, took := timed(func() error { return hal.Do(w.queue, a) })
			e.post(actionDone(a, outcome, took))
		case w.batcher != nil && a.Level == sched.LevelInterrupt && (a.Verb == sched.Stop || a.Verb == sched.Start):
			if batches[w.batcher] == nil {
				batches[w.batcher] = &batch{}
			}
			batches[w.batcher].add(w, a)
		default:
			w.actions <- a
		}
	}
	for b, t := range batches {
		go e.runBatch(b, t)
	}
}

// batch is the stops and starts that were decided together for one device.
type batch struct{ stops, starts batchPart }

type batchPart struct {
	actions []sched.Action
	workers []*worker
	queues  []hal.Queue
}

func (b *batch) add(w *worker, a sched.Action) {
	h := &b.starts
	if a.Verb == sched.Stop {
		h = &b.stops
	}
	w.batched.Add(1)
	h.actions, h.workers, h.queues = append(h.actions, a), append(h.workers, w), append(h.queues, w.attached)
}

// runBatch carries out a batch in one call. A call that hangs delays only the queues of
// its batch: the next batch has other queues and a goroutine of its own.
func (e *executor) runBatch(device hal.Batcher, b *batch) {
	began := time.Now()
	errs := device.Switch(b.stops.queues, b.starts.queues)
	took := time.Since(began)
	var evs []sched.Event
	for i, a := range append(b.stops.actions, b.starts.actions...) {
		evs = append(evs, actionDone(a, hal.Outcome(errs[i]), took))
	}
	for _, w := range append(b.stops.workers, b.starts.workers...) {
		w.batched.Done()
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
		e.post(e.do(w, a))
	}
}

// do carries out an action. One that must be journaled and cannot be is refused.
func (e *executor) do(w *worker, a sched.Action) sched.Event {
	if w.journaled && e.journal.Begin(a) != nil {
		return actionDone(a, sched.Refused, 0)
	}
	outcome, took := timed(func() error { return hal.Do(e.queueOf(w), a) })
	if w.journaled {
		_ = e.journal.End(a, outcome)
	}
	return actionDone(a, outcome, took)
}

// timed makes a call to a driver and returns what its result means and how long it took.
func timed(call func() error) (sched.Outcome, time.Duration) {
	began := time.Now()
	err := call()
	return hal.Outcome(err), time.Since(began)
}

// actionDone returns the event that an action is over.
func actionDone(a sched.Action, outcome sched.Outcome, took time.Duration) sched.Event {
	return sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Outcome: outcome, Duration: took}
}
