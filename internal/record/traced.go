package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

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
			a.recordWait(d, c)
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
	a.uses(d, to)
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
			d.sums = append(d.sums, d.newSum(part.holder))
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

// newSum returns the sum of a holder, which is zero.
func (d *deviceAccount) newSum(holder int32) heldSum {
	switch holder {
	case heldBySwitch:
		return heldSum{holder: holder, class: classSwitch}
	case heldByNone:
		return heldSum{holder: holder, class: classIdle}
	}
	for _, c := range d.clients {
		if c.pid == holder {
			return heldSum{holder: holder, client: c, class: int(c.class % 4)}
		}
	}
	return heldSum{holder: holder, class: classUnknown}
}

// chargeSpans charges a client for each part of a span in which it had work. The waits of an
// online client are recorded; one that goes on at the end of the window is kept for the next.
func (a *Accounts) chargeSpans(d *deviceAccount, c *client, to sched.Time) {
	next, online := 0, c.class == sched.Online
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
			if !waits || c.wait.end != part.from {
				a.recordWait(d, c)
			}
			if waits && online {
				c.wait.add(part, h.holder)
			}
		}
	}
	if c.wait.end < to {
		a.recordWait(d, c)
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
		return // of more holders hardly one is that with the most time
	}
	if i == w.n {
		w.n++
		w.holders[i].holder, w.holders[i].length = holder, 0
	}
	w.holders[i].length += part.to.Sub(part.from)
}

// recordWait records the wait of an online client, if there is one, and begins the next.
func (a *Accounts) recordWait(d *deviceAccount, c *client) {
	w := &c.wait
	if w.end == 0 {
		return
	}
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
