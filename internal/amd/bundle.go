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
	"github.com/giveway/giveway/sched"
)

// gpu is the hal.Device that the daemon schedules on. Its queues are bundles. It
// implements hal.Batcher.
type gpu struct{ *Device }

// bundle is all compute queues of one process on one GPU. The scheduler sees them as one
// queue, and they are stopped and started together: a process may make one of its queues
// wait for another.
type bundle struct {
	gpu    *gpu
	serial uint64 // the order in which several bundles are locked

	mu      sync.Mutex           // held during calls of the driver
	parts   map[uint32]hal.Queue // the attached queues, by KFD queue id
	stopped bool
	closed  bool
}

// stoppable is a bundle whose queues can all be interrupted.
type stoppable struct{ *bundle }

var lastSerial atomic.Uint64

func newBundle(g *gpu) *bundle {
	return &bundle{gpu: g, serial: lastSerial.Add(1), parts: make(map[uint32]hal.Queue)}
}

// Interrupt implements hal.Interrupter.
func (s stoppable) Interrupt() error { return s.gpu.Switch([]hal.Queue{s}, nil)[0] }

// Restore implements hal.Interrupter.
func (s stoppable) Restore() error { return s.gpu.Switch(nil, []hal.Queue{s})[0] }

// retry says which queues to attach again: those that could not be stopped, and those
// that the shim of their process stops.
type retry struct{ failed, shim bool }

func (r retry) includes(q hal.Queue) bool {
	_, can := q.(hal.Interrupter)
	by, ok := q.(interface{ ByShim() bool })
	return r.failed && !can || r.shim && ok && by.ByShim()
}

// attach attaches the queues ids of a process and closes all others. The type of the
// result says what can be done to the bundle; the error says why not more.
func (b *bundle) attach(ids []uint32, t Target, again retry) (hal.Queue, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b, nil
	}
	var errs []error
	for id, q := range b.parts {
		if !slices.Contains(ids, id) || again.includes(q) {
			delete(b.parts, id)
			errs = append(errs, q.Close())
		}
	}
	for _, id := range ids {
		if b.parts[id] != nil {
			continue
		}
		t.Queue = id
		q, err := b.gpu.attach(t)
		if errors.Is(err, hal.ErrGone) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		b.parts[id] = q
		if w, ok := q.(interface{ Why() error }); ok && w.Why() != nil {
			errs = append(errs, fmt.Errorf("queue %d: %w", id, w.Why()))
		}
		if b.stopped { // a new queue of a stopped process is stopped as well
			errs = append(errs, hal.Stop(q, sched.LevelInterrupt))
		}
	}
	why := errors.Join(errs...)
	for _, q := range b.parts {
		if _, can := q.(hal.Interrupter); !can {
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
		if m, ok := q.(interface{ Way() string }); ok && m.Way() != "" {
			names = append(names, m.Way())
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// Close implements hal.Queue.
func (b *bundle) Close() error { return b.closeParts(hal.Queue.Close) }

// Abandon implements hal.Abandoner.
func (b *bundle) Abandon() error { return b.closeParts(hal.Abandon) }

func (b *bundle) closeParts(end func(hal.Queue) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(b.parts)) {
		errs = append(errs, end(b.parts[id]))
	}
	clear(b.parts)
	return errors.Join(errs...)
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
		}
	}
	defer lockAll(bundles)()
	var offs, ons []hal.Queue
	var owner []int // for each of offs and then ons: the index of its bundle
	for i, b := range bundles {
		if b == nil {
			errs[i] = hal.ErrNotSupported
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(b.parts)) {
			q := b.parts[id]
			switch _, can := q.(hal.Interrupter); {
			case i < len(off):
				offs = append(offs, q)
			case can:
				ons = append(ons, q)
			default: // it runs: what stopped it, for example its shim, is gone
				continue
			}
			owner = append(owner, i)
		}
	}
	results := g.Device.Switch(offs, ons)
	for i, err := range results {
		if err != nil && !errors.Is(err, hal.ErrGone) { // a queue that is gone does not run
			errs[owner[i]] = errors.Join(errs[owner[i]], err)
		}
	}
	var undo []hal.Queue // the stopped queues of bundles that were stopped in part
	for i, q := range offs {
		if errs[owner[i]] != nil && results[i] == nil && !bundles[owner[i]].stopped {
			undo = append(undo, q)
		}
	}
	if len(undo) > 0 {
		_ = g.Device.Switch(nil, undo) // a later start tries again
	}
	for i, b := range bundles {
		if b != nil && errs[i] == nil {
			b.stopped = i < len(off)
		}
	}
	return errs
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
