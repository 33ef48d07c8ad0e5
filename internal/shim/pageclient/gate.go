package pageclient

import (
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// maxStall is how long the bound holds launches while no command completes. A command may
// depend on a later one, so a process must not be held by the bound for ever.
const maxStall = 100 * time.Millisecond

// runtimeQueue is the bit of pageabi.Page.Runtimes for package queue.
const runtimeQueue = 1 << 3

// activity is the state of the process's commands. It is guarded by Page.mu.
type activity struct {
	launched, completed uint64
	entering            uint32 // commands that have called Enter and not yet Launched or Cancel
	atGate              uint32 // of those, waiting at the closed gate
	started             uint32 // of those, running: the daemon sees them as launched
	ready               bool
	since               uint64 // when ready last changed
	heldFor             uint64
	holds, overruns     uint64
	idled               uint64 // how often ready became false
	expiredLease        uint64 // the last lease that expired
	slack               uint64 // commands admitted over the bound since the last completion
	progress            chan struct{}
	runtimes            uint32
}

// Enter waits until a command may start: while the gate is closed, and while the bound is
// reached. The caller then calls Start, runs the command and calls Launched; or it calls
// Cancel.
func (p *Page) Enter() {
	p.mu.Lock()
	p.entering++
	p.update()
	p.mu.Unlock()
	for p.waitAtGate(); p.waitForBound(); p.waitAtGate() {
	}
}

// Cancel ends the Enter of a command that is not run.
func (p *Page) Cancel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entering--
	p.update()
}

// Start says that a command begins to run. From now on the daemon sees it in flight, because
// many commands are done when they return. The bound does not count it yet.
func (p *Page) Start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started++
	p.runtimes = runtimeQueue
	p.update()
}

// Launched says that a command has run and put its work on the device. If that work is not
// done yet, a call of Completed follows.
func (p *Page) Launched(done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entering--
	p.started--
	p.launched++
	if done {
		p.complete()
	} else {
		p.update()
	}
}

// Completed says that a launched command is done.
func (p *Page) Completed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete()
}

func (p *Page) complete() {
	p.completed++
	close(p.progress)
	p.progress = make(chan struct{})
	p.update()
}

// update derives ready from the counters, logs a guessed request when the process becomes
// idle, and writes the page. p.mu is held.
func (p *Page) update() {
	ready, ring := p.launched != p.completed || p.entering != 0, false
	changed := ready != p.ready
	if changed {
		now := pageabi.Now()
		if !ready && !p.explicit && !p.requestsAnnounced() {
			ring = p.logRequest(p.since, now)
		}
		if p.ready, p.since = ready, now; !ready {
			p.idled++
		}
	}
	if p.conn == nil {
		p.attachSoon()
		return
	}
	p.writeActivity()
	if ring || changed && p.conn.page.Watch.Load()&pageabi.WatchReady != 0 {
		p.ring()
	}
}

// requestsAnnounced reports whether the process's requests are announced through the API, so
// that none is to be guessed.
func (p *Page) requestsAnnounced() bool {
	return p.conn != nil && p.conn.page.Watch.Load()&pageabi.ExplicitRequests != 0
}

func (p *Page) writeActivity() {
	g := p.conn.page
	g.Launched.Store(p.launched + uint64(p.started))
	g.Completed.Store(p.completed)
	g.HeldFor.Store(p.heldFor)
	g.Holds.Store(p.holds)
	g.Overruns.Store(p.overruns)
	g.Idled.Store(p.idled)
	g.Runtimes.Store(p.runtimes)
	var flags uint32
	if p.ready {
		flags |= pageabi.Ready
	}
	if p.atGate > 0 {
		flags |= pageabi.Held
	}
	g.Flags.Store(flags)
}

// waitAtGate waits while the gate is closed and its lease is valid.
func (p *Page) waitAtGate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var began uint64
	for {
		c := p.conn
		now := pageabi.Now()
		if c == nil || !p.gateClosed(c.page, now) {
			break
		}
		if began == 0 {
			began = now
			p.holds++
			p.atGate++
			p.update()
		}
		left := c.page.Lease.Load() - now
		c.users++
		p.mu.Unlock()
		pageabi.Wait(&c.page.Gate, pageabi.GateClosed, time.Duration(min(left, pageabi.MaxLeaseNS)))
		p.mu.Lock()
		c.users--
		p.closeUnused(c)
	}
	if began != 0 {
		p.atGate--
		p.heldFor += pageabi.Now() - began
		p.update()
	}
}

// gateClosed reports whether the gate is closed. A gate whose lease has expired or is invalid
// counts as open, and as an overrun once per lease. p.mu is held.
func (p *Page) gateClosed(g *pageabi.Page, now uint64) bool {
	if g.Gate.Load() != pageabi.GateClosed {
		return false
	}
	lease := g.Lease.Load()
	if lease > now && lease-now <= pageabi.MaxLeaseNS {
		return true
	}
	if lease != p.expiredLease {
		p.expiredLease = lease
		p.overruns++
	}
	return false
}

// waitForBound waits while as many commands are in flight as the bound allows. It reports
// whether the gate has closed meanwhile.
func (p *Page) waitForBound() (gateClosed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	waited := false
	for p.boundReached() {
		waited = true
		progress, completed := p.progress, p.completed
		p.mu.Unlock()
		timer := time.NewTimer(maxStall)
		select {
		case <-progress:
		case <-timer.C:
		}
		timer.Stop()
		p.mu.Lock()
		if p.completed != completed {
			p.slack = 0
		} else if p.boundReached() {
			p.overruns++
			p.slack = max(2*p.slack, uint64(p.conn.page.Bound.Load()))
		}
	}
	return waited && p.conn != nil && p.gateClosed(p.conn.page, pageabi.Now())
}

func (p *Page) boundReached() bool {
	if p.conn == nil {
		return false
	}
	bound := uint64(p.conn.page.Bound.Load())
	return bound != 0 && ordersHold(p.conn.page) && p.launched-p.completed >= bound+p.slack
}

// ordersHold reports whether the lease of the daemon's orders is valid. A page before version 3 has
// no such lease.
func ordersHold(g *pageabi.Page) bool {
	if g.ABI.Load() < 3 {
		return true
	}
	lease, now := g.OrdersLease.Load(), pageabi.Now()
	return lease > now && lease-now <= pageabi.MaxLeaseNS
}
