package sim

import (
	"math/rand/v2"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/loop"
	"github.com/giveway/giveway/sched"
)

// daemon is the simulated daemon: the real loop over the real scheduler. It implements
// loop.Transport and loop.Executor on the World. After a crash it is also the guardian,
// which undoes what the journal lists (fault.go).
type daemon struct {
	w          *World
	loop       loop.Loop
	journal    journal.Journal
	inbox      []sched.Event
	unreported []*queue // whose counters changed since the last Drain
	wake       timer
	wakeRand   *rand.Rand

	stalledUntil sched.Time // it makes no step before this: see Faults.Stall

	up         bool
	crashed    bool // and not restarted yet
	generation int  // counts starts; outcomes of calls of an earlier generation are dropped
	inflight   int  // calls

	overruled            sched.Mistake // the first for which the policy was overruled
	inversions           Inversions
	events, calls, steps uint64
	crashes              int
}

func newDaemon(w *World) *daemon {
	d := &daemon{w: w, wakeRand: w.rand("hops")}
	d.wake.fire = d.step
	return d
}

// start starts a daemon that knows nothing of an earlier one.
func (d *daemon) start() {
	d.up, d.crashed = true, false
	d.generation++
	d.loop = loop.Loop{
		Sched: sched.New(d.w.cfg.Sched, d.w.cfg.Policy), Transport: d, Executor: d, Recorder: d.w.cfg.Recorder,
	}
	if d.w.cfg.Started != nil {
		d.w.cfg.Started(d.loop.Sched)
	}
	d.clearInbox()
	d.unreported = d.unreported[:0]
	for _, dev := range d.w.devices {
		d.post(sched.Event{Kind: sched.DeviceOpened, Device: dev.id, About: dev.info().Device})
		for _, q := range dev.queues {
			if !q.dead {
				q.unreported = false
				d.observe(q, sched.Event{Kind: sched.QueueOpened})
			}
		}
	}
	d.wakeBy(d.w.now)
}

// post adds an event to the inbox if the daemon is up.
func (d *daemon) post(ev sched.Event) {
	if d.up {
		d.inbox = append(d.inbox, ev)
	}
}

// observe implements observer. As by the shim, the requests of a client without an SLO or a
// deadline are not reported.
func (d *daemon) observe(q *queue, ev sched.Event) {
	ev.Queue = q.id
	attr := q.owner.cfg.Attr
	switch ev.Kind {
	case sched.QueueOpened:
		ev.Process, ev.Device, ev.Can, ev.Attr = q.process, q.device.id, hal.Abilities(q.attached), attr
	case sched.QueueClosed:
		d.journal.Forget(q.id)
		if !d.up {
			delete(d.w.queues, q.id)
		}
	case sched.RequestStarted, sched.RequestFinished:
		if attr.SLO <= 0 && attr.Deadline <= 0 {
			return
		}
	case sched.AttrsChanged:
		attr.Expect = ev.Attr.Expect
		ev.Attr = attr
	}
	d.post(ev)
	if ev.Kind == sched.QueueOpened {
		q.countersChanged(true)
	}
	d.notify()
}

// countersChanged implements observer.
func (d *daemon) countersChanged(q *queue, wake bool) {
	if !q.unreported {
		q.unreported = true
		d.unreported = append(d.unreported, q)
	}
	if wake {
		d.notify()
	}
}

// notify schedules a step after the wake-up delay, unless the wake-up is lost.
func (d *daemon) notify() {
	if !d.up || d.w.chance(d.w.cfg.Faults.LostWake) {
		return
	}
	d.wakeBy(d.w.now.Add(d.w.cfg.WakeDelay.draw(d.wakeRand)))
}

func (d *daemon) wakeBy(at sched.Time) {
	at = max(at, d.stalledUntil)
	if !d.wake.isSet() || at < d.wake.at {
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
	d.inversions.add(d.loop.Sched.Inversions())
}

// clearInbox empties the inbox. Nothing refers to a closed queue once the daemon has
// learnt of it, or crashed.
func (d *daemon) clearInbox() {
	for i := range d.inbox {
		if ev := &d.inbox[i]; ev.Kind == sched.QueueClosed {
			delete(d.w.queues, ev.Queue)
		}
	}
	d.inbox = d.inbox[:0]
}

// Drain implements loop.Transport. Progress is read from the queues' counters, as the
// daemon reads it from shared memory: one event for all changes since the last call.
func (d *daemon) Drain(buf []sched.Event) []sched.Event {
	buf = append(buf, d.inbox...)
	d.clearInbox()
	for _, q := range d.unreported {
		q.unreported = false
		buf = append(buf, sched.Event{Kind: sched.Progressed, Queue: q.id, Counters: q.counters()})
	}
	d.unreported = d.unreported[:0]
	for _, dev := range d.w.devices {
		buf = dev.readTrace(buf)
	}
	d.events += uint64(len(buf))
	return buf
}

// Execute implements loop.Executor.
func (d *daemon) Execute(actions []sched.Action) {
	for _, call := range d.w.splitCalls(actions) {
		generation := d.generation
		d.perform(call, func(outcomes []sched.Outcome) {
			if generation != d.generation || !d.up {
				return
			}
			for i, a := range call {
				d.journal.End(a, outcomes[i])
				d.post(sched.Event{Kind: sched.ActionDone, Action: a.ID, Queue: a.Queue, Outcome: outcomes[i]})
			}
			d.notify()
		})
	}
}

// perform makes one call, with its actions in the journal, and reports the outcomes.
func (d *daemon) perform(actions []sched.Action, report func([]sched.Outcome)) {
	d.calls++
	d.inflight++
	for _, a := range actions {
		d.journal.Begin(a)
	}
	d.w.perform(actions, func(errs []error) {
		d.inflight--
		outcomes := make([]sched.Outcome, len(errs))
		for i, err := range errs {
			outcomes[i] = hal.Outcome(err)
		}
		report(outcomes)
	})
}

// shutDown begins the orderly end: the scheduler undoes every change.
func (d *daemon) shutDown() {
	if d.up {
		d.post(sched.Event{Kind: sched.ShutdownStarted})
		d.wakeBy(d.w.now)
	}
}

func (d *daemon) shutDownDone() bool {
	return !d.up || d.inflight == 0 && len(d.inbox) == 0 && d.loop.Sched.Settled()
}
