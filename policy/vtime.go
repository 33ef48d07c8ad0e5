package policy

import "time"

// Virtual time is service divided by weight. The member of a group with the lowest
// virtual time runs next. It is kept in whole nanoseconds with the remainder
// carried, so that many small charges add up to one large one at any weight.

// unit is the internal weight of weight 1, so that there are lower weights.
const unit = 1024

// vtime is the virtual time of one member of a group.
type vtime struct {
	at        time.Duration
	remainder int64         // of the last division in advance
	prepaid   time.Duration // charged for, but not yet served
	active    bool          // was runnable at the last join
}

// charge advances t by the service used.
func (t *vtime) charge(used time.Duration, weight int64) {
	paid := min(used, t.prepaid)
	t.prepaid -= paid
	t.advance(used-paid, weight)
}

// prepay charges a turn in which no service was measured. The others waited for
// it, and a member that cannot run (its start fails, or its kernel waits for
// another process) must not be next again and again. If the service is measured
// late, within 100 ms, it is not charged twice.
func (t *vtime) prepay(turn time.Duration, weight int64) {
	const maxPrepaid = 100 * time.Millisecond
	t.prepaid = min(t.prepaid+turn, maxPrepaid)
	t.advance(turn, weight)
}

func (t *vtime) advance(d time.Duration, weight int64) {
	t.remainder += int64(d) * unit
	t.at += time.Duration(t.remainder / weight)
	t.remainder %= weight
}

// vclock is the virtual time of a group: the lowest one of its active members. It
// never goes back. A new member, and one that was idle, starts at the clock and so
// claims no service for the past. A member that ran alone pays nothing for that.
//
// At every plan, after all charges: call see for all members, tick once, and join
// for all members.
type vclock struct {
	now    time.Duration
	lowest time.Duration // of the active members seen since the last tick
	any    bool          // lowest is set
}

func (c *vclock) see(t *vtime) {
	if t.active && (!c.any || t.at < c.lowest) {
		c.lowest, c.any = t.at, true
	}
}

func (c *vclock) tick() {
	if c.any {
		c.now = max(c.now, c.lowest)
	}
	c.any = false
}

// join records whether t is runnable now. A member that becomes active starts at
// the clock, or up to bonus before it if its virtual time was that low.
func (c *vclock) join(t *vtime, active bool, bonus time.Duration) {
	if active && !t.active {
		t.at = max(t.at, c.now-bonus)
	}
	t.active = active
}
