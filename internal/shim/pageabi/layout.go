// Package pageabi is shim/abi.h in Go: the layout of the memory that a process and the
// daemon share, its constants, its clock and its wake-ups. A test compares the layout with
// shim/abi.h field by field.
//
// Package shimpage is the daemon's side of this memory, package pageclient a process's side.
package pageabi

import "sync/atomic"

// Constants of shim/abi.h. Its comments say what each one means.
const (
	LowestVersion = 1          // GW_ABI_LOWEST
	Version       = 3          // GW_ABI: the highest
	Magic         = 0x59575647 // GW_MAGIC
	DoorbellFlags = 0x0c02     // GW_DOORBELL_FLAGS
	PageSize      = 4096       // GW_PAGE_SIZE
	StatusSize    = 4096       // GW_STATUS_SIZE

	MaxLeaseNS = 1_000_000_000 // GW_MAX_LEASE_NS

	RequestEntries = 64 // GW_REQUEST_ENTRIES
	HintEntries    = 32 // GW_HINT_ENTRIES
	GPUEntries     = 64 // GW_GPU_ENTRIES

	RatioEntries = 64  // GW_RATIO_ENTRIES
	RatioFirst   = 840 // GW_RATIO_FIRST
	RatioStep    = 5   // GW_RATIO_STEP

	GateOpen   = 0 // GW_GATE_OPEN
	GateClosed = 1 // GW_GATE_CLOSED
)

// Bits of Page.Watch.
const (
	WatchReady       = 1  // GW_WATCH_READY
	WatchRequests    = 2  // GW_WATCH_REQUESTS
	PredictArrivals  = 4  // GW_PREDICT_ARRIVALS
	LogRequests      = 8  // GW_LOG_REQUESTS
	ExplicitRequests = 16 // GW_EXPLICIT_REQUESTS
)

// Values of Page.LateEntry.
const (
	LateOff  = 0 // GW_LATE_OFF
	LateAuto = 1 // GW_LATE_AUTO
	LateOn   = 2 // GW_LATE_ON
)

// Bits of Page.Flags.
const (
	Ready     = 1 // GW_READY
	Held      = 2 // GW_HELD
	Capturing = 4 // GW_CAPTURING
	WaitsLate = 8 // GW_WAITS_LATE
)

// HintKind says what a hint is about: enum gw_hint_kind.
type HintKind uint32

// The kinds of hints. shim/abi.h says what the value of each kind is.
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

	HintKinds // one more than the last kind
)

// Request is struct gw_request.
type Request struct {
	Begin atomic.Uint64 `c:"begin_ns"`
	End   atomic.Uint64 `c:"end_ns"`
}

// Hint is struct gw_hint. Seq guards the other fields: the writer stores 0 there first and
// the number last. Atomic stores of the other fields would be three more locked instructions.
type Hint struct {
	Seq   atomic.Uint32 `c:"seq"`
	Kind  uint32        `c:"kind"`
	Value int64         `c:"value"`
	At    uint64        `c:"at_ns"`
}

// GPU is struct gw_gpu.
type GPU struct {
	GPU     atomic.Uint32 `c:"gpu"`
	Queues  atomic.Uint32 `c:"queues"`
	Stopped atomic.Uint32 `c:"stopped"`
	Failed  atomic.Uint32 `c:"failed"`
}

// Page is struct gw_page.
type Page struct {
	Magic atomic.Uint32     `c:"magic"`
	ABI   atomic.Uint32     `c:"abi"`
	Size  atomic.Uint32     `c:"size"`
	_     [13]atomic.Uint32 `c:"reserved0"`

	// Written by the daemon.
	Gate          atomic.Uint32 `c:"gate"`
	Bound         atomic.Uint32 `c:"bound"`
	Batch         atomic.Uint32 `c:"batch"`
	Watch         atomic.Uint32 `c:"watch"`
	Lease         atomic.Uint64 `c:"lease_ns"`
	Lead          atomic.Uint32 `c:"lead_us"`
	MaxPark       atomic.Uint32 `c:"max_park_us"`
	Grain         atomic.Uint32 `c:"grain_us"`
	Idempotent    atomic.Uint32 `c:"idempotent"`
	Expect        atomic.Uint64 `c:"expect_ns"`
	ExpectSeq     atomic.Uint32 `c:"expect_seq"`
	LateEntry     atomic.Uint32 `c:"late_entry"`
	StreamClasses atomic.Uint32 `c:"stream_classes"`
	_             atomic.Uint32 `c:"reserved1"`

	// Written by the process.
	Launched     atomic.Uint64 `c:"launched"`
	Completed    atomic.Uint64 `c:"completed"`
	LateRequests atomic.Uint64 `c:"late_requests"`
	HeldFor      atomic.Uint64 `c:"held_ns"`
	Holds        atomic.Uint64 `c:"holds"`
	Overruns     atomic.Uint64 `c:"overruns"`
	Flags        atomic.Uint32 `c:"flags"`
	OpenRequests atomic.Uint32 `c:"open_requests"`
	Doorbell     atomic.Uint32 `c:"doorbell"`
	Runtimes     atomic.Uint32 `c:"runtimes"`

	Requests  atomic.Uint64 `c:"requests"`
	Hints     atomic.Uint64 `c:"hints"`
	Parked    atomic.Uint64 `c:"parked"`
	ParkHits  atomic.Uint64 `c:"park_hits"`
	ParkedFor atomic.Uint64 `c:"parked_ns"`
	Saved     atomic.Uint64 `c:"saved_ns"`
	LateFor   atomic.Uint64 `c:"late_ns"`
	LateEarly atomic.Uint64 `c:"late_early"`

	Log  [RequestEntries]Request `c:"log"`
	Ring [HintEntries]Hint       `c:"ring"`

	// Written by the daemon.
	QueueLease    atomic.Uint64             `c:"queue_lease_ns"`
	QueueSeq      atomic.Uint32             `c:"queue_seq"`
	QueuePriority atomic.Uint32             `c:"queue_priority"`
	OrdersLease   atomic.Uint64             `c:"orders_lease_ns"`
	_             [10]atomic.Uint32         `c:"reserved3"`
	StopGPUs      [GPUEntries]atomic.Uint32 `c:"stop_gpus"`

	// Written by the process.
	QueueAppliedSeq atomic.Uint32     `c:"queue_applied_seq"`
	QueueErrno      atomic.Uint32     `c:"queue_errno"`
	_               [14]atomic.Uint32 `c:"reserved4"`
	GPUs            [GPUEntries]GPU   `c:"gpus"`

	LateRatios  [RatioEntries]atomic.Uint32 `c:"late_ratios"`
	LateGivenUp atomic.Uint64               `c:"late_given_up"`
	_           [312]byte                   `c:"reserved5"`

	ClassHolds   atomic.Uint64    `c:"class_holds"`
	ClassHeldFor atomic.Uint64    `c:"class_held_ns"`
	ClassLetGo   atomic.Uint64    `c:"class_let_go"`
	Idled        atomic.Uint64    `c:"idled"`
	_            [4]atomic.Uint64 `c:"reserved6"`
}

// Status is struct gw_status, the status page.
type Status struct {
	Magic  atomic.Uint32     `c:"magic"`
	ABI    atomic.Uint32     `c:"abi"`
	Asleep atomic.Uint32     `c:"asleep"`
	_      [13]atomic.Uint32 `c:"reserved"`
}
