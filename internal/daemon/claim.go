package daemon

import (
	"slices"
	"time"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/sched"
)

// By hints a process gives itself a class or a priority for which others wait, and its work is
// what it counts on its own page. Where the hardware measures its device time, the policies see
// whether it uses the device. Elsewhere only completed commands show that: a process that counts
// launches and completes none could keep others waiting for ever, as could a kernel that never ends.
//
// So the daemon counts the device time that such a process takes from others between two completed
// commands. While that is too much, the hints are doubted: they may lower what the process has
// without them and not raise it. The process keeps its work, and its turns as one without hints.
const (
	// claimCheck is how often the loop looks at the processes with such hints.
	claimCheck = 100 * time.Millisecond
	// commandTime is how long a command, or what the process waits for at once, may take without
	// counting. Kernels of 500 ms are fine, also where two such processes share the device.
	commandTime = 700 * time.Millisecond
	// maxClaim is how much longer, in all, before the hints are doubted. A claimRefund-th part of the
	// time that passes is subtracted, so that a process with a long command now and then is believed.
	maxClaim    = time.Second
	claimRefund = 20
	// maxSharers is for how many processes at most the device time is divided.
	maxSharers = 4
)

// claim is what the hints of a process took from others. Daemon.mu guards it.
type claim struct {
	raised    bool          // a hint raises what the process has without hints
	completed uint64        // commands completed at the last check
	taken     time.Duration // device time since the last of them was completed, while others waited
	debt      time.Duration // what exceeded commandTime, less the refund
	doubted   bool          // the hints may not raise anything
	proved    bool          // a command was completed since then
}

// checkClaims finds the processes whose hints are doubted from now on, or believed again, and
// appends the changes of their attributes to buf. The loop calls it, with d.mu held.
func (d *Daemon) checkClaims(now sched.Time, buf []sched.Event) []sched.Event {
	passed := now.Sub(d.claims.checked)
	if passed < claimCheck {
		return buf
	}
	d.claims.checked = now
	passed = min(passed, 2*claimCheck) // a loop that stood still saw nothing
	d.claims.queues = d.claims.queues[:0]
	for _, p := range d.processes { //shape:unordered each changes only itself
		c := &p.claim
		if !c.raised && c.taken == 0 && c.debt == 0 && !c.doubted {
			continue
		}
		was := c.doubted
		c.update(p.counters.Completed, passed, func() time.Duration { return d.takenBy(p, passed) })
		if c.doubted != was {
			p.merge()
			d.publish(p)
			d.noteReduced(p)
			buf = p.appendAttrs(buf)
		}
	}
	return buf
}

// update takes in how many commands are completed and the device time that the process took from
// others since the last check.
func (c *claim) update(completed uint64, passed time.Duration, taken func() time.Duration) {
	c.debt = max(c.debt-passed/claimRefund, 0)
	moved := completed != c.completed
	if !c.doubted && (!moved || c.taken > 0) { // commands that are shorter than a check cost nothing
		before := max(c.taken, commandTime)
		c.taken += taken()
		c.debt += max(c.taken, commandTime) - before
	}
	if moved {
		c.completed, c.taken, c.proved = completed, 0, true
	}
	switch {
	case !c.doubted && c.debt > maxClaim:
		c.doubted, c.proved = true, false
	case c.doubted && c.proved && c.debt == 0:
		c.doubted, c.taken = false, 0
	}
}

// takenBy returns the device time that a process took from others by its hints since the last
// check. d.mu is held.
func (d *Daemon) takenBy(p *process, passed time.Duration) (taken time.Duration) {
	if !p.claim.raised || !p.counters.Known || p.counters.Launched == p.counters.Completed {
		return 0
	}
	if len(d.claims.queues) == 0 {
		d.claims.queues = d.sched.Queues(d.claims.queues)
	}
	for _, q := range p.queues {
		if n := sharers(d.claims.queues, q.id); n > 0 {
			taken = max(taken, passed/time.Duration(min(n, maxSharers)))
		}
	}
	return taken
}

// sharers returns how many queues, of which id is one, use a device while others wait for it. It is
// 0 if no other waits, if the queue waits itself, or if the hardware measures its device time.
func sharers(queues []sched.Queue, id sched.QueueID) (n int) {
	at := slices.IndexFunc(queues, func(q sched.Queue) bool { return q.ID == id })
	if at < 0 || queues[at].Measured || !queues[at].Decided.Run {
		return 0
	}
	waits := false
	for i := range queues {
		q := &queues[i]
		switch {
		case q.Device != queues[at].Device:
		case q.Runnable() && q.Decided.Run, q.Draining():
			n++
		case q.Runnable() && q.Process != queues[at].Process:
			waits = true
		}
	}
	if !waits {
		return 0
	}
	return n
}

// raisedByHints reports whether hints raise what the process has without them. Daemon.mu is held.
func (p *process) raisedByHints(layers *attr.Layers) bool {
	if layers[attr.FromHint].Empty() {
		return false
	}
	lower := p.limits
	lower.HintsLower = true
	attrs, _ := layers.Within(&lower)
	return attrs != p.attrs
}
