// Package pageclient is a process's own side of the page that it shares with the daemon:
// what shim/page.c, shim/hint.c and shim/gate.c are to a program in C, for programs in
// Go, which nothing can be loaded into. Hints are a few stores; queues pass the gate.
//
// It fails open. Without a daemon, with one that dies or hangs, or with memory that is
// not as shim/abi.h says, nothing is told and nobody waits.
package pageclient

import "sync/atomic"

// Numbers of shim/abi.h.
const (
	abi         = 1
	magic       = 0x59575647
	pageSize    = 4096
	boardSize   = 4096
	leaseMost   = 1_000_000_000
	maxRequests = 64
	maxHints    = 32
	gateClosed  = 1

	watchReady    = 1
	watchRequests = 2
	watchTold     = 16

	flagReady = 1
	flagHeld  = 2

	runtimeQueue = 1 << 3
)

// Kind is what a hint is about: enum gw_hint_kind.
type Kind uint32

// The kinds of hints that a program gives of itself.
const (
	Priority   Kind = 2
	Deadline   Kind = 4
	Laxity     Kind = 5
	Work       Kind = 6
	Expect     Kind = 7
	SLO        Kind = 8
	begin      Kind = 9
	end        Kind = 10
	Idempotent Kind = 11

	kinds = 12
)

// page is struct gw_page.
type page struct {
	magic, abi, size atomic.Uint32
	_                [13]uint32

	// The daemon's.
	gate, bound, _, watch atomic.Uint32
	lease                 atomic.Uint64
	_                     [10]uint32

	// Ours.
	launched, completed, readyAt, held, holds, overruns atomic.Uint64
	flags, open, bell, runtimes                         atomic.Uint32

	requests, hints atomic.Uint64
	_               [6]uint64

	log  [maxRequests]struct{ begin, end atomic.Uint64 }
	ring [maxHints]struct { // what it says is guarded by its seq
		seq   atomic.Uint32
		kind  uint32
		value int64
		at    uint64
	}
	_ [2048]byte
}

// board is struct gw_board.
type board struct {
	magic, abi, asleep atomic.Uint32
	_                  [13]uint32
}
