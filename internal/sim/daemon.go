package sim

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/loop"
	"github.com/giveway/giveway/sched"
)

// daemon is the node's daemon: the real loop over the real scheduler, with the
// world as its transport and executor, and the guardian that undoes what a dead
// daemon has left.
type daemon struct {
	w          *World
	loop       loop.Loop
	journal    journal.Journal
	inbox      []sched.Event
	countersOf []*queue
	wake       timer
	wakeRand   *rand.Rand

	up           bool
	crashed      bool // crashed, and not yet back
	generation   int  // which of its lives this is: outcomes for an earlier one are nobody's
	inflight     int
	shuttingDown bool

	overruled            sched.Mistake // the first that the policy was overruled for
	events, calls, steps uint64
	crashes              int
}

func newDaemon(w *World) *daemon {
	d := &daemon{w: w, wakeRand: w.rand("hops")}
	d.wake.fire = d.step
	return d
}

// start begins a life with no memory of the last.
func (d *daemon) start() {
	d.up, d.crashed = true, false
	d.generation++
	d.loop = loop.Loop{
		Sched: sched.New(d.w.cfg.Sched, d.w.cfg.Policy), Transport: d, Executor: d, Recorder: d.w.cfg.Recorder,
	}
	d.inbox, d.countersOf = d.inbox[:0], d.countersOf[:0]
	for _, dev := range d.w.devices {
		d.post(sched.Event{Kind: sched.DeviceOpened, Device: dev.id, About: dev.Info().Device})
		for _, q := range dev.queues {
			if !q.dead {
				q.unreported = false
				d.opened(q)
			}
		}
	}
	d.w.timeline.set(&d.wake, d.w.now)
}

// post puts an event in the inbox, if anybody is there to read it.
func (d *daemon) post(ev sched.Event) bool {
	if d.up {
		d.inbox = append(d.inbox, ev)
	}
	return d.up
}

func (d *daemon) opened(q *queue) {
	attr := sched.Attr{}
	if q.owner != nil {
		attr = q.owner.cfg.Attr
	}
	d.post(sched.Event{
		Kind: sched.QueueOpened, Queue: q.id, Process: q.process, Device: q.device.id,
		Can: hal.Abilities(q.hal), Attr: attr,
	})
	q.countersChanged(true)
	d.notify()
}

func (d *daemon) closed(q *queue) {
	d.post(sched.Event{Kind: sched.QueueClosed, Queue: q.id})
	d.journal.Forget(q.id)
	d.notify()
}

// news has a turn taken soon, unless the wake-up is lost.
func (d *daemon) notify() {
	if !d.up || d.w.cfg.Faults.loseWake(d.w) {
		return
	}
	d.wakeBy(d.w.now.Add(d.w.cfg.WakeDelay.draw(d.wakeRand)))
}

func (d *daemon) wakeBy(at sched.Time) {
	if d.wake.heapIndex == 0 || at < d.wake.at {
		d.w.timeline.set(&d.wake, at)
	}
}

func (d *daemon) step() {
	d.steps++
	d.wakeBy(max(d.loop.Turn(d.w.now), d.w.now+1))
	for _, dev := range d.w.devices {
		if m, _, yes := d.loop.Sched.Overruled(dev.id); yes && d.overruled == sched.NoMistake {
			d.overruled = m
		}
	}
}

// Drain implements loop.Transport. Progress is read off the queues' counters,
// as the daemon reads it off shared memory: however much has happened since the
// last call, one event tells it.
func (d *daemon) Drain(buf []sched.Event) []sched.Event {
	buf = append(buf, d.inbox...)
	d.inbox = d.inbox[:0]
	for _, q := range d.countersOf {
		q.unreported = false
		buf = append(buf, sched.Event{Kind: sched.Progressed, Queue: q.id, Counters: sched.Counters{
			Submitted: q.submitted, Launched: q.launched, Completed: q.completed, Known: true,
		}})
	}
	d.countersOf = d.countersOf[:0]
	for _, dev := range d.w.devices {
		buf = dev.readTrace(buf)
	}
	d.events += uint64(len(buf))
	return buf
}

// Execute implements loop.Executor.
func (d *daemon) Execute(actions []sched.Action) {
	for _, call := range d.split(actions) {
		d.call(d.w.queues[call[0].Queue].device, call)
	}
}

// split divides actions into calls. Where the driver takes many queues in one, a
// call has all those of one program that are to be interrupted, or restored.
func (d *daemon) split(actions []sched.Action) [][]sched.Action {
	var calls [][]sched.Action
	for _, a := range actions {
		i := slices.IndexFunc(calls, func(call []sched.Action) bool { return d.oneCall(call[0], a) })
		if i < 0 {
			calls = append(calls, []sched.Action{a})
		} else {
			calls[i] = append(calls[i], a)
		}
	}
	return calls
}

func (d *daemon) oneCall(a, b sched.Action) bool {
	p, q := d.w.queues[a.Queue], d.w.queues[b.Queue]
	s := p.device.model.Slots
	return s != nil && s.Batch && a.Level == sched.LevelInterrupt && b.Level == sched.LevelInterrupt &&
		a.Verb == b.Verb && p.device == q.device && p.process == q.process
}

// call makes one control call. Calls to a driver wait for one another; the
// shim's gates are only memory.
func (d *daemon) call(dev *device, actions []sched.Action) {
	life := d.generation
	d.perform(dev, actions, func(outcomes []sched.Outcome) {
		if life != d.generation || !d.up {
			return
		}
		for i, a := range actions {
			d.journal.End(a, outcomes[i])
			d.post(sched.Event{Kind: sched.ActionDone, Action: a.ID, Queue: a.Queue, Outcome: outcomes[i]})
		}
		d.notify()
	})
}

// perform carries actions out in the time that takes, and then tells.
func (d *daemon) perform(dev *device, actions []sched.Action, tell func([]sched.Outcome)) {
	w := d.w
	d.calls++
	d.inflight++
	for _, a := range actions {
		d.journal.Begin(a)
	}
	t := dev.callTime(actions)
	begin := w.now
	if !isGateCall(actions[0]) {
		begin = max(begin, dev.driverFreeAt)
		dev.driverFreeAt = begin.Add(t.all)
	}
	outcomes := make([]sched.Outcome, len(actions))
	if t.step == 0 {
		w.timeline.set(&timer{fire: func() { d.effect(dev, actions, outcomes) }}, begin.Add(t.before))
	} else {
		for i := range actions {
			w.timeline.set(&timer{fire: func() { d.effect(dev, actions[i:i+1], outcomes[i:i+1]) }}, begin.Add(t.before+time.Duration(i)*t.step))
		}
	}
	w.timeline.set(&timer{fire: func() {
		d.inflight--
		tell(outcomes)
	}}, begin.Add(t.all))
}

// took is what a call takes: until its effect, or the first of them, from one to
// the next if they come one by one, and in all.
type callTiming struct{ before, step, all time.Duration }

func (dev *device) callTime(actions []sched.Action) callTiming {
	w, c, s := dev.world, &dev.model.Calls, dev.model.Slots
	own := c.cost(actions[0], w)
	t := callTiming{before: time.Duration(float64(own) * c.Effect), all: own}
	if s == nil || !s.Interrupt || actions[0].Level != sched.LevelInterrupt {
		return t
	}
	n := time.Duration(len(actions))
	t.before += c.PerQueue
	if s.RemapAll {
		t.before += (n - 1) * c.PerQueue
		t.all += n*c.PerQueue + s.Context.Save()
	} else {
		t.step = c.PerQueue
		if e, ok := dev.engine.(*slots); ok && actions[0].Verb == sched.Stop {
			t.step += s.Context.among(len(e.running)).Save()
		}
		t.all += n * t.step
	}
	if actions[0].Verb == sched.Stop {
		t.all += c.AfterStop.draw(w.deviceRand) + c.CopyPerQueue*time.Duration(dev.queuesOfProcess(actions[0].Queue))
	}
	return t
}

// siblings counts the queues of the program that has this one.
func (dev *device) queuesOfProcess(id sched.QueueID) int {
	process, n := dev.world.queues[id].process, 0
	for _, q := range dev.queues {
		if !q.dead && q.process == process {
			n++
		}
	}
	return n
}

var errInjected = errors.New("injected fault")

// effect is the moment at which a call does what it was made for.
func (d *daemon) effect(dev *device, actions []sched.Action, outcomes []sched.Outcome) {
	var off, on []hal.Queue
	var batch []int // of actions, those that go through Switch, off before on
	for i, a := range actions {
		self := d.w.queues[a.Queue].hal
		err := d.w.cfg.Faults.fail(d.w, a)
		switch {
		case err != nil && !errors.Is(err, errApplied):
		case len(actions) == 1:
			err = errors.Join(err, hal.Do(self, a))
		case a.Verb == sched.Stop:
			batch = slices.Insert(batch, len(off), i)
			off = append(off, self)
		default:
			on, batch = append(on, self), append(batch, i)
		}
		outcomes[i] = hal.Outcome(err)
	}
	if len(batch) > 0 {
		for j, err := range dev.Switch(off, on) {
			outcomes[batch[j]] = hal.Outcome(err)
		}
	}
}

func isGateCall(a sched.Action) bool { return a.Level == sched.LevelHold || a.Verb == sched.SetBound }

func (c *Calls) cost(a sched.Action, w *World) time.Duration {
	dist := c.Gate
	switch {
	case isGateCall(a):
	case a.Verb == sched.Stop:
		dist = c.Stop
	case a.Verb == sched.Start:
		dist = c.Start
	default:
		dist = c.SetSlice
	}
	return dist.draw(w.deviceRand) + w.cfg.Faults.delay(w)
}

// letGo is the orderly end.
func (d *daemon) shutDown() {
	if d.up {
		d.shuttingDown = true
		d.post(sched.Event{Kind: sched.ShutdownStarted})
		d.wakeBy(d.w.now)
	}
}

func (d *daemon) shutDownDone() bool {
	return !d.up || d.inflight == 0 && len(d.inbox) == 0 && d.loop.Sched.Settled()
}
