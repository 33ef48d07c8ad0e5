// Package shim is the backend for processes that loaded the shim. Each such
// process shares a page with the daemon; the library waits at the gate in that page
// before each launch, and counts launches, completions and requests there.
//
// A gate is level 1 on any device: what has been launched finishes. It is only memory,
// so nothing here waits for a driver, and a closed gate has a lease: if the daemon
// stops renewing it, the library opens the gate by itself. So have the other orders on
// the page.
package shim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// lease is how long a gate stays closed without a renewal. The loop takes a turn, and
// so renews it, at least every 100 ms.
const lease = 500 * time.Millisecond

// The grain of a bound: each command counts for at least this much device time, so of
// short commands more than the bound may be in flight.
const (
	// tightGrain is for a process that only its gate can stop: others wait until what
	// is in flight has finished.
	tightGrain = 200 * time.Microsecond
	// looseGrain is for a process that the hardware can stop as well. With a bound of 16
	// it allows 16 ms of short commands in flight, which a process needs if its launches
	// are sometimes faster and sometimes slower than the device.
	looseGrain = time.Millisecond
)

// Gate is the gate of one process. All queues of the process share it: the gate is
// closed while any of them is held, and the lowest of their bounds is in force.
type Gate struct {
	page *shimpage.Page

	mu       sync.Mutex
	queues   []*Queue
	standing standingBound
}

// standingBound is the bound in force where the policy sets none.
type standingBound struct {
	hal.Bound
	grain time.Duration
}

// NewGate returns the gate of a page, which stays the caller's.
func NewGate(p *shimpage.Page) *Gate { return &Gate{page: p} }

// Renew renews the leases of the gate, of the orders and of stopped hardware queues.
func (g *Gate) Renew() {
	g.page.RenewGateLease(lease)
	g.page.RenewOrdersLease(shimpage.OrdersLease)
	g.page.RenewQueueLease(queueLease)
}

// closed reports whether the gate is closed.
func (g *Gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.queues, func(q *Queue) bool { return q.held })
}

// setStanding sets the bound that is in force where no queue has one.
func (g *Gate) setStanding(b standingBound) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.standing = b
	g.applyBound()
}

// Attach returns a queue behind the gate. If prev is a queue of an earlier gate of the
// same process, the new queue starts held and bounded as prev was.
func (g *Gate) Attach(prev hal.Queue) (hal.Queue, error) {
	q := &Queue{gate: g}
	if p, ok := prev.(*Queue); ok {
		p.gate.mu.Lock()
		q.held, q.bound = p.held, p.bound
		p.gate.mu.Unlock()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queues = append(g.queues, q)
	g.applyHold()
	g.applyBound()
	return q, nil
}

// applyHold closes the gate if any queue is held and opens it otherwise. It reports
// whether the page still exists. g.mu is held.
func (g *Gate) applyHold() bool {
	if slices.ContainsFunc(g.queues, func(q *Queue) bool { return q.held }) {
		return g.page.Hold(lease)
	}
	g.page.Release()
	return true
}

// applyBound writes the bound in force to the page. It reports whether the page still
// exists. g.mu is held.
func (g *Gate) applyBound() bool {
	bound := uint32(0)
	for _, q := range g.queues {
		if q.bound > 0 && (bound == 0 || q.bound < bound) {
			bound = q.bound
		}
	}
	grain := tightGrain
	if bound == 0 {
		bound, grain = g.standing.Commands, g.standing.grain
	}
	g.page.SetGrain(grain)
	return g.page.SetBound(bound, g.standing.Batch) || bound == 0
}

// Queue is a queue behind a gate. It implements hal.Gate.
type Queue struct {
	gate  *Gate
	held  bool
	bound uint32
}

// errPageClosed means that the process has exited or has another page by now.
var errPageClosed = fmt.Errorf("the process no longer uses this page: %w", hal.ErrNotSupported)

// Hold implements hal.Holder.
func (q *Queue) Hold() error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	q.held = true
	if !q.gate.applyHold() {
		q.held = false
		return errPageClosed
	}
	return nil
}

// Release implements hal.Holder. It cannot fail: a closed page holds nothing back.
func (q *Queue) Release() error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	q.held = false
	q.gate.applyHold()
	return nil
}

// SetBound implements hal.Bounder.
func (q *Queue) SetBound(bound uint32) error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	before := q.bound
	q.bound = bound
	if !q.gate.applyBound() {
		q.bound = before
		return errPageClosed
	}
	return nil
}

// Close implements hal.Queue: the hold and the bound of this queue no longer count.
func (q *Queue) Close() error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	q.gate.queues = slices.DeleteFunc(q.gate.queues, func(o *Queue) bool { return o == q })
	q.held, q.bound = false, 0
	q.gate.applyHold()
	q.gate.applyBound()
	return nil
}
