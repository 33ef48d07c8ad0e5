package nvidia

import (
	"maps"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// arrived notes a group that discovery has found, or found changed. A new one is offered as settling.
func (b *Backend) arrived(g *discover.Group, now time.Time) {
	name := nameOf(g)
	a := &arrival{group: g, due: now.Add(settleTime), last: now.Add(maxSettleTime)}
	b.mu.Lock()
	i := slices.IndexFunc(b.queues, func(q *queue) bool { return q.name == name })
	known := i >= 0
	old := b.arrivals[name]
	switch {
	case old != nil:
		a.last, a.tries, a.controlled = old.last, old.tries, old.controlled
	case known && b.queues[i].group != nil:
		a.controlled = true
		if c := b.queues[i].group; c.unproved != nil {
			a.tries = c.tries // the driver need not refuse it that often again
		}
	default:
		s := b.settledOf(name)
		a.last, a.tries = now.Add(s.left), s.tries
	}
	if a.due.After(a.last) {
		a.due = a.last
	}
	b.arrivals[name] = a
	b.mu.Unlock()
	if old != nil {
		_ = old.group.File.Close()
	}
	if !known {
		b.offerSettling(g)
	}
}

// settledOf returns what is kept of the earlier arrivals of a group. b.mu is held.
func (b *Backend) settledOf(name groupName) settled {
	if s, ok := b.settled[name]; ok {
		return s
	}
	return settled{left: maxSettleTime}
}

// noteSettled keeps for how long a group has been settling. The time in which it was controlled
// meanwhile does not count, nor that in which the driver refused to control it. b.mu is held.
func (b *Backend) noteSettled(name groupName, a *arrival, now time.Time) {
	if now.Sub(b.settledSince) > settlePeriod {
		clear(b.settled)
		b.settledSince = now
	}
	s := b.settledOf(name)
	s.tries = a.tries
	if !a.controlled {
		s.left = min(s.left, max(0, a.last.Sub(now)))
	}
	b.settled[name] = s
}

// settling is the queue of a group that has not settled yet. Nothing can be done to it.
type settling struct{}

func (settling) Close() error { return nil }

// offerSettling offers a group before it has settled, so that its process has its class, and
// other processes give way to it, before its first kernel. When the group has settled, offer
// replaces the queue by one that can be controlled.
func (b *Backend) offerSettling(g *discover.Group) {
	q, o := b.newQueue(g, b.driver.state())
	o.Attach = func(hal.Queue) (hal.Queue, error) { return settling{}, nil }
	if err := b.accept(q, o); err != nil {
		b.log.Warn("channel group was not accepted before it has settled", "pid", g.Process.PID, "error", err)
	}
}

// nextDue returns when the next arrival is to be offered, or a trace to be opened again.
func (b *Backend) nextDue() (due time.Time, any bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.arrivals {
		if !any || a.due.Before(due) {
			due, any = a.due, true
		}
	}
	for _, g := range b.gpus {
		if at := g.nextReopen(); !at.IsZero() && (!any || at.Before(due)) {
			due, any = at, true
		}
	}
	return due, any
}

// offerDue offers the groups that have not changed for settleTime.
func (b *Backend) offerDue(now time.Time) {
	b.mu.Lock()
	all := maps.Clone(b.arrivals)
	b.mu.Unlock()
	for name, a := range all {
		if a.due.After(now) {
			continue
		}
		err := b.offer(a.group, a.tries)
		if isTransient(err) {
			if a.tries == 0 {
				b.log.Warn("channel group cannot be controlled for now; trying again", "pid", name.pid, "error", err)
			}
			a.retry(now)
			continue
		}
		if err != nil {
			b.log.Warn("channel group cannot be controlled", "pid", name.pid, "error", err)
			_ = a.group.File.Close()
		}
		b.mu.Lock()
		b.noteSettled(name, a, now)
		delete(b.arrivals, name)
		b.mu.Unlock()
	}
}

// retry sets the time of the next attempt: after settleTime, and then after twice as long each
// time, up to maxRetry. The group stays a settling queue.
func (a *arrival) retry(now time.Time) {
	const maxRetry = 30 * time.Second
	a.tries++
	a.wait = min(max(2*a.wait, settleTime), maxRetry)
	a.due = now.Add(a.wait)
	a.last = a.due.Add(maxSettleTime)
}

// dropArrivals closes the descriptors of arrivals. It holds no lock meanwhile: if the process
// has exited, ours is the last descriptor, and the driver frees the context in the close.
func (b *Backend) dropArrivals(match func(groupName) bool) {
	b.mu.Lock()
	var dropped []*arrival
	maps.DeleteFunc(b.arrivals, func(name groupName, a *arrival) bool {
		if match(name) {
			dropped = append(dropped, a)
			return true
		}
		return false
	})
	b.mu.Unlock()
	for _, a := range dropped {
		_ = a.group.File.Close()
	}
}

// offer offers a group to the daemon. The queue owns the group's descriptor if the daemon
// accepts. After a transient error the group is listed as settling. tries is how many such errors
// there were before.
func (b *Backend) offer(g *discover.Group, tries int) error {
	name := nameOf(g)
	var early *queue // settling: withdrawn last, so that the process always has a queue
	for _, old := range b.remove(func(n groupName) bool { return n == name }) {
		if old.group == nil {
			early = old
		} else {
			b.restore(old) // the group's channels have changed
		}
	}
	earlier := b.restorationOf(name.Key)
	driver := b.driver.state()
	q, o := b.newQueue(g, driver)
	control := newGroup(g)
	control.tries = tries
	q.group = control
	control.Found, o.After = earlier.found, earlier.done
	if driver.mayChange() {
		o.Handoff = &hal.Handoff{State: control, FD: g.File.Fd()}
		o.Attach = func(hal.Queue) (hal.Queue, error) { return control.attach() }
	} else {
		o.Attach = func(hal.Queue) (hal.Queue, error) { return control.observe() }
	}
	err := b.accept(q, o)
	switch transient := isTransient(err); {
	case !transient && early != nil:
		early.handle.Withdraw(false)
	case transient && early != nil:
		b.list(early)
	case transient:
		b.offerSettling(g)
	}
	if err == nil && control.unproved != nil {
		b.log.Warn("channel group is controlled only in part", "pid", name.pid, "error", control.unproved)
	}
	return err
}

// newQueue returns a queue for a group, and its offer.
func (b *Backend) newQueue(g *discover.Group, driver driverState) (*queue, hal.Offer) {
	q := &queue{name: nameOf(g), gpu: b.gpu(g.GPU, driver), mps: g.MPSServer, pool: g.Pool}
	o := hal.Offer{Process: g.Process, Device: q.gpu}
	if q.pool != "" {
		o.Attr.Class = sched.Batch
	}
	return q, o
}

// accept makes an offer to the daemon and lists the queue if the daemon accepts.
func (b *Backend) accept(q *queue, o hal.Offer) (err error) {
	if q.handle, err = b.host.QueueFound(o); err != nil {
		return err
	}
	if q.group != nil {
		q.found = q.group.Found
	}
	q.describe(b.list(q))
	return nil
}

// list lists a queue and returns the members of its group.
func (b *Backend) list(q *queue) []proc.Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queues = append(b.queues, q)
	return slices.Clone(b.members[q.name])
}

// describe tells the daemon what giveway ps shows of a queue.
func (q *queue) describe(members []proc.Process) {
	detail := hal.Detail{FoundSlice: q.found, Pool: q.pool, Members: members, Settling: q.group == nil}
	if q.mps {
		detail.SharedBy = "mps"
	}
	q.handle.SetDetail(detail)
}

// setMember notes that a process is a client of an MPS server, or has exited. The server's
// queue may be offered later.
func (b *Backend) setMember(m *discover.Member, in bool) {
	name := groupName{m.Server.PID, m.Server.Start, m.Group}
	b.mu.Lock()
	all := slices.DeleteFunc(b.members[name], func(p proc.Process) bool { return p.ID() == m.Process.ID() })
	if in {
		all = append(all, m.Process)
	}
	if b.members[name] = all; len(all) == 0 {
		delete(b.members, name)
	}
	i := slices.IndexFunc(b.queues, func(q *queue) bool { return q.name == name })
	var q *queue
	if i >= 0 {
		q = b.queues[i]
	}
	b.mu.Unlock()
	if q != nil {
		q.describe(slices.Clone(all))
	}
}

// gone withdraws a group, or all groups of a process that has exited.
func (b *Backend) gone(g *discover.Gone, now time.Time) {
	exited := g.Key == discover.Key{}
	match := func(n groupName) bool {
		return n.pid == g.PID && n.start == g.Start && (exited || n.Key == g.Key)
	}
	b.mu.Lock()
	name := groupName{g.PID, g.Start, g.Key}
	if exited {
		maps.DeleteFunc(b.settled, func(n groupName, _ settled) bool { return match(n) })
	} else if a := b.arrivals[name]; a != nil {
		b.noteSettled(name, a, now)
	}
	b.mu.Unlock()
	b.dropArrivals(match)
	b.mu.Lock()
	maps.DeleteFunc(b.members, func(n groupName, _ []proc.Process) bool { return match(n) })
	b.mu.Unlock()
	for _, q := range b.remove(match) {
		if exited {
			// Our copy of the descriptor keeps the memory of the process on the GPU:
			// the daemon closes it without another call.
			q.handle.Withdraw(true)
		} else {
			b.restore(q) // another process may still hold it
		}
	}
}

// remove removes queues and returns them.
func (b *Backend) remove(match func(groupName) bool) []*queue {
	b.mu.Lock()
	defer b.mu.Unlock()
	var removed []*queue
	b.queues = slices.DeleteFunc(b.queues, func(q *queue) bool {
		if match(q.name) {
			removed = append(removed, q)
			return true
		}
		return false
	})
	for _, q := range removed {
		if !slices.ContainsFunc(b.queues, func(o *queue) bool { return o.gpu == q.gpu && o.name.pid == q.name.pid }) {
			q.gpu.forget(q.name.pid)
		}
	}
	return removed
}

// restore withdraws a queue whose group may still exist.
func (b *Backend) restore(q *queue) {
	b.restoring[q.name.Key] = restoration{q.found, q.handle.Withdraw(false)}
}

// restorationOf returns the restoration of a group that is under way; zero: none is.
func (b *Backend) restorationOf(key discover.Key) restoration {
	maps.DeleteFunc(b.restoring, func(_ discover.Key, r restoration) bool {
		select {
		case <-r.done:
			return true
		default:
			return false
		}
	})
	return b.restoring[key]
}
