package policy

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// giveway runs online work first. Online queues are never stopped. Batch queues
// take turns, one at a time on a device, by weight, and give way to online work; those
// that do not fill a device with time slices run side by side (see sideBySide):
//
//   - On a device with time slices the batch queue whose turn it is has the
//     minimum slice, so the hardware itself switches to online work as soon as
//     that is ready, and a request needs no call. One batch queue at a time,
//     because with N of them a request waits for N switches, and because two
//     ready queues with the minimum slice livelock. Online queues have a slice
//     longer than their requests; otherwise each end of a slice would cost a
//     request two switches, in which the batch queue makes no progress.
//   - On other devices, and if the slice of a queue cannot be set, batch queues
//     are stopped while online work is ready or expected, if a stop pays (see
//     stopCost), and otherwise limited to a small number of commands in flight.
//
// Standard queues keep the device's defaults. A queue of class idle runs when no
// other queue is ready; here "idle queue" means the class. The scheduler's floor
// keeps batch queues from starving.
type giveway struct {
	params
	planner
	arrivals
	sideBySide
	turn   time.Duration
	slice  time.Duration
	online time.Duration
	bound  int
	linger time.Duration

	readsSLO bool // the policy is slo

	accounts      perQueue[account]
	onlineRecords perQueue[onlineRecord]

	clocks      [2]vclock     // of batch and idle queues
	current     sched.QueueID // the queue whose turn it is; zero if none
	turnStart   turnStart
	idleStop    sched.Time // idle queues are stopped until then, because the device was busy
	serving     bool       // online work was ready at the last plan
	lingerUntil sched.Time // batch queues stay stopped until then, in case online work continues
	stopCost    stopCost   // on a device without slices
	burst       burst      // on a device with slices
	planned     sched.Time // when planWith was last called
}

// setting is how far batch and idle queues give way in one plan.
type setting struct {
	slice  time.Duration // of the batch queue whose turn it is, beside online queues
	shared time.Duration // of batch queues side by side, beside online queues; MinSlice: they take turns instead
	online time.Duration // slice of online queues, beside batch and idle ones
	bound  uint32        // on commands in flight of batch and idle queues without slices; zero is none
	stop   bool          // batch queues without slices are stopped while online work is ready
	bursts bool          // batch queues may be stopped for bursts of online work

	// betweenRequests says that batch queues run side by side between regular requests, even
	// if they take turns beside others because shared is MinSlice.
	betweenRequests bool
}

// batchBound is the default bound on commands in flight of a batch queue without
// slices. Measured with the shim alone on an H200 (200 us kernels, P50 of an
// online request): 276 us at a bound of 1, 914 us at 4; batch work keeps 0.90 and
// 0.93 of its rate.
const batchBound = 4

// idleStopTurns is for how many turns idle queues are stopped after they found the
// device busy: each attempt costs the busy queues two switches.
const idleStopTurns = 20

// account is the state of one queue.
type account struct {
	vtime
	served     time.Duration // Queue.Served at the last plan
	atTurn     time.Duration // Queue.Served when the current turn began
	class      sched.Class
	unusedTurn bool // used nothing of its last turn: takes no turns until it is served again
	takesTurns bool // is a batch or idle queue that would use a turn now
	sideBySide bool // is a light batch queue that takes no turns, because it runs side by side with others

	// Of a queue that ran side by side:
	ahead     time.Duration // virtual time by which it had more than sideBySideShare times its share
	overdrawn bool          // that was too much: it takes turns until the others have had as much

	lastTurn      sched.Time
	load          loadRecord
	usage         usageRecord   // of a standard queue
	seen          time.Duration // Queue.Served when unservedSince was set
	unservedSince sched.Time    // since when a batch queue that runs was not served
}

func newGiveway() sched.Policy { return makeGiveway() }

func makeGiveway() *giveway {
	p := &giveway{
		turn: 50 * time.Millisecond, slice: sched.MinSlice, online: 20 * time.Millisecond, bound: batchBound, linger: 200 * time.Microsecond,
	}
	p.shared = 500 * time.Microsecond
	p.params = append(params{
		durationParam("turn", &p.turn, time.Millisecond, 10*time.Second, "length of a batch queue's turn"),
		sliceParam("slice", &p.slice, "time slice of the batch queue whose turn it is, while an online queue is on the device"),
		sliceParam("shared", &p.shared, "time slice of batch queues that run side by side, because they do not fill the device, while there is online work; min lets them take turns"),
		sliceParam("online", &p.online, "time slice of online queues, while a batch or idle queue is on the device; a longer request is interrupted by switches"),
		intParam("bound", &p.bound, 1, 1<<16, "commands in flight of a batch queue, on devices without slices"),
		durationParam("linger", &p.linger, 0, time.Second, "how long after online work batch queues stay stopped, on devices without slices"),
	}, slices.Concat(p.burst.burstParams(), p.arrivalParams())...)
	return p
}

// summary is the state of a device before the grants of a plan.
type summary struct {
	online      bool        // there is an online queue
	batch       bool        // there is a batch or idle queue
	busy        bool        // batch work gives way: online work is ready, was ready within linger, or is expected now
	busyChange  sched.Time  // when busy changes without an event
	idleWaits   bool        // a standard or batch queue is ready
	current     int         // index of the queue whose turn it is, or -1
	turns       int         // number of queues that take turns
	unstoppable int         // of those, queues that cannot be stopped: they run in the turns of others too
	class       sched.Class // of those
	running     int         // batch and standard queues that run and have work
	newcomers   int         // batch queues whose load is unknown
	traced      bool        // the visits of a batch or idle queue are known
	standard    int         // standard queues that used much of the device lately
	usageChange sched.Time  // when this may change without an event
	idleShort   bool        // an idle queue that cannot be stopped has the minimum slice
	wake        sched.Time  // when the plan changes without an event

	active        int           // online queues that had work lately
	first         sched.QueueID // of those, the one that goes before all others; zero if there is none
	firstPriority int32
	firstSLO      time.Duration
	predicted     bool       // the requests of all of them come when they are expected
	clear         bool       // a request is expected now: only one batch queue may run
	onlineChange  sched.Time // when this changes without an event
}

// Plan implements sched.Policy.
func (p *giveway) Plan(v *sched.View) sched.Plan {
	return p.planWith(v, p.ownSetting())
}

// ownSetting returns the setting of the parameters.
func (p *giveway) ownSetting() setting {
	return setting{slice: p.slice, shared: p.shared, online: p.online, bound: uint32(p.bound), stop: true, bursts: true}
}

// planWith is Plan with a setting in place of the parameters.
func (p *giveway) planWith(v *sched.View, set setting) sched.Plan {
	dev := &v.Devices[0]
	accounts := p.accounts.update(v.Queues)
	p.updateBurst(v, &set)
	s := p.summarize(v, accounts, &set)
	p.rotate(v, accounts, &s, &set)
	p.updateOverlap(v, accounts, &s)
	if s.online && s.turns > 0 {
		s.wake = earlier(s.wake, s.usageChange)
	}
	s.wake = earlier(s.wake, p.burst.wake)
	p.begin()
	for i := range v.Queues {
		q := &v.Queues[i]
		switch q.Attr.Class {
		case sched.Batch, sched.Idle:
			p.grantBatch(v.Now, dev, q, &accounts[i], &s, &set)
		case sched.Online:
			p.grants = append(p.grants, sched.Grant{Queue: q.ID, Slice: p.onlineSlice(dev, q, &s, &set), Reason: sched.IsOnline})
		default:
			p.grant(q, sched.ByDefault)
		}
	}
	plan := p.plan(s.wake)
	plan.Waiting = p.waitReasons(v.Now, dev, &s, &set)
	return plan
}

// updateBurst begins and ends bursts. In a burst the current turn is not used up, and in a
// gap batch queues have the device's own slice.
func (p *giveway) updateBurst(v *sched.View, set *setting) {
	dev := &v.Devices[0]
	if p.burst.phase == inBurst {
		p.turnStart.Time = p.turnStart.Add(v.Now.Sub(p.planned))
	}
	p.planned = v.Now
	if p.burst.update(v, set.bursts && set.slice > 0 && set.slice < dev.MinSharedSlice); p.burst.phase == inGap {
		if set.slice = 0; set.shared != sched.MinSlice {
			set.shared = 0
		}
	}
}

// grantBatch grants a batch or idle queue if it may run.
func (p *giveway) grantBatch(now sched.Time, dev *sched.Device, q *sched.Queue, a *account, s *summary, set *setting) {
	if p.burst.stops(dev, q) {
		return
	}
	g := sched.Grant{Queue: q.ID, SideBySide: a.sideBySide}
	idle := q.Attr.Class == sched.Idle
	switch {
	case !yieldsBySlice(dev, q):
		if s.online {
			g.Bound = set.bound
		}
		if !a.takesTurns {
			break // granted: otherwise each online request would cost it a stop and a start
		}
		s.wake = earlier(s.wake, s.busyChange)
		if s.busy && set.stop || q.ID != p.current || idle && s.idleWaits {
			return
		}
	case idle && a.takesTurns && p.idleStop > now && q.Level() != sched.LevelNone: // not granted it would have the default slice
		s.wake = earlier(s.wake, p.idleStop)
		return
	case p.runsBeside(q, a):
		g.Slice = p.sliceBeside(now, dev, a, s, set)
	case q.ID == p.current && !(a.takesTurns && idle && s.idleWaits):
		g.Slice = currentSlice(dev, q, a, s, set)
	case !a.takesTurns: // costs nothing, and its next command starts at once
		if s.online && set.slice > 0 { // the new work is noticed only after a while
			g.Slice = max(dev.MinSharedSlice, set.slice)
		}
	case q.Level() == sched.LevelNone: // cannot be stopped until its turn: a short slice is the best there is
		if (s.online || idle) && set.slice > 0 {
			g.Slice = max(dev.MinSharedSlice, set.slice)
		}
		if idle && s.idleWaits && set.slice > 0 && !s.idleShort {
			g.Slice, s.idleShort = sched.MinSlice, true // no other queue has one: see currentSlice
		}
	default:
		return
	}
	g.Reason = p.runReason(dev, q, a)
	p.grants = append(p.grants, g)
}

// currentSlice returns the slice of the queue whose turn it is. Beside a batch queue that
// cannot be stopped, or a standard queue that uses much of the device, it makes no progress
// with a slice below MinSharedSlice, and little with that one.
func currentSlice(dev *sched.Device, q *sched.Queue, a *account, s *summary, set *setting) time.Duration {
	idle := q.Attr.Class == sched.Idle
	if !s.online && !idle || set.slice == 0 {
		return 0
	}
	others := s.unstoppable
	if q.Level() == sched.LevelNone && a.takesTurns {
		others--
	}
	switch {
	case others == 0 && (idle || s.standard == 0):
		return set.slice
	case set.shared == 0:
		return 0
	}
	return max(set.slice, set.shared, dev.MinSharedSlice)
}

// yieldsBySlice reports whether q gives way through its time slice.
func yieldsBySlice(dev *sched.Device, q *sched.Queue) bool {
	return dev.Sliced() && q.Can&sched.CanSlice != 0
}

// givesWay reports whether q is of a class that gives way to online work.
func givesWay(q *sched.Queue) bool {
	return q.Attr.Class == sched.Batch || q.Attr.Class == sched.Idle
}

// summarize updates the accounts and returns the state of the device.
func (p *giveway) summarize(v *sched.View, accounts []account, set *setting) summary {
	s := summary{current: -1}
	dev := &v.Devices[0]
	lead := p.leadTime(v.Devices)
	serving := false
	for i := range v.Queues {
		q, a := &v.Queues[i], &accounts[i]
		a.update(q)
		if q.ID == p.current {
			s.current = i
			p.turnStart.postpone(v, q.Served-a.atTurn, p.turn)
			if a.active && v.Now >= p.turnStart.Add(p.turn) {
				p.endTurn(v.Now, dev, q, a)
			}
		}
		switch q.Attr.Class {
		case sched.Online:
			s.online = true
			if runnable(q) {
				serving = true
			} else {
				due, change := p.due(q, v.Now, lead)
				s.busy = s.busy || due
				s.busyChange = earlier(s.busyChange, change)
			}
		case sched.Batch, sched.Idle:
			s.batch = true
			s.traced = s.traced || q.Visits.Known
			p.clocks[q.Attr.Class-sched.Batch].see(&a.vtime, q.Weight()*unit)
			if !a.takesTurns {
				break
			}
			if q.Attr.Class == sched.Batch {
				s.idleWaits = true
				p.countBatch(dev, q, a, &s)
			}
			if yieldsBySlice(dev, q) && q.Level() == sched.LevelNone {
				s.unstoppable++
			}
			if s.turns == 0 || q.Attr.Class < s.class {
				s.turns, s.class = 0, q.Attr.Class
			}
			if q.Attr.Class == s.class {
				s.turns++
			}
		default:
			// A standard queue without counters always counts as ready. If it
			// has slices it does not stop idle queues: an idle queue with the
			// minimum slice gets only the time that the standard queue leaves.
			s.idleWaits = s.idleWaits || runnable(q) && (q.Counters.Known || !yieldsBySlice(dev, q))
			if dev.Sliced() {
				p.watchStandard(v.Now, q, a, &s)
			}
		}
	}
	p.updateBusy(v.Now, dev, serving, set.stop, &s)
	if dev.Sliced() {
		p.watchOnline(v, p.clearLead(dev, lead, s.turns), &s)
		p.limitShares(v, accounts)
		p.watchLoads(v, accounts, &s)
		p.decide(v, accounts, &s, set)
		p.measureClear(v, accounts, &s)
	}
	return s
}

// countBatch counts a batch queue that would use a turn now.
func (p *giveway) countBatch(dev *sched.Device, q *sched.Queue, a *account, s *summary) {
	if q.State == sched.Running {
		s.running++
	}
	if a.load.load == unknownLoad && isCandidate(dev, q, a) {
		s.newcomers++
	}
}

// endTurn updates the account of the queue whose turn is over.
func (p *giveway) endTurn(now sched.Time, dev *sched.Device, q *sched.Queue, a *account) {
	if a.class == sched.Idle && q.Measured && yieldsBySlice(dev, q) && a.served-a.atTurn < p.turn/10 {
		p.idleStop = now.Add(idleStopTurns * p.turn)
	}
	switch {
	case p.turnUnused(q, a):
		a.unusedTurn, a.takesTurns = true, false
	case a.served == a.atTurn:
		a.prepay(p.turn, q.Weight()*unit)
	}
}

// update charges q for its service since the last plan.
func (a *account) update(q *sched.Queue) {
	if q.Attr.Class != a.class { // or the queue is new; a new standard queue needs no account
		*a = account{served: q.Served, atTurn: q.Served, class: q.Attr.Class}
	}
	if !givesWay(q) {
		return // takes no turns
	}
	if used := q.Served - a.served; used > 0 {
		a.unusedTurn = false
		if a.sideBySide {
			a.ahead += used / time.Duration(q.Weight()*sideBySideShare)
		} else {
			a.charge(used, q.Weight()*unit)
		}
	}
	a.served = q.Served
	a.takesTurns = !a.unusedTurn && runnable(q)
}

// updateBusy sets whether batch work gives way now. It does so for linger after online
// work, because more often follows, and on a device without slices only if a stop pays.
func (p *giveway) updateBusy(now sched.Time, dev *sched.Device, serving, stops bool, s *summary) {
	switch {
	case p.serving && !serving:
		p.lingerUntil = now.Add(p.linger)
		p.stopCost.end(now)
	case serving && !p.serving && now < p.lingerUntil:
		p.stopCost.resume()
	case serving && !p.serving && !dev.Sliced():
		p.stopCost.begin(now, dev.StopTime, stops && s.turns > 0)
	}
	p.serving = serving
	if !serving && now >= p.lingerUntil {
		return
	}
	change := p.lingerUntil
	if serving {
		change = 0
	}
	if runsOn, until := p.stopCost.runOn(now); runsOn && !dev.Sliced() {
		s.busyChange = earlier(s.busyChange, earlier(until, change))
		return
	}
	if s.busy = true; serving {
		s.busyChange = 0
		return
	}
	s.busyChange = earlier(s.busyChange, change)
}

// rotate decides whose turn it is among the queues that take turns, of class
// batch if there are any: the current one until its turn is over, then the one
// with the lowest virtual time.
//
// A queue that becomes runnable joins at the clock. Batch and idle queues have one
// clock each, because an idle queue may be far behind after hours without service.
func (p *giveway) rotate(v *sched.View, accounts []account, s *summary, set *setting) {
	for i := range p.clocks {
		p.clocks[i].tick(v.Now)
	}
	best, current := -1, s.current
	for i := range accounts {
		a := &accounts[i]
		if !givesWay(&v.Queues[i]) {
			continue
		}
		p.clocks[a.class-sched.Batch].join(&a.vtime, a.takesTurns && !a.sideBySide, 0)
		if p.takesPart(a) && a.class == s.class && (best < 0 || a.before(&accounts[best])) {
			best = i
		}
	}
	switch {
	case best < 0 && current >= 0 && !accounts[current].unusedTurn:
		// No other queue needs the turn. A queue that becomes idle for a moment
		// keeps it, and with it its slice: that saves two calls.
		return
	case best < 0:
		p.current = 0
		return
	case current < 0 || !p.takesPart(&accounts[current]) || accounts[current].class != s.class || v.Now >= p.turnStart.Add(p.turn):
		if p.overlapped = 0; current >= 0 && p.takesPart(&accounts[current]) {
			p.beginOverlap(v.Now, &v.Queues[current], &v.Queues[best], s, set)
		}
		current = best
		accounts[best].lastTurn = v.Now
		p.current, p.turnStart.Time = v.Queues[best].ID, v.Now
		if s.class == sched.Idle {
			p.turnStart.Time = max(v.Now, p.idleStop) // a turn in which it is stopped would end like the last one
		}
		for i := range accounts {
			accounts[i].atTurn = accounts[i].served
		}
	}
	if q := &v.Queues[current]; s.turns > 1 || q.Measured && !q.Counters.Known {
		s.wake = earlier(s.wake, p.turnStart.Add(p.turn))
	}
}

// before reports whether a has the next turn rather than b. Queues that run side by side
// have turns only for the moments in which the device is cleared for a request.
func (a *account) before(b *account) bool {
	if a.sideBySide && b.sideBySide {
		return a.lastTurn < b.lastTurn
	}
	return a.at < b.at
}

// turnUnused reports whether q used nothing of the turn that is over. Without
// counters only the hardware's measurement tells. It measures whose context was on
// the device, at work or not. So a queue whose context never was there is idle; a
// queue with work gets there, if only for a moment, however busy the others are.
func (p *giveway) turnUnused(q *sched.Queue, a *account) bool {
	measured := q.Measured && !q.Counters.Known && q.State == sched.Running && q.MeasuredAt.Sub(p.turnStart.Time) >= p.turn/2
	return measured && a.served == a.atTurn
}
