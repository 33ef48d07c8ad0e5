package sim

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// A pool is a channel group that several clients share, as the clients of an MPS server do.
// It is one queue to the daemon, with a slice and no way to stop it. Each member has a queue
// that the daemon does not see. While the pool is on the GPU, the oldest commands of all its
// members run side by side.

// openMember creates the queue of a client in its pool, and the pool if it is the first.
func (d *device) openMember(id sched.QueueID, c *client) *queue {
	w, name := d.world, c.cfg.Pool
	d.queues = slices.DeleteFunc(d.queues, func(q *queue) bool { return q.pool != "" && q.dead })
	i := slices.IndexFunc(d.queues, func(q *queue) bool { return q.pool == name })
	created := i < 0
	if created {
		i = len(d.queues)
		p := &queue{device: d, id: id, process: sched.ProcessID(id), owner: c, pool: name, initialSlice: c.cfg.Slice}
		p.attached = newControl(p.abilities(), control{id, p.apply, p.restore})
		d.queues = append(d.queues, p)
		w.queues[id] = p
		d.engine.opened(p)
	}
	p := d.queues[i]
	m := &queue{device: d, id: p.id, process: p.process, owner: c, group: p}
	p.members = append(p.members, m)
	if created {
		w.observer.observe(p, sched.Event{Kind: sched.QueueOpened})
	}
	return m
}

// leavePool removes a member whose process was killed. A pool without members is closed.
func (q *queue) leavePool() {
	p := q.group
	p.members = slices.DeleteFunc(p.members, func(m *queue) bool { return m == q })
	p.dead = len(p.members) == 0
}

// scheduled returns the queue that the device schedules: the pool of a member, or q.
func (q *queue) scheduled() *queue {
	if q.group != nil {
		return q.group
	}
	return q
}

// inFlight returns how many commands of q, or of its members, the device has.
func (q *queue) inFlight() uint64 {
	n := q.launched - q.completed
	for _, m := range q.members {
		n += m.launched - m.completed
	}
	return n
}

// lanes appends the queues whose oldest commands run while q is on the device.
func (q *queue) lanes(buf []*queue) []*queue {
	if q.launched > q.completed {
		buf = append(buf, q)
	}
	for _, m := range q.members {
		if m.launched > m.completed {
			buf = append(buf, m)
		}
	}
	return buf
}

// slowdown returns how much longer commands take that run side by side than one by itself:
// by as much as they ask together for more than the device has of one resource.
func slowdown(lanes []*queue) float64 {
	if len(lanes) < 2 {
		return 1
	}
	occupancy, bandwidth := 0.0, 0.0
	for _, q := range lanes {
		occupancy += q.head().use.occupancy
		bandwidth += q.head().use.bandwidth
	}
	return max(1, occupancy, bandwidth)
}

// use is what a command by itself takes of the device's resources, as fractions.
type use struct{ occupancy, bandwidth float64 }

// credit counts elapsed time as progress of the commands that run side by side.
func credit(lanes []*queue, elapsed time.Duration) {
	slow := slowdown(lanes)
	for _, q := range lanes {
		c, progress := q.head(), elapsed
		if slow > 1 {
			progress = time.Duration(float64(elapsed) / slow)
		}
		if c.parked {
			continue
		}
		c.left -= progress
		if c.left < 0 || slow > 1 && c.left == 1 { // one is an error of rounding
			c.left = 0
		}
		if q.group != nil {
			q.deviceTime += progress
		}
	}
}

// timeLeft returns how long the first of the commands that run side by side takes to its
// end; ok is false if all of them are parked.
func timeLeft(lanes []*queue) (left time.Duration, ok bool) {
	slow := slowdown(lanes)
	for _, q := range lanes {
		c := q.head()
		if c.parked {
			continue
		}
		d := c.left
		if slow > 1 {
			d = time.Duration(float64(d)*slow) + 1
		}
		if !ok || d < left {
			left, ok = d, true
		}
	}
	return left, ok
}
