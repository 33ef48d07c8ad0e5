package shim

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/quota"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// Limits on the number of pages: in all, and of those how many only processes that may do
// everything can have, which also have no limit of their own.
const (
	maxPages     = 1024
	pagesForRoot = 128
)

// pageQuota divides the other pages among accounts.
var pageQuota = quota.Quota{All: maxPages - pagesForRoot, Each: 224}

// Limits on what is reported of the pages of an account in one turn: as many hints, as many
// finished requests, and as many requests that have begun or ended unmeasured. The pages of the
// account share it equally, and what exceeds the share of a page is reported in the next turns.
// A process can write to its page without end, and everything that is reported costs the loop
// some microseconds.
const (
	maxReports = 1024
	maxOpen    = 64 // requests of a process that count as open: the scheduler keeps the start of as many
)

// Backend implements hal.Backend, hal.Poller, hal.Sleeper and server.PageHost.
type Backend struct {
	uid       int // only processes of this user, or proc.Everyone
	status    *shimpage.StatusPage
	doorbells *shimpage.Doorbells

	mu          sync.Mutex
	host        hal.Host // nil before Start and after Close
	connections []*connection
	admitting   map[int]chan struct{} // by pid: closed when the process has its page, or was refused
}

// connection is a process that loaded the shim, with the page that it shares.
type connection struct {
	account  uint32 // the user that the page counts for
	id       proc.ID
	page     *shimpage.Page
	gate     *Gate
	handle   hal.QueueHandle
	replaced bool // the process has a newer page
	share    int  // of the account's maxReports

	runtime      string        // that the process named when it connected; empty: none
	inUse        bool          // it has used a runtime, so its gate has a device
	settings     *hal.Settings // as last written to the page
	watch        uint32
	parking      bool
	expect       time.Time
	priority     int // of the process's own hardware queues
	openRequests uint32
	closedAt     sched.Time // when the gate was last seen closed; zero: never
	entered      uint64     // commands launched when no request waited to enter late
	waitsSince   sched.Time // since when one waits; zero: none does
	doneThen     uint64     // commands completed then
}

// New makes the backend for the processes of one user, or of proc.Everyone.
func New(uid int) (*Backend, error) {
	status, err := shimpage.NewStatusPage()
	if err != nil {
		return nil, err
	}
	doorbells, err := shimpage.NewDoorbells(status)
	if err != nil {
		status.Close()
		return nil, err
	}
	return &Backend{uid: uid, status: status, doorbells: doorbells, admitting: make(map[int]chan struct{})}, nil
}

// Name implements hal.Backend.
func (b *Backend) Name() string { return "shim" }

// Start implements hal.Backend. Processes come by themselves: see Admit.
func (b *Backend) Start(_ context.Context, h hal.Host) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.host = h
	return nil
}

// Checks implements hal.Backend.
func (b *Backend) Checks() []hal.Check { return nil }

// Close implements hal.Backend.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.connections) > 0 {
		b.leave(b.connections[0])
	}
	b.host = nil
	b.doorbells.Close()
	b.status.Close()
	return nil
}

// Wait implements hal.Sleeper: it returns when the doorbell of a page rings.
func (b *Backend) Wait(d time.Duration) { b.doorbells.Wait(d) }

// Wake implements hal.Sleeper.
func (b *Backend) Wake() { b.doorbells.Wake() }

// GateOf returns the gate of a process, or nil.
func (b *Backend) GateOf(pid int) *Gate {
	b.mu.Lock()
	defer b.mu.Unlock()
	var latest *connection // the process of an earlier one has exited
	for _, c := range b.connections {
		if c.id.PID == pid && !c.replaced && (latest == nil || c.id.Start > latest.id.Start) {
			latest = c
		}
	}
	if latest == nil {
		return nil
	}
	return latest.gate
}

// Admit implements server.PageHost: it makes a page for a process that connected.
func (b *Backend) Admit(v server.ShimProcess) (fds [3]int, leave func(), err error) {
	info, err := proc.Look(v.PID)
	if err != nil {
		return fds, nil, server.NotFound("read process %d: %w", v.PID, err)
	}
	if v.Exited != nil && v.Exited() {
		return fds, nil, server.NotFound("share memory: process %d, the caller, has exited", v.PID)
	}
	host, admitted, err := b.beginAdmit(v)
	if err != nil {
		return fds, nil, err
	}
	defer admitted()
	c := &connection{account: v.Account, id: info.ID(), priority: processPriority}
	if slices.Contains(runtimes, v.Runtime) {
		c.runtime = v.Runtime
	}
	if c.page, err = shimpage.NewPageOf(cmp.Or(v.PageVersion, pageabi.Version)); err != nil {
		return fds, nil, err
	}
	if fds, err = b.descriptors(c.page); err != nil {
		c.page.Close()
		return fds, nil, err
	}
	if err := b.connect(c, host, info, v); err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		c.page.Close()
		return fds, nil, err
	}
	return fds, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.leave(c)
	}, nil
}

// beginAdmit waits until no other page is made for the process, and checks that it may have one.
// admitted ends that.
func (b *Backend) beginAdmit(v server.ShimProcess) (host hal.Host, admitted func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.admitting[v.PID] != nil {
		other := b.admitting[v.PID]
		b.mu.Unlock()
		<-other
		b.mu.Lock()
	}
	if err := b.refusal(v); err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	b.admitting[v.PID] = done
	return b.host, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.admitting, v.PID)
		close(done)
	}, nil
}

// refusal says why a process gets no page, if so. b.mu is held.
func (b *Backend) refusal(v server.ShimProcess) error {
	mine := 0
	for _, c := range b.connections {
		if c.account == v.Account {
			mine++
		}
	}
	taken := len(b.connections)
	switch {
	case b.host == nil:
		return server.Conflict("the daemon is starting or stopping")
	case b.uid != proc.Everyone && v.UID != uint32(b.uid):
		return server.Forbidden("this daemon manages the processes of another user")
	case taken >= maxPages, !v.All && taken >= pageQuota.All:
		return server.TooMany("%d processes have loaded the shim already", taken)
	case !v.All && !pageQuota.Allows(mine, taken, 1):
		return server.TooMany("%d of your processes have loaded the shim already, and %d in all", mine, taken)
	}
	return nil
}

// descriptors returns the descriptors that a process is given: page, status page and
// doorbell.
func (b *Backend) descriptors(p *shimpage.Page) (fds [3]int, err error) {
	if fds[0], fds[2], err = p.Descriptors(); err != nil {
		return fds, err
	}
	if fds[1], err = b.status.Descriptor(); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[2])
	}
	return fds, err
}

// connect offers the gate of a page. A process that has a page already, for example
// because it called exec, is from now on read from the new page only.
//
// The daemon reads files of a process that it does not know, and the old page may have been the
// only reason to know it. So the offer is made without b.mu, for which Poll waits.
func (b *Backend) connect(c *connection, host hal.Host, info proc.Process, v server.ShimProcess) error {
	b.mu.Lock()
	for _, old := range b.connections {
		if old.id == c.id && !old.replaced {
			old.replaced = true
			b.withdraw(old)
		}
	}
	b.mu.Unlock()
	c.gate = NewGate(c.page)
	offer := hal.Offer{Process: info, Gate: true, Attach: c.gate.Attach, GateStats: c.stats}
	if c.runtime != "" {
		offer.Device, c.inUse = device(c.runtime), true
	}
	var err error
	if c.handle, err = host.QueueFound(offer); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err = b.refusal(v); err == nil { // others may have got the last pages meanwhile
		err = b.doorbells.Add(c.page)
	}
	if err != nil {
		b.withdraw(c)
		return err
	}
	// Before the process has the page: without its bound it may launch all the work
	// that it has before the next poll.
	c.apply(c.handle.Process().Settings())
	b.connections = append(b.connections, c)
	b.divide(c.account)
	return nil
}

// divide divides maxReports among the pages of an account. b.mu is held.
func (b *Backend) divide(account uint32) {
	var pages []*connection
	for _, c := range b.connections {
		if c.account == account {
			pages = append(pages, c)
		}
	}
	for _, c := range pages {
		c.share = max(1, maxReports/len(pages))
	}
}

// leave ends a connection. A second call has no effect. b.mu is held.
func (b *Backend) leave(c *connection) {
	i := slices.Index(b.connections, c)
	if i < 0 {
		return
	}
	b.connections = slices.Delete(b.connections, i, i+1)
	b.divide(c.account)
	b.doorbells.Remove(c.page)
	c.page.Close()
	if !c.replaced {
		b.withdraw(c)
	}
}

// withdraw opens the gate and withdraws its offer. b.mu is held.
func (b *Backend) withdraw(c *connection) {
	c.page.Release()
	c.page.ReleaseQueues()
	c.handle.Withdraw(false)
}

// Poll implements hal.Poller: it reads every page.
func (b *Backend) Poll(now sched.Time, f hal.Facts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.connections {
		c.poll(now, f)
	}
}

// poll reads a page and writes the settings of its process to it.
func (c *connection) poll(now sched.Time, f hal.Facts) {
	c.page.AckDoorbell()
	c.gate.Renew()
	if c.replaced {
		return
	}
	counters := c.page.Counters()
	if runtime := c.runtimeOf(counters.Runtimes); runtime != "" && !c.inUse {
		c.inUse = true
		c.handle.SetDevice(device(runtime))
	}
	p := c.handle.Process()
	c.page.SomeHints(c.share, func(h shimpage.Hint) {
		if h.Kind != shimpage.HintBegin && h.Kind != shimpage.HintEnd { // read as requests below
			f.Hint(p, uint32(h.Kind), h.Value)
		}
	})
	c.apply(p.Settings())
	f.Progress(p, hal.Progress{
		Launched: c.onDevice(&counters, now), Completed: counters.Completed, Late: counters.LateRequests, Idled: counters.Idled, Waiting: c.waiting(counters.Flags, now),
	})
	c.reportRequests(now, p, counters.OpenRequests, f)
}

// maxLate is how long a request that waits to enter late is believed to leave the device to
// others. The shim's timer releases it long before.
const maxLate = 250 * time.Millisecond

// onDevice returns how many commands the device has been given. Commands that wait to enter late
// do not count: the device is not cleared for them yet.
func (c *connection) onDevice(n *shimpage.Counters, now sched.Time) uint64 {
	if n.Flags&shimpage.WaitsLate == 0 || c.settings.LateEntry == hal.LateOff {
		c.entered, c.waitsSince = n.Launched, 0
		return n.Launched
	}
	if c.waitsSince == 0 || n.Completed != c.doneThen { // another request
		c.waitsSince, c.doneThen = now, n.Completed
	}
	if now.Sub(c.waitsSince) > maxLate {
		return n.Launched
	}
	return min(max(c.entered, n.Completed), n.Launched)
}

// passTime is how long a thread that waited at the gate may take to pass it once it is open.
const passTime = time.Second

// waiting reports whether a thread waits at the gate. No thread waits at an open gate, so
// what the page says then is not believed.
func (c *connection) waiting(flags uint32, now sched.Time) bool {
	if c.gate.closed() {
		c.closedAt = now
	}
	return flags&shimpage.Held != 0 && c.closedAt > 0 && now.Sub(c.closedAt) < passTime
}

// runtimeOf returns the runtime that the process uses: the one that it named, or the
// first in the bits of its page; empty if there is none yet.
func (c *connection) runtimeOf(used uint32) string {
	if bit := bits.TrailingZeros32(used); c.runtime == "" && bit < len(runtimes) {
		return runtimes[bit]
	}
	return c.runtime
}

// reportRequests reports the requests that are over and those that have begun.
func (c *connection) reportRequests(now sched.Time, p hal.Process, open uint32, f hal.Facts) {
	clock := pageabi.Now()
	c.page.SomeRequests(c.share, func(r shimpage.Request) {
		if c.openRequests > 0 {
			c.openRequests--
		}
		ago := time.Duration(clock - min(r.Begin+uint64(r.Duration), clock))
		f.RequestFinished(p, r.Duration, max(now.Add(-ago), 1))
	})
	open = min(open, maxOpen)
	for range c.share {
		switch {
		case c.openRequests < open:
			c.openRequests++
			f.RequestStarted(p)
		case c.openRequests > open: // it ended while its time was not measured
			c.openRequests--
			f.RequestFinished(p, 0, 0)
		default:
			return
		}
	}
}

// Limits on parking: how long before an expected arrival a process may take the device,
// of which it uses as much as it learns that it needs, and how long it may wait for an
// arrival that does not come.
const (
	maxParkingLead = 500 * time.Microsecond
	maxParkingWait = time.Millisecond
)

// apply writes settings to the page, where they have changed.
func (c *connection) apply(s *hal.Settings) {
	c.applyQueuePriority(s)
	if s == c.settings {
		return
	}
	c.settings = s
	c.gate.setStanding(standingBoundOf(s))
	c.page.SetIdempotent(s.Idempotent)
	c.page.SetLateEntry(shimpage.LateEntry(s.LateEntry))
	c.page.SetStreamClasses(s.StreamClasses)
	if w := watchBits(s); w != c.watch {
		c.watch = w
		c.page.SetWatch(w)
	}
	if parking := s.Attr.Class == sched.Online; parking != c.parking {
		c.parking = parking
		lead := time.Duration(0)
		if parking {
			lead = maxParkingLead
		}
		c.page.SetParking(lead, maxParkingWait)
	}
	if !s.ExpectAt.Equal(c.expect) {
		c.expect = s.ExpectAt
		at := uint64(0)
		if !c.expect.IsZero() {
			at = shimpage.Monotonic(c.expect)
		}
		c.page.SetExpectedArrival(at)
	}
}

func standingBoundOf(s *hal.Settings) standingBound {
	b := standingBound{Bound: s.Bound, grain: looseGrain}
	if s.GateOnly {
		b.grain = tightGrain
	}
	return b
}

// watchBits returns what the process rings its doorbell for, and what it measures.
func watchBits(s *hal.Settings) (bits uint32) {
	for _, w := range []struct {
		on  bool
		bit uint32
	}{
		{s.WatchReady, shimpage.WatchReady},
		{s.WatchRequests, shimpage.WatchRequests},
		{s.TimeRequests, shimpage.LogRequests},
		{s.RequestsReported, shimpage.ExplicitRequests},
		{s.Predict && s.Attr.Class == sched.Online, shimpage.PredictArrivals},
	} {
		if w.on {
			bits |= w.bit
		}
	}
	return bits
}

// applyQueuePriority asks for the priority of the class on the process's own hardware
// queues, if it has any.
func (c *connection) applyQueuePriority(s *hal.Settings) {
	want := processPriority
	if len(c.gate.GPUs()) > 0 {
		want = queuePriorities[s.Attr.Class]
	}
	if want != c.priority {
		c.priority = want
		c.page.SetQueuePriority(want, queueLease)
	}
}

// stats implements hal.Offer.GateStats.
func (c *connection) stats() hal.GateStats {
	n, pairs := c.page.Counters(), c.page.LatePairs()
	return hal.GateStats{
		Runtime: c.runtimeOf(n.Runtimes), Launched: n.Launched, Completed: n.Completed, Holds: n.Holds, HeldFor: n.HeldFor,
		Overruns: n.Overruns, Parked: n.Parked, Hits: n.Hits, ParkedFor: n.ParkedFor, Saved: n.Saved,
		LateRequests: n.LateRequests, LateEarly: n.LateEarly, LateFor: n.LateFor,
		LateRatios: pairs.Bins(), LateGivenUp: pairs.GivenUp,
		ClassHolds: n.ClassHolds, ClassHeldFor: n.ClassHeldFor, ClassLetGo: n.ClassLetGo, Invalid: c.page.InvalidEntries(),
	}
}
