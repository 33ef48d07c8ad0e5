package amd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// stopTime is what others have published for a suspend on an MI308X. It was not
// measured here.
const stopTime = 500 * time.Microsecond

// normalPriority is what ROCm gives a queue that asks for none.
const normalPriority = 7

// Target is a queue of a process.
type Target struct {
	PID   int
	Queue uint32
	// Priority is 0 to 15, as KFD has it; sysfs does not tell.
	Priority uint32
	// Alive reports whether PID is still the process that is meant: a pidfd knows.
	// nil: it is.
	Alive func() bool
}

func (t *Target) gone() bool { return t.Alive != nil && !t.Alive() }

// Device is one GPU. It implements hal.Device and hal.Batcher.
type Device struct {
	driver *Driver
	node   kfd.Node
	info   hal.Info

	mu      sync.Mutex
	targets map[sched.QueueID]Target
	queues  map[*queue]struct{} // attached
	reserve Reservation
}

func newDevice(d *Driver, index int, n kfd.Node) *Device {
	id := fmt.Sprintf("amd-%d", n.GPU)
	if n.UniqueID != 0 {
		id = fmt.Sprintf("amd-%016x", n.UniqueID)
	}
	return &Device{
		driver: d, node: n,
		info: hal.Info{
			Device:  sched.Device{ID: sched.DeviceID(id), StopTime: stopTime},
			Backend: "amd", Model: fmt.Sprintf("AMD %v %s", n.GFX, n.Name), Index: index,
		},
		targets: make(map[sched.QueueID]Target), queues: make(map[*queue]struct{}),
	}
}

// Info implements hal.Device.
func (d *Device) Info() hal.Info { return d.info }

// GPU is what KFD calls it.
func (d *Device) GPU() uint32 { return d.node.GPU }

// Slots is how many compute queues it has room for at a time.
func (d *Device) Slots() uint32 { return d.node.Slots }

// Offer says which queue it is, so that Attach finds it.
func (d *Device) Offer(id sched.QueueID, t Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.targets[id] = t
}

// Attach implements hal.Device. Ways are tried, the best first, without stopping
// anything, until one would work; then the queue that is returned can be interrupted.
//
// To prove the debug way takes a debug session of a moment, in which the GPU is
// told its runlist anew.
func (d *Device) Attach(s hal.Spec) (hal.Queue, error) {
	d.mu.Lock()
	t, ok := d.targets[s.Queue]
	delete(d.targets, s.Queue)
	d.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("attach queue %d: %w", s.Queue, hal.ErrGone)
	}
	return d.attach(t)
}

func (d *Device) attach(t Target) (hal.Queue, error) {
	if t.gone() {
		return nil, fmt.Errorf("attach queue %d of process %d: %w", t.Queue, t.PID, hal.ErrGone)
	}
	if err := d.recognise(t); err != nil {
		return nil, fmt.Errorf("attach queue %d of process %d: %w", t.Queue, t.PID, err)
	}
	q := &queue{device: d, target: t}
	for _, w := range d.driver.ways {
		if len(q.ways) > 0 { // for when the better one fails: to prove it now would be felt
			q.ways = append(q.ways, w)
			continue
		}
		err := w.prove(d, t)
		if errors.Is(err, hal.ErrGone) {
			return nil, fmt.Errorf("attach queue %d of process %d: %w", t.Queue, t.PID, err)
		}
		if err == nil {
			q.ways = append(q.ways, w)
		} else {
			q.why = errors.Join(q.why, fmt.Errorf("%s: %w", w.name(), err))
		}
	}
	d.driver.mu.Lock()
	d.driver.attached[t.PID]++
	d.driver.mu.Unlock()
	d.mu.Lock()
	d.queues[q] = struct{}{}
	d.mu.Unlock()
	if len(q.ways) == 0 {
		return q, nil
	}
	return &interruptible{q}, nil
}

// recognise looks whether the queue is there, and is a compute queue of this GPU.
func (d *Device) recognise(t Target) error {
	queues, err := d.driver.sys.Queues(t.PID)
	for _, q := range queues {
		if q.ID != t.Queue {
			continue
		}
		if q.GPU != d.node.GPU || !q.Type.IsCompute() {
			return fmt.Errorf("it is of type %d on GPU %d: %w", q.Type, q.GPU, hal.ErrNotSupported)
		}
		return nil
	}
	return errors.Join(err, hal.ErrGone)
}

// Close implements hal.Device.
func (d *Device) Close() error { return nil }

// Switch implements hal.Batcher: one call for each process and way, off before on.
// A queue that somebody has wrapped is done by itself.
func (d *Device) Switch(off, on []hal.Queue) []error {
	stopped := d.batch(off, d.driver.stop, hal.Stop)
	return append(stopped, d.batch(on, d.driver.start, hal.Start)...)
}

func (d *Device) batch(queues []hal.Queue, many func([]*queue) []error, one func(hal.Queue, sched.Level) error) []error {
	errs := make([]error, len(queues))
	var ours []*queue
	var at []int
	for i, q := range queues {
		if iq, ok := q.(*interruptible); ok {
			ours, at = append(ours, iq.queue), append(at, i)
		} else {
			errs[i] = one(q, sched.LevelInterrupt)
		}
	}
	for i, err := range many(ours) {
		errs[at[i]] = err
	}
	return errs
}
