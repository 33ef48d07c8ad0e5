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
	many     int           // rises with each request of many short visits, and falls with others

	cleared, beside requestMeans // of requests with a clear device, and of those beside light queues

	runsOn  bool // light queues run on, in the present request
	inProbe bool // they do so in a probe
	counts  bool // light queues would have run side by side in the request, so its length counts
	next    int  // requests until the next probe begins; in a probe, until it ends
	wait    int  // the value of next after the last probe
}

const (
	manyVisits       = 6                      // of one request
	shortVisit       = 500 * time.Microsecond // mean of those: a longer one was ended by a slice
	manyRequests     = 2                      // requests of many short visits, before the device is cleared
	requestGap       = 2 * time.Millisecond   // without work, after which a request is over
	clearStep        = 2 * time.Millisecond   // how often the visits are looked at in a request
	maxRequestClear  = time.Second            // for which the device is clear: the request may have no end
	besideProbe      = 4                      // requests of a probe
	firstProbeWait   = 256
	longestProbeWait = 16 * firstProbeWait
)

// arrived ends the last request and begins the next.
func (c *requestClear) arrived(at sched.Time, q *sched.Queue) {
	if c.began > 0 {
		c.finish(q.Visits.Count-c.visits, q.Served-c.served)
	}
	c.began, c.lastWork, c.visits, c.served, c.counts = at, at, q.Visits.Count, q.Served, false
	switch slowdown := c.beside.slowdown(&c.cleared); {
	case c.many < manyRequests:
		*c = requestClear{began: at, lastWork: at, visits: c.visits, served: c.served, many: c.many}
	case c.inProbe && c.next <= 0:
		c.inProbe = false
		c.wait = min(max(4*c.wait, firstProbeWait), longestProbeWait)
		c.runsOn, c.next = slowdown <= 1.5, c.wait
	case !c.runsOn && c.beside.length.n > 0 && slowdown <= 1.5:
		c.runsOn = true // requests with a clear device have become longer since the probe
	case c.runsOn && !c.inProbe && slowdown > 2:
		c.runsOn, c.cleared, c.next, c.wait = false, requestMeans{}, firstProbeWait, firstProbeWait
	case !c.runsOn && c.next <= 0 && c.cleared.length.n >= besideProbe:
		c.inProbe, c.runsOn, c.next, c.beside = true, true, besideProbe, requestMeans{}
	}
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
func (c *requestClear) finish(visits uint64, served time.Duration) {
	if c.many = min(c.many+1, 4*manyRequests); visits < manyVisits || served > times(visits, shortVisit) {
		c.many = max(c.many-2, 0)
	}
	if !c.counts {
		return
	}
	length := min(c.lastWork.Sub(c.began), maxRequestClear)
	if c.next--; c.runsOn {
		c.beside.add(length, served)
	} else {
		c.cleared.add(length, served)
	}
}

// update reports whether the device is to be clear for the present request, and when to call it again
// even without an event; zero: never. sharing: light queues run side by side otherwise. If they run
// on, they do so only for twice as long as a request takes with a clear device.
func (c *requestClear) update(q *sched.Queue, now sched.Time, sharing bool) (bool, sched.Time) {
	gap := requestGap
	if !q.Counters.Known {
		gap = sched.MinAbsence
	}
	if !sharing || c.many < manyRequests || now.Sub(c.lastWork) >= gap || now.Sub(c.began) >= maxRequestClear {
		return false, 0
	}
	c.counts = true
	return !c.runsOn || now >= c.began.Add(2*c.cleared.length.mean), now.Add(clearStep)
}

// requestMeans has the mean length of requests and their mean device time.
type requestMeans struct {
	length, served meanTime
}

func (p *requestMeans) add(length, served time.Duration) {
	p.length.add(length)
	p.served.add(served)
}

// slowdown returns how many times longer requests take than those of other. Requests that come so
// closely that they are taken for one are long, but get more device time as well. So the length for
// the device time must have grown too.
func (p *requestMeans) slowdown(other *requestMeans) float64 {
	longer := float64(p.length.mean) / float64(max(other.length.mean, 1))
	return longer * min(1, float64(other.served.mean)/float64(max(p.served.mean, 1)))
}
