package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// interval is a period: from is in it, to is not.
type interval struct{ from, to sched.Time }

// maxIntervals is how many periods of a client are kept until they are accounted for: about
// 3,000 a second. If there are more, the last two become one, which is an estimate.
const maxIntervals = 1024

// intervals is a list of periods, and one that is not over.
type intervals struct {
	over   []interval
	open   sched.Time // since when; Never: there is none
	joined bool       // there were too many
}

func (v *intervals) begin(now sched.Time) {
	if v.open == sched.Never {
		v.open = now
	}
}

func (v *intervals) end(now sched.Time) {
	if v.open != sched.Never {
		v.add(interval{v.open, max(v.open, now)})
		v.open = sched.Never
	}
}

func (v *intervals) add(i interval) {
	if len(v.over) >= maxIntervals {
		last := &v.over[len(v.over)-1]
		last.from, last.to = min(last.from, i.from), max(last.to, i.to)
		v.joined = true
		return
	}
	v.over = append(v.over, i)
}

// within appends the parts of the periods that lie between two times.
func (v *intervals) within(buf []interval, from, to sched.Time) []interval {
	for _, i := range v.over {
		if i.from = max(i.from, from); i.from < min(i.to, to) {
			buf = append(buf, interval{i.from, min(i.to, to)})
		}
	}
	if v.open < to {
		buf = append(buf, interval{max(v.open, from), to})
	}
	return buf
}

// forget drops what was before a time.
func (v *intervals) forget(before sched.Time) {
	if v.over = slices.DeleteFunc(v.over, func(i interval) bool { return i.to <= before }); len(v.over) < maxIntervals {
		v.joined = false
	}
}

// union sorts periods and joins those that overlap, from index start on.
func union(all []interval, start int) []interval {
	part := all[start:]
	if len(part) < 2 {
		return all
	}
	slices.SortFunc(part, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	n := 0
	for _, i := range part[1:] {
		if last := &part[n]; i.from <= last.to {
			last.to = max(last.to, i.to)
		} else {
			n++
			part[n] = i
		}
	}
	return all[:start+n+1]
}

// client is a process on a device.
type client struct {
	pid     int32
	class   sched.Class
	process *processAccount
	paused  bool
	queues  int
	noWork  int // queues that have none, by the last decisions
	row     row

	// It has work: as the counters of its queues tell, while one of its requests is open,
	// or, of a process without both, from when the hardware preempted it until it came back.
	ready    int // queues that have work, by their counters
	counted  int // queues whose counters are known
	counters intervals
	requests intervals
	open     int // requests
	reported bool
	lastDone sched.Time // when a request was last reported
	visits   intervals

	hasRequests bool       // its class or SLO says so
	closedAt    sched.Time // Never: it is not
	wait        wait       // of an online client, up to the window

	// Of the window that is accounted for: its periods in the account's buffer, and for an
	// estimate what it was served and waited.
	first, last int
	byRequests  bool // they tell when it had work
	own, waited time.Duration
	charged     time.Duration // what it waited, of the present update

	weight float64
	count  func(sched.Class, Use) // takes its uses; nil: none does
	use    Use                    // since it was last taken
	share  share
	signs  int        // of the window that is accounted for: how many show that it has work now
	since  sched.Time // since when it has
}

func newClient(pid int32, class sched.Class) *client {
	c := &client{pid: pid, class: class, closedAt: sched.Never}
	c.counters.open, c.requests.open, c.visits.open = sched.Never, sched.Never, sched.Never
	return c
}

func (c *client) closed() bool { return c.closedAt != sched.Never }

// reports reports whether the requests of the client tell at a time when it has work. A
// process may stop to report them.
func (c *client) reports(at sched.Time) bool {
	return c.reported && (c.open > 0 || at.Sub(c.lastDone) < requestTimeout)
}

// hadWork appends when the client had work between two times.
func (c *client) hadWork(buf []interval, from, to sched.Time) []interval {
	start := len(buf)
	c.byRequests = c.reports(to)
	switch {
	case c.paused:
		return buf
	case c.byRequests:
		buf = c.requests.within(buf, from, to)
	case c.counted > 0:
		buf = c.counters.within(buf, from, to)
	default:
		buf = c.visits.within(buf, from, to)
	}
	return union(buf, start)
}

// guessed reports whether it is not known when the client had work.
func (c *client) guessed() bool {
	return !c.byRequests && c.counted == 0 || c.counters.joined || c.requests.joined
}

// forget drops what was before a time.
func (c *client) forget(before sched.Time) {
	c.counters.forget(before)
	c.requests.forget(before)
	c.visits.forget(before)
}

// progress takes in whether a queue has work.
func (c *client) progress(now sched.Time, q *queueAccount, ready bool) {
	if !q.counted {
		q.counted = true
		c.counted++
	}
	if ready == q.ready {
		return
	}
	if q.ready = ready; ready {
		c.ready++
		c.counters.begin(now)
		return
	}
	if c.ready--; c.ready == 0 {
		c.counters.end(now)
	}
}

// requestStarted and requestFinished take in requests. The begin of a request is known
// exactly when it is over.
func (c *client) requestStarted(now sched.Time) {
	c.open++
	c.requests.begin(now)
}

func (c *client) requestFinished(now sched.Time, was interval, known bool) {
	switch {
	case c.open > 0:
	case !known:
		c.requests.end(now)
	case was.from <= c.requests.open: // the request is all of the period, and is added below
		c.requests.open = sched.Never
	default:
		c.requests.end(was.to)
	}
	if known {
		c.reported, c.lastDone = true, now
		c.requests.add(was)
	}
}
