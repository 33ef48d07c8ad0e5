package pageclient

import "time"

// stuck is how long nothing may move at the bound before launches are let over it: a
// command may wait for a later one.
const stuck = 100 * time.Millisecond

// activity is what the process has on its devices. Under Page.mu.
type activity struct {
	launched, completed uint64
	passing, atGate     uint32 // on their way to the device; of those, held
	running             uint32 // of those passing, commands that run: to the daemon they are in flight
	ready               bool
	since               uint64 // it is ready or idle
	heldFor             uint64
	holds, overruns     uint64
	lapse               uint64 // the last lease that ran out
	slack               uint64 // over the bound, since nothing moved
	moved               chan struct{}
	runtimes            uint32
}

// Enter waits until a command may go to the device: while the gate is closed, and
// while too many are there. The caller then calls Run, runs it and calls Leave; or it
// calls Withdraw.
func (p *Page) Enter() {
	p.mu.Lock()
	p.passing++
	p.settle()
	p.mu.Unlock()
	for p.hold(); p.waitForRoom(); p.hold() {
	}
}

// Withdraw is for a command that was let in and is not run.
func (p *Page) Withdraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passing--
	p.settle()
}

// Run is for a command that was let in and begins to run. The daemon is to see it in
// flight from here on: many are done when they return. The bound does not count it yet.
func (p *Page) Run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running++
	p.runtimes = runtimeQueue
	p.settle()
}

// Leave counts a command that has run and put its work on the device. Over: that is done
// already; otherwise Done follows.
func (p *Page) Leave(over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passing--
	p.running--
	p.launched++
	if over {
		p.done()
	} else {
		p.settle()
	}
}

// Done counts a command that is done.
func (p *Page) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done()
}

func (p *Page) done() {
	p.completed++
	close(p.moved)
	p.moved = make(chan struct{})
	p.settle()
}

// settle brings ready and idle, and the page, up to date. p.mu is held.
func (p *Page) settle() {
	ready, ring := p.launched != p.completed || p.passing != 0, false
	changed := ready != p.ready
	if changed {
		now := monotonic()
		if !ready && !p.explicit && !p.told() {
			ring = p.logRequest(p.since, now)
		}
		p.ready, p.since = ready, now
	}
	if p.at == nil {
		p.look()
		return
	}
	p.showActivity()
	if ring || changed && p.at.page.watch.Load()&watchReady != 0 {
		p.ring()
	}
}

// told reports whether the owner says what a request is: nothing is guessed then.
func (p *Page) told() bool { return p.at != nil && p.at.page.watch.Load()&watchTold != 0 }

func (p *Page) showActivity() {
	g := p.at.page
	g.launched.Store(p.launched + uint64(p.running))
	g.completed.Store(p.completed)
	g.readyAt.Store(p.since)
	g.held.Store(p.heldFor)
	g.holds.Store(p.holds)
	g.overruns.Store(p.overruns)
	g.runtimes.Store(p.runtimes)
	var flags uint32
	if p.ready {
		flags |= flagReady
	}
	if p.atGate > 0 {
		flags |= flagHeld
	}
	g.flags.Store(flags)
}

// hold waits while the gate is closed and the daemon keeps its lease up.
func (p *Page) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var began uint64
	for {
		l := p.at
		now := monotonic()
		if l == nil || !p.shut(l.page, now) {
			break
		}
		if began == 0 {
			began = now
			p.holds++
			p.atGate++
			p.settle()
		}
		left := l.page.lease.Load() - now
		l.users++
		p.mu.Unlock()
		wait(&l.page.gate, gateClosed, time.Duration(min(left, leaseMost)))
		p.mu.Lock()
		l.users--
		p.leave(l)
	}
	if began != 0 {
		p.atGate--
		p.heldFor += monotonic() - began
		p.settle()
	}
}

// shut reports whether the gate is closed. A lease that is over or makes no sense
// leaves it open, and is counted once. p.mu is held.
func (p *Page) shut(g *page, now uint64) bool {
	if g.gate.Load() != gateClosed {
		return false
	}
	lease := g.lease.Load()
	if lease > now && lease-now <= leaseMost {
		return true
	}
	if lease != p.lapse {
		p.lapse = lease
		p.overruns++
	}
	return false
}

// waitForRoom waits while as many commands are on the device as the daemon wants
// there. It reports whether the gate has closed meanwhile.
func (p *Page) waitForRoom() (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	waited := false
	for p.full() {
		waited = true
		moved, completed := p.moved, p.completed
		p.mu.Unlock()
		timer := time.NewTimer(stuck)
		select {
		case <-moved:
		case <-timer.C:
		}
		timer.Stop()
		p.mu.Lock()
		if p.completed != completed {
			p.slack = 0
		} else if p.full() {
			p.overruns++
			p.slack = max(2*p.slack, uint64(p.at.page.bound.Load()))
		}
	}
	return waited && p.at != nil && p.shut(p.at.page, monotonic())
}

func (p *Page) full() bool {
	if p.at == nil {
		return false
	}
	bound := uint64(p.at.page.bound.Load())
	return bound != 0 && p.launched-p.completed >= bound+p.slack
}
