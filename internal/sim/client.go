package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// ClientConfig is a client: a workload with one queue that serves requests in order.
//
//	arrival ─ prepare ─ before ─ launch ─ gap ─ launch ... last kernel ends ─ after ─ answer
//
// The latency of a request is from its arrival to its answer. A request that arrives
// while the client is busy waits.
type ClientConfig struct {
	Name   string
	Device int        // index in Config.Devices
	Attr   sched.Attr // with an SLO, requests are reported to the daemon
	// Process names the process that owns the queue. Clients with the same name share
	// it. Empty: a process of its own.
	Process string
	Shim    bool // the process has the shim: its queue can be held, bounded and counted

	Arrival Arrival
	Kernels []Kernels     // of one request, in order
	Prepare time.Duration // host time from the arrival until the request can be launched
	Before  Dist          // further host time until the first launch
	After   Dist          // host time from the last kernel's end to the answer
	// Hint tells the daemon when a launch is expected as soon as Prepare begins.
	// Announce, if not zero, tells it so long before each arrival.
	Hint     bool
	Announce time.Duration
	// Park launches so many kernels, Lead before those of the request, that spin until
	// the request is launched: they bring the context onto the device early.
	Park int
	Lead time.Duration
	// LateEntry puts a wait ahead of the first launch of a request to an idle queue. It is
	// released after so large a fraction of the request's launches, or when the host waits
	// for the device. Until then the commands do not reach the device. Zero: no wait.
	LateEntry float64
	// Pool names the pool in which the client's kernels run beside those of its other
	// members. Empty: the client has a channel group of its own.
	Pool string
	// Jitter is a further delay of the host in each request, before its first launch.
	Jitter Dist

	Slice time.Duration // that the process sets itself when it starts; zero: the model's
	Start time.Duration // when the process starts
	Kill  time.Duration // when it is killed; zero: never
	// Lifetime is how long a queue exists before it is destroyed, and Downtime how long
	// until the client creates the next one. Zero value: it is never destroyed.
	Lifetime, Downtime Dist
}

// Kernels is a run of similar kernels.
type Kernels struct {
	Count int
	Time  Dist
	Gap   Dist // host time from one launch to the next
	Wait  bool // the host waits for each kernel, and Gap counts from its end
	// Occupancy and Bandwidth are what one kernel by itself uses of the device's
	// processors and of its memory bandwidth, as fractions. They matter in a pool. Zero:
	// all processors, and no bandwidth.
	Occupancy, Bandwidth float64
}

// Arrival says when requests arrive.
type Arrival struct {
	Kind   ArrivalKind
	Every  time.Duration   // Periodic: the period; Poisson: the mean; Closed: from an answer to the next request
	Offset time.Duration   // of the first request
	Trace  []time.Duration // Trace: times since the client's start, in order
	Depth  int             // Closed: requests in progress at a time; zero means 1
	Jitter Dist            // Closed: added to Every
}

// ArrivalKind is the kind of an arrival process.
type ArrivalKind uint8

const (
	Closed ArrivalKind = iota
	Periodic
	Poisson
	Trace
)

// client is a running client.
type client struct {
	w     *World
	index int // in Config.Clients
	cfg   *ClientConfig
	q     *queue
	// Arrivals have a random source of their own, so that the same requests arrive at the
	// same times under every policy.
	rand, arrivals, lifetimes, jitter *rand.Rand

	backlog      fifo[sched.Time] // arrivals of requests not begun
	waiting      fifo[request]    // requests launched and not finished
	arrival      sched.Time       // of the request that the host is launching
	busy         bool             // the host is launching
	releaseAt    uint64           // of a late entry: the wait is released when so many commands are submitted
	waitFor      uint64           // the host launches no more until so many commands are completed; zero: it does not wait
	gapAfterWait time.Duration    // before the host launches the next command after that
	section      int              // index in cfg.Kernels
	count        int              // kernels launched of that section
	traceNext    int              // index of the next arrival in the trace
	traceBase    sched.Time       // the trace's times count from here plus cfg.Start
	answers      []answer         // requests whose kernels have finished and that are not answered, in order of due
	thinking     fifo[sched.Time] // Closed: later arrivals than that of arrivalTimer

	arrivalTimer, hostTimer, answerTimer, parkTimer, unparkTimer, announceTimer timer

	latencies      stats.Distribution // of an open-loop client
	withinSLO      int                // of latencies
	requests       int
	pastDeviceTime time.Duration // of its earlier queues
}

// request is a request whose last kernel has been launched.
type request struct {
	arrival sched.Time
	last    uint64 // it is done when so many commands are completed
}

// answer is a request whose last kernel has finished.
type answer struct{ arrival, due sched.Time }

func newClient(w *World, i int) *client {
	c := &client{w: w, index: i, cfg: &w.cfg.Clients[i]}
	c.rand = w.rand("client " + c.cfg.Name)
	c.arrivals = w.rand("arrivals " + c.cfg.Name)
	c.lifetimes = w.rand("lives " + c.cfg.Name)
	c.jitter = w.rand("jitter " + c.cfg.Name)
	c.arrivalTimer.fire = c.arrive
	c.hostTimer.fire = c.launch
	c.answerTimer.fire = c.answerNext
	c.parkTimer.fire = c.parkKernels
	c.unparkTimer.fire = func() { c.q.unpark() }
	c.announceTimer.fire = func() { c.hint(c.arrivalTimer.at.Add(c.cfg.Prepare)) }
	c.scheduleProcess(sched.QueueID(i + 1))
	return c
}

// scheduleProcess sets when the process starts and when it is killed.
func (c *client) scheduleProcess(id sched.QueueID) {
	w := c.w
	w.after(c.cfg.Start, func() { c.open(id) })
	if c.cfg.Kill == 0 {
		return
	}
	w.after(c.cfg.Kill, c.kill)
	if w.cfg.repeat > 0 {
		w.after(max(w.cfg.repeat, c.cfg.Kill), func() {
			c.traceBase, c.traceNext = w.now, 0
			c.scheduleProcess(w.newQueueID())
		})
	}
}

// newQueueID returns the ID of a queue that is not the first of its client.
func (w *World) newQueueID() sched.QueueID {
	w.reopened++
	return sched.QueueID(len(w.clients) + w.reopened)
}

// open creates the client's queue and starts its work.
func (c *client) open(id sched.QueueID) {
	w, d := c.w, c.w.devices[c.cfg.Device]
	if c.q != nil {
		c.pastDeviceTime += c.q.deviceTime
		d.queues = slices.DeleteFunc(d.queues, func(q *queue) bool { return q == c.q })
	}
	if c.cfg.Pool != "" {
		c.q = d.openMember(id, c)
	} else {
		c.q = d.open(id, w.process(c.cfg, id), c, c.cfg.Shim)
		c.q.initialSlice = c.cfg.Slice
		w.queues[id] = c.q
		w.observer.observe(c.q, sched.Event{Kind: sched.QueueOpened})
	}
	c.start()
	if c.cfg.Lifetime != (Dist{}) {
		w.after(c.cfg.Lifetime.draw(c.lifetimes), c.retire)
	}
}

// retire destroys the queue with all its commands and schedules the next one.
func (c *client) retire() {
	c.kill()
	c.w.after(c.cfg.Downtime.draw(c.lifetimes), func() {
		if !c.w.stopping {
			c.open(c.w.newQueueID())
		}
	})
}

// process returns the process that owns the client's queue. A named process has the
// number of its first client, so that it is different from all others.
func (w *World) process(cfg *ClientConfig, id sched.QueueID) sched.ProcessID {
	for i := range w.cfg.Clients {
		if cfg.Process != "" && w.cfg.Clients[i].Process == cfg.Process {
			return sched.ProcessID(i + 1)
		}
	}
	return sched.ProcessID(id)
}

func (c *client) depth() int { return max(c.cfg.Arrival.Depth, 1) }

// kernels returns how many kernels a request has.
func (cfg *ClientConfig) kernels() int {
	n := 0
	for i := range cfg.Kernels {
		n += cfg.Kernels[i].Count
	}
	return n
}

// saturating reports whether the client makes the next request as soon as it can.
func (cfg *ClientConfig) saturating() bool {
	return cfg.Arrival.Kind == Closed && cfg.Arrival.Every == 0 && cfg.Arrival.Jitter == Dist{}
}

// start schedules the first requests to a new queue.
func (c *client) start() {
	first := c.w.now.Add(c.cfg.Arrival.Offset)
	switch c.cfg.Arrival.Kind {
	case Trace:
		c.scheduleTraceArrival()
	case Periodic:
		c.scheduleArrival(first)
	case Poisson:
		c.scheduleArrival(first.Add(c.interval()))
	case Closed:
		c.scheduleArrival(first)
		for range c.depth() - 1 {
			c.enqueue(first)
		}
	}
}

// interval returns the time from one arrival to the next.
func (c *client) interval() time.Duration {
	a := &c.cfg.Arrival
	if a.Kind == Poisson {
		return Dist{Kind: Exponential, Mean: a.Every}.draw(c.arrivals)
	}
	return a.Every
}

// scheduleArrival sets the next arrival, and what the client does ahead of it.
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

// scheduleTraceArrival sets the next arrival of the trace. Arrivals that passed while the
// client had no queue are skipped.
func (c *client) scheduleTraceArrival() {
	tr := c.cfg.Arrival.Trace
	for len(tr) > 0 {
		if c.traceNext == len(tr) {
			if c.w.cfg.repeat == 0 {
				return
			}
			c.traceNext = 0
			c.traceBase = c.traceBase.Add(max(c.w.cfg.repeat, tr[len(tr)-1]+1))
		}
		at := c.traceBase.Add(c.cfg.Start + tr[c.traceNext])
		c.traceNext++
		if at >= c.w.now {
			c.scheduleArrival(at)
			return
		}
	}
}

// enqueue adds a request to the backlog.
func (c *client) enqueue(at sched.Time) {
	if limit := c.w.cfg.maxBacklog; limit > 0 && c.backlog.len() >= max(limit, c.depth()) {
		return
	}
	c.backlog.push(at)
	c.w.observer.observe(c.q, sched.Event{Kind: sched.RequestStarted})
}

// arrive adds the request that is due and schedules the next arrival.
func (c *client) arrive() {
	c.enqueue(c.w.now)
	switch c.cfg.Arrival.Kind {
	case Periodic, Poisson:
		c.scheduleArrival(c.w.now.Add(c.interval()))
	case Trace:
		c.scheduleTraceArrival()
	case Closed:
		if c.thinking.len() > 0 {
			c.scheduleArrival(c.thinking.pop())
		}
	}
	c.begin()
}

// begin takes the next request from the backlog if the host is free.
func (c *client) begin() {
	if c.busy || c.backlog.len() == 0 || c.waiting.len()+len(c.answers) >= c.depth() {
		return
	}
	c.arrival = c.backlog.pop()
	c.busy, c.section, c.count = true, 0, 0
	if p := c.cfg.Prepare; p > 0 {
		if c.cfg.Hint {
			c.hint(c.w.now.Add(p))
		}
		if c.cfg.Park > 0 && p >= c.cfg.Lead {
			c.w.timeline.set(&c.parkTimer, c.w.now.Add(p-c.cfg.Lead))
		}
	}
	if d := c.cfg.Prepare + c.cfg.Before.draw(c.rand) + c.cfg.Jitter.draw(c.jitter); d > 0 {
		c.w.timeline.set(&c.hostTimer, c.w.now.Add(d))
		return
	}
	c.launch()
}

// hint tells the daemon when the next launch is expected.
func (c *client) hint(at sched.Time) {
	c.w.observer.observe(c.q, sched.Event{Kind: sched.AttrsChanged, Attr: sched.Attr{Expect: at}})
}

// parkTimeout is after how long a parked kernel ends by itself.
const parkTimeout = 10 * ms

// parkKernels launches the parked kernels, unless the client has other commands: those
// would wait behind the parked kernels for ever.
func (c *client) parkKernels() {
	if c.q.dead || c.q.completed != c.q.submitted || c.backlog.len() > 0 {
		return
	}
	for range c.cfg.Park {
		c.q.submit(0, true)
	}
	c.w.timeline.set(&c.unparkTimer, c.w.now.Add(parkTimeout))
}

// launch submits kernels until the host has to wait or pause.
func (c *client) launch() {
	for c.section < len(c.cfg.Kernels) {
		k := &c.cfg.Kernels[c.section]
		if c.count == k.Count {
			c.section, c.count = c.section+1, 0
			continue
		}
		c.count++
		if c.cfg.LateEntry > 0 && c.section == 0 && c.count == 1 {
			c.q.behindWait = c.q.completed == c.q.submitted
			c.releaseAt = c.q.submitted + max(1, uint64(math.Ceil(c.cfg.LateEntry*float64(c.cfg.kernels()))))
		}
		work := max(k.Time.draw(c.rand), 1)
		c.q.submitCommand(command{time: work, left: work, use: use{cmp.Or(k.Occupancy, 1), k.Bandwidth}})
		if c.cfg.Park > 0 && c.section == 0 && c.count == 1 {
			c.w.timeline.cancel(&c.unparkTimer)
			c.q.unpark()
		}
		last := c.section == len(c.cfg.Kernels)-1 && c.count == k.Count
		gap := k.Gap.draw(c.rand)
		if c.q.behindWait && (c.q.submitted >= c.releaseAt || k.Wait || last) {
			c.q.behindWait = false
			c.q.launch()
		}
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
	c.waiting.push(request{c.arrival, c.q.submitted})
	c.completed(c.q.completed) // a short last kernel may be done already
	c.begin()
}

// completed is called when so many commands of the queue are completed.
func (c *client) completed(n uint64) {
	if n == c.q.submitted && (c.waitFor > 0 && n >= c.waitFor || c.waiting.len() > 0 && c.waiting.at(0).last <= n) {
		c.q.idled++ // the shim notices it only when the process waits
	}
	if c.waitFor > 0 && n >= c.waitFor {
		c.waitFor = 0
		if c.gapAfterWait > 0 {
			c.w.timeline.set(&c.hostTimer, c.w.now.Add(c.gapAfterWait))
		} else {
			c.launch()
		}
	}
	for c.waiting.len() > 0 && c.waiting.at(0).last <= n {
		arrival := c.waiting.pop().arrival
		if after := c.cfg.After.draw(c.rand); after > 0 {
			c.answerAt(answer{arrival, c.w.now.Add(after)})
		} else {
			c.reply(arrival)
		}
	}
}

// answerAt schedules an answer. The host prepares the answers of all requests in progress
// at once.
func (c *client) answerAt(a answer) {
	i, _ := slices.BinarySearchFunc(c.answers, a.due+1, func(b answer, due sched.Time) int { return cmp.Compare(b.due, due) })
	c.answers = slices.Insert(c.answers, i, a)
	c.w.timeline.set(&c.answerTimer, c.answers[0].due)
}

// answerNext answers the request that is due.
func (c *client) answerNext() {
	arrival := c.answers[0].arrival
	c.answers = slices.Delete(c.answers, 0, 1)
	if len(c.answers) > 0 {
		c.w.timeline.set(&c.answerTimer, c.answers[0].due)
	}
	c.reply(arrival)
}

// reply answers the request that arrived then.
func (c *client) reply(arrival sched.Time) {
	now := c.w.now
	c.w.observer.observe(c.q, sched.Event{Kind: sched.RequestFinished, Duration: now.Sub(arrival)})
	if !c.cfg.saturating() && len(c.w.requests) < c.w.cfg.Requests {
		c.w.requests = append(c.w.requests, Request{Client: c.index, Begin: arrival, End: now})
	}
	if from := c.countedFrom(); now <= c.w.countedEnd && now >= from {
		c.requests++
		if arrival >= from {
			c.addLatency(now.Sub(arrival))
		}
	}
	if a := &c.cfg.Arrival; a.Kind == Closed && !c.w.stopping {
		switch {
		case c.cfg.saturating():
			c.enqueue(now)
		case c.arrivalTimer.isSet():
			c.thinking.push(now.Add(a.Every + a.Jitter.draw(c.arrivals)))
		default:
			c.scheduleArrival(now.Add(a.Every + a.Jitter.draw(c.arrivals)))
		}
	}
	c.begin()
}

func (c *client) kill() {
	if c.q == nil || c.q.dead {
		return
	}
	for _, t := range []*timer{&c.arrivalTimer, &c.hostTimer, &c.answerTimer, &c.parkTimer, &c.unparkTimer, &c.announceTimer} {
		c.w.timeline.cancel(t)
	}
	c.backlog, c.waiting, c.busy, c.waitFor = fifo[sched.Time]{}, fifo[request]{}, false, 0
	c.answers, c.thinking = nil, fifo[sched.Time]{}
	c.q.kill()
	if q := c.q.scheduled(); q.dead {
		c.w.observer.observe(q, sched.Event{Kind: sched.QueueClosed})
	}
}

// idle reports whether the client has nothing left to do.
func (c *client) idle() bool {
	return c.q != nil && (c.q.dead || !c.busy && c.backlog.len() == 0 && c.waiting.len() == 0 &&
		!c.arrivalTimer.isSet() && !c.answerTimer.isSet() && c.q.completed == c.q.submitted)
}
