package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// Use is device time of a process, by what others had meanwhile.
type Use struct {
	// GivenAway is what a process that is not online had while online processes were on the
	// device and none of them had work.
	GivenAway time.Duration
	// TakenBack is what an online process had while a process that is not online had work.
	TakenBack time.Duration
	// Promised is what the weight of a process promises in the seconds in which another one of
	// its class had work at the same time, and Given what it had in them: see shares.go.
	Promised, Given time.Duration
}

// Count makes a function take the uses of a queue's process, with its class.
func (a *Accounts) Count(id sched.QueueID, used func(sched.Class, Use)) {
	if q := a.queues[id]; q != nil {
		q.client.count = used
	}
}

// report reports the uses that were not reported yet.
func (c *client) report() {
	if c.count != nil && c.use != (Use{}) {
		c.count(c.class, c.use)
	}
	c.use = Use{}
}

// edge is where a client gets work, or has no more.
type edge struct {
	at     sched.Time
	client *client
	work   bool
}

// working is which clients of a device have work at a moment, by class.
type working struct {
	clients [4]int
	several [4]bool // there were two or more at once
}

// add adds a client that has work, or holds the device: then it has work as well.
func (w *working) add(c *client, at sched.Time) {
	if c.signs++; c.signs > 1 {
		return
	}
	k := c.class % 4
	w.clients[k]++
	w.several[k] = w.several[k] || w.clients[k] > 1
	c.since = at
}

// remove takes back one add.
func (w *working) remove(c *client, at sched.Time) {
	if c.signs--; c.signs == 0 {
		w.clients[c.class%4]--
		c.share.wanted += at.Sub(c.since)
	}
}

// take takes in an edge.
func (w *working) take(e *edge) {
	if e.work {
		w.add(e.client, e.at)
	} else {
		w.remove(e.client, e.at)
	}
}

// end ends a window.
func (w *working) end(d *deviceAccount, to sched.Time) {
	for _, c := range d.clients {
		if c.signs > 0 {
			c.signs = 1
			w.remove(c, to)
		}
	}
	for k, several := range w.several {
		d.contended[k] = d.contended[k] || several
	}
}

// lower returns how many clients that are not online have work.
func (w *working) lower() int {
	return w.clients[sched.Standard] + w.clients[sched.Batch] + w.clients[sched.Idle]
}

// workEdges begins a window: it adds the clients that have work at its begin, and returns where
// that changes, in order.
func (a *Accounts) workEdges(d *deviceAccount, w *working, to sched.Time) []edge {
	a.edges = a.edges[:0]
	for _, c := range d.clients {
		for _, p := range a.periods[c.first:c.last] {
			if p.from > d.to {
				a.edges = append(a.edges, edge{p.from, c, true})
			} else {
				w.add(c, d.to)
			}
			if p.to < to {
				a.edges = append(a.edges, edge{p.to, c, false})
			}
		}
	}
	slices.SortFunc(a.edges, func(x, y edge) int { return cmp.Compare(x.at, y.at) })
	return a.edges
}

// hasOnline reports whether a process on the device is online.
func (d *deviceAccount) hasOnline() bool {
	return slices.ContainsFunc(d.clients, func(c *client) bool { return c.class == sched.Online && !c.closed() })
}

// uses adds what the clients of a traced device had of it up to the end of a window.
func (a *Accounts) uses(d *deviceAccount, to sched.Time) {
	var w working
	online, edges := d.hasOnline(), a.workEdges(d, &w, to)
	// pass takes in the edges up to a time, and returns when the next one is.
	pass := func(until sched.Time) (next sched.Time) {
		for len(edges) > 0 && edges[0].at <= until {
			w.take(&edges[0])
			edges = edges[1:]
		}
		if len(edges) > 0 {
			return edges[0].at
		}
		return to
	}
	for i := range d.window {
		h := &d.window[i]
		holder := d.sums[h.sum].client
		if holder == nil {
			continue
		}
		next := pass(h.from)
		w.add(holder, h.from)
		for from := h.from; from < h.to; next = pass(from) {
			until := min(next, h.to)
			w.use(holder, until.Sub(from), online)
			from = until
		}
		w.remove(holder, h.to)
	}
	pass(to)
	w.end(d, to)
}

// use adds that a client held the device for a time in which nothing else changed.
func (w *working) use(c *client, length time.Duration, online bool) {
	c.share.had += length
	switch {
	case c.class == sched.Online && w.lower() > 0:
		c.use.TakenBack += length
	case c.class != sched.Online && online && w.clients[sched.Online] == 0:
		c.use.GivenAway += length
	}
}

// estimateUses adds what the clients of a device that is not traced had of it, from what the
// scheduler counted and when they had work.
func (a *Accounts) estimateUses(d *deviceAccount, to sched.Time) {
	var w working
	var quiet, busy time.Duration // no online client has work; another client has
	from := d.to
	pass := func(until sched.Time) {
		length := until.Sub(from)
		if from = until; w.clients[sched.Online] == 0 {
			quiet += length
		}
		if w.lower() > 0 {
			busy += length
		}
	}
	for _, e := range a.workEdges(d, &w, to) {
		pass(e.at)
		w.take(&e)
	}
	pass(to)
	w.end(d, to)
	if !d.hasOnline() || slices.ContainsFunc(d.clients, func(c *client) bool { return c.class == sched.Online && c.guessed() }) {
		quiet = 0 // it is not known when online clients have work
	}
	for _, c := range d.clients {
		c.share.had += c.own
		if c.class == sched.Online {
			c.use.TakenBack += min(c.own, busy)
		} else {
			c.use.GivenAway += min(c.own, quiet)
		}
	}
}
