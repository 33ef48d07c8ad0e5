package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// burst ends ping-pong. An online queue that waits for each of its kernels is out of work
// after each, so the hardware switches to the batch queue, which has the minimum slice, and
// back as soon as the next kernel is launched. Each kernel costs two switches. Measured on
// an H200 with kernels of 100 us, 1 us apart: online work takes 451 us a kernel (alone: 110
// us), and batch work makes no progress.
//
// burst recognizes such a loop in the visits that the hardware counts. It then stops batch
// queues for a burst, in which the loop runs as if alone, lets them run with the device's
// own slice in the gap until the next burst, and so on. In a gap the loop is served as it
// is natively. A batch queue that cannot be stopped keeps the minimum slice in a burst: the
// loop gains nothing, but batch work makes progress in the gaps.
//
// A process that uses late entry needs no bursts: late entry costs it nothing, and leaves more
// of the device to batch work than bursts do.
//
// A queue that is alone on the device makes no visits, so only a gap shows whether the loop
// goes on: its queue then comes on after every slice of the batch queue. If it does not, the
// bursts end. Where counters are known, they also end as soon as no online queue has work.
// Bursts are left from time to time, because a gap cannot show what batch work would get
// with the minimum slice.
type burst struct {
	length time.Duration // of a burst; zero: no bursts
	gap    time.Duration

	phase       burstPhase
	since       sched.Time    // when the phase began
	entered     sched.Time    // when the first burst began
	from        visitCount    // at the start of the window in which visits are counted
	window      time.Duration // how long that is, before the first burst
	workedAt    sched.Time    // when an online queue last had work, or may have had
	launched    uint64        // commands that online queues had launched at the last plan
	lateEntries uint64        // late entries of online queues, at the last plan
	lateEntryAt sched.Time    // when that last changed
	wake        sched.Time    // when the phase may change without an event
}

type burstPhase uint8

const (
	noBurst burstPhase = iota // the policy's setting is in force
	inBurst                   // batch queues that can be stopped are
	inGap                     // batch queues have the device's own slice
)

const (
	firstWindow    = 50 * time.Millisecond
	longestWindow  = time.Second
	burstRecheck   = 5 * time.Second      // after which bursts are left, to see whether they are still needed
	burstIdle      = 5 * time.Millisecond // bursts end if no online queue has had work for so long
	lateEntryPause = 2 * time.Second      // no bursts for so long after a late entry

)

func (b *burst) burstParams() params {
	b.length, b.gap = 72*time.Millisecond, 28*time.Millisecond
	return params{
		durationParam("burst", &b.length, 0, time.Second, "how long batch queues are stopped at a time for an online queue that waits for each of its kernels; 0s is never"),
		durationParam("gap", &b.gap, time.Millisecond, time.Second, "how long batch queues run between two bursts, with the device's default slice"),
	}
}

// visitCount is what the hardware has counted up to a time.
type visitCount struct {
	at          sched.Time
	online      uint64        // visits of online queues
	batch       uint64        // visits of batch and class-idle queues
	batchServed time.Duration // device time of those
	queues      uint64        // a checksum of the queues that were counted, and their classes
	lateEntries uint64        // late entries of online queues
	known       bool          // visits of online queues and of batch queues are known
}

// update begins and ends bursts. allowed says that the setting of this plan makes the
// hardware leave batch queues as soon as online work is ready.
func (b *burst) update(v *sched.View, allowed bool) {
	count := countVisits(v)
	b.wake = 0
	if count.queues == b.from.queues && count.lateEntries != b.lateEntries {
		b.lateEntryAt = max(v.Now, 1)
	}
	b.lateEntries = count.lateEntries
	entersLate := b.lateEntryAt > 0 && v.Now < b.lateEntryAt.Add(lateEntryPause)
	if !allowed || b.length == 0 || !count.known || entersLate {
		b.leave(v.Now, count, max(b.window, firstWindow))
		if entersLate {
			b.wake = b.lateEntryAt.Add(lateEntryPause)
		}
		return
	}
	if count.queues != b.from.queues {
		b.from = count // counts of other queues cannot be compared
	}
	switch b.phase {
	case noBurst:
		b.findPingPong(v.Now, &v.Devices[0], count)
	case inBurst:
		b.endBurst(v, count)
	case inGap:
		b.endGap(v.Now, count, v.Devices[0].Slice)
	}
}

// findPingPong begins the first burst if the last window shows ping-pong.
func (b *burst) findPingPong(now sched.Time, dev *sched.Device, count visitCount) {
	b.window = max(b.window, firstWindow)
	if count.at.Sub(b.from.at) >= b.window {
		if b.pingPong(dev, count) {
			b.phase, b.since, b.entered = inBurst, now, now
			b.workedAt, b.wake = now, now.Add(min(b.length, burstIdle))
		}
		b.from = count
	}
	if b.phase != noBurst {
		return
	}
	if b.wake = b.from.at.Add(b.window); b.wake <= now {
		b.wake = now.Add(b.window)
	}
}

// pingPong reports whether the window that ends now was spent on switches between online
// and batch queues, and batch work would get more in gaps.
//
// A visit of an online queue costs two switches. A visit of a batch queue that is cut off at once
// counts as half of MinSharedSlice, in which it makes no progress: on an H200 the trace counts half of
// each switch, and 40 us pass before the queue continues, about 100 us in all.
func (b *burst) pingPong(dev *sched.Device, count visitCount) bool {
	length := count.at.Sub(b.from.at)
	visits, batchVisits := count.online-b.from.online, count.batch-b.from.batch
	useful := count.batchServed - b.from.batchServed - times(batchVisits, dev.MinSharedSlice/2)
	inGaps := float64(length) * float64(b.gap) / float64(b.length+b.gap)
	return times(visits, 2*dev.SwitchTime) >= length/5 && batchVisits >= visits/2 && float64(useful) < inGaps*3/4
}

// endBurst ends the burst when it is over, or all bursts when no online queue has work.
func (b *burst) endBurst(v *sched.View, count visitCount) {
	works, launched := onlineWorks(v)
	if works || launched != b.launched {
		b.workedAt = v.Now
	}
	b.launched = launched
	idleAt, over := b.workedAt.Add(burstIdle), b.since.Add(b.length)
	switch {
	case v.Now >= idleAt:
		b.leave(v.Now, count, firstWindow)
	case v.Now >= over:
		b.phase, b.since, b.from.at, b.wake = inGap, v.Now, 0, v.Now.Add(b.gap)
	default:
		b.wake = min(idleAt, over)
	}
}

// endGap ends the gap when it is over. A burst follows if the online queue came on after every
// slice of the batch queue, or if the gap was measured for too short a time to decide.
func (b *burst) endGap(now sched.Time, count visitCount, slice time.Duration) {
	if b.from.at == 0 && count.at > b.since {
		b.from = count
	}
	if over := b.since.Add(b.gap); now < over {
		b.wake = over
		return
	}
	visits, served := count.online-b.from.online, count.batchServed-b.from.batchServed
	judged := b.from.at > 0 && count.at.Sub(b.from.at) >= b.gap/4
	loops := visits > 0 && served <= times(visits, slice)*3/2
	switch {
	case judged && !loops && now.Sub(b.entered) < 3*(b.length+b.gap):
		// Bursts that end at once should begin less readily the next time.
		b.leave(now, count, min(2*b.window, longestWindow))
	case judged && !loops, now.Sub(b.entered) >= burstRecheck:
		b.leave(now, count, firstWindow)
	default:
		b.phase, b.since, b.workedAt = inBurst, now, now
		b.wake = now.Add(min(b.length, burstIdle))
	}
}

// leave ends all bursts. The next begin after a window that shows ping-pong again.
func (b *burst) leave(now sched.Time, count visitCount, window time.Duration) {
	if b.phase != noBurst {
		b.phase, b.since = noBurst, now
		b.wake = now.Add(window)
	}
	b.from, b.window = count, window
}

// stops reports whether q is stopped because of a burst.
func (b *burst) stops(dev *sched.Device, q *sched.Queue) bool {
	return b.phase == inBurst && givesWay(q) && yieldsBySlice(dev, q) && q.Level() != sched.LevelNone && q.Runnable()
}

// countVisits returns what the hardware has counted so far.
func countVisits(v *sched.View) (c visitCount) {
	online, batch := false, false
	for i := range v.Queues {
		q := &v.Queues[i]
		switch {
		case !q.Visits.Known:
			continue
		case q.Attr.Class == sched.Online:
			online = true
			c.online += q.Visits.Count
			c.lateEntries += q.Counters.Late
		case givesWay(q) && yieldsBySlice(&v.Devices[0], q):
			batch = true
			c.batch += q.Visits.Count
			c.batchServed += q.Served
		default:
			continue
		}
		c.at = max(c.at, q.MeasuredAt)
		c.queues = addToChecksum(c.queues, q)
	}
	c.known = online && batch
	return c
}

// onlineWorks reports whether an online queue has work, as far as is known, and how many
// commands the online queues have launched.
func onlineWorks(v *sched.View) (works bool, launched uint64) {
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Attr.Class == sched.Online {
			works = works || q.Runnable()
			launched += q.Counters.Launched
		}
	}
	return works, launched
}

// times returns n times d, within limits.
func times(n uint64, d time.Duration) time.Duration {
	return time.Duration(min(n, 1<<24)) * d
}
