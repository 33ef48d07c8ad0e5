package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// estimate divides the time of a device that is not traced by the device time that the
// scheduler counted. A client that had work and was not served waited; the others are its
// holders, in proportion to what they were served. last is when the records are from: the
// time until then may be divided in several windows.
func (a *Accounts) estimate(d *deviceAccount, to, last sched.Time, records []sched.Queue) {
	a.countServed(d, records, float64(to-d.to)/float64(max(last-d.to, 1)))
	total := time.Duration(0)
	a.periods = a.periods[:0]
	for _, c := range d.clients {
		c.first = len(a.periods)
		if !c.closed() { // of a closed one it is not known what it was served at the end
			a.periods = c.hadWork(a.periods, d.to, to)
		}
		c.last = len(a.periods)
		had := time.Duration(0)
		for _, p := range a.periods[c.first:] {
			had += p.to.Sub(p.from)
		}
		c.own = min(c.own, to.Sub(d.to))
		c.waited = max(had-c.own, 0)
		total += c.own
	}
	// Beside the holders that were served most, the others count together.
	d.byOwn = append(d.byOwn[:0], d.clients...)
	slices.SortStableFunc(d.byOwn, func(x, y *client) int { return cmp.Compare(y.own, x.own) })
	some := time.Duration(0)
	for _, c := range d.clients {
		some += c.waited
		d.divide(c, total-c.own)
		c.charge(c.waited, to, true)
	}
	a.estimateUses(d, to)
	some = min(some, to.Sub(d.to))
	d.estimated = d.estimated || some > 0
	d.some.add(to, some)
	d.full.add(to, max(some-total, 0))
}

// countServed sets what each client of the device was served in the window, which is a part
// of the time since the last records.
func (a *Accounts) countServed(d *deviceAccount, records []sched.Queue, part float64) {
	for _, c := range d.clients {
		c.own = 0
	}
	for i := range records {
		if q := a.queues[records[i].ID]; q != nil && q.device == d {
			served := time.Duration(part * float64(max(records[i].Served-q.served, 0)))
			q.served += served
			q.client.own += served
		}
	}
}

// baseline makes the present records those from which estimates begin: what the queues were
// served before is accounted for by the trace. Without it no client is seen to come back.
func (a *Accounts) baseline(d *deviceAccount, records []sched.Queue) {
	for _, c := range d.clients {
		c.visits.end(d.spanEnd)
		a.recordWait(d, c)
	}
	for i := range records {
		if q := a.queues[records[i].ID]; q != nil && q.device == d {
			q.served = records[i].Served
		}
	}
}

// divide divides what a client waited among the other clients, which were served so much
// together.
func (d *deviceAccount) divide(c *client, others time.Duration) {
	if c.waited == 0 {
		return
	}
	var rest [4]time.Duration // of the holders that are not listed, by class
	left, listed, biggest := c.waited, 0, (*client)(nil)
	for _, o := range d.byOwn {
		if o == c || o.own == 0 {
			continue
		}
		part := min(time.Duration(float64(c.waited)*(float64(o.own)/float64(others))), left)
		left -= part
		if biggest == nil {
			biggest = o
		}
		if listed++; listed > maxHolders {
			rest[o.class%4] += part
			continue
		}
		d.delay(c, o.pid, int(o.class%4), part, true)
	}
	for class, part := range rest {
		d.delay(c, heldByOthers, class, part, true)
	}
	if biggest != nil {
		d.delay(c, biggest.pid, int(biggest.class%4), left, true) // what rounding left
		return
	}
	d.delay(c, heldByNone, classIdle, left, true)
}
