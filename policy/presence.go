package policy

import "time"

// presence estimates for how much of the time a queue that runs beside others has work. That cannot be
// measured directly, because a context without work stays on the device until another queue has
// some. But a context that stays for longer than its slice (Visits.Alone) shows that all other queues
// had no work. A heavy queue always has work, so beside it no other is ever alone. A queue that computes
// for a moment and then rests, for example because it loads data, leaves others alone.
type presence struct {
	beside time.Duration // time in which the queue ran beside others, and was not alone itself
	absent time.Duration // of that, the time in which one of the others was alone
}

const (
	minPresence = 50 * time.Millisecond  // presence is not known until beside has reached this
	maxPresence = 500 * time.Millisecond // when beside exceeds this, both times are halved
)

// add adds a period in which the queue ran beside others and was not alone, and for how much of it one of
// the others was.
func (p *presence) add(took, alone time.Duration) {
	took = max(took, 0) // how long a visit was longer than its slice is known late
	p.beside += took
	p.absent += min(max(alone, 0), took) // less than before if a queue was closed
	if p.beside > maxPresence {
		p.beside, p.absent = p.beside/2, p.absent/2
	}
}

// filled returns 1 for a queue that always has work, and 0 for one that has none for half of the time or
// more. To take turns with that one would leave the device without work.
func (p *presence) filled() float64 {
	if p.beside < minPresence {
		return 1
	}
	return max(0, 1-2*p.absent.Seconds()/p.beside.Seconds())
}
