package amd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
)

// Shim is what there is of us in a process: it does to the process's own queues what the
// driver lets nobody else do.
type Shim interface {
	// QueueCount is how many compute queues it knows on a GPU.
	QueueCount(gpu uint32) int
	// StopQueues has all of them taken off, and those that are made from then on, and
	// returns how many are. Twice equals once. After an error StartQueues is still called.
	StopQueues(gpu uint32, within time.Duration) (int, error)
	// StartQueues takes that back. It waits so long at most until it is done.
	StartQueues(gpu uint32, within time.Duration)
}

// answerTime is how long a process may take to do to its queues as it is told. One update
// of the runlist for each is some hundred microseconds; a process that is stopped, or has
// no processor, takes for ever.
const answerTime = 100 * time.Millisecond

// ownWay has a process stop its own queues, through its shim: UPDATE_QUEUE with a
// percentage of 0. The queues of a process on a GPU are one here: they are off while any
// of them is to be stopped.
type ownWay struct {
	driver *Driver
	shim   func(pid int) Shim

	mu     sync.Mutex
	places map[place]*standstill
}

// place is a process on a GPU.
type place struct {
	pid int
	gpu uint32
}

// standstill is the queues that are to be stopped in one place.
type standstill struct {
	mu     sync.Mutex // while the process is waited for
	queues map[uint32]bool
}

const ownName = "own"

func (o *ownWay) name() string { return ownName }

func (o *ownWay) of(p place) *standstill {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.places[p] == nil {
		o.places[p] = &standstill{queues: map[uint32]bool{}}
	}
	return o.places[p]
}

// find returns the shim of a process, if it knows of queues on a GPU.
func (o *ownWay) find(p place) (Shim, error) {
	s := o.shim(p.pid)
	switch {
	case s == nil:
		return nil, fmt.Errorf("the program was not started with the shim: %w", hal.ErrNotSupported)
	case s.QueueCount(p.gpu) == 0:
		return nil, fmt.Errorf("the program's shim has seen it make no queue on GPU %d: %w", p.gpu, hal.ErrNotSupported)
	}
	return s, nil
}

func (o *ownWay) prove(d *Device, t Target) error {
	_, err := o.find(place{t.PID, d.node.GPU})
	return err
}

func (o *ownWay) stop(pid int, queues []*queue) []error {
	return o.eachGPU(pid, queues, o.stopOn)
}

func (o *ownWay) start(pid int, queues []*queue) []error {
	return o.eachGPU(pid, queues, o.startOn)
}

// eachGPU does something for the queues of each GPU, and returns the errors in order.
func (o *ownWay) eachGPU(pid int, queues []*queue, do func(place, []*queue) []error) []error {
	errs := make([]error, len(queues))
	at := map[uint32][]int{}
	for i, q := range queues {
		at[q.device.node.GPU] = append(at[q.device.node.GPU], i)
	}
	for gpu, indices := range at {
		some := make([]*queue, len(indices))
		for i, j := range indices {
			some[i] = queues[j]
		}
		for i, err := range do(place{pid, gpu}, some) {
			errs[indices[i]] = err
		}
	}
	return errs
}

func (o *ownWay) stopOn(p place, queues []*queue) []error {
	if queues[0].target.gone() {
		return all(queues, hal.ErrGone)
	}
	s, err := o.find(p)
	if err != nil {
		return all(queues, err)
	}
	still := o.of(p)
	still.mu.Lock()
	defer still.mu.Unlock()
	errs, err := o.takeOff(s, p, queues)
	if err != nil {
		errs = all(queues, err)
	}
	for i, q := range queues {
		switch {
		case errs[i] == nil:
			still.queues[q.target.Queue] = true
		case errors.Is(errs[i], hal.ErrGone):
			delete(still.queues, q.target.Queue)
		}
	}
	if len(still.queues) == 0 {
		s.StartQueues(p.gpu, 0) // it has had its time
	}
	return errs
}

// takeOff has all queues in a place taken off. What the driver lists and the shim does not
// know is not off: then nothing is.
func (o *ownWay) takeOff(s Shim, p place, queues []*queue) ([]error, error) {
	off, err := s.StopQueues(p.gpu, answerTime)
	if err != nil {
		return nil, err
	}
	listed, err := o.driver.QueuesOf(p.pid)
	if err != nil {
		return nil, err
	}
	there := map[uint32]bool{}
	for _, q := range listed {
		if q.GPU == p.gpu {
			there[q.ID] = true
		}
	}
	if off < len(there) {
		return nil, fmt.Errorf("%d of the process's %d queues on GPU %d are off: its shim has not seen the others made", off, len(there), p.gpu)
	}
	errs := make([]error, len(queues))
	for i, q := range queues {
		if !there[q.target.Queue] {
			errs[i] = fmt.Errorf("queue %d is not listed: %w", q.target.Queue, hal.ErrGone)
		}
	}
	return errs, nil
}

// startOn never fails: what is not wanted any more ends by itself.
func (o *ownWay) startOn(p place, queues []*queue) []error {
	still := o.of(p)
	still.mu.Lock()
	defer still.mu.Unlock()
	for _, q := range queues {
		delete(still.queues, q.target.Queue)
	}
	if len(still.queues) == 0 {
		if s := o.shim(p.pid); s != nil {
			s.StartQueues(p.gpu, answerTime)
		}
	}
	return make([]error, len(queues))
}

func (o *ownWay) leave(pid int) error {
	o.mu.Lock()
	var left []*standstill
	var gpus []uint32
	for p, still := range o.places {
		if p.pid == pid {
			left, gpus = append(left, still), append(gpus, p.gpu)
			delete(o.places, p)
		}
	}
	o.mu.Unlock()
	s := o.shim(pid)
	for i, still := range left {
		still.mu.Lock()
		if s != nil && len(still.queues) > 0 {
			s.StartQueues(gpus[i], 0)
		}
		clear(still.queues)
		still.mu.Unlock()
	}
	return nil
}

// ByShim reports whether it is the process's shim that stops it, or would.
func (q *queue) ByShim() bool {
	by := q.stoppedBy()
	return q.Way() == ownName || by != nil && by.name() == ownName
}
