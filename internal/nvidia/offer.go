package nvidia

import (
	"maps"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
)

// arrived notes a group that discovery has found, or found changed.
func (b *Backend) arrived(g *discover.Group, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := nameOf(g)
	if old := b.arrivals[name]; old != nil {
		_ = old.group.File.Close()
	}
	b.arrivals[name] = &arrival{g, now.Add(settleTime)}
}

// nextDue returns when the next arrival is to be offered.
func (b *Backend) nextDue() (due time.Time, any bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.arrivals {
		if !any || a.due.Before(due) {
			due, any = a.due, true
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
		if err := b.offer(a.group); err != nil {
			b.log.Warn("channel group cannot be controlled", "pid", name.pid, "error", err)
			_ = a.group.File.Close()
		}
		b.mu.Lock()
		delete(b.arrivals, name)
		b.mu.Unlock()
	}
}

// dropArrivals closes the descriptors of arrivals.
func (b *Backend) dropArrivals(match func(groupName) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, a := range b.arrivals {
		if match(name) {
			delete(b.arrivals, name)
			_ = a.group.File.Close()
		}
	}
}

// offer offers a group to the daemon. The queue owns the group's descriptor if the daemon
// accepts.
func (b *Backend) offer(g *discover.Group) error {
	name := nameOf(g)
	for _, old := range b.remove(func(n groupName) bool { return n == name }) {
		b.restore(old) // the group's channels have changed
	}
	earlier := b.restorationOf(name.Key)
	driver := b.driver.state()
	q := &queue{name: name, gpu: b.gpu(g.GPU, driver), mps: g.MPSServer}
	control := newGroup(g)
	control.Found = earlier.found
	o := hal.Offer{Process: g.Process, Device: q.gpu, After: earlier.done}
	if driver.mayChange() {
		o.Handoff = &hal.Handoff{State: control, FD: g.File.Fd()}
		o.Attach = func(hal.Queue) (hal.Queue, error) { return control.attach() }
	} else {
		o.Attach = func(hal.Queue) (hal.Queue, error) { return control.observe() }
	}
	var err error
	if q.handle, err = b.host.QueueFound(o); err != nil {
		return err
	}
	q.found = control.Found
	detail := hal.Detail{FoundSlice: q.found}
	if q.mps {
		detail.SharedBy = "mps"
	}
	q.handle.SetDetail(detail)
	b.mu.Lock()
	b.queues = append(b.queues, q)
	b.mu.Unlock()
	return nil
}

// gone withdraws a group, or all groups of a process that has exited.
func (b *Backend) gone(g *discover.Gone) {
	exited := g.Key == discover.Key{}
	match := func(n groupName) bool {
		return n.pid == g.PID && n.start == g.Start && (exited || n.Key == g.Key)
	}
	b.dropArrivals(match)
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

// remove removes queues from the records and returns them.
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
