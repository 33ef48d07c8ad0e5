package amd

import (
	"errors"
	"fmt"
	"slices"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
)

// Lab is the driver of this machine for a program that measures: it stops and starts the
// queues of a process with the daemon's own code, but with one method only.
type Lab struct{ driver *driver }

// OpenLab opens the driver for one method, "batch" or "debug". An empty name stops
// nothing. The error wraps hal.ErrNotSupported if the driver does not offer the method.
func OpenLab(cfg Config, only string) (*Lab, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, err
	}
	d.methods = slices.DeleteFunc(d.methods, func(m method) bool { return m.name() != only })
	if only != "" && len(d.methods) == 0 {
		return nil, errors.Join(fmt.Errorf("method %s is %w: %w", only, hal.ErrNotSupported, d.refused[only]), d.close())
	}
	return &Lab{d}, nil
}

// Close undoes everything and closes the driver.
func (l *Lab) Close() error { return l.driver.close() }

// Driver describes the driver.
func (l *Lab) Driver() string {
	kind := "stock"
	if l.driver.features.Batch == nil {
		kind = "patched"
	}
	return fmt.Sprintf("KFD %v, %s", l.driver.features.Version, kind)
}

// Slots returns how many hardware slots of all GPUs have an active queue, and how many there
// are. counted reports whether the driver counted them; otherwise they are the queues that
// sysfs lists, stopped ones included, as far as there are slots.
func (l *Lab) Slots() (active, slots int, counted bool, err error) {
	counted = l.driver.features.Batch == nil
	for _, g := range l.driver.gpus {
		var n uint32
		if counted {
			n, err = kfd.ActiveSlots(l.driver.file, g.node.GPU)
		} else {
			var queues []queueState
			queues, err = g.states()
			n = uint32(len(queues))
		}
		if err != nil {
			return 0, 0, counted, err
		}
		active += int(min(n, g.node.Slots))
		slots += int(g.node.Slots)
	}
	return active, slots, counted, nil
}

// LabQueues is the attached compute queues of a process.
type LabQueues struct {
	driver *driver
	queues []*queue
}

// Attach attaches all compute queues of a process, without stopping them.
func (l *Lab) Attach(pid int) (*LabQueues, error) {
	found, err := l.driver.queuesOf(pid)
	if err != nil {
		return nil, err
	}
	q := &LabQueues{driver: l.driver}
	for _, f := range found {
		i := slices.IndexFunc(l.driver.gpus, func(g *gpu) bool { return g.node.GPU == f.GPU })
		if i < 0 {
			continue
		}
		part, err := l.driver.gpus[i].attach(target{pid: pid, queue: f.ID})
		if err == nil && len(part.methods) == 0 {
			err = errors.Join(part.why, part.close())
		}
		if err != nil {
			return nil, errors.Join(err, q.Close())
		}
		q.queues = append(q.queues, part)
	}
	return q, nil
}

// Len returns the number of queues.
func (q *LabQueues) Len() int { return len(q.queues) }

// Stop stops all queues in one call.
func (q *LabQueues) Stop() error { return errors.Join(q.driver.stop(q.queues)...) }

// Start starts all queues in one call.
func (q *LabQueues) Start() error { return errors.Join(q.driver.start(q.queues)...) }

// StopEach stops the queues with a call for each.
func (q *LabQueues) StopEach() error { return q.each(q.driver.stop) }

// StartEach starts the queues with a call for each.
func (q *LabQueues) StartEach() error { return q.each(q.driver.start) }

func (q *LabQueues) each(do func([]*queue) []error) error {
	var errs []error
	for i := range q.queues {
		errs = append(errs, do(q.queues[i:i+1])...)
	}
	return errors.Join(errs...)
}

// Close starts the queues that are stopped and detaches all.
func (q *LabQueues) Close() error {
	var errs []error
	for _, part := range q.queues {
		errs = append(errs, part.close())
	}
	q.queues = nil
	return errors.Join(errs...)
}
