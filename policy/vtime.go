package policy

import "time"

// Virtual time is service divided by weight. Whoever is furthest behind in it is
// owed most. It is kept in whole nanoseconds with the remainder carried, so that
// a heavy queue that is looked at often is not served for nothing.

// unit is the weight of a queue of weight 1, so that there is something below it.
const unit = 1024

// vtime is how far one rival has come in virtual time.
type vtime struct {
	at      time.Duration
	rest    int64         // what advance could not divide
	prepaid time.Duration // service it has been charged for and not had
	active  bool          // had work when last looked at
}

// charge is for service had.
func (t *vtime) charge(used time.Duration, weight int64) {
	paid := min(used, t.prepaid)
	t.prepaid -= paid
	t.advance(used-paid, weight)
}

// prepay charges a turn of which no use was seen. Others waited for it, and one
// that cannot run now (its start fails, its kernel waits for somebody else's)
// must not be next for ever. Should it be only the news that is late, it is not
// charged twice.
func (t *vtime) prepay(turn time.Duration, weight int64) {
	const latestNews = 100 * time.Millisecond
	t.prepaid = min(t.prepaid+turn, latestNews)
	t.advance(turn, weight)
}

func (t *vtime) advance(d time.Duration, weight int64) {
	t.rest += int64(d) * unit
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
