// Package shim drives the gate in other people's programs: the preload library
// that waits there before each launch, and the bound on how much it launches. It is
// level 1 on any device, for programs that came with the library; what is launched
// finishes.
//
// A gate is memory that the program shares, so nothing here takes long or can fail
// but by the program's end, and a gate that is closed opens by itself when nobody
// keeps it closed.
package shim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// lease is how long a gate stays closed when we are not there any more. Keep is to
// be called a few times in that.
const lease = 500 * time.Millisecond

// What a command is taken to be worth at the least. Tight is for a bound that somebody
// waits behind. Loose is for a program that can be stopped in another way as well: with a
// bound of 16 some 16 ms of short commands may be in flight, which a program needs whose
// launches are now faster and now slower than the device.
const (
	Tight = 200 * time.Microsecond
	Loose = time.Millisecond
)

// Gate is the gate of one program. All its queues share it: it is closed if any of
// them is held, and the least bound counts.
type Gate struct {
	page *shimpage.Page

	mu       sync.Mutex
	queues   []*Queue
	standing Bound // where no queue has one
}

// Bound is how much of a program may be in flight.
type Bound struct {
	Commands uint32 // zero: any number
	// Batch is after how many of them it is looked how many are done; zero: as often as
	// seems right. It counts for all bounds of a program.
	Batch uint32
	Grain time.Duration // what a command is worth
}

// NewGate returns the gate of a page, which stays the caller's.
func NewGate(p *shimpage.Page) *Gate { return &Gate{page: p} }

// Keep keeps the gate closed, if it is, and what is wanted of the program's own queues.
func (g *Gate) Keep() {
	g.page.RenewGateLease(lease)
	g.page.RenewQueueLease(queueLease)
}

// SetStanding sets the bound that counts where no queue is given one.
func (g *Gate) SetStanding(b Bound) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.standing = b
	g.setBound()
}

// Attach returns a queue behind the gate: held and bounded as another one was, whose
// gate is no more, or neither if that is nil.
func (g *Gate) Attach(like *Queue) *Queue {
	q := &Queue{gate: g}
	if like != nil {
		like.gate.mu.Lock()
		q.held, q.bound = like.held, like.bound
		like.gate.mu.Unlock()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queues = append(g.queues, q)
	g.steer()
	g.setBound()
	return q
}

// steer brings the gate to what its queues want. g.mu is held.
func (g *Gate) steer() bool {
	if slices.ContainsFunc(g.queues, func(q *Queue) bool { return q.held }) {
		return g.page.Hold(lease)
	}
	g.page.Release()
	return true
}

// setBound does so with the bound. g.mu is held.
func (g *Gate) setBound() bool {
	bound := uint32(0)
	for _, q := range g.queues {
		if q.bound > 0 && (bound == 0 || q.bound < bound) {
			bound = q.bound
		}
	}
	grain := Tight
	if bound == 0 {
		bound, grain = g.standing.Commands, g.standing.Grain
	}
	g.page.SetGrain(grain)
	return g.page.SetBound(bound, g.standing.Batch) || bound == 0
}

// Queue is a queue behind a gate. It implements hal.Holder and hal.Bounder.
type Queue struct {
	gate  *Gate
	held  bool
	bound uint32
}

// Behind reports whether q is behind that gate.
func (q *Queue) Behind(g *Gate) bool { return q.gate == g }

// errLeft is for a page that is closed: its program has gone, or has another.
var errLeft = fmt.Errorf("the program has left its gate: %w", hal.ErrNotSupported)

// Hold implements hal.Holder.
func (q *Queue) Hold() error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	q.held = true
	if !q.gate.steer() {
		q.held = false
		return errLeft
	}
	return nil
}

// Release implements hal.Holder. A gate that is no more holds nobody.
func (q *Queue) Release() error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	q.held = false
	q.gate.steer()
	return nil
}

// SetBound implements hal.Bounder.
func (q *Queue) SetBound(bound uint32) error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	before := q.bound
	q.bound = bound
	if !q.gate.setBound() {
		q.bound = before
		return errLeft
	}
	return nil
}

// Close implements hal.Queue: what this queue wanted does not count any more.
func (q *Queue) Close() error {
	q.gate.mu.Lock()
	defer q.gate.mu.Unlock()
	q.gate.queues = slices.DeleteFunc(q.gate.queues, func(o *Queue) bool { return o == q })
	q.held, q.bound = false, 0
	q.gate.steer()
	q.gate.setBound()
	return nil
}
