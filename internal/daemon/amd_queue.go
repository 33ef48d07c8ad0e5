package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// amdGPU is an AMD GPU on which the queues of a process are one: a program may make
// some wait for others, so they are stopped and started together. It implements
// hal.Batcher for bundles.
type amdGPU struct{ *amd.Device }

// bundle is what a process has on an AMD GPU: its KFD queues, as far as we have taken
// charge of them. One that only stands in a list has none.
type bundle struct {
	gpu *amdGPU
	id  sched.QueueID

	mu      sync.Mutex // held while the driver is called: never ask for it with d.mu held
	parts   map[uint32]hal.Queue
	stopped bool
	closed  bool
}

// stoppable is a bundle all of whose queues can be interrupted.
type stoppable struct{ *bundle }

// Interrupt implements hal.Interrupter.
func (s stoppable) Interrupt() error { return s.gpu.Switch([]hal.Queue{s}, nil)[0] }

// Restore implements hal.Interrupter.
func (s stoppable) Restore() error { return s.gpu.Switch(nil, []hal.Queue{s})[0] }

func newBundle(g *amdGPU, id sched.QueueID) *bundle {
	return &bundle{gpu: g, id: id, parts: make(map[uint32]hal.Queue)}
}

// retry says which queues to look at once more: those that could not be stopped, and
// those that their process's shim stops.
type retry struct{ failed, shim bool }

func (r retry) wants(q hal.Queue) bool {
	_, can := q.(hal.Interrupter)
	by, ok := q.(interface{ ByShim() bool })
	return r.failed && !can || r.shim && ok && by.ByShim()
}

// hold takes charge of the queues that the process has now, and gives up those that it
// has no more. What can be done then the type of the answer says; the error, why not
// more.
func (b *bundle) hold(ids []uint32, t amd.Target, again retry) (hal.Queue, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b, nil
	}
	var wrong []error
	for id, q := range b.parts {
		if !slices.Contains(ids, id) || again.wants(q) {
			delete(b.parts, id)
			if err := q.Close(); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	for _, id := range ids {
		if b.parts[id] != nil {
			continue
		}
		t.Queue = id
		b.gpu.Offer(b.id, t)
		q, err := b.gpu.Attach(hal.Spec{Queue: b.id, Native: uint64(id)})
		switch {
		case errors.Is(err, hal.ErrGone):
			continue
		case err != nil:
			wrong = append(wrong, err)
			continue
		}
		b.parts[id] = q
		if w, ok := q.(interface{ Why() error }); ok && w.Why() != nil {
			wrong = append(wrong, fmt.Errorf("queue %d: %w", id, w.Why()))
		}
		if b.stopped {
			wrong = append(wrong, hal.Stop(q, sched.LevelInterrupt)) // it is one of those who wait
		}
	}
	why := errors.Join(wrong...)
	if len(b.parts) == 0 {
		return b, why
	}
	for _, q := range b.parts {
		if _, can := q.(hal.Interrupter); !can {
			return b, why
		}
	}
	return stoppable{b}, why
}

// way names how its queues are stopped, if they can be.
func (b *bundle) way() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ways []string
	for _, q := range b.parts {
		if w, ok := q.(interface{ Way() string }); ok && w.Way() != "" {
			ways = append(ways, w.Way())
		}
	}
	slices.Sort(ways)
	return strings.Join(slices.Compact(ways), ", ")
}

// Close implements hal.Queue.
func (b *bundle) Close() error { return b.end(hal.Queue.Close) }

// Abandon implements hal.Abandoner.
func (b *bundle) Abandon() error { return b.end(hal.Abandon) }

func (b *bundle) end(end func(hal.Queue) error) error {
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

// Switch implements hal.Batcher: one call of the driver for each process. A bundle that
// cannot be stopped as a whole is not stopped.
func (g *amdGPU) Switch(off, on []hal.Queue) []error {
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
	var whose []int // the place of the bundle of each, offs and then ons
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
			default: // it runs: what could stop it, its shim perhaps, has gone
				continue
			}
			whose = append(whose, i)
		}
	}
	came := g.Device.Switch(offs, ons)
	var back []hal.Queue // of bundles that were stopped in part
	for i, err := range came {
		if err != nil && !errors.Is(err, hal.ErrGone) { // of what is no more nothing runs
			errs[whose[i]] = errors.Join(errs[whose[i]], err)
		}
	}
	for i, q := range offs {
		if errs[whose[i]] != nil && came[i] == nil && !bundles[whose[i]].stopped {
			back = append(back, q)
		}
	}
	if len(back) > 0 {
		_ = g.Device.Switch(nil, back) // it can be started again from wherever it stands
	}
	for i, b := range bundles {
		if b != nil && errs[i] == nil {
			b.stopped = i < len(off)
		}
	}
	return errs
}

// lockAll locks bundles, each once and always in the same order, and returns what
// unlocks them.
func lockAll(bundles []*bundle) (unlock func()) {
	all := slices.DeleteFunc(slices.Clone(bundles), func(b *bundle) bool { return b == nil })
	slices.SortFunc(all, func(a, b *bundle) int { return cmp.Compare(a.id, b.id) })
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
