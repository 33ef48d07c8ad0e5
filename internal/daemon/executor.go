package daemon

import (
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// changeJournal records every change before it is made, so that the guardian can undo it if
// this process dies. Undo returns the actions that undo what is changed of a queue.
type changeJournal interface {
	Begin(sched.Action) error
	End(sched.Action, sched.Outcome) error
	Undo(sched.QueueID) []sched.Action
}

// executor carries out actions. Each queue has a goroutine of its own, so that a driver
// call that hangs delays no other queue.
type executor struct {
	journal changeJournal
	post    func(...sched.Event)

	mu      sync.Mutex
	workers map[sched.QueueID]*worker
	closing sync.WaitGroup // queues that are being closed
	ending  chan struct{}  // closed by end
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

func newExecutor(j changeJournal, post func(...sched.Event)) *executor {
	return &executor{journal: j, post: post, workers: make(map[sched.QueueID]*worker), ending: make(chan struct{})}
}

// end makes the executor refuse further changes, and give up what it cannot undo. It is called
// once.
func (e *executor) end() { close(e.ending) }

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

// removal says how a queue is removed.
type removal struct {
	exited  bool              // its process has exited, so nothing is restored
	hasLeft func() bool       // reports whether its process has exited since; called while the queue cannot be restored
	failed  func()            // called once if the queue could not be restored; with a journal that is tried again
	removed func(undone bool) // called at the end; undone is false if the executor ended first
}

// remove restores and closes a queue once the call under way for it has returned.
func (e *executor) remove(id sched.QueueID, r removal) {
	e.mu.Lock()
	w := e.workers[id]
	delete(e.workers, id)
	e.mu.Unlock()
	if w == nil {
		r.removed(true)
		return
	}
	close(w.actions)
	e.closing.Go(func() {
		<-w.done
		w.batched.Wait()
		undone := r.exited || !w.journaled || e.undo(id, w, r)
		if q := e.queueOf(w); r.exited || !undone {
			_ = hal.Abandon(q)
		} else if err := q.Close(); err != nil && !w.journaled {
			r.failed()
		}
		r.removed(undone)
	})
}

// A queue that cannot be restored is tried again after firstUndoPause, and then after twice as
// long each time, up to lastUndoPause. If its slice cannot be set for sliceFirst, it is started
// all the same: with a short slice it may hinder others, but stopped it makes no progress at all.
const (
	firstUndoPause = 2 * time.Millisecond
	lastUndoPause  = time.Second
	sliceFirst     = time.Second
)

// undo undoes the changes that the journal lists for a queue, and tries again until that works. It
// returns false if the executor ends before. Close could not do this: it releases the queue also when it
// could not restore it.
func (e *executor) undo(id sched.QueueID, w *worker, r removal) bool {
	began := time.Now()
	for pause := firstUndoPause; ; pause = min(2*pause, lastUndoPause) {
		for _, a := range e.journal.Undo(id) {
			if e.do(w, a).Outcome != sched.Done && time.Since(began) < sliceFirst {
				break
			}
		}
		if len(e.journal.Undo(id)) == 0 || r.hasLeft() {
			return true
		}
		if pause == firstUndoPause {
			r.failed()
		}
		select {
		case <-time.After(pause):
		case <-e.ending:
			return false
		}
	}
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
		case w.isBatched(a):
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

// isBatched reports whether an action is carried out together with those of other queues. A queue
// with a journal, or one that must wait until it may be changed, has calls of its own: its worker
// writes the journal and waits.
func (w *worker) isBatched(a sched.Action) bool {
	return w.batcher != nil && !w.journaled && w.after == nil &&
		a.Level == sched.LevelInterrupt && (a.Verb == sched.Stop || a.Verb == sched.Start)
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
// its batch: the next batch has other queues and a goroutine of its own. Stops that are still due
// when the executor ends are refused.
func (e *executor) runBatch(device hal.Batcher, b *batch) {
	var evs []sched.Event
	if e.isEnding() {
		for i, a := range b.stops.actions {
			evs = append(evs, actionDone(a, sched.Refused, 0))
			b.stops.workers[i].batched.Done()
		}
		b.stops = batchPart{}
	}
	began := time.Now()
	errs := device.Switch(b.stops.queues, b.starts.queues)
	took := time.Since(began)
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

// do carries out an action. One that must be journaled and cannot be is refused, and so is a
// change that is still due when the executor ends.
func (e *executor) do(w *worker, a sched.Action) sched.Event {
	if e.isEnding() && journal.Adds(a) || w.journaled && e.journal.Begin(a) != nil {
		return actionDone(a, sched.Refused, 0)
	}
	outcome, took := timed(func() error { return hal.Do(e.queueOf(w), a) })
	if w.journaled {
		_ = e.journal.End(a, outcome)
	}
	return actionDone(a, outcome, took)
}

func (e *executor) isEnding() bool {
	select {
	case <-e.ending:
		return true
	default:
		return false
	}
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
