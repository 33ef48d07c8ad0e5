package sim

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/node"
	"github.com/giveway/giveway/sched"
)

// daemon is the node's daemon: the real loop over the real scheduler, with the
// world as its transport and executor, and the guardian that undoes what a dead
// daemon has left.
type daemon struct {
	w       *World
	loop    node.Loop
	journal node.Journal
	inbox   []sched.Event
	changed []*queue
	wake    timer
	hops    *rand.Rand

	up       bool
	down     bool // crashed, and not yet back
	life     int  // which of its lives this is: outcomes for an earlier one are nobody's
	inflight int
	leaving  bool

	overruled            sched.Mistake // the first that the policy was overruled for
	events, calls, turns uint64
	crashes              int
}

func newDaemon(w *World) *daemon {
	d := &daemon{w: w, hops: w.rand("hops")}
	d.wake.do = d.turn
	return d
}

// start begins a life with no memory of the last.
func (d *daemon) start() {
	d.up, d.down = true, false
	d.life++
	d.loop = node.Loop{
		Sched: sched.New(d.w.cfg.Sched, d.w.cfg.Choice), Transport: d, Executor: d, Recorder: d.w.cfg.Recorder,
	}
	d.inbox, d.changed = d.inbox[:0], d.changed[:0]
	for _, dev := range d.w.devices {
		d.post(sched.Event{Kind: sched.DeviceOpened, Device: dev.id, About: dev.Info().Device})
		for _, q := range dev.queues {
			if !q.dead {
				q.changed = false
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
		Kind: sched.QueueOpened, Queue: q.id, Process: sched.ProcessID(q.id), Device: q.device.id,
		Can: hal.Abilities(q.self), Attr: attr,
	})
	q.tell(true)
	d.news()
}

func (d *daemon) closed(q *queue) {
	d.post(sched.Event{Kind: sched.QueueClosed, Queue: q.id})
	d.journal.Forget(q.id)
	d.news()
}

// news has a turn taken soon, unless the wake-up is lost.
func (d *daemon) news() {
	if !d.up || d.w.cfg.Faults.loses(d.w) {
		return
	}
	d.wakeBy(d.w.now.Add(d.w.cfg.Hop.draw(d.hops)))
}

func (d *daemon) wakeBy(at sched.Time) {
	if d.wake.slot == 0 || at < d.wake.at {
		d.w.timeline.set(&d.wake, at)
	}
}

func (d *daemon) turn() {
	d.turns++
	d.wakeBy(max(d.loop.Turn(d.w.now), d.w.now+1))
	for _, dev := range d.w.devices {
		if m, _, yes := d.loop.Sched.Overruled(dev.id); yes && d.overruled == sched.NoMistake {
			d.overruled = m
		}
	}
}

// Drain implements node.Transport. Progress is read off the queues' counters,
// as the daemon reads it off shared memory: however much has happened since the
// last call, one event tells it.
func (d *daemon) Drain(buf []sched.Event) []sched.Event {
	buf = append(buf, d.inbox...)
	d.inbox = d.inbox[:0]
	for _, q := range d.changed {
		q.changed = false
		buf = append(buf, sched.Event{Kind: sched.Progressed, Queue: q.id, Seen: sched.Counters{
			Submitted: q.submitted, Launched: q.launched, Completed: q.completed, Known: true,
		}})
	}
	d.changed = d.changed[:0]
	for _, dev := range d.w.devices {
		buf = dev.look(buf)
	}
	d.events += uint64(len(buf))
	return buf
}

// News implements node.Transport; nobody waits for it here.
func (d *daemon) News() <-chan struct{} { return nil }

// Execute implements node.Executor.
func (d *daemon) Execute(actions []sched.Action) {
	for i, a := range actions {
		q := d.w.queues[a.Queue]
		if s := q.device.model.Slots; s != nil && s.Batch && batchable(a) {
			if first(actions, i, d.w) {
				d.call(q.device, batchOf(actions, q.device, d.w))
			}
			continue
		}
		d.call(q.device, []sched.Action{a})
	}
}

func batchable(a sched.Action) bool { return a.Level == sched.LevelInterrupt }

// batchOf picks the actions that one call to dev carries out together.
func batchOf(actions []sched.Action, dev *device, w *World) []sched.Action {
	var batch []sched.Action
	for _, a := range actions {
		if batchable(a) && w.queues[a.Queue].device == dev {
			batch = append(batch, a)
		}
	}
	return batch
}

// first reports whether no earlier action goes into the same batch as action i.
func first(actions []sched.Action, i int, w *World) bool {
	dev := w.queues[actions[i].Queue].device
	for _, a := range actions[:i] {
		if batchable(a) && w.queues[a.Queue].device == dev {
			return false
		}
	}
	return true
}

// call makes one control call. Calls to a driver wait for one another; the
// shim's gates are only memory.
func (d *daemon) call(dev *device, actions []sched.Action) {
	life := d.life
	d.perform(dev, actions, func(outcomes []sched.Failure) {
		if life != d.life || !d.up {
			return
		}
		for i, a := range actions {
			d.journal.End(a, outcomes[i])
			d.post(sched.Event{Kind: sched.ActionDone, Action: a.ID, Queue: a.Queue, Failure: outcomes[i]})
		}
		d.news()
	})
}

// perform carries actions out in the time that takes, and then tells.
func (d *daemon) perform(dev *device, actions []sched.Action, tell func([]sched.Failure)) {
	w := d.w
	d.calls++
	d.inflight++
	for _, a := range actions {
		d.journal.Begin(a)
	}
	cost := dev.model.Calls.cost(actions[0], w)
	begin := w.now
	if !gateOf(actions[0]) {
		begin = max(begin, dev.free)
		dev.free = begin.Add(cost)
	}
	outcomes := make([]sched.Failure, len(actions))
	effect := begin.Add(time.Duration(float64(cost) * dev.model.Calls.Effect))
	w.timeline.set(&timer{do: func() { d.effect(dev, actions, outcomes) }}, effect)
	w.timeline.set(&timer{do: func() {
		d.inflight--
		tell(outcomes)
	}}, begin.Add(cost))
}

var errInjected = errors.New("injected fault")

// effect is the moment at which a call does what it was made for.
func (d *daemon) effect(dev *device, actions []sched.Action, outcomes []sched.Failure) {
	var off, on []hal.Queue
	var batch []int // of actions, those that go through Switch, off before on
	for i, a := range actions {
		self := d.w.queues[a.Queue].self
		err := d.w.cfg.Faults.strike(d.w, a)
		switch {
		case err != nil && !errors.Is(err, errDoubt):
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

func gateOf(a sched.Action) bool { return a.Level == sched.LevelHold || a.Verb == sched.SetWindow }

func (c *Calls) cost(a sched.Action, w *World) time.Duration {
	dist := c.Gate
	switch {
	case gateOf(a):
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
func (d *daemon) letGo() {
	if d.up {
		d.leaving = true
		d.post(sched.Event{Kind: sched.LetGo})
		d.wakeBy(d.w.now)
	}
}

func (d *daemon) gone() bool {
	return !d.up || d.inflight == 0 && len(d.inbox) == 0 && d.loop.Sched.Settled()
}
