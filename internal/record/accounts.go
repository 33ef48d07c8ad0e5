package record

import (
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// The account of which process delayed which is made up to accountLag before now: by then
// the backends have reported what happened. It is brought up to date every accountPeriod.
const (
	accountPeriod = 100 * time.Millisecond
	accountLag    = 250 * time.Millisecond
	// traceTimeout is how long a device that is traced may report no span before its time
	// is estimated.
	traceTimeout = 2 * time.Second
	// maxSpans is how many spans of a device are kept between two updates. More are
	// accounted for at once.
	maxSpans = 16 << 10
	// minWait is the shortest wait that is recorded.
	minWait = 10 * time.Microsecond
	// requestTimeout is how long after its last request a process counts as one that reports
	// requests.
	requestTimeout = 5 * time.Second
)

// Accounts is the account of which process delayed which, and the pressure. It is not safe
// for concurrent use.
type Accounts struct {
	add       func(*Entry) // takes the waits of online queues
	devices   []*deviceAccount
	queues    map[sched.QueueID]*queueAccount
	processes map[int32]*processAccount
	next      sched.Time // of the next update
	now       sched.Time // of the last update
	updates   uint64
	entry     Entry
	periods   []interval // of all clients of a device, in one update
	stalls    []stall    // the same
	edges     []edge     // the same
	sharers   []*client  // of one class, in one second
}

// queueAccount is a queue and the client that it belongs to.
type queueAccount struct {
	device *deviceAccount
	client *client
	// counted: its counters are known; ready: by them it has work.
	counted, ready bool
	noWork         bool          // by the last decision
	open           int           // requests
	served         time.Duration // up to the window, as far as it is estimated
}

// processAccount is the pressure of a process.
type processAccount struct {
	some, full psi
	clients    int
	estimated  bool
	accounted  sched.Time // up to when some and full are
	// Of the present update:
	waited, least time.Duration
	charged       int // clients
	to            sched.Time
}

// deviceAccount is the account of a device.
type deviceAccount struct {
	id       sched.DeviceID
	index    int
	tracing  func() bool
	traced   bool // in the last update
	clients  []*client
	to       sched.Time // accounted for up to then
	spans    []hal.Span // since then
	spanEnd  sched.Time // of the last one
	reported sched.Time // when spans were last reported

	some, full psi
	estimated  bool
	classes    [4][holderClasses]time.Duration
	contended  [4]bool // in the present second two or more clients of the class had work at once

	byOwn  []*client // by what they were served in the window, the most first
	window []held    // of the window that is accounted for
	sums   []heldSum // the same by holder, the most first
	sumOf  map[int32]int
	delays []time.Duration // of a client, by sum
}

// held is a part of a span with its holder.
type held struct {
	interval
	holder  int32
	sum     int  // index in deviceAccount.sums
	covered bool // a client waits all the time
}

// heldSum is how long a holder had the device.
type heldSum struct {
	holder int32
	client *client // nil: it is no process on the device
	class  int     // index in deviceAccount.classes
	length time.Duration
}

// stall is a part of a span, by its index, in which a client waits.
type stall struct {
	interval
	span int
}

// Indices of deviceAccount.classes besides the classes.
const (
	classSwitch = 4 + iota
	classIdle
	classUnknown
	holderClasses
)

// NewAccounts returns an account without devices. add takes the waits of online queues.
func NewAccounts(add func(*Entry)) *Accounts {
	return &Accounts{add: add, queues: make(map[sched.QueueID]*queueAccount), processes: make(map[int32]*processAccount)}
}

// Device adds a device, if it is new.
func (a *Accounts) Device(now sched.Time, id sched.DeviceID, index int, tracing func() bool) {
	if a.device(id) == nil {
		a.devices = append(a.devices, &deviceAccount{
			id: id, index: index, tracing: tracing, to: now, spanEnd: now, reported: now, some: newPSI(now), full: newPSI(now),
			sumOf: make(map[int32]int),
		})
	}
}

func (a *Accounts) device(id sched.DeviceID) *deviceAccount {
	for _, d := range a.devices {
		if d.id == id {
			return d
		}
	}
	return nil
}

// Open adds a queue of a process. Without counters it is not known when it has work.
func (a *Accounts) Open(now sched.Time, id sched.QueueID, device sched.DeviceID, pid int32, attr *sched.Attr) {
	a.Device(now, device, -1, func() bool { return false })
	d := a.device(device)
	i := slices.IndexFunc(d.clients, func(c *client) bool { return c.pid == pid && !c.closed() })
	if i < 0 {
		i = len(d.clients)
		c := newClient(pid, attr.Class)
		d.clients = append(d.clients, c)
		if c.process = a.processes[pid]; c.process == nil {
			c.process = &processAccount{some: newPSI(d.to), full: newPSI(d.to), accounted: d.to}
			a.processes[pid] = c.process
		}
		c.process.clients++
	}
	c := d.clients[i]
	c.queues++
	a.queues[id] = &queueAccount{device: d, client: c}
	a.Attrs(now, id, attr)
}

// Close removes a queue. The client of the last one is kept until the time up to now is
// accounted for.
func (a *Accounts) Close(now sched.Time, id sched.QueueID) {
	q := a.queues[id]
	if q == nil {
		return
	}
	delete(a.queues, id)
	c := q.client
	if q.ready {
		c.progress(now, q, false)
	}
	if q.counted && c.queues > 1 { // what the last queue counted is not accounted for yet
		c.counted--
	}
	if q.noWork {
		c.noWork--
	}
	if c.open -= q.open; c.open == 0 {
		c.requests.end(now)
	}
	if c.queues--; c.queues == c.noWork {
		c.visits.end(now) // that queue was the only one with work
	}
	if c.queues > 0 {
		return
	}
	c.closedAt = now
	if c.process.clients--; c.process.clients == 0 {
		delete(a.processes, c.pid)
	}
}

// removeClosed removes the clients that are closed and accounted for.
func (a *Accounts) removeClosed(d *deviceAccount) {
	d.clients = slices.DeleteFunc(d.clients, func(c *client) bool {
		if c.closedAt > d.to {
			return false
		}
		a.recordWait(d, c)
		return true
	})
}

// Attrs changes the class and the weight of a queue's process and whether it is paused: then it
// does not wait. A process that is no longer online and has no SLO may report no more requests.
func (a *Accounts) Attrs(_ sched.Time, id sched.QueueID, attr *sched.Attr) {
	q := a.queues[id]
	if q == nil {
		return
	}
	c := q.client
	if c.class != attr.Class {
		a.recordWait(q.device, c)
		c.share = share{}
	}
	hasRequests := attr.Class == sched.Online || attr.SLO > 0
	if c.hasRequests && !hasRequests {
		c.reported = false
	}
	c.class, c.paused, c.hasRequests = attr.Class, attr.Paused, hasRequests
	c.weight = float64(max(attr.Weight, 1))
}

// Progress takes in whether a queue has work, or that its counters are not known any more.
func (a *Accounts) Progress(now sched.Time, id sched.QueueID, c *sched.Counters) {
	switch q := a.queues[id]; {
	case q == nil:
	case c.Known:
		q.client.progress(now, q, c.Submitted > c.Completed)
	case q.counted:
		q.client.progress(now, q, false)
		q.counted = false
		q.client.counted--
	}
}

// Decided takes in why a queue runs or waits: the scheduler knows of queues without counters
// too that they have no work.
func (a *Accounts) Decided(now sched.Time, id sched.QueueID, reason sched.Reason) {
	q := a.queues[id]
	if q == nil || q.noWork == (reason == sched.NoWork) {
		return
	}
	c := q.client
	if q.noWork = !q.noWork; !q.noWork {
		c.noWork--
		return
	}
	if c.noWork++; c.noWork == c.queues {
		c.visits.end(now)
	}
}

// RequestStarted and RequestFinished take in a request of a queue's process. took and ended
// are zero if they are not known.
func (a *Accounts) RequestStarted(now sched.Time, id sched.QueueID) {
	if q := a.queues[id]; q != nil {
		q.open++
		q.client.requestStarted(now)
	}
}

// RequestFinished is described at RequestStarted.
func (a *Accounts) RequestFinished(now sched.Time, id sched.QueueID, took time.Duration, ended sched.Time) {
	q := a.queues[id]
	if q == nil {
		return
	}
	if q.open > 0 {
		q.open--
		q.client.open--
	}
	q.client.requestFinished(now, interval{ended.Add(-took), ended}, took > 0 && ended > 0)
}

// Span takes in a span of a device. Spans of a device come in order.
func (a *Accounts) Span(now sched.Time, device sched.DeviceID, s *hal.Span) {
	d := a.device(device)
	if d == nil {
		return
	}
	d.reported, d.spanEnd = now, max(d.spanEnd, s.End)
	switch s.Kind {
	case hal.SpanHeld:
		d.follow(s)
	case hal.SpanUnknown:
		for _, c := range d.clients {
			c.visits.end(s.Begin) // it may have come back and run out of work
		}
	}
	if d.spans = append(d.spans, *s); len(d.spans) >= maxSpans {
		a.next = now
	}
}

// follow notes when a client that was preempted waits to come back.
func (d *deviceAccount) follow(s *hal.Span) {
	for _, c := range d.clients {
		if c.pid != int32(s.PID) || c.closed() || c.counted > 0 || c.reports(s.End) {
			continue
		}
		if c.visits.end(s.Begin); s.Left == hal.Preempted && c.noWork < c.queues {
			c.visits.begin(s.End)
		}
	}
}

// Update brings the account up to date if it is time to. queues returns the scheduler's
// record of all queues; it is called only if device time must be estimated.
func (a *Accounts) Update(now sched.Time, queues func() []sched.Queue) {
	if now < a.next {
		return
	}
	a.next, a.now = now.Add(accountPeriod), now
	a.updates++
	var records []sched.Queue
	for _, d := range a.devices {
		traced := d.tracing() && now.Sub(d.reported) < traceTimeout
		to := now
		if traced {
			to = min(now.Add(-accountLag), d.spanEnd)
			if len(d.spans) >= maxSpans {
				to = d.spanEnd
			}
		} else if records == nil {
			records = queues()
		}
		lost := d.traced && !traced
		if d.traced = traced; lost {
			a.baseline(d, records)
		}
		for d.to < to {
			end := min(to, sched.Time((bucketAt(d.to)+1)*uint64(bucketLength)))
			switch {
			case traced:
				a.account(d, end)
			case !lost: // else the time since the last span is not known
				a.estimate(d, end, to, records)
			}
			a.advance(d, end)
		}
	}
	a.updatePressure()
	for _, d := range a.devices {
		for _, c := range d.clients {
			c.report()
		}
		a.removeClosed(d)
	}
}

// Updates counts the updates: as long as it is the same, so are the answers.
func (a *Accounts) Updates() uint64 { return a.updates }

// advance ends the window at a time.
func (a *Accounts) advance(d *deviceAccount, to sched.Time) {
	if was := bucketAt(d.to); bucketAt(to) != was {
		a.endSecond(d)
		for _, c := range d.clients {
			c.row.turnBucket(was)
		}
	}
	d.to = to
	for _, c := range d.clients {
		c.forget(to)
	}
	d.spans = slices.DeleteFunc(d.spans, func(s hal.Span) bool { return s.End <= to })
}

// updatePressure adds what the processes waited to their pressure. Of a process on several devices it
// is estimated: the sum, at most the time that passed, and for full the least.
func (a *Accounts) updatePressure() {
	for _, d := range a.devices {
		for _, c := range d.clients {
			p := c.process
			if p.charged++; p.charged == 1 || c.charged < p.least {
				p.least = c.charged
			}
			c.charged = 0
		}
	}
	for _, p := range a.processes { //shape:unordered each changes only itself
		if p.to > 0 {
			full := p.waited
			if p.charged > 1 {
				p.waited = min(p.waited, p.to.Sub(min(p.accounted, p.to)))
				full = min(p.least, p.waited)
				p.estimated = true
			}
			p.some.add(p.to, p.waited)
			p.full.add(p.to, full)
			p.accounted = max(p.accounted, p.to)
		}
		p.waited, p.least, p.charged, p.to = 0, 0, 0, 0
	}
}

// charge adds that a client waited up to a time.
func (c *client) charge(waited time.Duration, to sched.Time, estimated bool) {
	p := c.process
	c.charged += waited
	p.waited += waited
	p.to = max(p.to, to)
	p.estimated = p.estimated || waited > 0 && (estimated || c.guessed())
}
