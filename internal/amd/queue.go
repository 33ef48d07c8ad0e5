package amd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
)

// queue is one attached KFD queue.
type queue struct {
	gpu     *gpu
	target  target
	methods []method // best first; the first was proved. None: the queue cannot be stopped
	why     error    // why better methods do not work

	mu     sync.Mutex
	by     method // that stopped the queue; nil: it is not stopped
	closed bool
	// noSlotSince is since when the free slots are reserved for others; zero: they are not.
	noSlotSince time.Time
}

func (q *queue) key() kfd.QueueKey {
	return kfd.QueueKey{GPU: q.gpu.node.GPU, Queue: q.target.queue}
}

func (q *queue) stoppedBy() method {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.by
}

func (q *queue) setStoppedBy(m method) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.by, q.noSlotSince = m, time.Time{}
}

// method returns the method to try in the given round of a stop, or nil if none is left. A
// queue that is stopped is stopped again by the same method only.
func (q *queue) method(round int) method {
	methods := q.methods
	if by := q.stoppedBy(); by != nil {
		methods = []method{by}
	}
	if round < len(methods) {
		return methods[round]
	}
	return nil
}

// bestMethod names the method that was proved, or returns "".
func (q *queue) bestMethod() string {
	if len(q.methods) == 0 {
		return ""
	}
	return q.methods[0].name()
}

// byShim reports whether the shim of the process stops the queue, or has stopped it.
func (q *queue) byShim() bool {
	by := q.stoppedBy()
	return q.bestMethod() == ownName || by != nil && by.name() == ownName
}

// close starts the queue if it is stopped, and detaches it. A second call has no effect.
func (q *queue) close() error {
	if !q.markClosed() {
		return nil
	}
	var err error
	if by := q.stoppedBy(); by != nil {
		err = by.start(q.target.pid, []*queue{q})[0]
		q.setStoppedBy(nil)
	}
	return errors.Join(ignoreGone(err), ignoreGone(q.gpu.driver.detach(q.target.pid)))
}

// abandon detaches the queue of a process that has exited.
func (q *queue) abandon() error {
	if !q.markClosed() {
		return nil
	}
	return ignoreGone(q.gpu.driver.detach(q.target.pid))
}

// markClosed reports whether the queue was open.
func (q *queue) markClosed() bool {
	q.mu.Lock()
	was := q.closed
	q.closed = true
	q.mu.Unlock()
	q.gpu.mu.Lock()
	delete(q.gpu.queues, q)
	q.gpu.mu.Unlock()
	return !was
}

// ignoreGone returns nil for a queue that no longer exists: it needs no undoing.
func ignoreGone(err error) error {
	if errors.Is(err, hal.ErrGone) {
		return nil
	}
	return err
}

// stop stops queues, each by the best of its methods that works, with one call for each
// process and method. It returns the result for each queue.
func (d *driver) stop(queues []*queue) []error {
	errs := make(map[*queue]error)
	pending := queues
	for round := 0; len(pending) > 0; round++ {
		var next []*queue
		var ready []*queue
		for _, q := range pending {
			if q.method(round) != nil {
				ready = append(ready, q)
			} else if round == 0 {
				errs[q] = fmt.Errorf("no method can stop queue %d: %w", q.target.queue, hal.ErrNotSupported)
			}
		}
		for _, c := range callAll(ready, func(q *queue) method { return q.method(round) }, func(m method, pid int, queues []*queue) []error {
			began := time.Now()
			results := m.stop(pid, queues)
			d.stats.add(&d.stats.stops, began, results, round > 0)
			return results
		}) {
			for i, q := range c.queues {
				switch err := c.results[i]; {
				case err == nil:
					q.setStoppedBy(c.method)
					errs[q] = nil
				case errors.Is(err, hal.ErrGone):
					q.setStoppedBy(nil)
					errs[q] = joinMethods(errs[q], fmt.Errorf("%s: %w", c.method.name(), err))
				default:
					errs[q] = joinMethods(errs[q], fmt.Errorf("%s: %w", c.method.name(), err))
					next = append(next, q)
				}
			}
		}
		pending = next
	}
	return inOrder(queues, errs)
}

// joinMethods joins the errors of two methods. If one of them may work another time, the
// result does not wrap hal.ErrNotSupported.
func joinMethods(first, second error) error {
	if first == nil {
		return second
	}
	switch never, neither := errors.Is(first, hal.ErrNotSupported), errors.Is(second, hal.ErrNotSupported); {
	case never && !neither:
		return fmt.Errorf("%v; %w", first, second)
	case neither && !never:
		return fmt.Errorf("%w; %v", first, second)
	}
	return errors.Join(first, second)
}

// start starts the queues that are stopped, each by the method that stopped it. It returns
// the result for each queue.
func (d *driver) start(queues []*queue) []error {
	errs := make(map[*queue]error)
	var stopped []*queue
	for _, q := range queues {
		if q.stoppedBy() != nil {
			stopped = append(stopped, q)
		}
	}
	for _, c := range callAll(stopped, (*queue).stoppedBy, func(m method, pid int, queues []*queue) []error {
		began := time.Now()
		results := m.start(pid, queues)
		d.stats.add(&d.stats.starts, began, results, false)
		return results
	}) {
		for i, q := range c.queues {
			err := c.results[i]
			if ignoreGone(err) == nil {
				q.setStoppedBy(nil)
			}
			if err != nil {
				errs[q] = fmt.Errorf("%s: %w", c.method.name(), err)
			}
		}
	}
	return inOrder(queues, errs)
}

func inOrder(queues []*queue, errs map[*queue]error) []error {
	out := make([]error, len(queues))
	for i, q := range queues {
		out[i] = errs[q]
	}
	return out
}

// call is one call of a method for queues of one process, and its results.
type call struct {
	method  method
	pid     int
	queues  []*queue
	results []error
}

// callAll makes one call for each process and method, in the order of the queues. Calls
// that wait for a process to answer run concurrently, so that one process that does not
// answer delays no other.
func callAll(queues []*queue, by func(*queue) method, do func(method, int, []*queue) []error) []*call {
	var calls []*call
	seen := make(map[*queue]bool)
	for _, q := range queues {
		if seen[q] {
			continue
		}
		seen[q] = true
		var c *call
		for _, other := range calls {
			if other.method == by(q) && other.pid == q.target.pid && len(other.queues) < kfd.MaxQueues {
				c = other
			}
		}
		if c == nil {
			c = &call{method: by(q), pid: q.target.pid}
			calls = append(calls, c)
		}
		c.queues = append(c.queues, q)
	}
	var waiting sync.WaitGroup
	for _, c := range calls {
		run := func() { c.results = do(c.method, c.pid, c.queues) }
		if _, waits := c.method.(*ownMethod); waits {
			waiting.Go(run)
		} else {
			run()
		}
	}
	waiting.Wait()
	return calls
}

// forAll returns the same error for every queue.
func forAll(queues []*queue, err error) []error {
	errs := make([]error, len(queues))
	for i := range errs {
		errs[i] = err
	}
	return errs
}
