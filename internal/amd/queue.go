package amd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
)

// queue is a queue under our control, if there is a way to control it.
type queue struct {
	device *Device
	target Target
	ways   []way // best first: one that was proved, and what there is beside it
	why    error // better ones do not work

	mu     sync.Mutex
	by     way // that it is stopped by; nil: it is not
	closed bool
}

// interruptible is a queue that Attach proved can be interrupted.
type interruptible struct{ *queue }

func (q *queue) key() kfd.QueueKey {
	return kfd.QueueKey{GPU: q.device.node.GPU, Queue: q.target.Queue}
}

func (q *queue) stoppedBy() way {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.by
}

func (q *queue) setStopped(by way) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.by = by
}

// wayOf is the way to try in a round of a stop; nil: there is none left. What is
// stopped already is stopped again in the same way, and in no other.
func (q *queue) wayOf(round int) way {
	ways := q.ways
	if by := q.stoppedBy(); by != nil {
		ways = []way{by}
	}
	if round < len(ways) {
		return ways[round]
	}
	return nil
}

// Why says why the best way that the driver has does not work on this queue; nil: it does.
func (q *queue) Why() error { return q.why }

// Way names the best way to stop it that was proved; "": there is none.
func (q *queue) Way() string {
	if len(q.ways) == 0 {
		return ""
	}
	return q.ways[0].name()
}

// Interrupt implements hal.Interrupter.
func (q *interruptible) Interrupt() error { return q.device.driver.stop([]*queue{q.queue})[0] }

// Restore implements hal.Interrupter.
func (q *interruptible) Restore() error { return q.device.driver.start([]*queue{q.queue})[0] }

// Close implements hal.Queue. Reserved slots keep nobody stopped who is given up.
func (q *queue) Close() error {
	if !q.forget() {
		return nil
	}
	var err error
	if by := q.stoppedBy(); by != nil {
		if err = by.start(q.target.PID, []*queue{q})[0]; errors.Is(err, ErrNoSlot) {
			err = q.device.unreserved(func() error { return by.start(q.target.PID, []*queue{q})[0] })
		}
		q.setStopped(nil)
	}
	return errors.Join(undone(err), undone(q.device.driver.detach(q.target.PID)))
}

// Abandon gives up a queue whose process has gone. It is not asked for anything.
func (q *queue) Abandon() error {
	if !q.forget() {
		return nil
	}
	return undone(q.device.driver.detach(q.target.PID))
}

// forget takes it from the device's list; false: it was.
func (q *queue) forget() bool {
	q.mu.Lock()
	was := q.closed
	q.closed = true
	q.mu.Unlock()
	q.device.mu.Lock()
	delete(q.device.queues, q)
	q.device.mu.Unlock()
	return !was
}

// undone is what is wrong with undoing something: of what has gone there is
// nothing to undo.
func undone(err error) error {
	if errors.Is(err, hal.ErrGone) {
		return nil
	}
	return err
}

// stop stops queues, each in the best way that works, with one call for each
// process and way. The errors are in order.
func (d *Driver) stop(queues []*queue) []error {
	errs := make([]error, len(queues))
	open := map[*queue]int{} // to be stopped, and where its error goes
	for i, q := range queues {
		open[q] = i
	}
	for round := 0; len(open) > 0; round++ {
		found := groups(queues, open, func(q *queue) way { return q.wayOf(round) })
		results := call(found, func(g group) []error {
			began := time.Now()
			came := g.way.stop(g.pid, g.queues)
			d.stats.called(&d.stats.Stops, began, came, round > 0)
			return came
		})
		for at, g := range found {
			if g.way == nil { // there is none left
				for _, q := range g.queues {
					delete(open, q)
				}
				continue
			}
			came := results[at]
			for i, q := range g.queues {
				if came[i] == nil {
					q.setStopped(g.way)
					errs[open[q]] = nil
				} else {
					errs[open[q]] = also(errs[open[q]], fmt.Errorf("%s: %w", g.way.name(), came[i]))
				}
				if errors.Is(came[i], hal.ErrGone) {
					q.setStopped(nil)
				}
				if came[i] == nil || errors.Is(came[i], hal.ErrGone) {
					delete(open, q)
				}
			}
		}
	}
	return errs
}

// also joins the errors of two ways. Where one of them may work another time, it is not
// so that none is supported.
func also(first, second error) error {
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

// start puts queues back, each in the way that it was stopped.
func (d *Driver) start(queues []*queue) []error {
	errs := make([]error, len(queues))
	open := map[*queue]int{}
	for i, q := range queues {
		if q.stoppedBy() == nil {
			continue
		}
		if errs[i] = q.device.admit(q); errs[i] == nil {
			open[q] = i
		}
	}
	found := groups(queues, open, (*queue).stoppedBy)
	results := call(found, func(g group) []error {
		began := time.Now()
		came := g.way.start(g.pid, g.queues)
		d.stats.called(&d.stats.Starts, began, came, false)
		return came
	})
	for at, g := range found {
		came := results[at]
		for i, q := range g.queues {
			if came[i] == nil || errors.Is(came[i], hal.ErrGone) {
				q.setStopped(nil)
			}
			if came[i] != nil {
				errs[open[q]] = fmt.Errorf("%s: %w", g.way.name(), came[i])
			}
		}
	}
	return errs
}

// group is queues of one process that are to be treated in one way.
type group struct {
	way    way
	pid    int
	queues []*queue
}

// call makes the calls of groups, in their order. Those that wait for the processes
// themselves are made beside each other: a process that does not answer holds up nobody.
func call(groups []group, do func(group) []error) [][]error {
	results := make([][]error, len(groups))
	var waiting sync.WaitGroup
	for i, g := range groups {
		switch g.way.(type) {
		case nil:
		case *ownWay:
			waiting.Go(func() { results[i] = do(g) })
		default:
			results[i] = do(g)
		}
	}
	waiting.Wait()
	return results
}

// groups sorts the queues that are open into groups, in their order.
func groups(queues []*queue, open map[*queue]int, by func(*queue) way) []group {
	var found []group
	for i, q := range queues {
		if at, ok := open[q]; !ok || at != i { // it may be there twice
			continue
		}
		w, pid := by(q), q.target.PID
		at := -1
		for j := range found {
			if found[j].way == w && found[j].pid == pid && len(found[j].queues) < kfd.MaxQueues {
				at = j
			}
		}
		if at < 0 {
			found = append(found, group{way: w, pid: pid})
			at = len(found) - 1
		}
		found[at].queues = append(found[at].queues, q)
	}
	return found
}

// all is the same error for every queue.
func all(queues []*queue, err error) []error {
	errs := make([]error, len(queues))
	for i := range errs {
		errs[i] = err
	}
	return errs
}
