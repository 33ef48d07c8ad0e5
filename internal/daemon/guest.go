package daemon

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// guest is a program that came with the shim: the page it shares with us.
type guest struct {
	page    *shimpage.Page
	gate    *shim.Gate
	process *process
	uid     uint32
	runtime string     // empty: it has not said yet
	watch   uint32     // what it is to ring for
	bound   shim.Bound // as last set
	ahead   bool       // it may take the device ahead of an arrival
	base    uint64     // counts of its page begin here: an earlier page had some
	open    uint32     // requests, as the scheduler has been told

	own      []uint32 // AMD GPUs on which it can stop its own queues
	heardOwn time.Time
	priority int // that those are to have; ownPriority: their own
}

// How many pages there may be: of one user, but for root, and in all.
const (
	mostPagesOfUser = 256
	mostPages       = 1024
)

// runtimes are those that a device is named after, in the order of their bits in
// gw_page.runtimes.
var runtimes = []string{"cuda", "hip", "opencl", "queue"}

// Admit implements server.Host.
func (d *Daemon) Admit(v server.Visitor) (fds [3]int, leave func(), err error) {
	info, err := proc.Look(v.PID)
	if err != nil {
		return fds, nil, fmt.Errorf("look at process %d: %w: %w", v.PID, server.ErrNotFound, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mayEnter(v.UID); err != nil {
		return fds, nil, err
	}
	g := &guest{uid: v.UID, priority: ownPriority}
	if slices.Contains(runtimes, v.Runtime) {
		g.runtime = v.Runtime
	}
	if g.page, err = shimpage.NewPage(); err != nil {
		return fds, nil, err
	}
	if fds, err = d.descriptors(g.page); err != nil {
		g.page.Close()
		return fds, nil, err
	}
	if err := d.ear.Add(g.page); err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		g.page.Close()
		return fds, nil, err
	}
	d.settleIn(g, d.process(info))
	return fds, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.seeOff(g)
	}, nil
}

// mayEnter says why there is no page for a user. d.mu is held.
func (d *Daemon) mayEnter(uid uint32) error {
	mine := 0
	for _, g := range d.guests {
		if g.uid == uid {
			mine++
		}
	}
	switch only := d.cfg.Discover.Only; {
	case !d.running:
		return fmt.Errorf("the daemon is on its way in or out: %w", server.ErrConflict)
	case only != proc.Everyone && uint32(only) != uid:
		return fmt.Errorf("this daemon looks after the programs of another user: %w", server.ErrForbidden)
	case len(d.guests) >= mostPages:
		return fmt.Errorf("there are %d programs with shims already: %w", len(d.guests), server.ErrConflict)
	case mine >= mostPagesOfUser && uid != 0:
		return fmt.Errorf("you have %d programs with shims already: %w", mine, server.ErrConflict)
	}
	return nil
}

// descriptors are what a program is given.
func (d *Daemon) descriptors(p *shimpage.Page) (fds [3]int, err error) {
	if fds[0], fds[2], err = p.Descriptors(); err != nil {
		return fds, err
	}
	if fds[1], err = d.board.Descriptor(); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[2])
	}
	return fds, err
}

// settleIn makes a guest of a process. One that has a page already, perhaps because
// it has become another program, is heard on the new one only. d.mu is held.
func (d *Daemon) settleIn(g *guest, p *process) {
	g.process = p
	if old := p.guest; old != nil {
		d.part(old)
	}
	g.gate = shim.NewGate(g.page)
	g.base = p.seen.Submitted
	p.guest = g
	p.repeats = nil // it tells again
	p.setIdempotent()
	d.guests = append(d.guests, g)
	d.arrange(p)
}

// seeOff gives up a guest whose connection has ended. d.mu is held. Twice equals
// once.
func (d *Daemon) seeOff(g *guest) {
	if i := slices.Index(d.guests, g); i >= 0 {
		d.guests = slices.Delete(d.guests, i, i+1)
	}
	if d.running {
		d.ear.Remove(g.page)
	}
	g.page.Close()
	if p := g.process; p.guest == g {
		d.part(g)
		d.arrange(p)
		d.forget(p)
		d.bury()
	}
}

// part ends what a guest and its process have to do with each other. Nobody knows
// any more whether there is work, so there is; and no request is open. d.mu is held.
func (d *Daemon) part(g *guest) {
	p := g.process
	p.guest = nil
	g.page.Release()
	g.page.ReleaseQueues()
	d.hearOwn(g, p, nil)
	if p.seen.Known {
		p.seen.Submitted++
	}
	for _, q := range p.queues {
		if q.told.Known {
			q.told = p.seen
			d.box.post(sched.Event{Kind: sched.Progressed, Queue: q.id, Counters: p.seen})
		}
		for range g.open {
			d.box.post(sched.Event{Kind: sched.RequestFinished, Queue: q.id})
		}
	}
	g.open = 0
}

// arrange brings the queues of a process to what is known of it: its groups, with the
// gate in front of each if it has one; or the gate alone. d.mu is held.
func (d *Daemon) arrange(p *process) {
	g, alone := p.guest, p.queues[groupKey{}]
	groups := len(p.queues)
	if alone != nil {
		groups--
	}
	wanted := g != nil && groups == 0 && g.runtime != ""
	fits := wanted && alone != nil && alone.gate.Behind(g.gate)
	if alone != nil && !fits {
		delete(p.queues, groupKey{})
		d.drop(alone, false)
	}
	if wanted && !fits {
		d.openGate(p)
	}
	for key, q := range p.queues {
		if key == (groupKey{}) {
			continue
		}
		if g != nil && g.runtime != "" && (q.gate == nil || !q.gate.Behind(g.gate)) {
			q.gate = g.gate.Attach(q.gate)
			d.exec.replace(q.id, hal.Combine(q.plain, q.gate))
		}
		if q.gate != nil {
			can := hal.Abilities(q.plain)
			if g != nil && q.gate.Behind(g.gate) {
				can |= hal.Abilities(q.gate)
			}
			d.box.post(sched.Event{Kind: sched.QueueOpened, Queue: q.id, Can: can})
		}
	}
}

// openGate opens the queue of a process of which nothing is known but what its shim
// tells. d.mu is held.
func (d *Daemon) openGate(p *process) {
	g := p.guest
	dev := d.gpus[g.runtime]
	if dev == nil {
		dev = d.addGPU(newShims(g.runtime))
	}
	d.lastID++
	q := &groupQueue{id: sched.QueueID(d.lastID), gpu: dev, gate: g.gate.Attach(nil)}
	p.queues[groupKey{}] = q
	d.exec.add(q.id, q.gate)
	d.box.post(sched.Event{
		Kind: sched.QueueOpened, Queue: q.id, Process: p.id, Device: dev.id(), Can: hal.Abilities(q.gate), Attr: p.attr,
	})
}

// hear adds what a guest has told since it was last listened to. d.mu is held.
func (d *Daemon) hear(g *guest, now sched.Time, buf []sched.Event) []sched.Event {
	g.page.AckDoorbell()
	g.gate.Keep()
	p := g.process
	if p.guest != g {
		return buf
	}
	c := g.page.Counters()
	if bit := bits.TrailingZeros32(c.Runtimes); g.runtime == "" && bit < len(runtimes) {
		g.runtime = runtimes[bit]
		d.arrange(p)
		return buf // the rest when the queue is open
	}
	hinted := false
	g.page.Hints(func(h shimpage.Hint) { hinted = d.takeHint(p, h, now) || hinted })
	if hinted {
		buf = p.hinted(buf)
	}
	d.setWatch(g)
	p.setBound()
	d.hearOwn(g, p, g.page.GPUs())
	g.setPriority(p.attr.Class)
	buf = g.progress(&c, buf)
	return g.requests(&c, buf)
}

// setBound puts the standing bound in force, if there is a gate to. d.mu is held.
func (p *process) setBound() {
	g := p.guest
	if g == nil {
		return
	}
	if b := p.standing(); b != g.bound {
		g.bound = b
		g.gate.SetStanding(b)
	}
}

// setIdempotent tells the program what its owner says of it. d.mu is held.
func (p *process) setIdempotent() {
	if p.guest != nil {
		p.guest.page.SetIdempotent(p.idempotent)
	}
}

// hinted adds that the attributes of a process have changed.
func (p *process) hinted(buf []sched.Event) []sched.Event {
	for _, q := range p.queues {
		buf = append(buf, sched.Event{Kind: sched.AttrsChanged, Queue: q.id, Attr: p.attr})
	}
	return buf
}

// setWatch has a program ring when it comes to work or is done, if somebody acts on
// that. Of all others it is enough to look now and then: to ring costs a program a
// few microseconds. d.mu is held.
func (d *Daemon) setWatch(g *guest) {
	a, watch := &g.process.attr, uint32(0)
	if a.SLO > 0 || a.Deadline > 0 || a.Priority != 0 || a.Class == sched.Online && !d.yieldsBySlice(g.process) {
		watch = shimpage.WatchReady | shimpage.WatchRequests
	}
	if g.process.predict && a.Class == sched.Online {
		watch |= shimpage.PredictArrivals
	}
	if a.Class == sched.Online {
		watch |= shimpage.LogRequests
	}
	if g.process.asked.told {
		watch |= shimpage.ExplicitRequests
	}
	if watch != g.watch {
		g.watch = watch
		g.page.SetWatch(watch)
	}
	if ahead := a.Class == sched.Online; ahead != g.ahead {
		g.ahead = ahead
		lead := time.Duration(0)
		if ahead {
			lead = mostLead
		}
		g.page.SetParking(lead, mostPatience)
	}
}

// yieldsBySlice reports whether the hardware itself gives way to a process: it has
// slices, and the policy is one that needs no more than those. d.mu is held.
func (d *Daemon) yieldsBySlice(p *process) bool {
	for _, q := range p.queues {
		if about := q.gpu.info().Device; !about.Sliced() {
			return false
		}
	}
	return d.bySlices()
}

// bySlices reports whether the policy gives way by slices alone. d.mu is held.
func (d *Daemon) bySlices() bool {
	switch d.policy.Name {
	case "giveway", "slo", "native":
		return true
	}
	return false
}

// How long before an expected arrival a program may take the device at most, of which
// it takes what it learns that it needs; and for how long it may wait for one that
// does not come.
const (
	mostLead     = 500 * time.Microsecond
	mostPatience = time.Millisecond
)

// progress tells how far the program has come, where that has changed. What the shim
// has not seen launch anything yet may do so where the shim cannot see it, unless the
// shim is all that we know it by.
func (g *guest) progress(c *shimpage.Counters, buf []sched.Event) []sched.Event {
	p := g.process
	s := sched.Counters{Launched: g.base + c.Launched, Completed: g.base + c.Completed, Known: true}
	s.Launched = max(s.Launched, p.seen.Launched)
	s.Completed = min(max(s.Completed, p.seen.Completed), s.Launched)
	s.Submitted = s.Launched
	if c.Flags&shimpage.Held != 0 {
		s.Submitted++
	}
	for key, q := range p.queues {
		if q.told == s || key != (groupKey{}) && c.Launched == 0 && c.Flags&shimpage.Held == 0 {
			continue
		}
		q.told = s
		p.seen = s
		buf = append(buf, sched.Event{Kind: sched.Progressed, Queue: q.id, Counters: s})
	}
	return buf
}

// requests tells of those that are over, and of those that have begun.
func (g *guest) requests(c *shimpage.Counters, buf []sched.Event) []sched.Event {
	const mostOpen = 1024 // told of
	p := g.process
	g.page.Requests(func(r shimpage.Request) {
		p.asked.add(r.Duration)
		if g.open > 0 {
			g.open--
		}
		for _, q := range p.queues {
			buf = append(buf, sched.Event{Kind: sched.RequestFinished, Queue: q.id, Duration: r.Duration})
		}
	})
	for ; g.open < min(c.OpenRequests, mostOpen); g.open++ {
		for _, q := range p.queues {
			buf = append(buf, sched.Event{Kind: sched.RequestStarted, Queue: q.id})
		}
	}
	for ; g.open > c.OpenRequests; g.open-- { // it was over when nobody wanted to know how long it took
		for _, q := range p.queues {
			buf = append(buf, sched.Event{Kind: sched.RequestFinished, Queue: q.id})
		}
	}
	return buf
}

// asked is what a program was asked for, and how long it took of late.
type asked struct {
	count uint64
	last  [256]time.Duration
	open  map[int64]sched.Time // by the program's numbers, of those told through the API
	told  bool                 // through the API, so that nobody need guess
}

// describe is what the API tells of it; nil: nothing is known.
func (a *asked) describe(g *guest) *api.Requests {
	n := min(a.count, uint64(len(a.last)))
	out := &api.Requests{Count: a.count, Open: uint32(len(a.open))}
	if g != nil {
		out.Open += g.open
	}
	if *out == (api.Requests{}) {
		return nil
	}
	if n > 0 {
		last := slices.Sorted(slices.Values(a.last[:n]))
		out.P50, out.P99 = last[(n-1)/2], last[(n-1)*99/100]
	}
	return out
}

// describe is what the API tells of a guest; nil: there is none.
func (g *guest) describe(ignored uint64) *api.Shim {
	if g == nil {
		return nil
	}
	c := g.page.Counters()
	return &api.Shim{
		Runtime: g.runtime, Launched: c.Launched, Completed: c.Completed, Holds: c.Holds, HeldFor: c.HeldFor, Overruns: c.Overruns,
		Parked: c.Parked, Hits: c.Hits, ParkedFor: c.ParkedFor, Saved: c.Saved, Ignored: ignored + g.page.InvalidEntries(),
	}
}

func (a *asked) add(took time.Duration) {
	a.last[a.count%uint64(len(a.last))] = took
	a.count++
}
