package sim

import (
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// ClientConfig is a program with one queue that does requests one after another.
//
//	arrival ─ prepare ─ before ─ launch ─ gap ─ launch ... last done ─ after ─ answer
//
// Its latency is from arrival to answer. Requests that arrive while another is
// being served wait; none is dropped.
type ClientConfig struct {
	Name   string
	Device int        // index in Config.Devices
	Attr   sched.Attr // with an SLO, the daemon is told when each request begins and ends
	// Program is the process that has the queue; clients with the same one share
	// it. Empty: one of its own.
	Process string
	Shim    bool // runs with the shim: counted, can be held and bounded

	Arrival Arrival
	Kernels []Kernels // of one request, in order
	Before  Dist      // host time from arrival to the first launch
	After   Dist      // host time from the last kernel's end to the answer
	Prepare time.Duration
	// Hint tells the daemon of a launch to come: as soon as its data is being
	// prepared, or Announce before it where the arrival is known ahead.
	Hint     bool
	Announce time.Duration
	// Park launches so many kernels, Lead before the request's own, that spin
	// until these are there: they bring the context onto the device.
	Park int
	Lead time.Duration

	Slice time.Duration // set by hand before it starts; zero: left alone
	Start time.Duration // when the process starts
	Kill  time.Duration // when it is killed; zero: never
	// Life is how long its queue is there, and Rest how long it then is until
	// there is another one. Zero: for good.
	Lifetime, Downtime Dist
}

// Kernels is a run of kernels that are alike.
type Kernels struct {
	Count int
	Time  Dist
	Gap   Dist // host time from one launch to the next
	Wait  bool // the host waits for each kernel, and the gap counts from its end
}

// Arrival says when requests come.
type Arrival struct {
	Kind   ArrivalKind
	Every  time.Duration   // Periodic: the period; Poisson: the mean; Closed: from an answer to the next request
	Offset time.Duration   // of the first
	Trace  []time.Duration // for Trace: from the start, in order
	Depth  int             // Closed: requests under way at a time; zero means 1
}

// ArrivalKind is a shape of Arrival.
type ArrivalKind uint8

const (
	Closed ArrivalKind = iota
	Periodic
	Poisson
	Trace
)

// client is a running program.
type client struct {
	w   *World
	cfg *ClientConfig
	q   *queue
	// Arrivals have chance of their own, so that the same requests come at the
	// same times whatever the policy makes of them.
	rand, arrivals, lifetimes *rand.Rand

	backlog      []sched.Time  // arrivals not yet begun
	waiting      []request     // launched, not finished
	arrival      sched.Time    // of the request that the host is launching
	busy         bool          // the host is launching
	gapAfterWait time.Duration // of the host once that is done
	waitFor      uint64        // Completed that the host waits for before it launches more; zero: nothing
	section      int           // of cfg.Kernels
	count        int           // launched of that section
	started      bool
	traceNext    int // arrivals of the trace so far
	answering    sched.Time

	arrivalTimer, hostTimer, answerTimer, parkTimer, unparkTimer, announceTimer timer

	latencies      []time.Duration
	requests       int
	pastDeviceTime time.Duration // device time that queues before this one have had
}

// request is one whose last kernel has been launched.
type request struct {
	arrival sched.Time
	last    uint64 // Completed at which it is done
}

func newClient(w *World, i int) *client {
	c := &client{w: w, cfg: &w.cfg.Clients[i]}
	c.rand = w.rand("client " + c.cfg.Name)
	c.arrivals = w.rand("arrivals " + c.cfg.Name)
	c.arrivalTimer.fire = c.arrive
	c.hostTimer.fire = c.launch
	c.answerTimer.fire = c.reply
	c.parkTimer.fire = c.parkKernels
	c.unparkTimer.fire = func() { c.q.unpark() }
	c.announceTimer.fire = func() { c.hint(c.arrivalTimer.at.Add(c.cfg.Prepare)) }
	c.lifetimes = w.rand("lives " + c.cfg.Name)
	w.after(c.cfg.Start, func() { c.open(sched.QueueID(i + 1)) })
	if c.cfg.Kill > 0 {
		w.after(c.cfg.Kill, c.kill)
	}
	return c
}

// open makes the program's queue and begins its work.
func (c *client) open(id sched.QueueID) {
	w, d := c.w, c.w.devices[c.cfg.Device]
	if c.q != nil {
		c.pastDeviceTime += c.q.deviceTime
		d.queues = slices.DeleteFunc(d.queues, func(q *queue) bool { return q == c.q })
	}
	c.q = d.open(id, w.process(c.cfg, id), c, c.cfg.Shim)
	c.q.initialSlice = c.cfg.Slice
	w.queues[id] = c.q
	w.daemon.opened(c.q)
	c.start()
	if c.cfg.Lifetime != (Dist{}) {
		w.after(c.cfg.Lifetime.draw(c.lifetimes), c.retire)
	}
}

// retire ends the queue, with all that it has, and sets when there is the next.
func (c *client) retire() {
	c.kill()
	c.w.after(c.cfg.Downtime.draw(c.lifetimes), func() {
		if !c.w.stopping {
			c.w.reopened++
			c.open(sched.QueueID(len(c.w.clients) + c.w.reopened))
		}
	})
}

// process is the one that has the client's queue: a program's is named after its
// first client, so that it is nobody else's.
func (w *World) process(cfg *ClientConfig, id sched.QueueID) sched.ProcessID {
	for i := range w.cfg.Clients {
		if cfg.Process != "" && w.cfg.Clients[i].Process == cfg.Process {
			return sched.ProcessID(i + 1)
		}
	}
	return sched.ProcessID(id)
}

func (c *client) depth() int { return max(c.cfg.Arrival.Depth, 1) }

// flatOut reports whether the program asks for more as soon as it can.
func (c *client) saturating() bool {
	return c.cfg.Arrival.Kind == Closed && c.cfg.Arrival.Every == 0
}

func (c *client) start() {
	c.started = true
	a := &c.cfg.Arrival
	switch a.Kind {
	case Closed:
		c.scheduleArrival(c.w.now.Add(a.Offset))
		for range c.depth() - 1 {
			c.enqueue(c.w.now.Add(a.Offset))
		}
	case Trace:
		c.scheduleTraceArrival()
	case Poisson:
		c.scheduleArrival(c.w.now.Add(a.Offset + time.Duration(c.arrivals.ExpFloat64()*float64(a.Every))))
	default:
		c.scheduleArrival(c.w.now.Add(a.Offset))
	}
}

// expect sets the next arrival, and what is done ahead of it.
func (c *client) scheduleArrival(at sched.Time) {
	if c.w.stopping || c.q.dead {
		return
	}
	t := &c.w.timeline
	t.set(&c.arrivalTimer, at)
	if c.cfg.Announce > 0 {
		t.set(&c.announceTimer, max(at.Add(-c.cfg.Announce), c.w.now))
	}
	if c.cfg.Park > 0 && c.cfg.Prepare < c.cfg.Lead {
		t.set(&c.parkTimer, max(at.Add(c.cfg.Prepare-c.cfg.Lead), c.w.now))
	}
}

func (c *client) scheduleTraceArrival() {
	if tr := c.cfg.Arrival.Trace; c.traceNext < len(tr) {
		c.traceNext++
		c.scheduleArrival(sched.Time(c.cfg.Start + tr[c.traceNext-1]))
	}
}

// enqueue puts a request in line, and tells of it.
func (c *client) enqueue(at sched.Time) {
	c.backlog = append(c.backlog, at)
	c.report(sched.Event{Kind: sched.RequestStarted, Queue: c.q.id})
}

// tell tells the daemon of a request, if anybody cares how long it takes.
func (c *client) report(ev sched.Event) {
	if c.cfg.Attr.SLO > 0 && c.w.daemon.post(ev) {
		c.w.daemon.notify()
	}
}

func (c *client) arrive() {
	c.enqueue(c.w.now)
	switch a := &c.cfg.Arrival; a.Kind {
	case Periodic:
		c.scheduleArrival(c.w.now.Add(a.Every))
	case Poisson:
		c.scheduleArrival(c.w.now.Add(time.Duration(c.arrivals.ExpFloat64() * float64(a.Every))))
	case Trace:
		c.scheduleTraceArrival()
	}
	c.begin()
}

// begin takes up the next request if the host is free for it.
func (c *client) begin() {
	if c.busy || len(c.backlog) == 0 || len(c.waiting) >= c.depth() || c.answerTimer.heapIndex != 0 {
		return
	}
	c.arrival = c.backlog[0]
	c.backlog = c.backlog[:copy(c.backlog, c.backlog[1:])]
	c.busy, c.section, c.count = true, 0, 0
	if p := c.cfg.Prepare; p > 0 {
		if c.cfg.Hint {
			c.hint(c.w.now.Add(p))
		}
		if c.cfg.Park > 0 && p >= c.cfg.Lead {
			c.w.timeline.set(&c.parkTimer, c.w.now.Add(p-c.cfg.Lead))
		}
	}
	if d := c.cfg.Prepare + c.cfg.Before.draw(c.rand); d > 0 {
		c.w.timeline.set(&c.hostTimer, c.w.now.Add(d))
		return
	}
	c.launch()
}

func (c *client) hint(at sched.Time) {
	attr := c.cfg.Attr
	attr.Expect = at
	if c.w.daemon.post(sched.Event{Kind: sched.AttrsChanged, Queue: c.q.id, Attr: attr}) {
		c.w.daemon.notify()
	}
}

// parkTimeout is when a parked kernel gives up by itself.
const parkTimeout = 10 * ms

// parkKernels does so only while nothing of the program is under way: behind a
// parked kernel that would wait for its release for ever.
func (c *client) parkKernels() {
	if c.q.dead || c.q.completed != c.q.submitted || len(c.backlog) > 0 {
		return
	}
	for range c.cfg.Park {
		c.q.submit(0, true)
	}
	c.w.timeline.set(&c.unparkTimer, c.w.now.Add(parkTimeout))
}

// launch submits kernels until the host must take a while.
func (c *client) launch() {
	for c.section < len(c.cfg.Kernels) {
		k := &c.cfg.Kernels[c.section]
		if c.count == k.Count {
			c.section, c.count = c.section+1, 0
			continue
		}
		c.count++
		c.q.submit(max(k.Time.draw(c.rand), 1), false)
		if c.cfg.Park > 0 && c.section == 0 && c.count == 1 {
			c.w.timeline.cancel(&c.unparkTimer)
			c.q.unpark()
		}
		last := c.section == len(c.cfg.Kernels)-1 && c.count == k.Count
		gap := k.Gap.draw(c.rand)
		if k.Wait && !last && c.q.completed < c.q.submitted {
			c.waitFor, c.gapAfterWait = c.q.submitted, gap
			return
		}
		if gap > 0 && !last {
			c.w.timeline.set(&c.hostTimer, c.w.now.Add(gap))
			return
		}
	}
	c.busy = false
	c.waiting = append(c.waiting, request{c.arrival, c.q.submitted})
	c.finished(c.q.completed) // a short last kernel may be done already
	c.begin()
}

// finished is told how many commands are done.
func (c *client) finished(completed uint64) {
	if c.waitFor > 0 && completed >= c.waitFor {
		c.waitFor = 0
		if c.gapAfterWait > 0 {
			c.w.timeline.set(&c.hostTimer, c.w.now.Add(c.gapAfterWait))
		} else {
			c.launch()
		}
	}
	for len(c.waiting) > 0 && c.waiting[0].last <= completed && c.answerTimer.heapIndex == 0 {
		c.answering = c.waiting[0].arrival
		c.waiting = c.waiting[:copy(c.waiting, c.waiting[1:])]
		if after := c.cfg.After.draw(c.rand); after > 0 && c.depth() == 1 {
			c.w.timeline.set(&c.answerTimer, c.w.now.Add(after))
			return
		}
		c.reply()
	}
}

// reply is the answer to the oldest request.
func (c *client) reply() {
	now := c.w.now
	c.report(sched.Event{Kind: sched.RequestFinished, Queue: c.q.id, Duration: now.Sub(c.answering)})
	if now <= c.w.countedEnd && now >= sched.Time(c.cfg.countedFrom(c.w)) {
		c.requests++
		if c.answering >= sched.Time(c.cfg.countedFrom(c.w)) {
			c.latencies = append(c.latencies, now.Sub(c.answering))
		}
	}
	if a := &c.cfg.Arrival; a.Kind == Closed && !c.w.stopping {
		if a.Every > 0 {
			c.scheduleArrival(now.Add(a.Every))
		} else {
			c.enqueue(now)
		}
	}
	c.begin()
}

func (cfg *ClientConfig) countedFrom(w *World) time.Duration { return max(cfg.Start, w.cfg.Warmup) }

func (c *client) kill() {
	if c.q == nil || c.q.dead {
		return
	}
	for _, t := range []*timer{&c.arrivalTimer, &c.hostTimer, &c.answerTimer, &c.parkTimer, &c.unparkTimer, &c.announceTimer} {
		c.w.timeline.cancel(t)
	}
	c.backlog, c.waiting, c.busy, c.waitFor = nil, nil, false, 0
	c.q.kill()
	c.w.daemon.closed(c.q)
}

// idle reports whether the program has nothing left to do.
func (c *client) idle() bool {
	return c.q != nil && (c.q.dead || !c.busy && len(c.backlog) == 0 && len(c.waiting) == 0 &&
		c.arrivalTimer.heapIndex == 0 && c.answerTimer.heapIndex == 0 && c.q.completed == c.q.submitted)
}

func (c *client) result() ClientResult {
	r := ClientResult{
		Name: c.cfg.Name, Class: c.cfg.Attr.Class, Device: c.w.devices[c.cfg.Device].id,
		Requests: c.requests, OpenLoop: !c.saturating(),
	}
	if c.q != nil {
		r.Queue, r.DeviceTime = c.q.id, c.pastDeviceTime+c.q.deviceTime
	}
	if counted := c.w.countedEnd.Sub(sched.Time(c.cfg.countedFrom(c.w))); counted > 0 {
		r.Rate = float64(c.requests) / counted.Seconds()
	}
	r.Latencies = c.latencies
	if r.OpenLoop {
		pending := append([]sched.Time(nil), c.backlog...)
		for _, q := range c.waiting {
			pending = append(pending, q.arrival)
		}
		if c.busy {
			pending = append(pending, c.arrival)
		}
		for _, at := range pending {
			if at >= sched.Time(c.cfg.countedFrom(c.w)) && at < c.w.countedEnd {
				r.Unfinished++
				r.Latencies = append(r.Latencies, c.w.countedEnd.Sub(at))
			}
		}
	}
	r.Latency = stats.Summarize(r.Latencies)
	if r.SLO = c.cfg.Attr.SLO; r.SLO > 0 && len(r.Latencies) > 0 {
		in := sort.Search(len(r.Latencies), func(i int) bool { return r.Latencies[i] > r.SLO })
		r.SLOMet = float64(in) / float64(len(r.Latencies))
	}
	return r
}
