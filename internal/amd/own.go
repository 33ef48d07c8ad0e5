package amd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
)

// Shim is the shim in one process. It stops the process's own queues, which the
// driver allows every process to do.
type Shim interface {
	// QueueCount returns how many compute queues on a GPU the shim has seen created.
	QueueCount(gpu uint32) int
	// StopQueues makes the shim stop all of them, and those that are created later. It
	// returns how many are stopped. A second call has no effect. After an error
	// StartQueues must be called.
	StopQueues(gpu uint32, within time.Duration) (int, error)
	// StartQueues undoes StopQueues and waits for it for the given time at most.
	StartQueues(gpu uint32, within time.Duration)
}

// answerTime is how long a process may take to stop or start its queues. One runlist
// update for each queue takes some hundred microseconds. A process that is stopped by a
// signal, or gets no CPU time, does not answer at all.
const answerTime = 100 * time.Millisecond

// ownName is the name of ownMethod.
const ownName = "own"

// ownMethod makes processes stop their own queues, through their shims: UPDATE_QUEUE with
// a percentage of 0. A shim stops all queues of its process on a GPU together: they are
// stopped while any of them is to be stopped.
type ownMethod struct {
	driver *driver
	shim   func(pid int) Shim

	mu    sync.Mutex
	stops map[site]*stopSet
}

// site is a process on a GPU.
type site struct {
	pid int
	gpu uint32
}

// stopSet holds the queues of a site that are to be stopped.
type stopSet struct {
	mu     sync.Mutex // held while the process is waited for
	queues map[uint32]bool
}

func newOwnMethod(d *driver, shim func(int) Shim) *ownMethod {
	return &ownMethod{driver: d, shim: shim, stops: make(map[site]*stopSet)}
}

func (o *ownMethod) name() string { return ownName }

func (o *ownMethod) stopSet(s site) *stopSet {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stops[s] == nil {
		o.stops[s] = &stopSet{queues: make(map[uint32]bool)}
	}
	return o.stops[s]
}

// find returns the shim of a process, if it has seen queues on the GPU.
func (o *ownMethod) find(s site) (Shim, error) {
	shim := o.shim(s.pid)
	switch {
	case shim == nil:
		return nil, fmt.Errorf("the process was not started with the shim: %w", hal.ErrNotSupported)
	case shim.QueueCount(s.gpu) == 0:
		return nil, fmt.Errorf("the shim of the process has seen no queue on GPU %d: %w", s.gpu, hal.ErrNotSupported)
	}
	return shim, nil
}

func (o *ownMethod) prove(g *gpu, t target) error {
	_, err := o.find(site{t.pid, g.node.GPU})
	return err
}

func (o *ownMethod) stop(pid int, queues []*queue) []error {
	return o.eachGPU(pid, queues, o.stopOn)
}

func (o *ownMethod) start(pid int, queues []*queue) []error {
	return o.eachGPU(pid, queues, o.startOn)
}

// eachGPU calls do for the queues of each GPU and returns the result for each queue.
func (o *ownMethod) eachGPU(pid int, queues []*queue, do func(site, []*queue) []error) []error {
	byGPU := make(map[uint32][]*queue)
	for _, q := range queues {
		byGPU[q.gpu.node.GPU] = append(byGPU[q.gpu.node.GPU], q)
	}
	errs := make(map[*queue]error)
	for gpu, some := range byGPU {
		for i, err := range do(site{pid, gpu}, some) {
			errs[some[i]] = err
		}
	}
	return inOrder(queues, errs)
}

func (o *ownMethod) stopOn(s site, queues []*queue) []error {
	if queues[0].target.gone() {
		return forAll(queues, hal.ErrGone)
	}
	shim, err := o.find(s)
	if err != nil {
		return forAll(queues, err)
	}
	set := o.stopSet(s)
	set.mu.Lock()
	defer set.mu.Unlock()
	errs, err := o.stopSite(shim, s, queues)
	if err != nil {
		errs = forAll(queues, err)
	}
	for i, q := range queues {
		switch {
		case errs[i] == nil:
			set.queues[q.target.queue] = true
		case errors.Is(errs[i], hal.ErrGone):
			delete(set.queues, q.target.queue)
		}
	}
	if len(set.queues) == 0 {
		shim.StartQueues(s.gpu, 0) // the process already had its time to answer
	}
	return errs
}

// stopSite stops all queues of a site. If the driver lists queues that the shim does not
// know, those run on, so the stop as a whole fails.
func (o *ownMethod) stopSite(shim Shim, s site, queues []*queue) ([]error, error) {
	stopped, err := shim.StopQueues(s.gpu, answerTime)
	if err != nil {
		return nil, err
	}
	found, err := o.driver.queuesOf(s.pid)
	if err != nil {
		return nil, err
	}
	listed := make(map[uint32]bool)
	for _, q := range found {
		if q.GPU == s.gpu {
			listed[q.ID] = true
		}
	}
	if stopped < len(listed) {
		return nil, fmt.Errorf("%d of the process's %d queues on GPU %d are stopped: its shim has not seen the others created", stopped, len(listed), s.gpu)
	}
	errs := make([]error, len(queues))
	for i, q := range queues {
		if !listed[q.target.queue] {
			errs[i] = fmt.Errorf("queue %d is not listed: %w", q.target.queue, hal.ErrGone)
		}
	}
	return errs, nil
}

// startOn never fails: a stop that is not renewed ends with its lease.
func (o *ownMethod) startOn(s site, queues []*queue) []error {
	set := o.stopSet(s)
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, q := range queues {
		delete(set.queues, q.target.queue)
	}
	if len(set.queues) == 0 {
		if shim := o.shim(s.pid); shim != nil {
			shim.StartQueues(s.gpu, answerTime)
		}
	}
	return make([]error, len(queues))
}

func (o *ownMethod) release(pid int) error {
	o.mu.Lock()
	sets := make(map[uint32]*stopSet)
	for s, set := range o.stops {
		if s.pid == pid {
			sets[s.gpu] = set
			delete(o.stops, s)
		}
	}
	o.mu.Unlock()
	shim := o.shim(pid)
	for gpu, set := range sets {
		set.mu.Lock()
		if shim != nil && len(set.queues) > 0 {
			shim.StartQueues(gpu, 0)
		}
		clear(set.queues)
		set.mu.Unlock()
	}
	return nil
}
