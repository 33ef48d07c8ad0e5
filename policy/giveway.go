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
// other queue is ready. The scheduler's floor keeps batch queues from starving.
//
// A plan begins with a summary of the device (summary.go), which updates the states of online queues
// (online.go, rhythm.go) and of standard queues (usage.go). Then rotate chooses the queue whose turn it
// is (rotation.go), and sideBySide the queues that run beside it (sidebyside.go and the files that it
// names). Two exceptions are bursts (burst.go) and requests that are shorter than a stop (stopcost.go).
type giveway struct {
	params
	planner
	arrivals
	sideBySide
	group group

	// Parameters.
	turn        time.Duration
	slice       time.Duration
	onlineSlice time.Duration
	bound       int
	linger      time.Duration

	readsSLO bool // the policy is slo

	states       perQueue[queueState]
	onlineStates perQueue[onlineState]
	learn        learnPeriod

	// The rotation: see rotate.
	clocks        [2]vclock     // virtual time of the batch queues and of the class-idle queues
	current       sched.QueueID // the queue whose turn it is; zero if none
	turnStart     turnStart
	inRotation    int        // queues that took turns when the current turn began: see turnLength
	classIdleStop sched.Time // class-idle queues are stopped until then, because the device was busy

	// Online work on a device without slices: see updateBusy.
	batchAt     sched.Time // when a batch or class-idle queue last had work
	serving     bool       // online work was ready at the last plan
	servedAt    sched.Time // the last plan at which it was, or had been since the plan before
	lingerUntil sched.Time // batch queues stay stopped until then, in case online work continues
	stopCost    stopCost

	// Online work on a device with slices.
	lone    lone
	burst   burst
	planned sched.Time // time of the last plan: see updateBurst
}

// setting is how far batch and class-idle queues give way in one plan. giveway always uses its
// parameters. slo chooses a setting for each plan.
type setting struct {
	slice         time.Duration // of the batch queue whose turn it is, beside online queues
	sharedSlice   time.Duration // of batch queues side by side, beside online queues; MinSlice: they take turns instead
	onlineSlice   time.Duration // of online queues, beside batch and class-idle queues
	bound         uint32        // on commands in flight of batch and class-idle queues without slices; zero is none
	bursts        bool          // batch queues may be stopped for bursts of online work
	clearRequests bool          // the device may be cleared for whole requests: see requestClear

	// On any device there may be batch queues without slices, which have to be stopped to make
	// room. Those with slices are stopped only if the slice is not enough.
	stopWhenBusy       bool // those without slices are stopped while online work is ready
	stopDuringRequests bool // all of them are stopped from the start of a request to its end

	// betweenRequests lets light batch queues run side by side between regular requests, even
	// if sharedSlice is MinSlice. For a request only the queue whose turn it is stays.
	betweenRequests bool
}

// batchBound is the default bound on commands in flight of a batch queue without
// slices. Measured with the shim alone on an H200 (200 us kernels, P50 of an
// online request): 276 us at a bound of 1, 914 us at 4; batch work keeps 0.90 and
// 0.93 of its rate.
const batchBound = 4

// queueState is what giveway keeps about one queue from plan to plan. Only batch and idle
// queues have all of it.
type queueState struct {
	vtime        // service in turns, divided by weight
	extra        extra
	class        sched.Class   // a queue that changes its class starts with a new state
	served       time.Duration // Queue.Served at the last plan
	servedAtTurn time.Duration // Queue.Served when the current turn began
	lastTurn     sched.Time    // when its last turn began, or when it entered the group
	tookTurns    bool          // it was one of those that take turns, at the last plan
	back         bool          // it has come back to those since the current turn began: see nextTurn
	takesTurns   bool          // it is a batch or class-idle queue that would use a turn now: see update
	readyAt      sched.Time    // time of the last plan at which it was runnable, or had completed commands since the plan before
	completed    uint64        // Counters.Completed then
	rests        bool          // it was not runnable at the last plan
	lastRest     time.Duration // how long it was not runnable the last time
	usedTurn     bool          // before its last rest it had the turn for usefulTurn or longer
	restsSince   sched.Time    // since when it keeps its turn without work and is not charged for it; zero: it does not
	withheld     bool          // it was stopped for a part of its turn, because others had work: see endTurn
	aheadAtTurn  bool          // it had had more than its share when the current turn began
	unusedTurn   bool          // it used nothing of its last turn: it takes no turns until it is served again

	load       loadState   // of a batch queue
	traced     bool        // its visits were known once
	work       workPeriods // of a batch queue with counters that has never been traced
	triedLater bool        // its load is unknown, and it waits for a later trial: see chooseNewcomers
	triedAt    sched.Time  // when its last trial began

	sideBySide   bool // it is a light batch queue that runs side by side with others, without turns
	outsideGroup bool // it is one of those, and waits because the group is full

	// How much more than its share the queue had side by side: see limitShares.
	ahead     time.Duration // virtual time above sideBySideShare times its share
	overdrawn bool          // ahead was too much: the queue takes turns until the others have caught up

	// Since when a queue that runs side by side was not served, and Queue.Served then.
	unservedSince sched.Time
	servedThen    time.Duration

	usage usageState // of a standard queue
}

func newGiveway() sched.Policy { return makeGiveway() }

func makeGiveway() *giveway {
	p := &giveway{
		turn: defaultTurn, slice: sched.MinSlice, onlineSlice: 20 * time.Millisecond, bound: batchBound, linger: 200 * time.Microsecond,
	}
	p.sharedSlice, p.group.limit, p.trial.most = 500*time.Microsecond, 4, trialQueues
	p.params = append(params{
		durationParam("turn", &p.turn, time.Millisecond, 10*time.Second, "length of a batch queue's turn; up to 50ms it is shortened where a round of all queues would take more than 2s"),
		sliceParam("slice", &p.slice, "time slice of the batch queue whose turn it is, while an online queue is on the device"),
		sliceParam("shared", &p.sharedSlice, "time slice of batch queues that run side by side, because they do not fill the device, while there is online work; min lets them take turns"),
		intParam("beside", &p.group.limit, 1, maxGroup, "how many light batch queues run side by side at a time while there is online work"),
		sliceParam("online", &p.onlineSlice, "time slice of online queues, while a batch or idle queue is on the device; a longer request is interrupted by switches"),
		intParam("bound", &p.bound, 1, 1<<16, "commands in flight of a batch queue, on devices without slices"),
		durationParam("linger", &p.linger, 0, time.Second, "how long after online work batch queues stay stopped, on devices without slices"),
	}, slices.Concat(p.burst.burstParams(), p.arrivalParams())...)
	return p
}

// Plan implements sched.Policy.
func (p *giveway) Plan(v *sched.View) sched.Plan {
	return p.planWith(v, p.ownSetting())
}

// ownSetting returns the setting of the parameters.
func (p *giveway) ownSetting() setting {
	return setting{slice: p.slice, sharedSlice: p.sharedSlice, onlineSlice: p.onlineSlice, bound: uint32(p.bound), stopWhenBusy: true, bursts: true, clearRequests: true}
}

// planWith is Plan with a setting in place of the parameters. Its steps depend on each other:
// the summary finds which queues take turns, rotate chooses the one whose turn it is, and the
// group and the overlap choose the queues that run beside it.
func (p *giveway) planWith(v *sched.View, set setting) sched.Plan {
	dev := &v.Devices[0]
	states := p.states.update(v.Queues)
	p.lone.update(v, states, &set, p.burst.phase != noBurst)
	p.updateBurst(v, &set)
	s := p.summarize(v, states, &set)
	if s.inRotation > 0 {
		p.batchAt = v.Now
	}
	p.rotate(v, states, &s, &set)
	p.group.choose(p.current, v.Queues, states, p.sharing && s.onlineLately())
	p.updateOverlap(v, states, &s)
	if s.hasOnline && s.inRotation > 0 {
		s.wake = earlier(s.wake, s.usageChange)
	}
	s.wake = earlier(earlier(s.wake, p.burst.wake), p.lone.wake)
	p.begin()
	for i := range v.Queues {
		q := &v.Queues[i]
		switch q.Attr.Class {
		case sched.Batch, sched.Idle:
			p.grantBatch(v.Now, dev, q, &states[i], &s, &set)
		case sched.Online:
			p.grants = append(p.grants, sched.Grant{Queue: q.ID, Slice: p.sliceOfOnline(dev, q, &s, &set), Reason: sched.IsOnline})
		default:
			p.grant(q, sched.ByDefault)
		}
	}
	plan := p.plan(s.wake)
	plan.Waiting = p.waitReasons(v.Now, dev, &s, &set)
	return plan
}

// updateBurst begins and ends bursts. A burst does not use up the current turn, because the
// queue whose turn it is cannot run. In a gap batch queues have the device's own slice. While light
// queues run side by side there are none: such queues cannot make up in gaps for what they lose in bursts.
func (p *giveway) updateBurst(v *sched.View, set *setting) {
	dev := &v.Devices[0]
	if p.burst.phase == inBurst {
		p.turnStart.Time = p.turnStart.Add(v.Now.Sub(p.planned))
	}
	p.planned = v.Now
	p.burst.update(v, set.bursts && !p.sharing && set.slice > 0 && set.slice < dev.MinSharedSlice)
	if p.burst.phase != inGap {
		return
	}
	set.slice = 0
	if set.sharedSlice != sched.MinSlice { // otherwise light queues keep taking turns
		set.sharedSlice = 0
	}
}

// grantBatch grants a batch or class-idle queue if it may run. A queue that takes no turns is
// granted: it costs nothing, and its next command starts at once.
func (p *giveway) grantBatch(now sched.Time, dev *sched.Device, q *sched.Queue, st *queueState, s *summary, set *setting) {
	if p.burst.stops(dev, q) {
		return
	}
	g := sched.Grant{Queue: q.ID, SideBySide: st.sideBySide}
	idle := q.Attr.Class == sched.Idle
	switch {
	case !yieldsBySlice(dev, q):
		if s.hasOnline {
			g.Bound = set.bound
		}
		if !st.takesTurns {
			break // to stop it would cost a stop and a start for each online request
		}
		s.wake = earlier(s.wake, s.busyChange)
		if s.busy && set.stopWhenBusy || q.ID != p.current && !p.runsBeside(q, st) || idle && s.classIdleWaits {
			return
		}
	case idle && st.takesTurns && p.classIdleStop > now && q.Level() != sched.LevelNone: // one that cannot be stopped is granted, for a slice below the default one
		s.wake = earlier(s.wake, p.classIdleStop)
		return
	case p.runsBeside(q, st):
		g.Slice = p.sliceBeside(now, dev, st, s, set)
	case q.ID == p.current && !(st.takesTurns && idle && s.classIdleWaits):
		g.Slice = sliceOfTurn(dev, q, st, s, set)
	case !st.takesTurns:
		if s.hasOnline && set.slice > 0 { // a short slice in case it gets work, which is noticed only after a while
			g.Slice = max(dev.MinSharedSlice, set.slice)
		}
	case q.Level() == sched.LevelNone: // cannot be stopped until its turn: a short slice is the best there is
		switch {
		case set.slice == 0:
		case s.hasOnline || idle:
			g.Slice = max(dev.MinSharedSlice, set.slice)
		case st.aheadAtTurn:
			g.Slice = dev.MinSharedSlice
		}
		if idle && s.classIdleWaits && set.slice > 0 && !s.classIdleShort {
			g.Slice, s.classIdleShort = sched.MinSlice, true // no other queue has one: see sliceOfTurn
		}
	default:
		st.withheld = true
		return
	}
	g.Reason = p.runReason(q, st)
	p.grants = append(p.grants, g)
}

// sliceOfTurn returns the slice of the queue whose turn it is. With a slice below
// MinSharedSlice that queue makes no progress beside a batch queue that cannot be stopped, or
// beside a standard queue that uses much of the device. With MinSharedSlice itself it makes
// little, so it then has the slice of queues that run side by side.
func sliceOfTurn(dev *sched.Device, q *sched.Queue, st *queueState, s *summary, set *setting) time.Duration {
	idle := q.Attr.Class == sched.Idle
	if !s.hasOnline && !idle || set.slice == 0 {
		return 0
	}
	others := s.unstoppable
	if q.Level() == sched.LevelNone && st.takesTurns {
		others--
	}
	switch {
	case others == 0 && (idle || s.busyStandard == 0):
		return set.slice
	case set.sharedSlice == 0:
		return 0
	}
	return max(set.slice, set.sharedSlice, dev.MinSharedSlice)
}

// yieldsBySlice reports whether q gives way through its time slice.
func yieldsBySlice(dev *sched.Device, q *sched.Queue) bool {
	return dev.Sliced() && q.Can&sched.CanSlice != 0
}

// givesWay reports whether q is of a class that gives way to online work.
func givesWay(q *sched.Queue) bool {
	return q.Attr.Class == sched.Batch || q.Attr.Class == sched.Idle
}

// shortRest is for how long some queues with counters keep their place after they ran out of work: see
// keepsPlace. A process that launches kernel by kernel runs out of work all the time.
const shortRest = 5 * time.Millisecond

// usefulTurn is how long a turn must be to be worth the calls that begin and end it, and a full visit.
func usefulTurn(dev *sched.Device) time.Duration { return max(dev.Slice, 2*dev.StopTime) }

// keepsPlace returns for how long q, which has no work, counts as a queue that takes turns.
//   - A queue that runs side by side with others does for shortRest, because its trial would end otherwise.
//   - So does one that has the turn and is light by its counters, because it would lose its turn, and one
//     that has the turn and runs beside light queues only. These wait for nothing, and otherwise all
//     slices would change with each rest.
//   - A queue that has the turn and whose last rest was shorter than a stop keeps it for as long as a stop
//     takes, because a change of turns takes longer.
//
// Any other queue gives up its turn at once. keepsTurn is set if q has the turn and others wait for it.
func (p *giveway) keepsPlace(st *queueState, q *sched.Queue, dev *sched.Device, keepsTurn bool) time.Duration {
	byCounters := st.judgedByCounters(q) && st.load.verdict == lightLoad
	switch {
	case st.sideBySide && (yieldsBySlice(dev, q) || byCounters):
		return shortRest
	case keepsTurn && (byCounters || p.besideLightOnly() && yieldsBySlice(dev, q)):
		return shortRest
	case keepsTurn && q.Counters.Known && st.lastRest > 0 && st.lastRest <= dev.StopTime:
		return dev.StopTime
	}
	return 0
}

// besideLightOnly reports whether all queues but one ran side by side at the last plan.
func (p *giveway) besideLightOnly() bool { return p.sharing && p.heavyQueues == 1 }

// updateState charges q for its service since the last plan, and sets whether it takes turns. Side
// by side only the service above sideBySideShare times its share counts: see limitShares. A queue that
// keeps its turn while it rests is charged for the rest, because others wait for it. It returns
// when takesTurns changes without an event; zero: it does not.
func (p *giveway) updateState(st *queueState, q *sched.Queue, dev *sched.Device, now sched.Time) sched.Time {
	itsTurn := q.ID == p.current
	if q.Attr.Class != st.class { // or the queue is new; the zero state is that of a new standard queue
		*st = queueState{served: q.Served, servedAtTurn: q.Served, class: q.Attr.Class}
	}
	if !givesWay(q) {
		return 0 // takes no turns
	}
	if !st.takesTurns && now >= st.readyAt.Add(shortRest) {
		st.joined = false // see recentlyReady
	}
	clock := &p.clocks[st.class-sched.Batch]
	clock.setWeight(&st.vtime, q.Weight()*unit)
	outside := st.extra.update(q, itsTurn)
	if used := q.Served - st.served; used > 0 {
		st.unusedTurn = false
		switch {
		case st.sideBySide:
			st.ahead += used / time.Duration(q.Weight())
		case outside:
			clock.chargeExtra(&st.vtime, used)
		default:
			st.charge(used)
		}
	}
	if st.restsSince > 0 {
		st.charge(now.Sub(st.restsSince))
		st.restsSince = 0
	}
	st.served, st.triedLater = q.Served, false
	st.judgeByCounters(q, now)
	st.takesTurns = !st.unusedTurn && q.Runnable()
	st.watchRest(q, now, itsTurn && now.Sub(p.turnStart.Time) >= usefulTurn(dev))
	if q.Runnable() {
		return 0
	}
	if until := st.readyAt.Add(p.keepsPlace(st, q, dev, itsTurn && p.inRotation > 1)); now < until && !q.Attr.Paused {
		if st.takesTurns = !st.unusedTurn; !st.sideBySide && !p.besideLightOnly() {
			st.restsSince = now
		}
		return until
	}
	return 0
}

// watchRest updates since when q rests, or how long it rested. usedTurn: it has had the turn for usefulTurn.
func (st *queueState) watchRest(q *sched.Queue, now sched.Time, usedTurn bool) {
	switch rests := !q.Runnable(); {
	case rests && !st.rests:
		st.usedTurn = usedTurn
	case st.rests && !rests:
		st.lastRest = now.Sub(st.readyAt)
	}
	st.rests = !q.Runnable()
	if q.Runnable() || q.Counters.Completed != st.completed {
		st.readyAt, st.completed = now, q.Counters.Completed
	}
}
