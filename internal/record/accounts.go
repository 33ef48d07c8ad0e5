package record

import (
	"cmp"
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
}

// queueAccount is a queue and the client that it belongs to.
type queueAccount struct {
	device *deviceAccount
	client *client
	ready  bool
}

// processAccount is the pressure of a process.
type processAccount struct {
	some, full psi
	clients    int
	estimated  bool
	// Of the present update:
	waited, least time.Duration
	to            sched.Time
}

// deviceAccount is the account of a device.
type deviceAccount struct {
	id       sched.DeviceID
	index    int
	tracing  func() bool
	clients  []*client
	to       sched.Time // accounted for up to then
	spans    []hal.Span // since then
	spanEnd  sched.Time // of the last one
	reported sched.Time // when spans were last reported

	some, full psi
	estimated  bool
	classes    [4][holderClasses]time.Duration

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
	class  int // index in deviceAccount.classes
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
	i := slices.IndexFunc(d.clients, func(c *client) bool { return c.pid == pid })
	if i < 0 {
		i = len(d.clients)
		c := newClient(pid, attr.Class)
		d.clients = append(d.clients, c)
		if c.process = a.processes[pid]; c.process == nil {
			c.process = &processAccount{some: newPSI(d.to), full: newPSI(d.to)}
			a.processes[pid] = c.process
		}
		c.process.clients++
	}
	c := d.clients[i]
	c.queues++
	a.queues[id] = &queueAccount{device: d, client: c}
	a.Attrs(now, id, attr)
}

// Close removes a queue.
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
	if c.queues--; c.queues > 0 {
		return
	}
	q.device.clients = slices.DeleteFunc(q.device.clients, func(o *client) bool { return o == c })
	if c.process.clients--; c.process.clients == 0 {
		delete(a.processes, c.pid)
	}
}

// Attrs changes the class of a queue's process and whether it is paused: then it does not
// wait.
func (a *Accounts) Attrs(_ sched.Time, id sched.QueueID, attr *sched.Attr) {
	if q := a.queues[id]; q != nil {
		q.client.class, q.client.paused = attr.Class, attr.Paused
	}
}

// Progress takes in whether a queue has work.
func (a *Accounts) Progress(now sched.Time, id sched.QueueID, c *sched.Counters) {
	if q := a.queues[id]; q != nil && c.Known {
		q.client.progress(now, q, c.Submitted > c.Completed)
	}
}

// RequestStarted and RequestFinished take in a request of a queue's process. took and ended
// are zero if they are not known.
func (a *Accounts) RequestStarted(now sched.Time, id sched.QueueID) {
	if q := a.queues[id]; q != nil {
		q.client.requestStarted(now)
	}
}

// RequestFinished is described at RequestStarted.
func (a *Accounts) RequestFinished(id sched.QueueID, took time.Duration, ended sched.Time) {
	if q := a.queues[id]; q != nil {
		q.client.requestFinished(interval{ended.Add(-took), ended}, took > 0 && ended > 0)
	}
}

// Span takes in a span of a device. Spans of a device come in order.
func (a *Accounts) Span(now sched.Time, device sched.DeviceID, s *hal.Span) {
	d := a.device(device)
	if d == nil {
		return
	}
	d.reported, d.spanEnd = now, max(d.spanEnd, s.End)
	if s.Kind == hal.SpanHeld {
		d.follow(s)
	}
	if d.spans = append(d.spans, *s); len(d.spans) >= maxSpans {
		a.next = now
	}
}

// follow notes when a client that was preempted waits to come back.
func (d *deviceAccount) follow(s *hal.Span) {
	for _, c := range d.clients {
		if c.pid != int32(s.PID) || c.counted || c.reports {
			continue
		}
		if c.visits.end(s.Begin); s.Left == hal.Preempted {
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
		for d.to < to {
			end := min(to, sched.Time((bucketAt(d.to)+1)*uint64(bucketLength)))
			if traced {
				a.account(d, end)
			} else {
				a.estimate(d, end, to, records)
			}
			d.advance(end)
		}
	}
	a.press()
}

// Updates counts the updates: as long as it is the same, so are the answers.
func (a *Accounts) Updates() uint64 { return a.updates }

// advance ends the window at a time.
func (d *deviceAccount) advance(to sched.Time) {
	if was := bucketAt(d.to); bucketAt(to) != was {
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

// press adds what the processes waited to their pressure. Of a process on several devices it
// is estimated: the sum, and for full the least.
func (a *Accounts) press() {
	for _, p := range a.processes { //shape:unordered each changes only itself
		if p.to == 0 {
			continue
		}
		full := p.waited
		if p.clients > 1 {
			p.waited, full = min(p.waited, p.to.Sub(min(p.some.updated, p.to))), p.least
			p.estimated = true
		}
		p.some.add(p.to, p.waited)
		p.full.add(p.to, full)
		p.waited, p.least, p.to = 0, 0, 0
	}
}

// charge adds that a client waited up to a time.
func (c *client) charge(waited time.Duration, to sched.Time, estimated bool) {
	p := c.process
	if p.to == 0 || waited < p.least {
		p.least = waited
	}
	p.waited += waited
	p.to = max(p.to, to)
	p.estimated = p.estimated || waited > 0 && (estimated || c.guessed())
}

// account accounts for the time of a traced device up to the end of a window.
func (a *Accounts) account(d *deviceAccount, to sched.Time) {
	d.clip(to)
	a.periods = a.periods[:0]
	always, only := 0, (*client)(nil) // clients that had work all the time
	for _, c := range d.clients {
		c.first = len(a.periods)
		a.periods = c.hadWork(a.periods, d.to, to)
		c.last = len(a.periods)
		if c.hasAlways(a.periods, d.to, to) {
			always, only = always+1, c
		}
	}
	for i := range d.window {
		h := &d.window[i]
		h.covered = always > 1 || always == 1 && only.pid != h.holder
	}
	a.stalls = a.stalls[:0]
	for _, c := range d.clients {
		switch {
		case c.first == c.last:
			c.charge(0, to, false)
		case c.class != sched.Online && c.hasAlways(a.periods, d.to, to):
			for i := range d.sums {
				d.delays[i] = d.sums[i].length
			}
			c.charge(d.chargeDelays(c), to, false)
		default:
			a.chargeSpans(d, c, to)
		}
	}
	some, full := a.stalled(d)
	d.some.add(to, some)
	d.full.add(to, full)
}

// hasAlways reports whether the client had work in all of the window.
func (c *client) hasAlways(periods []interval, from, to sched.Time) bool {
	return c.last == c.first+1 && periods[c.first] == interval{from, to}
}

// clip makes the window and its sums from the spans up to a time.
func (d *deviceAccount) clip(to sched.Time) {
	d.window, d.sums = d.window[:0], d.sums[:0]
	clear(d.sumOf)
	for i := range d.spans {
		s := &d.spans[i]
		part := held{interval: interval{max(s.Begin, d.to), min(s.End, to)}, holder: holderOf(s)}
		if part.from >= part.to {
			continue
		}
		d.window = append(d.window, part)
		j, known := d.sumOf[part.holder]
		if !known {
			j = len(d.sums)
			d.sumOf[part.holder] = j
			d.sums = append(d.sums, heldSum{holder: part.holder, class: d.classOf(part.holder)})
		}
		d.sums[j].length += part.to.Sub(part.from)
	}
	slices.SortFunc(d.sums, func(x, y heldSum) int {
		return cmp.Or(cmp.Compare(y.length, x.length), cmp.Compare(x.holder, y.holder))
	})
	for i := range d.sums {
		d.sumOf[d.sums[i].holder] = i
	}
	for i := range d.window {
		d.window[i].sum = d.sumOf[d.window[i].holder]
	}
	d.delays = slices.Grow(d.delays[:0], len(d.sums))[:len(d.sums)]
}

// holderOf returns the holder of a device during a span.
func holderOf(s *hal.Span) int32 {
	switch s.Kind {
	case hal.SpanHeld:
		return int32(s.PID)
	case hal.SpanSwitch:
		return heldBySwitch
	case hal.SpanIdle:
		return heldByNone
	}
	return heldByUnknown
}

// chargeDelays adds the delays of a client and clears them. Beside the holders that had the
// device for most of the window the others count together: otherwise each window would bring
// a client hundreds of holders. It returns how long the client waited.
func (d *deviceAccount) chargeDelays(c *client) (waited time.Duration) {
	listed := 0
	for i := range d.sums {
		h, length := &d.sums[i], d.delays[i]
		if d.delays[i] = 0; length == 0 {
			continue
		}
		by := h.holder
		if by >= 0 && by != c.pid {
			if listed++; listed > maxHolders {
				by = heldByOthers
			}
		}
		waited += d.delay(c, by, h.class, length, false)
	}
	return waited
}

// delay adds that a holder delayed a client, unless it is the client itself or not known. It
// returns the delay.
func (d *deviceAccount) delay(c *client, holder int32, class int, length time.Duration, estimated bool) time.Duration {
	if holder == c.pid || holder == heldByUnknown {
		return 0
	}
	c.row.add(holder, length, estimated || c.guessed())
	d.classes[c.class%4][class] += length
	return length
}

// classOf returns the index of a holder in deviceAccount.classes.
func (d *deviceAccount) classOf(holder int32) int {
	switch holder {
	case heldBySwitch:
		return classSwitch
	case heldByNone:
		return classIdle
	}
	for _, c := range d.clients {
		if c.pid == holder {
			return int(c.class % 4)
		}
	}
	return classUnknown
}

// chargeSpans charges a client for each part of a span in which it had work. The waits of an
// online client are recorded.
func (a *Accounts) chargeSpans(d *deviceAccount, c *client, to sched.Time) {
	w, next := wait{}, 0
	clear(d.delays)
	for _, p := range a.periods[c.first:c.last] {
		for next < len(d.window) && d.window[next].to <= p.from {
			next++
		}
		for i := next; i < len(d.window) && d.window[i].from < p.to; i++ {
			h := &d.window[i]
			part := interval{max(p.from, h.from), min(p.to, h.to)}
			d.delays[h.sum] += part.to.Sub(part.from)
			waits := h.holder != c.pid && h.holder != heldByUnknown
			if waits && !h.covered {
				if h.covered = part == h.interval; !h.covered {
					a.stalls = append(a.stalls, stall{part, i})
				}
			}
			if c.class == sched.Online && (!waits || w.end != part.from) {
				a.recordWait(d, c, &w)
			}
			if waits {
				w.add(part, h.holder)
			}
		}
	}
	if c.class == sched.Online {
		a.recordWait(d, c, &w)
	}
	c.charge(d.chargeDelays(c), to, false)
}

// stalled returns for how much of the window at least one client waited, and of that the time
// in which no process held the device.
func (a *Accounts) stalled(d *deviceAccount) (some, full time.Duration) {
	add := func(h *held, length sched.Time) {
		if some += time.Duration(length); h.holder < 0 {
			full += time.Duration(length)
		}
	}
	for i := range d.window {
		if h := &d.window[i]; h.covered && h.holder != heldByUnknown {
			add(h, h.to-h.from)
		}
	}
	a.stalls = slices.DeleteFunc(a.stalls, func(s stall) bool { return d.window[s.span].covered })
	slices.SortFunc(a.stalls, func(x, y stall) int { return cmp.Compare(x.from, y.from) })
	to := sched.Time(0)
	for _, s := range a.stalls {
		if s.from = max(s.from, to); s.from < s.to {
			add(&d.window[s.span], s.to-s.from)
			to = s.to
		}
	}
	return some, full
}

// wait is a wait that is being put together.
type wait struct {
	begin, end sched.Time
	holders    [8]struct {
		holder int32
		length time.Duration
	}
	n int
}

func (w *wait) add(part interval, holder int32) {
	if w.end == 0 {
		w.begin = part.from
	}
	w.end = part.to
	i := 0
	for i < w.n && w.holders[i].holder != holder {
		i++
	}
	if i == len(w.holders) {
		return // of more holders none is the one with the most time
	}
	if i == w.n {
		w.n++
		w.holders[i].holder, w.holders[i].length = holder, 0
	}
	w.holders[i].length += part.to.Sub(part.from)
}

// recordWait records a wait of an online client and begins the next.
func (a *Accounts) recordWait(d *deviceAccount, c *client, w *wait) {
	if w.end.Sub(w.begin) >= minWait {
		best := 0
		for i := range w.n {
			if w.holders[i].length > w.holders[best].length {
				best = i
			}
		}
		a.entry = Entry{
			Kind: Wait, At: max(a.now, w.end), Device: d.id, PID: c.pid, Begin: w.begin, End: w.end,
			Holder: w.holders[best].holder, Cost: w.holders[best].length, Estimated: c.guessed(),
		}
		a.add(&a.entry)
	}
	*w = wait{}
}
