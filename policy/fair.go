package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// fair runs one party at a time: the runnable party with the lowest virtual time.
// This is start-time fair queueing (Goyal, Vin and Cheng, 1996): the virtual times
// of two parties that are always runnable differ by at most one turn of each,
// divided by weight. A party is a queue, or all queues of a process.
//
// A policy that embeds fair defines what a party is, its weight and the length of
// its turn.
type fair struct {
	planner
	party    func(*sched.Queue) uint64               // ID of the queue's party, not zero
	weightOf func(*sched.Queue) int64                // in units; a party has the highest weight of its queues
	adjust   func([]party)                           // optional: changes the weights
	turn     func(weight, total int64) time.Duration // length of a turn; total is the weight of all runnable parties
	bonus    time.Duration                           // see vclock.join

	lastServed perQueue[servedBefore]
	parties    []party // in order of ID
	of         []int   // the index of each queue's party
	clock      vclock

	turnOf    uint64     // the party whose turn it is; zero if none
	turnStart sched.Time // of the current turn
}

// servedBefore is Queue.Served at the last plan.
type servedBefore struct {
	served time.Duration
	known  bool
}

// party is a queue, or all queues of a process.
type party struct {
	vtime
	id     uint64
	weight int64
	used   time.Duration // service in the current turn
	queues int
	ready  bool // a queue of it is runnable
}

func byQueue(q *sched.Queue) uint64   { return uint64(q.ID) }
func byProcess(q *sched.Queue) uint64 { return uint64(q.Process) + 1 }

// Plan implements sched.Policy.
func (f *fair) Plan(v *sched.View) sched.Plan {
	f.update(v)
	ready, total, current := 0, int64(0), -1
	for i := range f.parties {
		if p := &f.parties[i]; p.ready {
			ready++
			total += p.weight
			if p.id == f.turnOf {
				current = i
			}
		}
	}
	if current >= 0 {
		length := f.turn(f.parties[current].weight, total)
		if v.Now >= f.turnStart.Add(length) {
			if p := &f.parties[current]; p.used == 0 {
				p.prepay(length, p.weight)
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
	return f.plan(f.turnStart.Add(f.turn(f.parties[current].weight, total)))
}

// nextTurn starts the turn of the runnable party with the lowest virtual time, and
// returns its index, or -1.
func (f *fair) nextTurn(now sched.Time) int {
	best := -1
	for i := range f.parties {
		if p := &f.parties[i]; p.ready && (best < 0 || p.at < f.parties[best].at) {
			best = i
		}
	}
	f.turnOf = 0
	if best >= 0 {
		f.parties[best].used = 0
		f.turnOf, f.turnStart = f.parties[best].id, now
	}
	return best
}

// update updates the parties and their virtual times.
func (f *fair) update(v *sched.View) {
	f.updateParties(v)
	before := f.lastServed.update(v.Queues)
	for i := range v.Queues {
		q, s := &v.Queues[i], &before[i]
		p := &f.parties[f.of[i]]
		if used := q.Served - s.served; s.known && used > 0 {
			p.used += used
			p.charge(used, p.weight)
		}
		*s = servedBefore{served: q.Served, known: true}
	}
	for i := range f.parties {
		f.parties[i].weight = 0
		f.clock.see(&f.parties[i].vtime)
	}
	f.clock.tick()
	for i := range v.Queues {
		p := &f.parties[f.of[i]]
		p.weight = max(p.weight, f.weightOf(&v.Queues[i]))
	}
	for i := range f.parties {
		f.clock.join(&f.parties[i].vtime, f.parties[i].ready, f.bonus)
	}
	if f.adjust != nil {
		f.adjust(f.parties)
	}
}

// updateParties adds new parties, removes those without a queue, and updates
// which are runnable.
func (f *fair) updateParties(v *sched.View) {
	for i := range f.parties {
		f.parties[i].queues, f.parties[i].ready = 0, false
	}
	at := 0
	for i := range v.Queues {
		id, known := f.party(&v.Queues[i]), false
		if at, known = f.find(id, at); !known {
			f.parties = slices.Insert(f.parties, at, party{id: id, weight: unit})
		}
		f.parties[at].queues++
		f.parties[at].ready = f.parties[at].ready || runnable(&v.Queues[i])
		at++
	}
	f.parties = slices.DeleteFunc(f.parties, func(p party) bool { return p.queues == 0 })
	f.of = f.of[:0]
	at = 0
	for i := range v.Queues {
		at, _ = f.find(f.party(&v.Queues[i]), at)
		f.of = append(f.of, at)
		at++
	}
}

// find returns the index of a party, or where to insert it. Queues are usually in
// the order of their parties, so it tries the guess before it searches.
func (f *fair) find(id uint64, guess int) (int, bool) {
	if guess < len(f.parties) && f.parties[guess].id == id {
		return guess, true
	}
	return slices.BinarySearchFunc(f.parties, id, func(p party, id uint64) int { return cmp.Compare(p.id, id) })
}
