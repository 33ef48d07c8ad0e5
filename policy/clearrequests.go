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
// light queue: simulated on an H200, a request of 20 kernels that takes 8 ms alone takes 47 ms beside
// four light jobs. One that launches many kernels without waiting comes on as often, but hardly
// takes longer, because its launches queue up meanwhile. Only the lengths of requests tell these two
// apart. So the device is cleared for requests that come on many times, and in a probe, from time to
// time, it is not. If requests then take hardly longer, the light queues run on.
type requestClear struct {
	began    sched.Time    // when the present or last request arrived; zero: none has
	lastWork sched.Time    // when the queue was last seen with work
	visits   uint64        // Visits.Count when the request began
	served   time.Duration // Queue.Served then
	launched uint64        // Counters.Launched then
	many     int           // rises with each request that came on many times, and falls with others
	paused   bool          // the request was out of work for a moment, by the counters
	pauses   int           // rises with each request of which that is true, and falls with others
	regular  bool          // requests come regularly

	cleared, beside requestPace // of requests with a clear device, and of those beside light queues

	runsOn        bool // light queues run on, in the present request
	usuallyRunsOn bool // they usually do; otherwise the device is usually clear
	counts        bool // light queues were to run side by side in the request, so its length tells something
	next          int  // requests until a probe of the other way begins; in a probe, until it ends
	wait          int  // the value of next after the last probe
}

const (
	manyVisits      = 6                      // of one request
	shortVisit      = 500 * time.Microsecond // mean of those: a longer one was ended by a slice
	usualRequests   = 2                      // requests in a row from which on the next are expected to be like them
	requestGap      = 2 * time.Millisecond   // without work, after which a request is over
	clearStep       = 2 * time.Millisecond   // how often the visits are looked at in a request
	maxRequestClear = time.Second            // for which the device is clear: the request may have no end

	// Less than one request in a hundred is part of a probe, so that the P99 is not one of those.
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
	case c.next > 0, c.pace().length.n < probedRequests:
		// Not enough is known, or it was found out lately.
	case !inProbe:
		c.runsOn, c.next = !c.runsOn, probedRequests
		*c.pace() = requestPace{}
	default:
		c.wait = min(max(4*c.wait, firstProbeWait), longestProbeWait)
		if slowdown <= mayTakeLonger != c.usuallyRunsOn {
			c.usuallyRunsOn, c.wait = !c.usuallyRunsOn, firstProbeWait
		}
		c.runsOn, c.next = c.usuallyRunsOn, c.wait
	}
}

// pace returns the pace of the way that is in use.
func (c *requestClear) pace() *requestPace {
	if c.runsOn {
		return &c.beside
	}
	return &c.cleared
}

// watch notes when the queue last had work. Busy says that its counters show some; without counters
// its visits do.
func (c *requestClear) watch(q *sched.Queue, now sched.Time, busy bool) {
	switch {
	case busy:
		c.lastWork = now
	case !q.Counters.Known && q.Visits.Left > c.began:
		c.lastWork = q.Visits.Left
	}
}

// finish takes into account how long the last request took, and how often it came on.
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
	c.pace().add(min(c.lastWork.Sub(c.began), maxRequestClear), work)
}

// follow raises a score if something is true of a request, and otherwise lowers it.
func follow(score *int, is bool) {
	if is {
		*score = min(*score+1, 4*usualRequests)
	} else {
		*score = max(*score-1, 0)
	}
}

// applies reports whether the device may be cleared for whole requests: they come on many times, or they are
// regular, so that the device is clear when they arrive, and run out of work for moments.
func (c *requestClear) applies() bool {
	return c.many >= usualRequests || c.regular && c.pauses >= usualRequests
}

// wanted reports whether the device is to be clear for whole requests now. Always says that light queues
// never run on.
func (c *requestClear) wanted(always bool) bool { return c.applies() && (always || !c.runsOn) }

// update reports whether the device is to be clear for the present request, and when to look again;
// zero is not by itself. Sharing says that light queues run side by side otherwise. If they run on,
// they do so only for somewhat longer than a request takes with a clear device.
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

// requestPace is how long requests take, and how much work they are: a microsecond for each command or,
// without counters, the device time that they get.
type requestPace struct {
	length, work meanTime
}

func (p *requestPace) add(length, work time.Duration) {
	p.length.add(length)
	p.work.add(work)
}

// slowdown returns how many times longer requests take than those of other, for their work: requests are
// of different lengths, and some come so closely that they are taken for one. Device time is not exactly
// work: a context stays on the device without any if no other comes. So where work is not counted the
// length must have grown too.
func (p *requestPace) slowdown(other *requestPace, counted bool) float64 {
	longer := float64(p.length.mean) / float64(max(other.length.mean, 1))
	forWork := longer * float64(max(other.work.mean, 1)) / float64(max(p.work.mean, 1))
	if counted {
		return forWork
	}
	return min(longer, forWork)
}
