package policy

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// slo is giveway with a feedback loop. Under giveway batch work gives way as far as
// it can, which is often further than online work needs: a service with an SLO of
// 10 ms whose requests take 3 ms leaves room for longer batch slices. How much room
// depends on the process. A request that is one dense piece of work waits for a
// batch slice once. One that launches its kernels one by one hardly waits, and
// batch work gets the gaps between kernels. One that waits for the end of each
// kernel waits for a batch slice each time, and may need batch work stopped for
// the whole request. slo measures how long requests take and what batch work gets
// under each of a few settings: see ladder.
//
// An online queue without an SLO, or without reported requests, must be served as
// fast as possible. Then slo is giveway, until that queue has launched nothing for
// the time quiet. After quiet without requests, batch and online queues have the
// device's default slice.
type slo struct {
	params
	base  *giveway
	quiet time.Duration

	ladder   ladder
	gauge    gauge
	finished []finishedRequest // since the last plan
	requests perQueue[requestState]

	countedAt   sched.Time // when open requests were last counted
	lastRequest sched.Time // when a request was last open or finished
	isQuiet     bool
	quietEnd    sched.Time // when isQuiet was last cleared; zero once a request has finished since

	// How often the time until isQuiet is set was doubled, because the first request after it was
	// late, and how many first requests were in time since then.
	quietDoubled int
	firstInTime  int
}

// requestState is what slo keeps about the requests of an online queue.
type requestState struct {
	online      bool          // it is of class online, and not paused
	tightest    time.Duration // the tightest SLO that it has had since it became online; zero: none
	lateScore   float64       // of late requests: see ladder.addRequest
	reports     bool          // its requests are reported
	oldestSince sched.Time    // when its oldest open request began: Queue.RequestSince at the last plan
	countsFrom  sched.Time    // start of the time that counts for that request: see openFrom
	latePeriods int           // late periods since then that were counted: see countOpen
	countedLate bool          // that request has counted as late
	launched    uint64        // Counters.Launched at the last plan
	workedAt    sched.Time    // when it was last ready or launched commands
}

type finishedRequest struct {
	queue sched.QueueID
	took  time.Duration
	at    sched.Time
}

const (
	maxFinished = 4096             // requests kept between two plans
	maxQuiet    = 10 * time.Minute // longest time until isQuiet is set
	halveQuiet  = 16               // first requests in time that undo a doubling
	maxStop     = time.Second      // of batch work for one request: well below the scheduler's StallLimit

	// maxLatePeriods is for how many times the longest late period an open request
	// counts. More than maxStallsInRow+lateLimit end any setting. The end of a
	// request that is open for longer may never be reported.
	maxLatePeriods = 16
)

func newSLO() sched.Policy {
	p := &slo{base: makeGiveway(), quiet: 2 * time.Second}
	p.base.readsSLO = true
	for _, param := range p.base.params {
		if param.name != "slice" && param.name != "bound" { // slo sets these in each plan
			p.params = append(p.params, param)
		}
	}
	p.params = append(p.params, durationParam("quiet", &p.quiet, time.Millisecond, maxQuiet, "how long after the last request batch work gets the device's default slice"))
	return p
}

// Observe implements sched.Observer. The ladder's knowledge is about the present online queues, so it
// is dropped when one of them is closed. Other queues come and go more often than a probe takes: for
// those see gauge.
func (p *slo) Observe(now sched.Time, ev *sched.Event) {
	switch ev.Kind {
	case sched.RequestFinished:
		if len(p.finished) < maxFinished {
			p.finished = append(p.finished, finishedRequest{ev.Queue, ev.Duration, now})
		}
	case sched.QueueClosed:
		if i, known := slices.BinarySearch(p.requests.ids, ev.Queue); known && p.requests.values[i].online {
			p.ladder.forget()
		}
	}
}

// Plan implements sched.Policy.
func (p *slo) Plan(v *sched.View) sched.Plan {
	if dev := v.Devices[0]; dev != p.ladder.device {
		p.ladder.build(dev)
	}
	requests := p.requests.update(v.Queues)
	finished, openTime := p.countRequests(v, requests)
	adapts := p.updateQueues(v, requests)
	if p.ladder.resetScores {
		p.ladder.resetScores = false
		for i := range requests {
			requests[i].lateScore = 0
		}
	}
	wake := p.updateQuiet(v.Now, adapts)
	set := p.ladder.setting(p.ladder.start, p.base.onlineSlice) // as giveway, unless slo adapts
	set.sharedSlice = p.base.sharedSlice
	switch {
	case p.isQuiet:
		set = p.ladder.setting(0, 0)
	case adapts:
		p.adapt(v, requests, finished, openTime)
		wake = earlier(wake, p.nextLate(v, requests))
		set = p.adaptedSetting(v.Now)
	}
	set.bursts = !adapts || p.ladder.mostlyLate()
	set.clearRequests = !adapts || set.betweenRequests // the setting says how long requests may take
	plan := p.base.planWith(v, set)
	p.ladder.predicts = set.betweenRequests && p.base.sharesBetweenRequests
	plan.Wake = earlier(plan.Wake, wake)
	if set.stopDuringRequests {
		p.stopBatch(v, &plan)
	}
	return plan
}

// adapt passes to the ladder what was measured and which requests are late, and lets it decide
// which rung is in force. The order matters: a rung must be confirmed before open
// requests count for it.
func (p *slo) adapt(v *sched.View, requests []requestState, finished int, openTime time.Duration) {
	p.gauge.read(v, &p.ladder, finished, openTime)
	p.ladder.queuesBeside = 0
	if p.base.mayShare {
		p.ladder.queuesBeside = min(p.base.lightQueues, p.base.group.limit)
		p.ladder.measured = false // light queues do more side by side, with less time on the device
	}
	if p.base.inTrialOrOverlap() {
		p.ladder.suspend(v.Now)
	} else {
		p.ladder.confirm(v, p.base.current)
	}
	if v.Now > p.countedAt { // a second plan at the same instant must be the same as the first
		p.countedAt = v.Now
		p.countOpen(v, requests)
	}
	if p.judgesRung(v.Now) {
		p.ladder.decide(v.Now)
	}
}

// adaptedSetting returns the setting of the rung in force.
func (p *slo) adaptedSetting(now sched.Time) setting {
	set := p.ladder.setting(p.ladder.current, p.base.onlineSlice)
	set.betweenRequests = p.base.sharedSlice != sched.MinSlice && p.ladder.mayPredict(now)
	return set
}

// updateQueues updates the state of the online queues. It reports whether slo may
// adapt the setting: there is an online queue with an SLO, and none that must be
// served as fast as possible.
func (p *slo) updateQueues(v *sched.View, requests []requestState) (adapts bool) {
	withSLO, asFastAsPossible := false, false
	for i := range v.Queues {
		q, r := &v.Queues[i], &requests[i]
		if q.Attr.Class != sched.Online || q.Attr.Paused {
			*r = requestState{reports: r.reports}
			continue
		}
		if slo := q.Attr.SLO; !r.online || slo > 0 && (r.tightest == 0 || slo < r.tightest) {
			p.ladder.restart(v.Now) // what is known about the rungs is not about such requests
			r.online, r.tightest = true, max(slo, 0)
		}
		if q.Ready() || q.Counters.Launched != r.launched {
			r.launched, r.workedAt = q.Counters.Launched, v.Now
		}
		// A queue that launches nothing needs no device, whatever its process reports. Without
		// counters that is not known.
		asleep := q.Counters.Known && v.Now.Sub(r.workedAt) >= p.quiet
		if q.OpenRequests > 0 {
			r.reports = true
			if !asleep {
				p.lastRequest = v.Now
			}
		}
		withSLO = withSLO || q.Attr.SLO > 0
		asFastAsPossible = asFastAsPossible || (q.Attr.SLO <= 0 || !r.reports) && !asleep
	}
	return withSLO && !asFastAsPossible
}

// countRequests passes the finished requests of queues with an SLO to the ladder
// and returns their number and the sum of their durations.
func (p *slo) countRequests(v *sched.View, requests []requestState) (finished int, openTime time.Duration) {
	for _, f := range p.finished {
		i, ok := index(v.Queues, f.queue)
		if !ok || f.took <= 0 {
			continue // closed since, or its duration is unknown
		}
		q, r := &v.Queues[i], &requests[i]
		if q.Attr.Class != sched.Online || q.Attr.SLO <= 0 {
			continue
		}
		finished++
		openTime += min(f.took, maxQuiet)
		r.reports = true
		began := f.at.Add(-f.took)
		if p.isQuiet || p.quietEnd > 0 {
			if p.isQuiet || began <= p.quietEnd.Add(time.Millisecond) {
				p.judgeQuiet(f.took <= q.Attr.SLO)
			}
			p.quietEnd = 0
		}
		p.lastRequest = max(p.lastRequest, f.at)
		switch {
		case r.countedLate && began <= r.oldestSince.Add(time.Millisecond): // countOpen has counted it
			r.countedLate = false
			p.ladder.addDuration(f.took)
		case p.judgesRung(v.Now):
			p.ladder.addRequest(began, f.took, q.Attr.SLO, &r.lateScore)
			p.ladder.addDuration(f.took)
		}
	}
	p.finished = p.finished[:0]
	return finished, openTime
}

// judgesRung reports whether requests say something about the current rung: there was batch work
// a moment ago, and there are no bursts, trials of newcomers or overlaps, in which other settings
// are in force.
func (p *slo) judgesRung(now sched.Time) bool {
	return p.base.current != 0 && now.Sub(p.base.batchAt) <= probeTime && p.base.burst.phase == noBurst && !p.base.inTrialOrOverlap()
}

// countOpen counts late requests that are still open: with some settings no request may ever
// finish. A request counts once it has been open with the present setting for
// ladder.latePeriod, and again after each further period. Only the oldest request of a queue
// counts.
func (p *slo) countOpen(v *sched.View, requests []requestState) {
	for i := range v.Queues {
		q, r := &v.Queues[i], &requests[i]
		if q.Attr.Class != sched.Online {
			continue
		}
		another := q.RequestSince != r.oldestSince
		if another {
			r.oldestSince, r.countedLate = q.RequestSince, false
		}
		from := p.openFrom(q, v.Now)
		if from != r.countsFrom {
			r.countsFrom, r.latePeriods = from, 0
		}
		age := v.Now.Sub(from)
		if from == 0 || !q.Ready() {
			continue // without work it does not wait for the device, or does not exist: a process can report any request
		}
		n := int(age / p.ladder.latePeriod(q.Attr.SLO))
		for ; r.latePeriods < n; r.latePeriods++ {
			if another || !p.judgesRung(v.Now) || p.ladder.since == sched.Never {
				continue // an older request counted, or the setting was not in force
			}
			r.countedLate = true
			p.ladder.addRequest(max(from, p.ladder.since), age, q.Attr.SLO, &r.lateScore)
		}
	}
}

// openFrom returns the time from which the oldest open request of an online queue has been open with
// the present setting, or zero if the request does not count.
func (p *slo) openFrom(q *sched.Queue, now sched.Time) sched.Time {
	switch {
	case q.RequestSince == 0 || q.Attr.SLO <= 0 || q.Attr.Paused:
		return 0
	case now.Sub(q.RequestSince)/maxLatePeriods > 2*q.Attr.SLO: // a late period is at most twice the SLO
		return 0
	}
	return max(q.RequestSince, p.ladder.changedAt)
}

// nextLate returns when an open request counts next.
func (p *slo) nextLate(v *sched.View, requests []requestState) (wake sched.Time) {
	for i := range v.Queues {
		q, r := &v.Queues[i], &requests[i]
		if q.Attr.Class != sched.Online {
			continue
		}
		if from := p.openFrom(q, v.Now); from > 0 && q.Ready() {
			wake = earlier(wake, from.Add(time.Duration(r.latePeriods+1)*p.ladder.latePeriod(q.Attr.SLO)))
		}
	}
	return wake
}

// judgeQuiet is called for the first request after a quiet period, in which batch work had the
// default slice. If the request was late, the time until the next quiet period doubles. A doubling
// is undone only after halveQuiet first requests in time, so that few are late where only some are.
func (p *slo) judgeQuiet(inTime bool) {
	if p.firstInTime++; inTime && p.firstInTime < halveQuiet {
		return
	}
	p.firstInTime = 0
	switch {
	case inTime:
		p.quietDoubled = max(p.quietDoubled-1, 0)
	case p.quietAfter() < maxQuiet:
		p.quietDoubled++
	}
}

// quietAfter returns how long after lastRequest isQuiet is set.
func (p *slo) quietAfter() time.Duration { return min(p.quiet<<p.quietDoubled, maxQuiet) }

// updateQuiet updates whether it is quiet and returns when that may change.
func (p *slo) updateQuiet(now sched.Time, adapts bool) sched.Time {
	if !adapts || p.lastRequest == 0 {
		p.isQuiet = false
		return 0
	}
	was := p.isQuiet
	p.isQuiet = now >= p.lastRequest.Add(p.quietAfter())
	if p.isQuiet {
		return 0
	}
	if was {
		p.quietEnd = now
		p.ladder.setCurrent(p.ladder.chosen, now)
	}
	return p.lastRequest.Add(p.quietAfter())
}

// stopBatch removes the grants of ready batch and idle queues while a request is open, but for at
// most four times the request's SLO, because its end may never be reported. So only the newest
// request of each queue matters.
func (p *slo) stopBatch(v *sched.View, plan *sched.Plan) {
	var until sched.Time
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Attr.Class == sched.Online && q.OpenRequests > 0 && !q.Attr.Paused {
			until = max(until, q.NewestRequest.Add(min(q.Attr.SLO, maxStop/4)*4))
		}
	}
	if until <= v.Now {
		return
	}
	plan.Wake = earlier(plan.Wake, until)
	plan.Waiting[sched.Batch], plan.Waiting[sched.Idle] = sched.OnlineWork, sched.OnlineWork
	kept, next := plan.Grants[:0], 0
	for _, g := range plan.Grants { // in the order of the queues
		for v.Queues[next].ID != g.Queue {
			next++
		}
		if q := &v.Queues[next]; !givesWay(q) || q.Level() == sched.LevelNone || !q.Ready() {
			kept = append(kept, g)
		}
	}
	plan.Grants = kept
}
