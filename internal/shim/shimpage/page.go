package shimpage

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Page is one program's page. It is safe for concurrent use; after Close nothing
// happens to it and nothing is read from it any more.
type Page struct {
	mu     sync.Mutex
	memory memory
	page   *page // nil: closed
	bell   int

	shut     bool   // by us
	until    uint64 // the lease
	wish     wish   // of its own queues
	heard    uint32 // value of the bell when it was last answered
	hints    uint64 // taken so far
	requests uint64 // the same
	invalid  uint64 // entries that could not be believed
}

// NewPage makes a page with the gate open and no bound, and a bell for it.
func NewPage() (*Page, error) {
	m, err := newMemory("giveway-page", pageSize, sealed)
	if err != nil {
		return nil, fmt.Errorf("make a page: %w", err)
	}
	bell, err := newBell()
	if err != nil {
		_ = m.close()
		return nil, fmt.Errorf("make a page: %w", err)
	}
	p := &Page{memory: m, page: m.page(), bell: bell}
	p.page.abi.Store(abi)
	p.page.size.Store(pageSize)
	p.page.magic.Store(magic)
	return p, nil
}

// newBell makes an eventfd that can be told from all that a program opens: GW_BELL_FLAGS.
func newBell() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, os.NewSyscallError("eventfd", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, bellFlags); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("fcntl", err)
	}
	return fd, nil
}

// Descriptors returns descriptors of the page and its bell to give away. They are the
// caller's to close.
func (p *Page) Descriptors() (page, bell int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return -1, -1, os.ErrClosed
	}
	if page, err = duplicate(p.memory.fd); err != nil {
		return -1, -1, err
	}
	if bell, err = duplicate(p.bell); err != nil {
		_ = unix.Close(page)
		return -1, -1, err
	}
	return page, bell, nil
}

// Close gives the page up with the gate open, no bound, and nothing wanted.
func (p *Page) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return
	}
	p.release()
	p.releaseQueues()
	p.page.bound.Store(0)
	p.page.watch.Store(0)
	p.page = nil
	_ = p.memory.close()
	_ = unix.Close(p.bell)
}

// Hold closes the gate until Open, or until nobody has put off the end of the lease.
// When it returns no thread that comes to the gate passes; one that is past it may
// still be on its way to the device. It reports whether there is a gate.
func (p *Page) Hold(lease time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return false
	}
	p.shut = true
	p.renewGateLease(lease)
	p.page.gate.Store(gateClosed)
	return true
}

// RenewGateLease puts off the end of the lease, if the gate is closed and less than three
// quarters of it is left.
func (p *Page) RenewGateLease(lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil && p.shut && p.until < now()+uint64(lease)*3/4 {
		p.renewGateLease(lease)
	}
}

func (p *Page) renewGateLease(lease time.Duration) {
	p.until = now() + min(uint64(lease), leaseMost)
	p.page.lease.Store(p.until)
}

// Release opens the gate and wakes all who wait there.
func (p *Page) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.release()
	}
}

func (p *Page) release() {
	if !p.shut {
		return
	}
	p.shut = false
	p.page.gate.Store(gateOpen)
	wakeAll(&p.page.gate)
}

// SetBound sets how many commands may be in flight, and after how many a mark is
// put; a bound of zero is none, a batch of zero as many as seem right there. It reports
// whether there is a page to set it in.
func (p *Page) SetBound(bound, batch uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return false
	}
	p.page.batch.Store(batch)
	p.page.bound.Store(bound)
	return true
}

// SetGrain has a bound of n let more than n commands through if they are short: as many
// as take the device n times that. Zero has it not.
func (p *Page) SetGrain(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.page.grain.Store(uint32(d.Microseconds()))
	}
}

// SetExpectedArrival tells the program when its next work will come, by the machine's clock; zero is
// not known.
func (p *Page) SetExpectedArrival(at uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.page.expect.Store(at)
		p.page.expectTurn.Add(1)
		wakeAll(&p.page.expectTurn)
	}
}

// SetIdempotent tells the program whether what it launches may be run twice.
func (p *Page) SetIdempotent(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		value := uint32(0)
		if on {
			value = 1
		}
		p.page.idempotent.Store(value)
	}
}

// SetWatch says what to ring for.
func (p *Page) SetWatch(bits uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.page.watch.Store(bits)
	}
}

// SetParking says how long before an expected arrival the program may take the device,
// zero for never, and how long it may hold it for one that does not come.
func (p *Page) SetParking(lead, patience time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page != nil {
		p.page.park.Store(uint32(patience.Microseconds()))
		p.page.lead.Store(uint32(lead.Microseconds()))
	}
}

// Counters is how far a program has come, by its own account.
type Counters struct {
	Launched, Completed uint64
	Holds, Overruns     uint64
	Parked, Hits        uint64
	HeldFor             time.Duration
	ParkedFor           time.Duration
	Saved               time.Duration
	Flags               uint32
	OpenRequests        uint32 // requests
	Runtimes            uint32
}

// most is what no honest counter comes to: sums of a few such do not overflow.
const most = 1 << 56

// Counters reads them. Nothing is completed that was not launched.
func (p *Page) Counters() (c Counters) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.page
	if g == nil {
		return c
	}
	c.Completed = g.completed.Load() // before what it is a part of
	c.Launched = min(g.launched.Load(), most)
	c.Completed = min(c.Completed, c.Launched)
	c.Flags, c.OpenRequests, c.Runtimes = g.flags.Load(), g.open.Load(), g.runtimes.Load()
	c.Holds, c.Overruns = min(g.holds.Load(), most), min(g.overruns.Load(), most)
	c.Parked, c.Hits = min(g.parked.Load(), most), min(g.hits.Load(), most)
	c.HeldFor = time.Duration(min(g.held.Load(), most))
	c.ParkedFor = time.Duration(min(g.parkedFor.Load(), most))
	c.Saved = time.Duration(min(g.saved.Load(), most))
	return c
}

// InvalidEntries is how many entries of the page could not be believed so far.
func (p *Page) InvalidEntries() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.invalid
}

// AckDoorbell reports whether the bell has rung since the last call.
func (p *Page) AckDoorbell() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.page == nil {
		return false
	}
	n := p.page.bell.Load()
	rang := n != p.heard
	p.heard = n
	return rang
}

// ringing is Rang without answering.
func (p *Page) ringing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.page != nil && p.page.bell.Load() != p.heard
}
