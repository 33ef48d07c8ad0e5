package amd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// stopTime is what others have published for a suspend on an MI308X. We have not measured
// it.
const stopTime = 500 * time.Microsecond

// gpu is one GPU. It implements hal.Device, hal.Reserving, hal.MemoryReader, and hal.Batcher for
// bundles.
type gpu struct {
	driver *driver
	node   kfd.Node
	info   hal.Info
	cwsr   cwsr

	reservation reservation

	mu     sync.Mutex
	queues map[*queue]struct{} // attached
}

func newGPU(d *driver, index int, n kfd.Node, c cwsr) *gpu {
	id := fmt.Sprintf("amd-%d", n.GPU)
	if n.UniqueID != 0 {
		id = fmt.Sprintf("amd-%016x", n.UniqueID)
	}
	return &gpu{
		driver: d, node: n, cwsr: c,
		info: hal.Info{
			Device:  sched.Device{ID: sched.DeviceID(id), StopTime: stopTime},
			Backend: "amd", Model: fmt.Sprintf("AMD %v %s", n.GFX, n.Name), Index: index,
		},
		queues: make(map[*queue]struct{}),
	}
}

// Info implements hal.Device.
func (g *gpu) Info() hal.Info { return g.info }

// Memory implements hal.MemoryReader.
func (g *gpu) Memory(pids []int) (map[int]uint64, error) {
	found := make(map[int]uint64)
	var errs []error
	for _, pid := range pids {
		bytes, err := g.driver.sys.Memory(pid, g.node.GPU)
		if bytes > 0 {
			found[pid] = bytes
		}
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// target is a KFD queue of a process.
type target struct {
	pid   int
	queue uint32
	// alive reports whether pid still is the process that is meant. A nil alive means
	// that it is.
	alive func() bool
}

func (t *target) gone() bool { return t.alive != nil && !t.alive() }

// attach returns a queue with the methods that can stop it, best first. It tries the
// methods, without stopping anything, until one would work.
//
// Proving the debug method takes a short debug session, in which the GPU loads its runlist
// again.
func (g *gpu) attach(t target) (*queue, error) {
	err := g.verify(t)
	q := &queue{gpu: g, target: t, why: g.cwsr.refusal()}
	for _, m := range g.driver.methods {
		if err != nil || !g.cwsr.try {
			break
		}
		if len(q.methods) > 0 { // for when the better one fails; proving it now might stall the GPU
			q.methods = append(q.methods, m)
			continue
		}
		switch why := m.prove(g, t); {
		case why == nil:
			q.methods = append(q.methods, m)
		case errors.Is(why, hal.ErrGone):
			err = why
		default:
			q.why = errors.Join(q.why, fmt.Errorf("%s: %w", m.name(), why))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("attach queue %d of process %d: %w", t.queue, t.pid, err)
	}
	g.driver.mu.Lock()
	g.driver.attached[t.pid]++
	g.driver.mu.Unlock()
	g.mu.Lock()
	g.queues[q] = struct{}{}
	g.mu.Unlock()
	return q, nil
}

// verify returns an error unless the target exists and is a compute queue of this GPU.
func (g *gpu) verify(t target) error {
	if t.gone() {
		return hal.ErrGone
	}
	queues, err := g.driver.sys.Queues(t.pid)
	for _, q := range queues {
		if q.ID != t.queue {
			continue
		}
		if q.GPU != g.node.GPU || !q.IsCompute() {
			return fmt.Errorf("it is of type %d on GPU %d: %w", q.Type, q.GPU, hal.ErrNotSupported)
		}
		return nil
	}
	return errors.Join(err, hal.ErrGone)
}

// queueState is a compute queue of a GPU, for the checks.
type queueState struct {
	pid      int
	queue    uint32
	stopped  bool // by this daemon
	priority uint32
	ready    bool // it has work
}

// states lists the compute queues of the GPU by pid and queue id, without priority and
// ready, which KFD does not tell.
func (g *gpu) states() ([]queueState, error) {
	found, err := g.driver.queues()
	if err != nil {
		return nil, err
	}
	var states []queueState
	for _, q := range found {
		if q.GPU == g.node.GPU {
			states = append(states, queueState{pid: q.PID, queue: q.ID})
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for q := range g.queues {
		i, ok := slices.BinarySearchFunc(states, q.target, func(s queueState, t target) int {
			return cmp.Or(cmp.Compare(s.pid, t.pid), cmp.Compare(s.queue, t.queue))
		})
		if ok {
			states[i].stopped = q.stoppedBy() != nil
		}
	}
	return states, nil
}
