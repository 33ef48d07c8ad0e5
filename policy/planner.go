package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// planner builds plans. It reuses its buffer of grants.
type planner struct{ grants []sched.Grant }

func (p *planner) begin() { p.grants = p.grants[:0] }

func (p *planner) grant(q *sched.Queue, reason sched.Reason) {
	p.grants = append(p.grants, sched.Grant{Queue: q.ID, Reason: reason})
}

func (p *planner) plan(wake sched.Time) sched.Plan {
	return sched.Plan{Grants: p.grants, Waiting: notFirst, Wake: wake}
}

// notFirst is why queues wait under the policies that put queues in an order.
var notFirst = [...]sched.Reason{sched.NotFirst, sched.NotFirst, sched.NotFirst, sched.NotFirst}

// grantOnly grants the ready queues for which chosen returns true, and all idle
// queues: an idle queue costs nothing, and its next command then starts at once.
func (p *planner) grantOnly(v *sched.View, chosen func(i int) bool) {
	p.begin()
	for i := range v.Queues {
		if q := &v.Queues[i]; !q.Ready() {
			p.grant(q, sched.NoWork)
		} else if chosen(i) {
			p.grant(q, sched.IsFirst)
		}
	}
}

// grantOne is grantOnly for queue i, or for none if i is -1. It returns the ID of
// the queue, or 0.
func (p *planner) grantOne(v *sched.View, i int) sched.QueueID {
	p.grantOnly(v, func(j int) bool { return j == i })
	if i < 0 {
		return 0
	}
	return v.Queues[i].ID
}

// uncounted reports whether q counts as ready only because its counters cannot be read. It
// may be idle. A policy that runs queues in an order stops no other queue for an uncounted one:
// beside an idle process the other would wait for ever. Only giveway and slo assume that an
// uncounted online queue is busy. They stop batch queues without slices for it, down to their floor.
func uncounted(q *sched.Queue) bool { return !q.Counters.Known && !q.Attr.Paused }

// knownBusy reports whether q is runnable and not uncounted.
func knownBusy(q *sched.Queue) bool { return q.Counters.Known && q.Runnable() }

// turnStart is when the current turn began.
type turnStart struct {
	sched.Time
	occupied bool // at the last plan: see postpone
}

// postpone begins the turn anew if its queue could not run yet, because stopped queues
// still have commands on a device that runs one command at a time. used is the
// queue's service in the turn. It may be a little if the queue was started before the
// others were stopped.
func (t *turnStart) postpone(v *sched.View, used, length time.Duration) {
	if !v.Devices[0].Serial {
		return
	}
	was := t.occupied
	t.occupied = false
	for i := range v.Queues {
		t.occupied = t.occupied || v.Queues[i].Draining()
	}
	if (was || t.occupied) && used < length/8 {
		t.Time = v.Now
	}
}

// index returns the index of a queue in a view.
func index(queues []sched.Queue, id sched.QueueID) (int, bool) {
	return slices.BinarySearchFunc(queues, id, func(q sched.Queue, id sched.QueueID) int { return cmp.Compare(q.ID, id) })
}

// addToChecksum adds q and its class to a checksum of queues. A change of the queues changes the checksum.
func addToChecksum(sum uint64, q *sched.Queue) uint64 {
	return sum*31 + uint64(q.ID)*4 + uint64(q.Attr.Class)
}

// first returns the index of the runnable queue that goes before all others, or -1.
// Of equal ones it is the one with the lowest ID.
func first(v *sched.View, before func(i, j int) bool) int {
	return firstOf(v, (*sched.Queue).Runnable, before)
}

func firstOf(v *sched.View, eligible func(*sched.Queue) bool, before func(i, j int) bool) int {
	best := -1
	for i := range v.Queues {
		if eligible(&v.Queues[i]) && (best < 0 || before(i, best)) {
			best = i
		}
	}
	return best
}

// grantFirst grants queue chosen, the uncounted queues that are not after it in the order, and all
// idle queues. chosen is the first of the queues known to be runnable, or -1 if there is none.
// grantFirst reports whether a runnable queue waits.
func (p *planner) grantFirst(v *sched.View, chosen int, before func(i, j int) bool) (waits bool) {
	p.grantOnly(v, func(i int) bool {
		granted := i == chosen || uncounted(&v.Queues[i]) && (chosen < 0 || !before(chosen, i))
		waits = waits || !granted && v.Queues[i].Runnable()
		return granted
	})
	return waits
}

// goAheadBySlice lets the queues for which ahead returns true go ahead of the other
// granted ones by their slices, if one of them is uncounted and the device has slices: the
// device itself then switches to it as soon as it has work.
func (p *planner) goAheadBySlice(v *sched.View, ahead func(i int) bool) {
	const long = 20 * time.Millisecond // longer than most requests
	for d := range v.Devices {
		dev := &v.Devices[d]
		uncountedAhead, others := false, 0
		each := func(f func(i int, g *sched.Grant)) {
			for i, n := 0, 0; n < len(p.grants); i++ { // in the order of the queues
				if q := &v.Queues[i]; q.ID == p.grants[n].Queue {
					if q.Device == dev.ID && q.Can&sched.CanSlice != 0 {
						f(i, &p.grants[n])
					}
					n++
				}
			}
		}
		each(func(i int, _ *sched.Grant) {
			if ahead(i) {
				uncountedAhead = uncountedAhead || uncounted(&v.Queues[i])
			} else {
				others++
			}
		})
		if !dev.Sliced() || !uncountedAhead || others == 0 {
			continue
		}
		each(func(i int, g *sched.Grant) {
			switch {
			case ahead(i):
				g.Slice = max(long, dev.MinSharedSlice)
			case others == 1:
				g.Slice = sched.MinSlice
			default:
				g.Slice = max(dev.MinSharedSlice, sched.MinSlice)
			}
		})
	}
}

// recheck returns when to check again whether q, for which others wait, has finished
// the work that it had at ReadySince. The end of that work causes an event only if q then
// becomes idle, because the shim does not report every command. Each wait is an eighth of the
// device time that the work has had, so its end is noticed at most an eighth late, and
// long work is checked seldom. Without counters there is nothing to check.
func recheck(q *sched.Queue, now sched.Time) sched.Time {
	const shortest = 500 * time.Microsecond // about what a stop takes
	if !q.Counters.Known {
		return 0
	}
	had := min(q.Served-q.ServedAtReady, now.Sub(q.ReadySince)) // measured service may be of earlier work
	return now.Add(max(had/8, shortest))
}

// earlier returns the earlier of two wake times, of which zero is none.
func earlier(a, b sched.Time) sched.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
