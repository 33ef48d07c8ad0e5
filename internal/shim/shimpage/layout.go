// Package shimpage is the daemon's view of the memory that it shares with programs:
// struct gw_page and struct gw_board of shim/abi.h, which is the one definition of
// them. A test holds this package to that file, field by field.
//
// What a program writes is hostile: it is read word by word, every count is bounded,
// and a time that has not come yet is now. The size of the memory is sealed, so that
// no program can make the daemon fault. Nothing here waits for a program.
package shimpage

import "sync/atomic"

// Numbers of shim/abi.h, under its names.
const (
	abi       = 1          // GW_ABI
	magic     = 0x59575647 // GW_MAGIC
	bellFlags = 0x0c02     // GW_BELL_FLAGS
	pageSize  = 4096       // GW_PAGE_SIZE
	boardSize = 4096       // GW_BOARD_SIZE

	leaseMost = 1_000_000_000 // GW_LEASE_MOST_NS

	maxRequests = 64 // GW_REQUESTS
	maxHints    = 32 // GW_HINTS
	maxGPUs     = 64 // GW_GPUS

	gateOpen   = 0 // GW_OPEN
	gateClosed = 1 // GW_CLOSED
)

// Bits of what the daemon wants to be woken for.
const (
	WatchReady       = 1  // GW_WATCH_READY
	WatchRequests    = 2  // GW_WATCH_REQUESTS
	PredictArrivals  = 4  // GW_PREDICT: not to be woken for
	LogRequests      = 8  // GW_TIME: not to be woken for
	ExplicitRequests = 16 // GW_TOLD: not to be woken for
)

// Bits of how a program is.
const (
	Ready     = 1 // GW_READY
	Held      = 2 // GW_HELD
	Capturing = 4 // GW_CAPTURING
)

// HintKind is what a hint is about.
type HintKind uint32

// The kinds of hints. shim/abi.h says what the value of each is.
const (
	HintClass      HintKind = iota + 1 // GW_HINT_CLASS
	HintPriority                       // GW_HINT_PRIORITY
	HintWeight                         // GW_HINT_WEIGHT
	HintDeadline                       // GW_HINT_DEADLINE
	HintLaxity                         // GW_HINT_LAXITY
	HintWork                           // GW_HINT_WORK
	HintExpect                         // GW_HINT_EXPECT
	HintSLO                            // GW_HINT_SLO
	HintBegin                          // GW_HINT_BEGIN
	HintEnd                            // GW_HINT_END
	HintIdempotent                     // GW_HINT_IDEMPOTENT
)

// request is struct gw_request.
type request struct {
	begin atomic.Uint64 `c:"begin_ns"`
	end   atomic.Uint64 `c:"end_ns"`
}

// hint is struct gw_hint.
type hint struct {
	seq   atomic.Uint32 `c:"seq"`
	kind  atomic.Uint32 `c:"kind"`
	value atomic.Int64  `c:"value"`
	at    atomic.Uint64 `c:"at_ns"`
}

// gpu is struct gw_gpu.
type gpu struct {
	gpu    atomic.Uint32 `c:"gpu"`
	queues atomic.Uint32 `c:"queues"`
	off    atomic.Uint32 `c:"off"`
	failed atomic.Uint32 `c:"failed"`
}

// page is struct gw_page.
type page struct {
	magic     atomic.Uint32     `c:"magic"`
	abi       atomic.Uint32     `c:"abi"`
	size      atomic.Uint32     `c:"size"`
	reserved0 [13]atomic.Uint32 `c:"reserved0"`

	// Ours.
	gate       atomic.Uint32    `c:"gate"`
	bound      atomic.Uint32    `c:"bound"`
	batch      atomic.Uint32    `c:"batch"`
	watch      atomic.Uint32    `c:"watch"`
	lease      atomic.Uint64    `c:"lease_ns"`
	lead       atomic.Uint32    `c:"lead_us"`
	park       atomic.Uint32    `c:"park_us"`
	grain      atomic.Uint32    `c:"grain_us"`
	idempotent atomic.Uint32    `c:"idempotent"`
	expect     atomic.Uint64    `c:"expect_ns"`
	expectTurn atomic.Uint32    `c:"expect_turn"`
	reserved1  [3]atomic.Uint32 `c:"reserved1"`

	// The program's.
	launched  atomic.Uint64 `c:"launched"`
	completed atomic.Uint64 `c:"completed"`
	spare     atomic.Uint64 `c:"spare"`
	held      atomic.Uint64 `c:"held_ns"`
	holds     atomic.Uint64 `c:"holds"`
	overruns  atomic.Uint64 `c:"overruns"`
	flags     atomic.Uint32 `c:"flags"`
	open      atomic.Uint32 `c:"open"`
	bell      atomic.Uint32 `c:"bell"`
	runtimes  atomic.Uint32 `c:"runtimes"`

	requests  atomic.Uint64    `c:"requests"`
	hints     atomic.Uint64    `c:"hints"`
	parked    atomic.Uint64    `c:"parked"`
	hits      atomic.Uint64    `c:"hits"`
	parkedFor atomic.Uint64    `c:"parked_ns"`
	saved     atomic.Uint64    `c:"saved_ns"`
	reserved2 [2]atomic.Uint64 `c:"reserved2"`

	log  [maxRequests]request `c:"log"`
	ring [maxHints]hint       `c:"ring"`

	// Ours.
	queueLease    atomic.Uint64          `c:"queue_lease_ns"`
	queueTurn     atomic.Uint32          `c:"queue_turn"`
	queuePriority atomic.Uint32          `c:"queue_priority"`
	reserved3     [12]atomic.Uint32      `c:"reserved3"`
	off           [maxGPUs]atomic.Uint32 `c:"off"`

	// The program's.
	queueObeyed atomic.Uint32     `c:"queue_obeyed"`
	queueError  atomic.Uint32     `c:"queue_error"`
	reserved4   [14]atomic.Uint32 `c:"reserved4"`
	gpus        [maxGPUs]gpu      `c:"gpus"`
	reserved5   [640]byte         `c:"reserved5"`
}

// board is struct gw_board.
type board struct {
	magic    atomic.Uint32     `c:"magic"`
	abi      atomic.Uint32     `c:"abi"`
	asleep   atomic.Uint32     `c:"asleep"`
	reserved [13]atomic.Uint32 `c:"reserved"`
}
