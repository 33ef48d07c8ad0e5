package amd

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/giveway/giveway/internal/hal"
)

// bundle is all compute queues of one process on one GPU. The scheduler sees them as one
// queue, and they are stopped and started together: a process may make one of its queues
// wait for another.
type bundle struct {
	gpu    *gpu
	serial uint64 // the order in which several bundles are locked

	mu      sync.Mutex        // held during calls of the driver
	parts   map[uint32]*queue // the attached queues, by KFD queue id
	stopped bool
	closed  bool
}

// stoppable is a bundle whose queues can all be interrupted.
type stoppable struct{ *bundle }

var lastSerial atomic.Uint64

func newBundle(g *gpu) *bundle {
	return &bundle{gpu: g, serial: lastSerial.Add(1), parts: make(map[uint32]*queue)}
}

// Interrupt implements hal.Interrupter.
func (s stoppable) Interrupt() error { return s.gpu.Switch([]hal.Queue{s}, nil)[0] }

// Restore implements hal.Interrupter.
func (s stoppable) Restore() error { return s.gpu.Switch(nil, []hal.Queue{s})[0] }

// retry says which queues to attach again: those that could not be stopped, and those
// that the shim of their process stops.
type retry struct{ failed, shim bool }

func (r retry) includes(q *queue) bool {
	return r.failed && len(q.methods) == 0 || r.shim && q.byShim()
}

// attach attaches the queues ids of a process and closes all others. The type of the
// result says what can be done to the bundle; the error says why not more.
func (b *bundle) attach(ids []uint32, t target, again retry) (hal.Queue, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b, nil
	}
	var errs []error
	for id, q := range b.parts {
		if !slices.Contains(ids, id) || again.includes(q) {
			delete(b.parts, id)
			errs = append(errs, q.close())
		}
	}
	for _, id := range ids {
		if b.parts[id] != nil {
			continue
		}
		t.queue = id
		q, err := b.gpu.attach(t)
		if err != nil {
			errs = append(errs, ignoreGone(err))
			continue
		}
		b.parts[id] = q
		if q.why != nil {
			errs = append(errs, fmt.Errorf("queue %d: %w", id, q.why))
		}
		if b.stopped { // a new queue of a stopped process is stopped as well
			errs = append(errs, b.gpu.driver.stop([]*queue{q})...)
		}
	}
	why := errors.Join(errs...)
	for _, q := range b.parts {
		if len(q.methods) == 0 {
			return b, why
		}
	}
	if len(b.parts) == 0 {
		return b, why
	}
	return stoppable{b}, why
}

// methods names the methods that stop the queues, if they can be stopped.
func (b *bundle) methods() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for _, q := range b.parts {
		if name := q.bestMethod(); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// Close implements hal.Queue.
func (b *bundle) Close() error { return b.closeParts((*queue).close) }

// Abandon implements hal.Abandoner.
func (b *bundle) Abandon() error { return b.closeParts((*queue).abandon) }

func (b *bundle) closeParts(end func(*queue) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	var errs []error
	for _, q := range b.sorted() {
		errs = append(errs, end(q))
	}
	clear(b.parts)
	return errors.Join(errs...)
}

// sorted returns the attached queues by id. b.mu is held.
func (b *bundle) sorted() (queues []*queue) {
	for _, id := range slices.Sorted(maps.Keys(b.parts)) {
		queues = append(queues, b.parts[id])
	}
	return queues
}

// Switch implements hal.Batcher: one call of the driver for each process and method,
// stops before starts. A bundle is stopped as a whole or not at all.
func (g *gpu) Switch(off, on []hal.Queue) []error {
	errs := make([]error, len(off)+len(on))
	bundles := make([]*bundle, len(errs))
	for i, q := range slices.Concat(off, on) {
		switch q := q.(type) {
		case stoppable:
			bundles[i] = q.bundle
		case *bundle:
			bundles[i] = q
		default:
			errs[i] = hal.ErrNotSupported
		}
	}
	defer lockAll(bundles)()
	g.switchParts(bundles[:len(off)], errs[:len(off)], g.driver.stop)
	g.switchParts(bundles[len(off):], errs[len(off):], g.driver.start)
	var part []int // the bundles that were stopped in part
	for i, b := range bundles {
		switch {
		case b == nil:
		case errs[i] == nil:
			b.stopped = i < len(off)
		case i < len(off) && !b.stopped:
			part = append(part, i)
		}
	}
	g.rollBack(bundles, part, errs)
	return errs
}

// rollBack starts bundles that were stopped in part. The error of one that cannot be started
// says so, and a later start tries again.
func (g *gpu) rollBack(bundles []*bundle, part []int, errs []error) {
	started, failed := make([]*bundle, len(part)), make([]error, len(part))
	for i, at := range part {
		started[i] = bundles[at]
	}
	g.switchParts(started, failed, g.driver.start)
	for i, at := range part {
		if failed[i] != nil {
			errs[at] = fmt.Errorf("%w; start it again: %w: %w", errs[at], failed[i], hal.ErrPartial)
		}
	}
}

// switchParts calls the driver once for the queues of all bundles, and adds the errors to
// those of the bundles. A queue that is gone does not run, so that is not an error.
func (g *gpu) switchParts(bundles []*bundle, errs []error, do func([]*queue) []error) {
	var queues []*queue
	var owner []int // the index of each queue's bundle
	for i, b := range bundles {
		if b == nil {
			continue
		}
		for _, q := range b.sorted() {
			queues, owner = append(queues, q), append(owner, i)
		}
	}
	for i, err := range do(queues) {
		errs[owner[i]] = errors.Join(errs[owner[i]], ignoreGone(err))
	}
}

// lockAll locks bundles, each once and always in the same order. It returns a function
// that unlocks them.
func lockAll(bundles []*bundle) (unlock func()) {
	all := slices.DeleteFunc(slices.Clone(bundles), func(b *bundle) bool { return b == nil })
	slices.SortFunc(all, func(a, b *bundle) int { return cmp.Compare(a.serial, b.serial) })
	all = slices.Compact(all)
	for _, b := range all {
		b.mu.Lock()
	}
	return func() {
		for _, b := range all {
			b.mu.Unlock()
		}
	}
}
