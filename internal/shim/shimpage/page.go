// Package shimpage is the daemon's side of the memory that it shares with processes: one
// Page for each process, one StatusPage for all, and the Doorbells by which processes wake
// the daemon. Package pageabi defines the layout.
//
// The daemon does not trust what a process writes. It reads the memory word by word, limits
// every count, and takes a time in the future for now. The size of the memory is sealed, so
// a process cannot make the daemon fault. Nothing here waits for a process.
package shimpage

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/stats"
)

// Bits for SetWatch. WatchReady and WatchRequests are events for which the process rings its
// doorbell.
const (
	WatchReady       = pageabi.WatchReady       // the process became ready or idle
	WatchRequests    = pageabi.WatchRequests    // a request ended
	PredictArrivals  = pageabi.PredictArrivals  // predict the next arrival from earlier ones
	LogRequests      = pageabi.LogRequests      // log requests
	ExplicitRequests = pageabi.ExplicitRequests // log no guessed requests
)

// LateEntry says whether the process's requests enter the device late.
type LateEntry uint32

// The values of LateEntry. shim/abi.h says what each one means.
const (
	LateOff  LateEntry = pageabi.LateOff
	LateAuto LateEntry = pageabi.LateAuto
	LateOn   LateEntry = pageabi.LateOn
)

// Bits of Counters.Flags.
const (
	Ready     = pageabi.Ready     // there is work that is not known to be done
	Held      = pageabi.Held      // a thread waits at the gate
	Capturing = pageabi.Capturing // a graph is being captured
	WaitsLate = pageabi.WaitsLate // late entry keeps all commands in flight from the device
)

// HintKind says what a hint is about.
type HintKind = pageabi.HintKind

// The kinds of hints. shim/abi.h says what the value of each kind is.
const (
	HintClass      = pageabi.HintClass
	HintPriority   = pageabi.HintPriority
	HintWeight     = pageabi.HintWeight
	HintDeadline   = pageabi.HintDeadline
	HintLaxity     = pageabi.HintLaxity
	HintWork       = pageabi.HintWork
	HintExpect     = pageabi.HintExpect
	HintSLO        = pageabi.HintSLO
	HintBegin      = pageabi.HintBegin
	HintEnd        = pageabi.HintEnd
	HintIdempotent = pageabi.HintIdempotent
)

// Monotonic converts t to the clock of the page: CLOCK_MONOTONIC in nanoseconds.
func Monotonic(t time.Time) uint64 { return pageabi.Monotonic(t) }

// Page is the page of one process. It is safe for concurrent use. After Close its methods
// do nothing and return zero values.
type Page struct {
	mu       sync.Mutex
	memory   memory
	page     *pageabi.Page // nil: closed
	version  uint32        // of the page; the process can overwrite the one on it
	doorbell int

	held      bool         // the gate is closed
	gateLease uint64       // when the gate's lease ends
	orders    uint64       // when the lease of the orders ends
	queues    queueRequest // the requests for the process's own queues
	acked     uint32       // value of the doorbell word at the last AckDoorbell
	hints     uint64       // number of hints read so far
	requests  uint64       // number of requests read so far
	invalid   uint64       // number of entries that were not valid
	late      lateCounters // as last read
	pairs     LatePairs    // as last read
}

// NewPage creates a page of the highest version with an open gate and no bound, and a
// doorbell for it.
func NewPage() (*Page, error) { return NewPageOf(pageabi.Version) }

// NewPageOf is NewPage for a process that understands a page of that version.
func NewPageOf(version uint32) (*Page, error) {
	m, err := newMemory("giveway-page", pageabi.PageSize, sizeSeals)
	if err != nil {
		return nil, fmt.Errorf("create a page: %w", err)
	}
	doorbell, err := newDoorbell()
	if err != nil {
		_ = m.close()
		return nil, fmt.Errorf("create a page: %w", err)
	}
	p := &Page{memory: m, page: pageabi.PageAt(m.bytes), version: version, doorbell: doorbell}
	p.page.ABI.Store(version)
	p.page.Size.Store(pageabi.PageSize)
	p.page.Magic.Store(pageabi.Magic)
	return p, nil
}

// newDoorbell creates an eventfd with GW_DOORBELL_FLAGS, by which the shim recognizes it.
func newDoorbell() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, os.NewSyscallError("eventfd", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, pageabi.DoorbellFlags); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("fcntl", err)
	}
	return fd, nil
}

// Descriptors returns duplicates of the page's and the doorbell's descriptors, to be sent to
// the process. The caller closes them.
func (p *Page) Descriptors() (page, doorbell int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return -1, -1, os.ErrClosed
	}
	if page, err = duplicate(p.memory.fd); err != nil {
		return -1, -1, err
	}
	if doorbell, err = duplicate(p.doorbell); err != nil {
		_ = unix.Close(page)
		return -1, -1, err
	}
	return page, doorbell, nil
}

// Close opens the gate, removes the bound and all other requests, and unmaps the page.
func (p *Page) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return
	}
	p.release()
	p.releaseQueues()
	p.page.Bound.Store(0)
	p.page.Watch.Store(0)
	p.page.LateEntry.Store(pageabi.LateOff)
	p.page.StreamClasses.Store(0)
	p.page.OrdersLease.Store(0)
	gate, memory := &p.page.Gate, p.memory
	p.page = nil
	pageabi.WakeAllThen(gate, func() { _ = memory.close() })
	_ = unix.Close(p.doorbell)
}

// Hold closes the gate until Release, or until the lease ends without a renewal. After it
// returns no further thread passes the gate; a thread that has passed it may still be about
// to launch. It returns false if the page is closed.
func (p *Page) Hold(lease time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return false
	}
	p.held = true
	p.renewGateLease(lease)
	p.page.Gate.Store(pageabi.GateClosed)
	return true
}

// RenewGateLease renews the lease of a closed gate if less than three quarters of it are
// left.
func (p *Page) RenewGateLease(lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil && p.held && p.gateLease < pageabi.Now()+uint64(lease)*3/4 {
		p.renewGateLease(lease)
	}
}

func (p *Page) renewGateLease(lease time.Duration) {
	p.gateLease = leaseEnd(lease)
	p.page.Lease.Store(p.gateLease)
}

func leaseEnd(lease time.Duration) uint64 {
	return pageabi.Now() + min(uint64(lease), pageabi.MaxLeaseNS)
}

// Release opens the gate and wakes all threads that wait there.
func (p *Page) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.release()
	}
}

func (p *Page) release() {
	if !p.held {
		return
	}
	p.held = false
	p.page.Gate.Store(pageabi.GateOpen)
	pageabi.WakeAll(&p.page.Gate)
}

// OrdersLease is how long orders hold without a renewal: the bound, parking, late entry and stream
// classes. Each setter renews the lease before it writes its order.
const OrdersLease = 500 * time.Millisecond

// RenewOrdersLease renews the lease of the orders if less than three quarters of it are left. A
// page before version 3 has no such lease: its orders hold until the connection ends.
func (p *Page) RenewOrdersLease(lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil && p.orders < pageabi.Now()+uint64(lease)*3/4 {
		p.renewOrders(lease)
	}
}

func (p *Page) renewOrders(lease time.Duration) {
	if p.version >= 3 {
		p.orders = leaseEnd(lease)
		p.page.OrdersLease.Store(p.orders)
	}
}

// SetBound sets how many commands may be in flight, and after how many commands the shim
// sets a mark to learn what is done. A bound of zero is no bound; with a batch of zero the
// shim chooses. It returns false if the page is closed.
func (p *Page) SetBound(bound, batch uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return false
	}
	p.renewOrders(OrdersLease)
	p.page.Batch.Store(batch)
	p.page.Bound.Store(bound)
	return true
}

// SetGrain makes a bound of n admit more than n commands if they are short: as many as take
// n times d of device time. Zero switches this off.
func (p *Page) SetGrain(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.page.Grain.Store(uint32(d.Microseconds()))
	}
}

// SetExpectedArrival tells the process when its next work will arrive, on the clock of
// Monotonic. Zero means unknown.
func (p *Page) SetExpectedArrival(at uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.page.Expect.Store(at)
		p.page.ExpectSeq.Add(1)
		pageabi.WakeAll(&p.page.ExpectSeq)
	}
}

// SetIdempotent tells the process whether its commands may run twice.
func (p *Page) SetIdempotent(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		value := uint32(0)
		if on {
			value = 1
		}
		p.page.Idempotent.Store(value)
	}
}

// SetWatch sets the events for which the process rings its doorbell, and what it logs.
func (p *Page) SetWatch(bits uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.page.Watch.Store(bits)
	}
}

// SetParking sets how long before an expected arrival the process may take the device, zero
// for never, and for how long it may hold the device if the arrival does not come.
func (p *Page) SetParking(lead, limit time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.renewOrders(OrdersLease)
		p.page.MaxPark.Store(uint32(limit.Microseconds()))
		p.page.Lead.Store(uint32(lead.Microseconds()))
	}
}

// SetLateEntry sets whether the process's requests enter the device late. A page of version 1
// has no such word.
func (p *Page) SetLateEntry(e LateEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil && p.version >= 2 {
		p.renewOrders(OrdersLease)
		p.page.LateEntry.Store(uint32(e))
	}
}

// SetStreamClasses sets whether the process's streams of lower priority give way to those of
// higher priority. A page of version 1 has no such word.
func (p *Page) SetStreamClasses(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil || p.version < 2 {
		return
	}
	value := uint32(0)
	if on {
		value = 1
	}
	p.renewOrders(OrdersLease)
	p.page.StreamClasses.Store(value)
}

// Counters are the counters that the process keeps on its page.
type Counters struct {
	Launched, Completed uint64
	Idled               uint64 // times that the process ran out of work; zero before version 3
	Holds, Overruns     uint64
	Parked, Hits        uint64
	HeldFor             time.Duration
	ParkedFor           time.Duration
	Saved               time.Duration
	LateRequests        uint64        // requests that entered late
	LateEarly           uint64        // of those, requests that the program waited for before the planned moment
	LateFor             time.Duration // left to others by late entry
	ClassHolds          uint64        // launches that waited for streams of higher priority
	ClassHeldFor        time.Duration
	ClassLetGo          uint64 // launches that did not wait any longer although those were busy
	Flags               uint32
	OpenRequests        uint32
	Runtimes            uint32
}

// maxCounter limits every counter, so that the sum of a few of them does not overflow. No
// honest counter reaches it.
const maxCounter = 1 << 56

// Counters reads the counters. Completed is at most Launched.
func (p *Page) Counters() (c Counters) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.page
	if g == nil {
		return c
	}
	c.Completed = g.Completed.Load() // before Launched, which the process increases first
	c.Launched = min(g.Launched.Load(), maxCounter)
	c.Completed = min(c.Completed, c.Launched)
	c.Flags, c.OpenRequests, c.Runtimes = g.Flags.Load(), g.OpenRequests.Load(), g.Runtimes.Load()
	c.Holds, c.Overruns = min(g.Holds.Load(), maxCounter), min(g.Overruns.Load(), maxCounter)
	c.Parked, c.Hits = min(g.Parked.Load(), maxCounter), min(g.ParkHits.Load(), maxCounter)
	c.HeldFor = time.Duration(min(g.HeldFor.Load(), maxCounter))
	c.ParkedFor = time.Duration(min(g.ParkedFor.Load(), maxCounter))
	c.Saved = time.Duration(min(g.Saved.Load(), maxCounter))
	if p.version >= 2 {
		c.LateRequests, c.LateEarly, c.LateFor = p.late.read(g)
		c.ClassHolds, c.ClassLetGo = min(g.ClassHolds.Load(), maxCounter), min(g.ClassLetGo.Load(), maxCounter)
		c.ClassHeldFor = time.Duration(min(g.ClassHeldFor.Load(), maxCounter))
	}
	if p.version >= 3 {
		c.Idled = min(g.Idled.Load(), maxCounter)
	}
	return c
}

// lateCounters are the counters of late entry. They never go back, whatever the process writes.
type lateCounters struct{ requests, early, ns uint64 }

func (l *lateCounters) read(g *pageabi.Page) (requests, early uint64, left time.Duration) {
	l.early = max(l.early, min(g.LateEarly.Load(), maxCounter)) // before LateRequests, which the process increases first
	l.requests = max(l.requests, min(g.LateRequests.Load(), maxCounter))
	l.ns = max(l.ns, min(g.LateFor.Load(), maxCounter))
	return l.requests, min(l.early, l.requests), time.Duration(l.ns)
}

// LatePairs is what pairs of alike requests show of late entry: the first entered at once, the
// next one late.
type LatePairs struct {
	Ratios  [pageabi.RatioEntries]uint32 // pairs by the latency of the second over that of the first, as pageabi.RatioFirst says
	GivenUp uint64                       // how often late entry was given up for a while
}

// Bins returns the ratios that were counted, in order.
func (l *LatePairs) Bins() (bins []stats.Bin) {
	for i, n := range l.Ratios {
		if n > 0 {
			from := pageabi.RatioFirst + i*pageabi.RatioStep
			bins = append(bins, stats.Bin{From: float64(from) / 1000, To: float64(from+pageabi.RatioStep) / 1000, Count: uint64(n)})
		}
	}
	return bins
}

// LatePairs reads what the process has counted since it started. The counts never go back,
// whatever the process writes. Pages of version 1 have none.
func (p *Page) LatePairs() LatePairs {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil && p.version >= 2 {
		for i := range p.pairs.Ratios {
			p.pairs.Ratios[i] = max(p.pairs.Ratios[i], p.page.LateRatios[i].Load())
		}
		p.pairs.GivenUp = max(p.pairs.GivenUp, min(p.page.LateGivenUp.Load(), maxCounter))
	}
	return p.pairs
}

// InvalidEntries returns how many hints and requests were not valid so far.
func (p *Page) InvalidEntries() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.invalid
}

// AckDoorbell reports whether the doorbell has rung since the last call.
func (p *Page) AckDoorbell() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return false
	}
	n := p.page.Doorbell.Load()
	rang := n != p.acked
	p.acked = n
	return rang
}

// ringing reports whether the doorbell has rung since the last AckDoorbell.
func (p *Page) ringing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.page != nil && p.page.Doorbell.Load() != p.acked
}
