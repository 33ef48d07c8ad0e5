package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// fair runs one member at a time: the runnable member with the lowest virtual
// time. A member is a queue, or all queues of a process. As in start-time fair
// queueing (Goyal, Vin and Cheng, 1996) the virtual times of two members that are
// always runnable differ by at most one turn of each, divided by weight. The clock, at
// which newcomers start, is that of weighted fair queueing: see vclock.
//
// A policy that uses fair sets what a member is, its weight and the length of its
// turn.
type fair struct {
	params
	planner
	memberOf func(*sched.Queue) uint64               // ID of the queue's member, not zero
	weightOf func(*sched.Queue) int64                // in units; a member has the highest weight of its queues
	adjust   func([]member)                          // optional: changes the weights
	turn     func(weight, total int64) time.Duration // length of a turn; total is the weight of all runnable members
	bonus    time.Duration                           // see vclock.join

	lastServed perQueue[servedBefore]
	members    []member // in order of ID
	of         []int    // the index of each queue's member
	clock      vclock

	turnOf    uint64 // the member whose turn it is; zero if none
	turnStart turnStart
}

// servedBefore is Queue.Served at the last plan.
type servedBefore struct {
	served time.Duration
	known  bool
}

type member struct {
	vtime
	id     uint64
	weight int64
	used   time.Duration // service in the current turn
	queues int
	ready  bool // one of its queues is runnable
}

func byQueue(q *sched.Queue) uint64   { return uint64(q.ID) }
func byProcess(q *sched.Queue) uint64 { return uint64(q.Process) + 1 }

// Plan implements sched.Policy.
func (f *fair) Plan(v *sched.View) sched.Plan {
	f.update(v)
	ready, total, current := 0, int64(0), -1
	for i := range f.members {
		if m := &f.members[i]; m.ready {
			ready++
			total += m.weight
			if m.id == f.turnOf {
				current = i
			}
		}
	}
	if current >= 0 {
		m := &f.members[current]
		length := f.turnLength(v, m.weight, total)
		f.turnStart.postpone(v, m.used, length)
		if v.Now >= f.turnStart.Add(length) {
			if m.used == 0 {
				m.prepay(length, m.weight)
			}
			current = -1
		}
	}
	if current < 0 {
		current = f.nextTurn(v.Now)
	}
	f.grantOnly(v, func(i int) bool { return f.of[i] == current && runnable(&v.Queues[i]) })
	if ready < 2 {
		return f.plan(0)
	}
	return f.plan(f.turnStart.Add(f.turnLength(v, f.members[current].weight, total)))
}

// turnLength returns the length of a turn. It is at least minTurnStops times as long as
// a stop takes: what stops cost is charged as service, and short turns would pay more
// of it.
func (f *fair) turnLength(v *sched.View, weight, total int64) time.Duration {
	const minTurnStops = 10
	return max(f.turn(weight, total), minTurnStops*v.Devices[0].StopTime)
}

// nextTurn starts the turn of the runnable member with the lowest virtual time,
// and returns its index, or -1.
func (f *fair) nextTurn(now sched.Time) int {
	best := -1
	for i := range f.members {
		if m := &f.members[i]; m.ready && (best < 0 || m.at < f.members[best].at) {
			best = i
		}
	}
	f.turnOf = 0
	if best >= 0 {
		f.members[best].used = 0
		f.turnOf, f.turnStart.Time = f.members[best].id, now
	}
	return best
}

// update updates the members, their virtual times and their weights. Service is
// charged by the weight that the member had while it was served.
func (f *fair) update(v *sched.View) {
	f.updateMembers(v)
	before := f.lastServed.update(v.Queues)
	for i := range v.Queues {
		q, m := &v.Queues[i], &f.members[f.of[i]]
		if used := q.Served - before[i].served; before[i].known && used > 0 {
			m.used += used
			m.charge(used, m.weight)
		}
		before[i] = servedBefore{served: q.Served, known: true}
	}
	for i := range f.members {
		f.clock.see(&f.members[i].vtime, f.members[i].weight)
		f.members[i].weight = 0
	}
	f.clock.tick(v.Now)
	for i := range f.members {
		f.clock.join(&f.members[i].vtime, f.members[i].ready, f.bonus)
	}
	for i := range v.Queues {
		m := &f.members[f.of[i]]
		m.weight = max(m.weight, f.weightOf(&v.Queues[i]))
	}
	if f.adjust != nil {
		f.adjust(f.members)
	}
}

// updateMembers adds new members, removes those without a queue, and updates which
// are runnable.
func (f *fair) updateMembers(v *sched.View) {
	for i := range f.members {
		f.members[i].queues, f.members[i].ready = 0, false
	}
	var at int
	var known bool
	for i := range v.Queues {
		q := &v.Queues[i]
		if at, known = f.find(q, at); !known {
			f.members = slices.Insert(f.members, at, member{id: f.memberOf(q), weight: unit})
		}
		f.members[at].queues++
		f.members[at].ready = f.members[at].ready || runnable(q)
		at++
	}
	f.members = slices.DeleteFunc(f.members, func(m member) bool { return m.queues == 0 })
	f.of, at = f.of[:0], 0
	for i := range v.Queues {
		at, _ = f.find(&v.Queues[i], at)
		f.of = append(f.of, at)
		at++
	}
}

// find returns the index of q's member, or where to insert it. Queues are usually
// in the order of their members, so it tries the guess before it searches.
func (f *fair) find(q *sched.Queue, guess int) (int, bool) {
	id := f.memberOf(q)
	if guess < len(f.members) && f.members[guess].id == id {
		return guess, true
	}
	return slices.BinarySearchFunc(f.members, id, func(m member, id uint64) int { return cmp.Compare(m.id, id) })
}
