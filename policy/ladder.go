package policy

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// ladder holds the settings that slo chooses from, and what is known about each.
// The rungs are in the order in which batch work gives way further.
//
// It begins at the rung where batch work gives way at once, and tries milder ones.
// A trial lasts a few requests. It ends at the first late request, or if the
// slowest requests show that later ones will be late. The rung is then not tried
// again for a pause, which doubles each time. If no request is late and batch work
// gains by it, the rung becomes the chosen one. The ladder leaves the chosen rung
// when too many requests are late: a few in a row are enough, while an occasional
// one is tolerated. A late request counts double if others were nearly late.
//
// A host that stalls for a moment makes requests late under any setting. Such
// requests take so much longer than the others that no slice can be the reason.
// They do not count.
type ladder struct {
	rungs  [maxRungs]rung
	last   int // index of the last rung
	start  int // where the ladder begins: batch work has the minimum slice or, without slices, is stopped
	device sched.Device

	current   int        // the rung in force
	chosen    int        // the best known rung, to which a trial returns
	changedAt sched.Time // when current was set
	since     sched.Time // since when current is in force; Never until it is

	// Of the requests that began since then:
	requests int
	late     int
	lastLate [lateLimit]int        // numbers of the last late requests, the newest first
	spare    [recent]time.Duration // SLO minus duration of the last requests
	took     [recent]time.Duration // their durations
	failed   bool                  // too many were late

	// Of all requests:
	allTook     [2 * trialRequests]time.Duration // durations of the last requests
	total       int
	counted     float64 // number of them, of the last budgetRequests or so
	stalls      float64 // of those, late ones that took so long that a stall may be the reason
	stallsInRow int
	lateCounted float64 // of those, late ones that count: see stalled

	measured    bool // the hardware measures what batch work gets
	beside      int  // batch queues that run side by side, except at the minimum slice
	resetScores bool // the chosen rung has changed

	// At the start rung light batch queues run side by side between regular requests, unless
	// that made too many requests late.
	predicts     bool // they do, as of the last plan
	predictRetry sched.Time
	predictPause time.Duration
}

// rung is a setting and what is known about it. The counts fade.
type rung struct {
	setting // on a device with slices, stop is from the start of a request to its end

	tried, late float64 // requests, and late ones

	wall, batch, lost time.Duration // measured time; batch work's part of it; the part in which no context was on the device
	requests          float64       // finished in that time
	open              time.Duration // sum of their durations

	retry sched.Time    // no trial before this
	pause time.Duration // before the last retry
}

// The figures below are means of six runs of 60 s in the simulator on an H200, each
// beside a training job, unless they name a test.
const (
	maxRungs = 7 // default slice, up to four halvings, minimum slice, stop

	// A trial takes at least trialRequests requests and trialTime, so half a
	// second at 32 requests a second or more. TestSLOConverges allows 4 s.
	trialRequests = 16
	trialTime     = 500 * time.Millisecond
	recent        = 4 * trialRequests

	// slo aims at 99 % of requests in time. Of the 1 % that may be late, 0.4 are
	// for the chosen setting and 0.6 for stalls of the host. Trials get 0.3. With
	// 0.4 for trials, 98.97 % were in time in the worst run with kernels launched
	// one by one on a noisy host. With 0.3 for the setting, batch work kept 94.8 %
	// on a host with stalls, not 95.1 % (TestSLOBearsABusyHost).
	mayBeLate      = 0.01
	lateBySetting  = 0.4 * mayBeLate
	lateByStall    = 0.6 * mayBeLate
	lateByTrial    = 0.3 * mayBeLate
	budgetRequests = 20 / mayBeLate // over which these parts are counted

	// lateLimit late requests in a row end a setting. If they are within
	// trialRequests requests, the load has changed and the ladder begins anew.
	// One rung at a time instead let more requests be late after a change of
	// load (9 of 500, TestSLOFollowsTheLoad); always beginning anew cost batch
	// work up to 10 % (kernels launched one by one, SLO 1.2 times what they take).
	lateLimit = 3

	// A late request that takes longer than usual by stallFactor slices, and by
	// stallFactor times the spread of the slowest tenth, is a stall. With a
	// factor of 3 too many counted as stalls: 98.99 % in time on a noisy host.
	stallFactor    = 4
	maxStallsInRow = 2 * lateLimit

	// minGain is the part of its work that batch work must gain by a milder rung.
	// Less is below the noise of a trial, and the stricter rung is better for
	// online work.
	minGain = 0.02

	// stopLoss is the part of the time lost in switches above which batch work
	// may gain by being stopped during requests. Trying it always cost batch
	// work 0.6 % beside kernels launched one by one, which gain nothing by it.
	stopLoss = 0.08

	// A rung with late requests is tried again after latePause, so that trials
	// take a tenth of the time at most; one without a gain after noGainPause. The
	// pause doubles up to maxPause. With one pause of 10 s for both, batch work
	// kept 94.8 % on a host with stalls (TestSLOBearsABusyHost).
	latePause   = 10 * trialTime
	noGainPause = 4 * latePause
	maxPause    = 2 * time.Minute

	// refillPart is the part of the time without any context that batch work
	// loses besides: a context that was cut off inside a kernel makes no progress
	// for 40 us after the two switches, which take 330 us (measured on an H200).
	refillPart = 8
)

// build makes the rungs for a device.
func (l *ladder) build(dev sched.Device) {
	*l = ladder{device: dev, since: sched.Never, resetScores: true}
	if dev.Sliced() {
		n := 1
		for s := dev.Slice / 2; s >= max(dev.MinSharedSlice, 2) && n < maxRungs-2; s /= 2 {
			l.rungs[n].slice = s
			n++
		}
		l.start, l.last = n, n+1
		l.rungs[l.start].slice = sched.MinSlice
		l.rungs[l.last].setting = setting{slice: sched.MinSlice, stop: true}
	} else {
		l.start, l.last = 3, 3
		l.rungs[1].bound = 4 * batchBound
		l.rungs[2].bound = batchBound
		l.rungs[3].setting = setting{bound: batchBound, stop: true}
	}
	l.current, l.chosen = l.start, l.start
}

// setting returns the setting of a rung. Light batch queues run side by side with the same
// slice as the queue whose turn it is, unless that is the minimum slice: then all of them
// take turns.
func (l *ladder) setting(i int) setting {
	set := l.rungs[i].setting
	set.shared = set.slice
	return set
}

// forget drops what is known about the rungs, because the queues on the device
// have changed.
func (l *ladder) forget() {
	for i := range l.rungs {
		l.rungs[i] = rung{setting: l.rungs[i].setting}
	}
	l.put(l.current, l.changedAt)
}

// restart begins anew at the start rung.
func (l *ladder) restart(now sched.Time) {
	l.chosen, l.resetScores = l.start, true
	l.put(l.start, now)
	l.forget()
}

// put makes a rung the current one.
func (l *ladder) put(i int, now sched.Time) {
	l.current, l.changedAt, l.since = i, now, sched.Never
	l.requests, l.late, l.failed, l.stallsInRow = 0, 0, false, 0
	l.lastLate = [lateLimit]int{}
}

// confirm sets since when the queue whose turn it is has the current setting, or
// when trialTime has passed without that.
func (l *ladder) confirm(v *sched.View, turnOf sched.QueueID) {
	if l.since != sched.Never {
		return
	}
	r := &l.rungs[l.current]
	i, ok := index(v.Queues, turnOf)
	if ok && v.Queues[i].Slice == r.slice && v.Queues[i].Bound == r.bound || v.Now.Sub(l.changedAt) > trialTime {
		l.since = v.Now
	}
}

// duration records how long a finished request took.
func (l *ladder) duration(took time.Duration) {
	l.allTook[l.total%len(l.allTook)] = took
	l.total++
}

// request counts a request that is finished or late: when it began, how long it took
// and was allowed to take, and the score of its queue.
func (l *ladder) request(began sched.Time, took, allowed time.Duration, score *float64) {
	late := took > allowed
	stalled := late && l.stalled(took)
	if !late {
		l.stallsInRow = 0
	}
	l.stalls -= l.stalls / budgetRequests
	l.counted += 1 - l.counted/budgetRequests
	l.lateCounted -= l.lateCounted / budgetRequests
	if stalled {
		return
	}
	if late {
		l.lateCounted++
	}
	if began < l.since {
		return
	}
	r := &l.rungs[l.current]
	if r.tried++; r.tried > 4*recent {
		r.tried, r.late = r.tried/2, r.late/2
	}
	n := l.requests % recent
	l.spare[n], l.took[n] = allowed-took, took
	l.requests++
	if late {
		r.late++
		l.late++
		copy(l.lastLate[1:], l.lastLate[:])
		l.lastLate[0] = l.requests
	}
	if l.current != l.chosen {
		return // the first late request ends a trial: it needs no score
	}
	if !late {
		*score = max(*score-lateBySetting, 0)
		return
	}
	if *score++; l.nearlyLate() {
		*score++
	}
	l.failed = l.failed || *score >= lateLimit
}

// stalled reports whether a late request took so long that the setting is not the
// reason. If that happens often, or often in a row, the setting is the reason.
func (l *ladder) stalled(took time.Duration) bool {
	if l.total < trialRequests/2 || took < l.stallTime() {
		l.stallsInRow = 0
		return false
	}
	l.stalls++
	l.stallsInRow++
	limit := maxStallsInRow
	if l.current != l.chosen {
		limit = 1 // two in a row are due to the trial
	}
	return l.stallsInRow <= limit && l.stalls <= maxStallsInRow+lateByStall*min(float64(l.total), budgetRequests)
}

// stallTime returns how long a late request takes at least if the setting is not the
// reason.
func (l *ladder) stallTime() time.Duration {
	usual := quantileOf(l.allTook[:], l.total, 1, 2)
	spread := quantileOf(l.allTook[:], l.total, 9, 10) - usual
	return usual + stallFactor*max(l.sliceOf(l.current), l.device.StopTime, spread)
}

// latePeriod returns after how long a request that is still open counts as late. From
// its SLO on it is late, but until stallTime it may yet turn out to be a stall.
func (l *ladder) latePeriod(allowed time.Duration) time.Duration {
	return min(max(allowed+1, l.stallTime()), 2*allowed)
}

// decide changes the current rung if it is time to.
func (l *ladder) decide(now sched.Time) {
	switch {
	case l.current != l.chosen && l.late > 0:
		l.endTrial(now)
	case l.failed && l.predicts:
		l.stopPredicting(now)
	case l.failed:
		l.leave(now)
	case l.requests < trialRequests || now.Sub(l.since) < trialTime || l.measured && l.rungs[l.current].wall < trialTime:
		// Not enough is known.
	case l.current < l.chosen && l.nearlyLate():
		l.endTrial(now)
	default:
		l.move(now)
	}
}

// endTrial returns to the chosen rung and pauses the current one.
func (l *ladder) endTrial(now sched.Time) {
	l.pause(l.current, now, latePause)
	l.put(l.chosen, now)
}

// leave chooses a rung on which batch work gives way further.
func (l *ladder) leave(now sched.Time) {
	l.pause(l.chosen, now, latePause)
	l.resetScores = true
	switch sudden := l.requests-l.lastLate[min(l.late, lateLimit)-1] < trialRequests; {
	case l.chosen < l.start && sudden:
		l.chosen = l.start
	case l.chosen < l.start:
		l.chosen++
	case l.chosen == l.start && l.mayStop() && now >= l.rungs[l.last].retry:
		l.chosen = l.last
	case l.chosen > l.start && l.rungs[l.chosen].lateRate() > l.rungs[l.start].lateRate():
		l.chosen = l.start // more requests are late, and batch work gets less
	}
	l.put(l.chosen, now)
}

// mayPredict reports whether light batch queues may run side by side between regular requests
// although the rung lets them take turns.
func (l *ladder) mayPredict(now sched.Time) bool {
	return l.current == l.start && l.device.Sliced() && now >= l.predictRetry
}

// stopPredicting lets light batch queues take turns for a pause: requests were late, so they
// may come at other times than predicted.
func (l *ladder) stopPredicting(now sched.Time) {
	l.predictPause = min(max(2*l.predictPause, latePause), maxPause)
	l.predictRetry, l.resetScores = now.Add(l.predictPause), true
	l.put(l.current, now)
}

// mostlyLate reports whether most requests are late although batch work gives way at once, and
// they are too short to stop it for each.
func (l *ladder) mostlyLate() bool {
	r := &l.rungs[l.start]
	return l.current == l.start && l.chosen == l.start && r.tried >= trialRequests && r.lateRate() > 0.5 && !l.mayStop()
}

// lateRate is the part of the requests that were late.
func (r *rung) lateRate() float64 { return r.late / max(r.tried, 1) }

// pause sets when a rung may be tried again. The pause doubles each time, and once
// more if most requests were late.
func (l *ladder) pause(i int, now sched.Time, first time.Duration) {
	r := &l.rungs[i]
	r.pause = max(2*r.pause, first)
	if r.lateRate() > 0.5 {
		r.pause *= 2
	}
	r.pause = min(r.pause, maxPause)
	r.retry = now.Add(r.pause)
}

// move ends a trial without late requests, and begins the next if there is one.
func (l *ladder) move(now sched.Time) {
	if l.current != l.chosen {
		if l.gain(l.current, l.chosen) > minGain {
			if l.current > l.chosen {
				l.pause(l.chosen, now, noGainPause)
			}
			l.chosen, l.resetScores = l.current, true
		} else {
			l.pause(l.current, now, noGainPause)
		}
	}
	switch c := &l.rungs[l.chosen]; {
	case l.current <= l.chosen && l.current > 0 && l.mayTry(l.current-1, now):
		l.put(l.current-1, now)
	case l.current != l.chosen:
		l.put(l.chosen, now)
	case l.chosen <= l.start && float64(c.lost) > stopLoss*float64(c.wall) && l.mayStop() && l.mayTry(l.last, now):
		l.put(l.last, now)
	}
}

// mayTry reports whether a trial of a rung is due, within the budget of late
// requests, and likely to succeed. A request that becomes ready when batch work has
// just begun its slice takes longer by the difference of the slices. Nine of ten
// requests must have that much to spare.
func (l *ladder) mayTry(i int, now sched.Time) bool {
	if now < l.rungs[i].retry || l.lateCounted > 1+lateByTrial*l.counted {
		return false
	}
	return i > l.current || l.spareOf(1, 10) > l.sliceOf(i)-l.sliceOf(l.current)
}

// nearlyLate reports whether one in a hundred requests would be late, even if none
// has been, if the durations of the slow requests are normally distributed. Then
// the time from the slowest tenth to the slowest hundredth is 1.72 times that from
// the slowest quarter to the slowest tenth. If there are two kinds of requests, the
// quarter may be of the faster kind; so the time from the slowest tenth to the very
// slowest is used if it is shorter.
func (l *ladder) nearlyLate() bool {
	if l.requests < trialRequests {
		return false
	}
	least, tenth, quarter := l.spareOf(0, 1), l.spareOf(1, 10), l.spareOf(1, 4)
	return float64(tenth) < 1.72*float64(min(quarter-tenth, tenth-least))
}

// mayStop reports whether there is a rung beyond the start, which stops batch work
// during requests, and requests take long enough for a stop and a start.
func (l *ladder) mayStop() bool {
	return l.last > l.start && quantileOf(l.took[:], l.requests, 1, 2) > 2*l.device.StopTime
}

// sliceOf returns for how long batch work stays on the device when online work is
// ready, at most: a slice of each queue that runs side by side.
func (l *ladder) sliceOf(i int) time.Duration {
	queues := time.Duration(max(l.beside, 1))
	switch s := l.rungs[i].slice; s {
	case 0:
		return queues * l.device.Slice
	case sched.MinSlice:
		return 0
	default:
		return queues * s
	}
}

// spareOf returns a quantile of the time that the last requests had to spare.
func (l *ladder) spareOf(num, den int) time.Duration {
	return quantileOf(l.spare[:], l.requests, num, den)
}

// quantileOf returns the value below which num/den of the last n values in a ring
// are, or 0 if there are none.
func quantileOf(ring []time.Duration, n, num, den int) time.Duration {
	var buf [recent]time.Duration
	values := buf[:copy(buf[:], ring[:min(n, len(ring))])]
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)*num/den]
}

// gain returns what batch work would gain by rung i over rung j, as a part of what
// it gets with j. It compares what batch work loses for each request, because
// requests come at changing rates. In a closed loop the rung itself changes the rate:
// there it compares what batch work gets. Without measurements a milder rung is better.
func (l *ladder) gain(i, j int) float64 {
	const minTime, minRequests = trialTime / 2, trialRequests / 2
	a, b := &l.rungs[i], &l.rungs[j]
	if !l.measured || a.wall < minTime || b.wall < minTime || a.requests < minRequests || b.requests < minRequests {
		return float64(j - i)
	}
	gets := float64(b.batch) / float64(b.wall)
	if closedLoop(a, b) {
		return (float64(a.batch)/float64(a.wall) - gets) / max(gets, 0.01)
	}
	lossA, lossB := float64(a.wall-a.batch)/a.requests, float64(b.wall-b.batch)/b.requests
	return (lossB - lossA) * b.requests / float64(b.wall) / max(gets, 0.01)
}

// closedLoop reports whether requests came less often with one rung because they took
// longer: between two of them the process paused for as long as with the other.
func closedLoop(a, b *rung) bool {
	cycleA, pauseA := a.cycle()
	cycleB, pauseB := b.cycle()
	slower := max(cycleA-cycleB, cycleB-cycleA)
	return slower > max(cycleA, cycleB)/8 && max(pauseA-pauseB, pauseB-pauseA) < slower/4
}

// cycle returns the mean time from one request to the next, and the part of it in which none
// was open, both in nanoseconds.
func (r *rung) cycle() (whole, pause float64) {
	whole = float64(r.wall) / r.requests
	return whole, max(whole-float64(r.open)/r.requests, 0)
}

// gauge measures what batch work gets of the device.
//
// The hardware measures whose context was on the device, at work or not. For batch
// work that is more than its progress: see refillPart.
type gauge struct {
	at       sched.Time    // of the last reading
	all      time.Duration // service of all queues then
	batch    time.Duration // service of batch and idle queues then
	queues   int
	finished float64       // requests since the last reading
	open     time.Duration // sum of their durations
	rung     int
	since    sched.Time // of the rung
}

// read adds to the current rung what was measured since the last reading: some requests have
// finished since, and open is the sum of their durations.
func (g *gauge) read(v *sched.View, l *ladder, finished int, open time.Duration) {
	now := gauge{queues: len(v.Queues), rung: l.current, since: l.since, finished: g.finished + float64(finished), open: g.open + open}
	l.measured = true
	anyBatch := false
	for i := range v.Queues {
		q := &v.Queues[i]
		batch := givesWay(q)
		if q.Measured {
			now.at = max(now.at, q.MeasuredAt)
			now.all += q.Served
		}
		if batch {
			now.batch += q.Served
			anyBatch = true
		}
		l.measured = l.measured && (q.Measured || !batch)
	}
	l.measured = l.measured && anyBatch
	old := *g
	same := old.queues == now.queues && old.rung == now.rung && old.since == now.since
	if !l.measured || same && now.at <= old.at {
		g.finished, g.open = now.finished, now.open
		return
	}
	*g = now
	g.finished, g.open = 0, 0
	wall := now.at.Sub(old.at)
	if !same || old.at < l.since || now.all < old.all || now.batch < old.batch {
		return // part of it was under another setting
	}
	r := &l.rungs[l.current]
	lost := max(wall-(now.all-old.all), 0)
	r.wall += wall
	r.lost += lost
	r.batch += max(now.batch-old.batch-lost/refillPart, 0)
	r.requests += now.finished
	r.open += now.open
	if r.wall > 8*trialTime {
		r.wall, r.lost, r.batch, r.requests, r.open = r.wall/2, r.lost/2, r.batch/2, r.requests/2, r.open/2
	}
}
