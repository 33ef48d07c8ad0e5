package policy

import (
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
// the whole request. slo finds out from how long requests take and what batch
// work gets under each of a few settings: see ladder.
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
	queues   perQueue[onlineQueue]

	countedAt   sched.Time    // when open requests were last counted
	lastRequest sched.Time    // when a request was last open or finished
	quietAfter  time.Duration // how long after lastRequest isQuiet is set; at least quiet
	isQuiet     bool
	quietEnd    sched.Time // when isQuiet was last cleared; zero once a request has finished since
}

// onlineQueue is the state of an online queue.
type onlineQueue struct {
	score    float64    // of late requests: see ladder.request
	reports  bool       // its requests are reported
	open     uint32     // OpenRequests at the last plan
	openedAt sched.Time // when open last changed
	oldest   sched.Time // Queue.RequestSince at the last plan
	from     sched.Time // since when that request counts: see openFrom
	periods  int        // how many late periods since then are counted: see countOpen
	counted  bool       // that request has counted as late
	launched uint64     // Counters.Launched at the last plan
	workedAt sched.Time // when it was last ready or launched commands
}

type finishedRequest struct {
	queue sched.QueueID
	took  time.Duration
	at    sched.Time
}

const (
	maxFinished = 4096             // requests kept between two plans
	maxQuiet    = 10 * time.Minute // longest quietAfter
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

// Observe implements sched.Observer.
func (p *slo) Observe(now sched.Time, ev *sched.Event) {
	switch {
	case ev.Kind == sched.RequestFinished && len(p.finished) < maxFinished:
		p.finished = append(p.finished, finishedRequest{ev.Queue, ev.Duration, now})
	case ev.Kind == sched.QueueOpened && ev.Attr.Class == sched.Online:
		p.ladder.restart(now)
	case ev.Kind == sched.QueueOpened || ev.Kind == sched.QueueClosed:
		p.ladder.forget()
	}
}

// Plan implements sched.Policy.
func (p *slo) Plan(v *sched.View) sched.Plan {
	if dev := v.Devices[0]; dev != p.ladder.device {
		p.ladder.build(dev)
	}
	queues := p.queues.update(v.Queues)
	if p.ladder.resetScores {
		p.ladder.resetScores = false
		for i := range queues {
			queues[i].score = 0
		}
	}
	finished, open := p.countRequests(v, queues)
	adapts := p.updateQueues(v, queues)
	wake := p.updateQuiet(v.Now, adapts)
	set := p.ladder.setting(p.ladder.start)
	set.shared, set.online = p.base.shared, p.base.online
	switch {
	case p.isQuiet:
		set = p.ladder.setting(0)
	case adapts:
		p.gauge.read(v, &p.ladder, finished, open)
		if p.ladder.beside = 0; p.base.mayShare {
			p.ladder.beside = p.base.lightQueues
			p.ladder.measured = false // light queues do more side by side, with less time on the device
		}
		p.ladder.confirm(v, p.base.current)
		if v.Now > p.countedAt { // a second plan at the same instant must be the same as the first
			p.countedAt = v.Now
			p.countOpen(v, queues)
		}
		if p.counts() {
			p.ladder.decide(v.Now)
		}
		wake = earlier(wake, p.nextLate(v, queues))
		set = p.adapted(v.Now)
	}
	set.bursts = !adapts || p.ladder.mostlyLate()
	plan := p.base.planWith(v, set)
	p.ladder.predicts = set.betweenRequests && p.base.sharesBetweenRequests
	plan.Wake = earlier(plan.Wake, wake)
	if set.stop && p.ladder.device.Sliced() {
		p.stopBatch(v, queues, &plan)
	}
	return plan
}

// adapted returns the setting of the rung in force.
func (p *slo) adapted(now sched.Time) setting {
	set := p.ladder.setting(p.ladder.current)
	set.online = p.base.online
	set.betweenRequests = p.base.shared != sched.MinSlice && p.ladder.mayPredict(now)
	return set
}

// updateQueues updates the state of the online queues. It reports whether slo may
// adapt the setting: there is an online queue with an SLO, and none that must be
// served as fast as possible.
func (p *slo) updateQueues(v *sched.View, queues []onlineQueue) (adapts bool) {
	withSLO, asFastAsPossible := false, false
	for i := range v.Queues {
		q, o := &v.Queues[i], &queues[i]
		if q.Attr.Class != sched.Online || q.Attr.Paused {
			*o = onlineQueue{reports: o.reports}
			continue
		}
		if q.Ready() || q.Counters.Launched != o.launched {
			o.launched, o.workedAt = q.Counters.Launched, v.Now
		}
		// A queue that launches nothing needs no device, whatever its process reports. Only
		// counters tell.
		asleep := q.Counters.Known && v.Now.Sub(o.workedAt) >= p.quiet
		if q.OpenRequests > 0 {
			o.reports = true
			if !asleep {
				p.lastRequest = v.Now
			}
		}
		if q.OpenRequests != o.open {
			o.open, o.openedAt = q.OpenRequests, v.Now
		}
		withSLO = withSLO || q.Attr.SLO > 0
		asFastAsPossible = asFastAsPossible || (q.Attr.SLO <= 0 || !o.reports) && !asleep
	}
	return withSLO && !asFastAsPossible
}

// countRequests passes the finished requests of queues with an SLO to the ladder
// and returns their number and the sum of their durations.
func (p *slo) countRequests(v *sched.View, queues []onlineQueue) (finished int, open time.Duration) {
	for _, r := range p.finished {
		i, ok := index(v.Queues, r.queue)
		if !ok || r.took <= 0 {
			continue // closed since, or its duration is unknown
		}
		q, o := &v.Queues[i], &queues[i]
		if q.Attr.Class != sched.Online || q.Attr.SLO <= 0 {
			continue
		}
		finished++
		open += min(r.took, maxQuiet)
		o.reports = true
		began := r.at.Add(-r.took)
		if p.isQuiet || p.quietEnd > 0 {
			// The first request found batch work with the default slice. If that
			// made it late, the next quiet period begins later.
			if r.took > q.Attr.SLO && (p.isQuiet || began <= p.quietEnd.Add(time.Millisecond)) {
				p.quietAfter = min(2*p.quietAfter, maxQuiet)
			}
			p.quietEnd = 0
		}
		p.lastRequest = max(p.lastRequest, r.at)
		switch {
		case o.counted && began <= o.oldest.Add(time.Millisecond):
			o.counted = false
			p.ladder.duration(r.took)
		case p.counts():
			p.ladder.request(began, r.took, q.Attr.SLO, &o.score)
			p.ladder.duration(r.took)
		}
	}
	p.finished = p.finished[:0]
	return finished, open
}

// counts reports whether requests say something about the current rung: there is batch work,
// and no bursts, in which other settings are in force.
func (p *slo) counts() bool { return p.base.current != 0 && p.base.burst.phase == noBurst }

// countOpen counts requests that are late before they finish: with some settings none
// may. A request counts when it is open, with the present setting, for longer than the
// ladder needs to tell a stall of the host from the setting, and again each time as much
// has passed. Only the oldest request of a queue is looked at.
func (p *slo) countOpen(v *sched.View, queues []onlineQueue) {
	for i := range v.Queues {
		q, o := &v.Queues[i], &queues[i]
		if q.Attr.Class != sched.Online {
			continue
		}
		another := q.RequestSince != o.oldest
		if another {
			o.oldest, o.counted = q.RequestSince, false
		}
		from := p.openFrom(q, v.Now)
		if from != o.from {
			o.from, o.periods = from, 0
		}
		age := v.Now.Sub(from)
		if from == 0 || !q.Ready() {
			continue // without work it does not wait for the device, or does not exist: a process can report any request
		}
		n := int(age / p.ladder.latePeriod(q.Attr.SLO))
		for ; o.periods < n; o.periods++ {
			if another || !p.counts() || p.ladder.since == sched.Never {
				continue // an older request counted, or the setting was not in force
			}
			o.counted = true
			p.ladder.request(max(from, p.ladder.since), age, q.Attr.SLO, &o.score)
		}
	}
}

// openFrom returns since when the oldest open request of an online queue is open with the present
// setting, or zero if no such request may count.
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
func (p *slo) nextLate(v *sched.View, queues []onlineQueue) (wake sched.Time) {
	for i := range v.Queues {
		q, o := &v.Queues[i], &queues[i]
		if q.Attr.Class != sched.Online {
			continue
		}
		if from := p.openFrom(q, v.Now); from > 0 && q.Ready() {
			wake = earlier(wake, from.Add(time.Duration(o.periods+1)*p.ladder.latePeriod(q.Attr.SLO)))
		}
	}
	return wake
}

// updateQuiet updates whether it is quiet and returns when that may change.
func (p *slo) updateQuiet(now sched.Time, adapts bool) sched.Time {
	p.quietAfter = max(p.quietAfter, p.quiet)
	if !adapts || p.lastRequest == 0 {
		p.isQuiet = false
		return 0
	}
	was := p.isQuiet
	p.isQuiet = now >= p.lastRequest.Add(p.quietAfter)
	if p.isQuiet {
		return 0
	}
	if was {
		p.quietEnd = now
		p.ladder.put(p.ladder.chosen, now)
	}
	return p.lastRequest.Add(p.quietAfter)
}

// stopBatch removes the grants of ready batch and idle queues while a request is open,
// but for one request not longer than four times its SLO: its end may never be
// reported.
func (p *slo) stopBatch(v *sched.View, queues []onlineQueue, plan *sched.Plan) {
	var until sched.Time
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Attr.Class == sched.Online && q.OpenRequests > 0 && !q.Attr.Paused {
			until = max(until, queues[i].openedAt.Add(min(q.Attr.SLO, maxStop/4)*4))
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
