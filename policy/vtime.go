package policy

import "time"

// Virtual time is service divided by weight. Whoever is furthest behind in it is
// owed most. It is kept in whole nanoseconds with the remainder carried, so that
// a heavy queue that is looked at often is not served for nothing.

// unit is the weight of a queue of weight 1, so that there is something below it.
const unit = 1024

// vtime is how far one rival has come in virtual time.
type vtime struct {
	at     time.Duration
	rest   int64 // what charge could not divide
	active bool  // had work when last looked at
}

func (t *vtime) charge(used time.Duration, weight int64) {
	t.rest += int64(used) * unit
	t.at += time.Duration(t.rest / weight)
	t.rest %= weight
}

// vclock is the virtual time of a group of rivals: that of the one furthest
// behind of those with work. It never goes back, so neither a newcomer nor one
// who has slept can claim the past, and who ran while alone owes nothing for it.
//
// At every look, after all charges: see everybody, tick, then join everybody.
type vclock struct {
	now   time.Duration
	least time.Duration
	any   bool
}

func (c *vclock) see(t *vtime) {
	if t.active && (!c.any || t.at < c.least) {
		c.least, c.any = t.at, true
	}
}

func (c *vclock) tick() {
	if c.any {
		c.now = max(c.now, c.least)
	}
	c.any = false
}

// join notes whether t has work now. Who comes back to work starts at the
// clock, or up to bonus before it if it had been that far behind.
func (c *vclock) join(t *vtime, active bool, bonus time.Duration) {
	if active && !t.active {
		t.at = max(t.at, c.now-bonus)
	}
	t.active = active
}
