package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// Virtual time is service divided by weight. Of the entities that share a clock, the one with
// the lowest virtual time runs next. An entity is a queue, or all queues of a process: see fair.
// Virtual time is kept in whole nanoseconds with the remainder carried, so that many small
// charges add up to one large one at any weight.

// unit is the internal weight of weight 1, so that there are lower weights.
const unit = 1024

// vtime is the virtual time of one entity.
type vtime struct {
	at        time.Duration
	weight    int64         // in units; zero: not set yet
	remainder int64         // of the last division in advance
	used      time.Duration // service since the clock last saw it
	prepaid   time.Duration // charged for, but not yet served
	joined    bool          // it was active at the last join
}

// charge advances t by the service used.
func (t *vtime) charge(used time.Duration) {
	t.used += used
	paid := min(used, t.prepaid)
	t.prepaid -= paid
	t.advance(used - paid)
}

// extra reports whether service of a queue was outside of its turns. It is kept from plan to plan.
type extra bool

// update returns whether the service that q has had since the last plan was outside of its turns: it
// was let run for its floor turn, or because the policy was overruled, or beside all others by slices,
// or it cannot be stopped. What a stopped queue had begun belongs to what it was let run for.
func (x *extra) update(q *sched.Queue, itsTurn bool) bool {
	if q.Decided.Run {
		switch q.Decided.Reason {
		case sched.FloorTurn, sched.PolicyOverruled, sched.Shared:
			*x = extra(!itsTurn)
		default:
			*x = false
		}
	}
	return bool(*x) || !itsTurn && q.Level() == sched.LevelNone
}

// prepay charges a turn in which no service was measured. The others waited for
// it, and an entity that cannot run (its start fails, or its kernel waits for
// another process) must not be next again and again. If the service is measured
// late, within 100 ms, it is not charged twice.
func (t *vtime) prepay(turn time.Duration) {
	const maxPrepaid = 100 * time.Millisecond
	t.prepaid = min(t.prepaid+turn, maxPrepaid)
	t.advance(turn)
}

func (t *vtime) advance(d time.Duration) {
	t.remainder += int64(d) * unit
	t.at += time.Duration(t.remainder / t.weight)
	t.remainder %= t.weight
}

// vclock is the clock that some entities share: the virtual time that every entity would
// have if the device served all active entities at once, in proportion to weight. It
// advances by the service of all of them divided by the weight of the active entities,
// is at least the lowest virtual time of an active entity, and never goes back.
//
// A new entity, and one that was idle, starts at the clock and so claims no service
// for the past. An entity that ran alone pays nothing for that.
//
// The lowest virtual time alone, or the start of the turn in service as in start-time
// fair queueing, is not enough: each new entity would start there, and while new ones
// arrive faster than turns end the clock would stand still and every older entity
// wait. By service the clock reaches an older entity, however many others arrive.
//
// What an entity owes is bounded, so that no history keeps it from its share for long. A turn
// takes an entity ahead of the clock by the service of that turn. Service outside of turns, such as
// the floor gives to an entity of low weight again and again, takes it hardly further: see
// chargeExtra. When its weight changes, what it owes stays the same service: see setWeight.
//
// At every plan, after all charges: call see for all entities, tick once, and join
// for all entities. Weights may be set before that or after it.
type vclock struct {
	now       time.Duration
	ticked    sched.Time    // when tick was last called
	lowest    time.Duration // of the active entities seen since the last tick
	weight    int64         // of those; zero if there are none
	used      time.Duration // by entities that were active, since the last advance
	remainder int64         // of the last division in tick
}

// maxOwed is how much service outside of its turns an entity may owe. One turn of a queue that only
// its gate can stop takes as long as all that it has launched, and what the floor gives it before its next
// turn is to be charged.
const maxOwed = 500 * time.Millisecond

// chargeExtra charges t for service outside of its turns, unless t owes maxOwed already. Service that
// is not charged does not advance the clock either: it would run ahead of the others.
func (c *vclock) chargeExtra(t *vtime, used time.Duration) {
	if t.at <= c.now+maxOwed*unit/time.Duration(t.weight) {
		t.charge(used)
	}
}

// isOwed reports whether t must have this service, or more, until it has had as much as the other.
func (t *vtime) isOwed(service time.Duration, other *vtime) bool {
	return other.at-t.at >= service*unit/time.Duration(t.weight)
}

// setWeight sets the weight of an entity, by which it is charged from now on. How much service it is
// ahead of the clock, or behind it, stays the same.
func (c *vclock) setWeight(t *vtime, weight int64) {
	if off := t.at - c.now; t.weight != 0 && t.weight != weight && (t.joined || off > 0) {
		const most = float64(1 << 60) // an entity is never that far off
		scaled := float64(off) * (float64(t.weight) / float64(weight))
		t.at = c.now + time.Duration(max(-most, min(scaled, most)))
	}
	if t.weight != weight {
		t.weight, t.remainder = weight, 0
	}
}

// see adds an entity to those of the next tick.
func (c *vclock) see(t *vtime) {
	if t.joined {
		if c.weight == 0 || t.at < c.lowest {
			c.lowest = t.at
		}
		c.weight += t.weight
		c.used += t.used
	}
	t.used = 0
}

// tick advances the clock, once at each instant: a second plan at the same instant
// must be the same as the first.
func (c *vclock) tick(at sched.Time) {
	if c.weight > 0 && at > c.ticked {
		c.remainder += int64(c.used) * unit
		c.now = max(c.now+time.Duration(c.remainder/c.weight), c.lowest)
		c.remainder %= c.weight
		c.used = 0
	}
	c.ticked, c.weight = at, 0
}

// join sets whether t is active from now on: runnable, and served by this clock. An entity that becomes active starts at
// the clock, or up to bonus before it if its virtual time was that low.
func (c *vclock) join(t *vtime, active bool, bonus time.Duration) {
	if active && !t.joined {
		t.at = max(t.at, c.now-bonus)
	}
	t.joined = active
}
