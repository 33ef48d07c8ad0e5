package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// ladder is the settings that slo chooses from, in the order in which batch work is
// believed to give way further, and what has been seen of each.
//
// It begins where batch work gives way at once, and climbs: a setting is tried for a
// few requests; the first that takes too long ends the trial, and the setting is not
// tried again for a while, each time twice as long; so does a trial whose slowest
// requests say that more would. A trial that batch work gained by, and by more than a
// little, becomes the setting to stay with. One stays with it
// until too many requests take too long, counted so that a few in a row end it at
// once and one now and then never does, and double if the others were near it too.
//
// Of the requests that may take too long, trials spend a third.
//
// A host that stands still for a moment makes a few requests late in whatever setting.
// They take so much longer than others that no slice can be the reason, and do not count.
type ladder struct {
	rungs  [mostRungs]rung
	last   int // of them
	start  int // where all begins: batch work leaves when it is asked to, and is back when it can
	device sched.Device

	at      int        // in force
	base    int        // the best that is known: where a trial goes back to
	changed sched.Time // when the setting in force was chosen
	since   sched.Time // since when it is in force; Never until it is

	// Of the requests that began since then:
	requests int
	missed   int                   // too late
	misses   [leaveAt]int          // the last of those, by their number
	spare    [recent]time.Duration // what the last had left of their SLO
	took     [recent]time.Duration
	failed   bool // too many were too late
	doubt    bool // none was, and yet they were near it

	// In whatever setting:
	usual  [32]time.Duration // what the last took
	heard  int
	stalls float64 // of the last budgetWindow or so, that no setting had a part in
	row    int     // of those, in a row

	seen, spent float64 // requests, and those too late, of the last budgetWindow or so
	measured    bool    // the hardware tells what batch work gets
	anew        bool    // the setting to stay with has changed: scores begin anew
}

// rung is one of them and what is known of it. The counts fade.
type rung struct {
	slice  time.Duration // of batch work
	window uint32        // of batch work, where there are no slices
	hold   bool          // batch work is kept off while a request is under way

	tried, missed float64 // requests, and those too late

	wall, batch, lost time.Duration // time gone by; what batch work made of it; what nobody had
	requests          float64       // answered meanwhile

	retry sched.Time    // no trial before this
	pause time.Duration // for how long it was barred the last time
}

const (
	mostRungs = 7

	trial     = 16                     // requests,
	trialTime = 500 * time.Millisecond // and at least so long
	recent    = 64                     // requests that are remembered, and the most of a trial

	leaveAt  = 3         // requests too late in a row end a setting, or more in a longer row:
	forgiven = 1.0 / 250 // so much of one is forgiven for each in time
	burst    = 20        // requests of which, if leaveAt are too late, the load has changed

	stall      = 4     // times the slice longer than usual, and times what the slowest tenth is
	mostStalls = 6     // in a row, and besides
	pardon     = 0.006 // of the requests

	worthwhile = 0.02 // part of its work that batch work must gain for a change of setting
	muchLost   = 0.08 // part of the time that is lost in switching: batch work may be better off for being kept off

	firstPause = 5 * time.Second  // until a setting in which requests were too late is tried again
	longPause  = 20 * time.Second // and one by which batch work gained nothing
	lastPause  = 2 * time.Minute
	fades      = 4 * time.Second        // of measured time: then what was measured counts half
	unsure     = 100 * time.Millisecond // a setting not seen to be in force by then is taken to be

	budgetWindow = 2000
	budget       = 0.003 // of the requests, besides one

	wideWindow, narrowWindow = 16, 4 // commands in flight of batch work where there are no slices
)

// build makes the rungs for a device.
func (l *ladder) build(dev *sched.Device) {
	*l = ladder{device: *dev, since: sched.Never, anew: true}
	if dev.Sliced() {
		n := 1
		for s := dev.Slice / 2; s >= max(dev.MinSharedSlice, 2) && n < mostRungs-2; s /= 2 {
			l.rungs[n].slice = s
			n++
		}
		l.start, l.last = n, n+1
		l.rungs[l.start].slice = sched.MinSlice
		l.rungs[l.last] = rung{slice: sched.MinSlice, hold: true}
	} else {
		l.start, l.last = 3, 3
		l.rungs[1].window = wideWindow
		l.rungs[2].window = narrowWindow
		l.rungs[3] = rung{window: narrowWindow, hold: true}
	}
	l.at, l.base = l.start, l.start
}

// forget says that what is known may not hold any more: others use the device.
func (l *ladder) forget() {
	for i := range l.rungs {
		r := &l.rungs[i]
		*r = rung{slice: r.slice, window: r.window, hold: r.hold}
	}
	l.put(l.at, l.changed)
}

// put puts a setting in force.
func (l *ladder) put(i int, now sched.Time) {
	l.at, l.changed, l.since = i, now, sched.Never
	l.requests, l.missed, l.failed, l.doubt, l.row = 0, 0, false, false, 0
	l.misses = [leaveAt]int{}
}

// settle notes when the setting in force has reached the queue whose turn it is.
func (l *ladder) settle(v *sched.View, current sched.QueueID) {
	if l.since != sched.Never {
		return
	}
	r := &l.rungs[l.at]
	i, ok := index(v.Queues, current)
	if ok && v.Queues[i].Slice == r.slice && v.Queues[i].Bound == r.window || v.Now.Sub(l.changed) > unsure {
		l.since = v.Now
	}
}

// request takes in one: when it began, how long it took and might have taken, and
// the score of the queue that it was for.
func (l *ladder) request(began sched.Time, took, allowed time.Duration, score *float64) {
	late := took > allowed
	pardoned := late && l.stalled(took)
	if !late {
		l.row = 0
	}
	l.usual[l.heard%len(l.usual)] = took
	l.heard++
	l.stalls -= l.stalls / budgetWindow
	l.seen += 1 - l.seen/budgetWindow
	l.spent -= l.spent / budgetWindow
	if pardoned {
		return
	}
	if late {
		l.spent++
	}
	if began < l.since {
		return
	}
	r := &l.rungs[l.at]
	if r.tried++; r.tried > 256 {
		r.tried, r.missed = r.tried/2, r.missed/2
	}
	n := l.requests % recent
	l.spare[n], l.took[n] = allowed-took, took
	l.requests++
	if late {
		r.missed++
		l.missed++
		copy(l.misses[1:], l.misses[:])
		l.misses[0] = l.requests
	}
	if l.at != l.base {
		return // one that is late ends a trial: there is no score to keep
	}
	if !late {
		*score = max(*score-forgiven, 0)
		return
	}
	if *score++; l.near() {
		*score++
	}
	l.failed = l.failed || *score >= leaveAt
}

// stalled reports whether a request took so long that its being late is not for the
// setting in force. If many do, or many in a row, there is more to it.
func (l *ladder) stalled(took time.Duration) bool {
	usual := quantileOf(l.usual[:], l.heard, 1, 2)
	spread := quantileOf(l.usual[:], l.heard, 9, 10) - usual
	if l.heard < trial/2 || took-usual < stall*max(l.length(l.at), l.device.StopTime, spread) {
		l.row = 0
		return false
	}
	l.stalls++
	l.row++
	row := mostStalls
	if l.at != l.base {
		row = 1 // two, and it is the trial
	}
	return l.row <= row && l.stalls <= mostStalls+pardon*float64(min(l.heard, budgetWindow))
}

// decide puts another setting in force if it is time to.
func (l *ladder) decide(now sched.Time) {
	r := &l.rungs[l.at]
	switch {
	case l.at != l.base && l.missed > 0:
		l.bar(l.at, now, firstPause)
		l.put(l.base, now)
	case l.failed:
		l.leave(now)
	case l.requests < trial || now.Sub(l.since) < trialTime || l.measured && r.wall < trialTime:
	case l.at < l.base && l.doubt && l.requests < recent:
	case l.at < l.base && l.near():
		// Twice and no more: who looks often enough sees what he likes.
		if !l.doubt && l.requests < recent {
			l.doubt = true
			break
		}
		l.bar(l.at, now, firstPause)
		l.put(l.base, now)
	default:
		l.move(now)
	}
}

// leave goes from a setting that has stood to one in which batch work gives way
// further.
func (l *ladder) leave(now sched.Time) {
	hold := l.last
	l.bar(l.base, now, firstPause)
	l.anew = true
	switch sudden := l.requests-l.misses[min(l.missed, leaveAt)-1] < burst; {
	case l.base < l.start && sudden:
		l.base = l.start
	case l.base < l.start:
		l.base++
	case l.base == l.start && hold != l.start && l.mayHold() && now >= l.rungs[hold].retry:
		l.base = hold
	case l.base == hold && hold != l.start && l.rungs[hold].late() > 0.75*l.rungs[l.start].late():
		l.base = l.start // it is no better, and batch work gets less
	}
	l.put(l.base, now)
}

// late is the part of requests that were too late.
func (r *rung) late() float64 { return r.missed / max(r.tried, 1) }

// bar has a setting not tried for a while.
func (l *ladder) bar(i int, now sched.Time, least time.Duration) {
	r := &l.rungs[i]
	r.pause = max(2*r.pause, least)
	if r.late() > 0.5 {
		r.pause *= 2 // it is not a near thing
	}
	r.pause = min(r.pause, lastPause)
	r.retry = now.Add(r.pause)
}

// move settles a trial that has gone well, and begins the next if there is one.
func (l *ladder) move(now sched.Time) {
	if l.at != l.base {
		if l.gain(l.at, l.base) > worthwhile {
			if l.at > l.base {
				l.bar(l.base, now, longPause)
			}
			l.base, l.anew = l.at, true
		} else {
			l.bar(l.at, now, longPause)
		}
	}
	hold := l.last
	switch b := &l.rungs[l.base]; {
	case l.at <= l.base && l.at > 0 && l.mayTry(l.at-1, now):
		l.put(l.at-1, now)
	case l.at != l.base:
		l.put(l.base, now)
	case l.base <= l.start && hold != l.start && float64(b.lost) > muchLost*float64(b.wall) && l.mayHold() && l.mayTry(hold, now):
		l.put(hold, now)
	}
}

// mayTry reports whether a trial of a setting next to the one in force can be
// afforded now, and has a chance. A request may come just when batch work has begun
// its slice, so that it takes longer by as much as the slice is longer.
func (l *ladder) mayTry(i int, now sched.Time) bool {
	if now < l.rungs[i].retry || l.spent > 1+budget*l.seen {
		return false
	}
	return i > l.at || quantileOf(l.spare[:], l.requests, 1, 4) > l.length(i)-l.length(l.at)
}

// near reports whether one request of a hundred would be too late, though none may have
// been yet, if those that take longest are spread as chance does it: if the slowest tenth
// has less to spare than lies between it and the slowest quarter, times what that is of
// a normal distribution. Two kinds of requests lie apart too, but those of the slower
// kind close together.
func (l *ladder) near() bool {
	if l.requests < trial {
		return false
	}
	spare := func(num, den int) time.Duration { return quantileOf(l.spare[:], l.requests, num, den) }
	least, tenth, quarter := spare(0, 1), spare(1, 10), spare(1, 4)
	return float64(tenth) < 1.73*float64(min(quarter-tenth, tenth-least))
}

// mayHold reports whether requests take long enough for batch work to be taken off
// while one is under way.
func (l *ladder) mayHold() bool {
	return quantileOf(l.took[:], l.requests, 1, 2) > 2*l.device.StopTime
}

// length is for how long batch work may stay when it is asked to leave.
func (l *ladder) length(i int) time.Duration {
	switch s := l.rungs[i].slice; s {
	case 0:
		return l.device.Slice
	case sched.MinSlice:
		return 0
	default:
		return s
	}
}

// quantileOf returns a quantile of the last n values, in a ring of values.
func quantileOf(values []time.Duration, n, num, den int) time.Duration {
	var v [recent]time.Duration
	return quantile(v[:copy(v[:], values[:min(n, len(values))])], num, den)
}

// gain is what batch work would gain by i, as a part of what it gets by j. What it
// loses by each request is compared, and not what it gets, because requests do not
// come at the same rate all the time. Where nobody measures, milder is better.
func (l *ladder) gain(i, j int) float64 {
	a, b := &l.rungs[i], &l.rungs[j]
	if !l.measured || a.wall < trialTime/2 || b.wall < trialTime/2 || a.requests < trial/2 || b.requests < trial/2 {
		return float64(j - i)
	}
	lossA, lossB := float64(a.wall-a.batch)/a.requests, float64(b.wall-b.batch)/b.requests
	gets := float64(b.batch) / float64(b.wall)
	return (lossB - lossA) * b.requests / float64(b.wall) / max(gets, 0.01)
}

// gauge reads off what batch work gets of the device.
//
// What the hardware tells is whose context was on the device, at work or not. Taken
// for batch work's progress that is too much by what it loses each time it is cut
// off inside a kernel: it makes no progress for its first moments back. On an H200
// these are 40 us, and the two switches that go with them 330: an eighth of the time
// in which nobody's context was there.
type gauge struct {
	at       sched.Time    // of the last reading
	all      time.Duration // what all queues had then
	batch    time.Duration // and batch and idle ones
	queues   int
	answered float64
	rung     int
	since    sched.Time // of the rung
}

const refilled = 8

// read credits the setting in force with what was measured since the last time.
func (g *gauge) read(v *sched.View, l *ladder, answered int) {
	now := gauge{queues: len(v.Queues), rung: l.at, since: l.since, answered: g.answered + float64(answered)}
	l.measured = true
	rest := false
	for i := range v.Queues {
		q := &v.Queues[i]
		batch := q.Attr.Class == sched.Batch || q.Attr.Class == sched.Idle
		if q.Measured {
			now.at = max(now.at, q.MeasuredAt)
			now.all += q.Served
		}
		if batch {
			now.batch += q.Served
			rest = true
		}
		l.measured = l.measured && (q.Measured || !batch)
	}
	l.measured = l.measured && rest
	if !l.measured || now.at <= g.at && now.queues == g.queues && now.rung == g.rung && now.since == g.since {
		g.answered = now.answered
		return
	}
	old := *g
	*g = now
	g.answered = 0
	wall := now.at.Sub(old.at)
	if old.queues != now.queues || old.rung != now.rung || old.since != now.since || old.at < l.since || now.all < old.all || now.batch < old.batch {
		return // part of it was under another setting
	}
	r := &l.rungs[l.at]
	lost := max(wall-(now.all-old.all), 0)
	r.wall += wall
	r.lost += lost
	r.batch += max(now.batch-old.batch-lost/refilled, 0)
	r.requests += now.answered
	if r.wall > fades {
		r.wall, r.lost, r.batch, r.requests = r.wall/2, r.lost/2, r.batch/2, r.requests/2
	}
}
