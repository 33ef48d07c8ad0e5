package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// splitCalls divides actions into control calls. Where the driver takes several queues in
// one call, a call has all queues of one process that are to be interrupted, or restored.
func (w *World) splitCalls(actions []sched.Action) [][]sched.Action {
	var calls [][]sched.Action
	for _, a := range actions {
		i := slices.IndexFunc(calls, func(call []sched.Action) bool { return w.oneCall(call[0], a) })
		if i < 0 {
			calls = append(calls, []sched.Action{a})
		} else {
			calls[i] = append(calls[i], a)
		}
	}
	return calls
}

// oneCall reports whether one control call can do both a and b.
func (w *World) oneCall(a, b sched.Action) bool {
	p, q := w.queues[a.Queue], w.queues[b.Queue]
	s := p.device.model.Slots
	return s != nil && s.Batch && a.Level == sched.LevelInterrupt && b.Level == sched.LevelInterrupt &&
		a.Verb == b.Verb && p.device == q.device && p.process == q.process
}

// performAll makes the control calls that the actions need, of at most one action a queue.
// When the last call has ended it passes the error of each action to done. It returns when
// that will be.
func (w *World) performAll(actions []sched.Action, done func([]error)) (end sched.Time) {
	errs := make([]error, len(actions))
	index := make(map[sched.QueueID]int)
	var known []sched.Action
	for i, a := range actions {
		if index[a.Queue] = i; w.queues[a.Queue] == nil {
			errs[i] = hal.ErrGone
		} else {
			known = append(known, a)
		}
	}
	calls := w.splitCalls(known)
	left := len(calls)
	if left == 0 {
		done(errs)
	}
	for _, call := range calls {
		end = max(end, w.perform(call, func(results []error) {
			for i, a := range call {
				errs[index[a.Queue]] = results[i]
			}
			if left--; left == 0 {
				done(errs)
			}
		}))
	}
	return end
}

// perform makes one control call, which takes effect and ends as late as the model says,
// and then passes the error of each action to done. It returns when the call will end.
// Calls to the driver of a device wait for each other; calls to the shim's gate, which is
// memory, do not.
func (w *World) perform(actions []sched.Action, done func([]error)) (end sched.Time) {
	dev := w.queues[actions[0].Queue].device
	t := dev.callTime(actions)
	begin := w.now
	if !isGateCall(actions[0]) {
		begin = max(begin, dev.driverFreeAt)
		dev.driverFreeAt = begin.Add(t.total)
	}
	errs := make([]error, len(actions))
	if t.step == 0 {
		w.timeline.set(&timer{fire: func() { dev.effect(actions, errs) }}, begin.Add(t.before))
	} else {
		for i := range actions {
			w.timeline.set(&timer{fire: func() { dev.effect(actions[i:i+1], errs[i:i+1]) }}, begin.Add(t.before+time.Duration(i)*t.step))
		}
	}
	end = begin.Add(t.total)
	w.timeline.set(&timer{fire: func() { done(errs) }}, end)
	return end
}

// callTiming is the time that a call takes: until its first effect, from one effect to
// the next if they come one by one, and in total.
type callTiming struct{ before, step, total time.Duration }

// callTime draws the time that a call takes.
func (d *device) callTime(actions []sched.Action) callTiming {
	w, c, s := d.world, &d.model.Calls, d.model.Slots
	own := c.cost(actions[0], w)
	t := callTiming{before: time.Duration(float64(own) * c.Effect), total: own}
	if s == nil || !s.Interrupt || actions[0].Level != sched.LevelInterrupt {
		return t
	}
	n := time.Duration(len(actions))
	t.before += c.PerQueue
	if s.RemapAll {
		t.before += (n - 1) * c.PerQueue
		t.total += n*c.PerQueue + s.Context.Save()
	} else {
		t.step = c.PerQueue
		if e, ok := d.engine.(*slots); ok && actions[0].Verb == sched.Stop {
			t.step += s.Context.among(len(e.running)).Save()
		}
		t.total += n * t.step
	}
	if actions[0].Verb == sched.Stop {
		t.total += c.AfterStop.draw(w.deviceRand) + c.CopyPerQueue*time.Duration(d.queuesOfProcess(actions[0].Queue))
	}
	return t
}

// queuesOfProcess counts the queues of the process that owns the given one.
func (d *device) queuesOfProcess(id sched.QueueID) int {
	process, n := d.world.queues[id].process, 0
	for _, q := range d.queues {
		if !q.dead && q.process == process {
			n++
		}
	}
	return n
}

// effect carries out the actions of a call, as one update of the device, and stores the
// error of each.
func (d *device) effect(actions []sched.Action, errs []error) {
	if s, ok := d.engine.(*slots); ok && len(actions) > 1 {
		s.batching = true
		defer s.endBatch()
	}
	for i, a := range actions {
		q := d.world.queues[a.Queue]
		if q == nil { // closed since the call began
			errs[i] = hal.ErrGone
			continue
		}
		errs[i] = d.world.faultOf(a)
		if errs[i] != nil && !errors.Is(errs[i], errApplied) {
			continue
		}
		if d.world.ignores(a) {
			q.claimed = q.claimed || a.Level == sched.LevelInterrupt
			continue
		}
		errs[i] = errors.Join(errs[i], hal.Do(q.attached, a))
	}
}

// isGateCall reports whether an action is done by the shim, without the driver.
func isGateCall(a sched.Action) bool { return a.Level == sched.LevelHold || a.Verb == sched.SetBound }

// cost draws the time of a call for one queue, without the cost of contexts and of further
// queues.
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
	return dist.draw(w.deviceRand) + w.lateness()
}
