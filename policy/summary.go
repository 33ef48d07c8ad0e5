package policy

import "github.com/giveway/giveway/sched"

// summary is the state of a device in one plan, before its grants.
type summary struct {
	hasOnline bool // there is an online queue
	hasBatch  bool // there is a batch or class-idle queue

	busy       bool       // batch work gives way now: online work is ready, was ready within linger, or is expected
	busyChange sched.Time // when busy changes without an event

	// The rotation. If a batch queue takes turns, no class-idle queue does.
	current       int         // index of the queue whose turn it is, or -1
	inRotation    int         // queues that take turns
	rotationClass sched.Class // their class
	unstoppable   int         // batch and class-idle queues that would take turns but cannot be stopped: they always run

	weight   int64 // of a batch queue that takes turns
	weighted bool  // there are others, with other weights

	longCommands bool // the device runs one command at a time, and those of a queue that is not light are long

	running   int // batch and standard queues that run and have work
	newcomers int // batch queues whose load is unknown

	classIdleWaits bool // class-idle queues wait, because a standard or batch queue has work
	classIdleShort bool // a class-idle queue that cannot be stopped has the minimum slice

	recentOnline bool // there is online work, now or within activeFor, on a device without slices

	busyStandard int        // standard queues that used much of the device lately
	usageChange  sched.Time // when busyStandard may change without an event

	onlineSummary

	wake sched.Time // when the plan changes without an event
}

// summarize updates the states of the queues and returns the state of the device.
func (p *giveway) summarize(v *sched.View, states []queueState, set *setting) summary {
	s := summary{current: -1}
	dev := &v.Devices[0]
	lead := p.leadTime(v.Devices)
	if dev.Sliced() {
		// Until the queues are started again a switch passes, and as much again for the error of
		// the mean of what requests need.
		p.watchOnline(v, clearTime{p.clearLead(v, states, lead), 2 * dev.SwitchTime}, &s, set)
	}
	onlineReady := false // an online queue has work, or may have some that is not counted
	for i := range v.Queues {
		q, st := &v.Queues[i], &states[i]
		s.wake = earlier(s.wake, p.updateState(st, q, dev, v.Now))
		if q.ID == p.current {
			s.current = i
			p.turnStart.postpone(v, q.Served-st.servedAtTurn, p.turnLength())
			if st.joined && p.turnOver(v.Now, p.turnStart.Add(p.turnLength()), &s) {
				p.endTurn(v.Now, dev, q, st)
			}
		}
		switch q.Attr.Class {
		case sched.Online:
			s.hasOnline = true
			if q.Runnable() {
				onlineReady = true
			} else {
				due, change := p.due(q, v.Now, lead)
				s.busy = s.busy || due
				s.busyChange = earlier(s.busyChange, change)
			}
		case sched.Batch, sched.Idle:
			p.summarizeBatch(dev, q, st, &s)
		default:
			// A standard queue without counters always counts as ready. If it
			// has slices it does not stop class-idle queues: a class-idle queue with the
			// minimum slice gets only the time that the standard queue leaves.
			s.classIdleWaits = s.classIdleWaits || q.Runnable() && (q.Counters.Known || !yieldsBySlice(dev, q))
			if dev.Sliced() {
				p.watchStandard(v.Now, q, st, &s)
			}
		}
	}
	p.updateBusy(v.Now, dev, onlineReady, set.stopWhenBusy, &s)
	p.limitShares(v, states)
	p.watchLoads(v, states, &s)
	p.chooseSideBySide(v, states, &s, set)
	if dev.Sliced() {
		p.measureClear(v, states, &s)
	}
	return s
}

// summarizeBatch adds a batch or class-idle queue to the summary. Class-idle queues take turns only if
// no batch queue does.
func (p *giveway) summarizeBatch(dev *sched.Device, q *sched.Queue, st *queueState, s *summary) {
	class := q.Attr.Class
	s.hasBatch = true
	p.clocks[class-sched.Batch].see(&st.vtime)
	if !st.takesTurns {
		return
	}
	if class == sched.Batch {
		s.classIdleWaits = true
		countBatch(dev, q, st, s)
	}
	if yieldsBySlice(dev, q) && q.Level() == sched.LevelNone {
		s.unstoppable++
	}
	if s.inRotation == 0 || class < s.rotationClass {
		s.inRotation, s.rotationClass = 0, class
	}
	if class == s.rotationClass {
		s.inRotation++
	}
}

// countBatch counts a batch queue that would use a turn now.
func countBatch(dev *sched.Device, q *sched.Queue, st *queueState, s *summary) {
	s.weighted = s.weighted || s.weight != 0 && s.weight != q.Weight()
	s.weight = q.Weight()
	if q.State == sched.Running {
		s.running++
	}
	if isNewcomer(dev, q, st) {
		s.newcomers++
	}
	s.longCommands = s.longCommands || dev.Serial && st.load.verdict != lightLoad && st.work.command >= longCommand
}

// onlineLately reports whether there is online work, now or within activeFor. It waits longer if more
// batch queues run side by side: for a slice of each or, without slices, for the stop of each.
func (s *summary) onlineLately() bool { return s.activeOnline > 0 || s.recentOnline }

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
		p.stopCost.begin(now, dev.StopTime, stops && s.inRotation > 0)
	}
	if p.serving || serving {
		p.servedAt = now
	}
	p.serving = serving
	if until := p.servedAt.Add(activeFor); !dev.Sliced() && s.hasOnline && p.servedAt > 0 && now < until {
		s.recentOnline, s.onlineChange = true, earlier(s.onlineChange, until)
	}
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
	s.busy = true
	if serving {
		s.busyChange = 0
		return
	}
	s.busyChange = earlier(s.busyChange, change)
}
