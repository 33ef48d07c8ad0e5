package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// requestClear decides whether the device is cleared of all but one batch queue for the whole of an
// online queue's requests.
//
// A request that is one dense piece of work waits for the light batch queues once. One that waits
// for each of its kernels comes onto the device many times, and each time waits for a slice of every
// light queue. Simulated on an H200: a request of 20 kernels that takes 8 ms alone takes 47 ms beside
// four light jobs. One that launches many kernels without waiting makes as many visits, but hardly
// takes longer, because its launches queue up meanwhile. The two differ only in how long they take
// beside light queues. So the device is cleared for requests of many visits, except in a probe from
// time to time. If requests then take hardly longer, the light queues run on.
type requestClear struct {
	began    sched.Time    // when the present or last request arrived; zero: none has
	lastWork sched.Time    // when the queue was last seen with work
	visits   uint64        // Visits.Count when the request began
	served   time.Duration // Queue.Served then
	launched uint64        // Counters.Launched then
	many     int           // rises with each request of many short visits, and falls with others
	paused   bool          // by its counters, the queue was out of work for a moment in the request
	pauses   int           // rises with each such request, and falls with others
	regular  bool          // requests come regularly

	cleared, beside requestMeans // of requests with a clear device, and of those beside light queues

	runsOn        bool // light queues run on, in the present request
	usuallyRunsOn bool // they usually do; otherwise the device is usually clear
	counts        bool // light queues would have run side by side in the request, so its length counts
	next          int  // requests until a probe of the other way begins; in a probe, until it ends
	wait          int  // the value of next after the last probe
}

const (
	manyVisits      = 6                      // of one request
	shortVisit      = 500 * time.Microsecond // mean of those: a longer one was ended by a slice
	usualRequests   = 2                      // alike requests, after which the next one is expected to be like them
	requestGap      = 2 * time.Millisecond   // without work, after which a request is over
	clearStep       = 2 * time.Millisecond   // how often the visits are looked at in a request
	maxRequestClear = time.Second            // for which the device is clear: the request may have no end

	// Less than one request in a hundred is part of a probe, so that probes do not set the P99.
	probedRequests   = 4 // of a probe
	firstProbeWait   = 1024
	longestProbeWait = 4 * firstProbeWait

	mayTakeLonger = 1.5 // times as long requests may take beside light queues
	tooSlow       = 2   // times as long ends that at once
)

// arrived ends the last request and begins the next.
func (c *requestClear) arrived(at sched.Time, q *sched.Queue) {
	if c.began > 0 {
		c.finish(q)
	}
	c.began, c.lastWork, c.visits, c.served, c.launched, c.counts, c.paused = at, at, q.Visits.Count, q.Served, q.Counters.Launched, false, false
	inProbe := c.runsOn != c.usuallyRunsOn
	switch slowdown := c.beside.slowdown(&c.cleared, q.Counters.Known); {
	case c.usuallyRunsOn && !inProbe && slowdown > tooSlow:
		c.usuallyRunsOn, c.runsOn, c.next, c.wait = false, false, firstProbeWait, firstProbeWait
	case c.next > 0, c.means().length.n < probedRequests:
		// Too few requests are known, or the last probe was lately.
	case !inProbe:
		c.runsOn, c.next = !c.runsOn, probedRequests
		*c.means() = requestMeans{}
	default:
		c.wait = min(max(4*c.wait, firstProbeWait), longestProbeWait)
		if slowdown <= mayTakeLonger != c.usuallyRunsOn {
			c.usuallyRunsOn, c.wait = !c.usuallyRunsOn, firstProbeWait
		}
		c.runsOn, c.next = c.usuallyRunsOn, c.wait
	}
}

// means returns the means that the present request counts for.
func (c *requestClear) means() *requestMeans {
	if c.runsOn {
		return &c.beside
	}
	return &c.cleared
}

// watch notes when the queue last had work. busy: its counters show work. Without counters its visits
// show it.
func (c *requestClear) watch(q *sched.Queue, now sched.Time, busy bool) {
	switch {
	case busy:
		c.lastWork = now
	case !q.Counters.Known && q.Visits.Left > c.began:
		c.lastWork = q.Visits.Left
	}
}

// finish takes into account how long the last request took, and how many visits it made.
func (c *requestClear) finish(q *sched.Queue) {
	visits, served := q.Visits.Count-c.visits, q.Served-c.served
	follow(&c.many, visits >= manyVisits && served <= times(visits, shortVisit))
	follow(&c.pauses, c.paused)
	if !c.counts {
		return
	}
	work := served
	if q.Counters.Known {
		work = times(q.Counters.Launched-c.launched, time.Microsecond)
	}
	c.next--
	c.means().add(min(c.lastWork.Sub(c.began), maxRequestClear), work)
}

// follow raises the score of a property if a request has it, and otherwise lowers it.
func follow(score *int, has bool) {
	if has {
		*score = min(*score+1, 4*usualRequests)
	} else {
		*score = max(*score-1, 0)
	}
}

// applies reports whether the device may be cleared for whole requests: they make many short visits, or
// they are regular, so that the device is clear when they arrive, and the queue runs out of work in them.
func (c *requestClear) applies() bool {
	return c.many >= usualRequests || c.regular && c.pauses >= usualRequests
}

// wanted reports whether the device is to be clear for whole requests now. always: light queues never
// run on.
func (c *requestClear) wanted(always bool) bool { return c.applies() && (always || !c.runsOn) }

// update reports whether the device is to be clear for the present request, and when to call it again
// even without an event; zero: never. sharing: light queues run side by side otherwise. If they run
// on, they do so only for twice as long as a request takes with a clear device. always: see wanted.
func (c *requestClear) update(q *sched.Queue, now sched.Time, sharing, always bool) (bool, sched.Time) {
	gap := requestGap
	if !q.Counters.Known {
		gap = sched.MinAbsence
	}
	if !sharing || !c.applies() || now.Sub(c.lastWork) >= gap || now.Sub(c.began) >= maxRequestClear {
		return false, 0
	}
	c.counts = c.counts || !always
	return c.wanted(always) || now >= c.began.Add(2*c.cleared.length.mean), now.Add(clearStep)
}

// requestMeans has the mean length of requests and their mean work: a microsecond for each command or,
// without counters, the device time that they get.
type requestMeans struct {
	length, work meanTime
}

func (p *requestMeans) add(length, work time.Duration) {
	p.length.add(length)
	p.work.add(work)
}

// slowdown returns how many times longer requests take than those of other, for the same work: requests
// differ in work, and some come so closely that they are taken for one. Device time is only roughly work,
// because a context without work stays on the device until another comes. So without counters the length
// itself must have grown too.
func (p *requestMeans) slowdown(other *requestMeans, counted bool) float64 {
	longer := float64(p.length.mean) / float64(max(other.length.mean, 1))
	forWork := longer * float64(max(other.work.mean, 1)) / float64(max(p.work.mean, 1))
	if counted {
		return forWork
	}
	return min(longer, forWork)
}
