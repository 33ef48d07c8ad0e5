package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// fair runs one entity at a time: the runnable entity with the lowest virtual
// time. An entity is a queue, or all queues of a process. As in start-time fair
// queueing (Goyal, Vin and Cheng, 1996) the virtual times of two entities that are
// always runnable differ by at most one turn of each, divided by weight. The clock, at
// which new entities start, is that of weighted fair queueing: see vclock.
//
// A policy that uses fair sets what an entity is, its weight and the length of its
// turn.
type fair struct {
	params
	planner
	entityOf func(*sched.Queue) uint64               // ID of the queue's entity, not zero
	weightOf func(*sched.Queue) int64                // in units; an entity has the highest weight of its queues
	adjust   func([]entity)                          // optional: changes newWeight
	turn     func(weight, total int64) time.Duration // length of a turn; total is the weight of all runnable entities
	bonus    time.Duration                           // see vclock.join

	lastServed  perQueue[servedBefore]
	entities    []entity // in order of ID
	entityIndex []int    // the index of each queue's entity
	clock       vclock

	turnOf    uint64 // the entity whose turn it is; zero if none
	turnStart turnStart
}

// servedBefore is Queue.Served at the last plan.
type servedBefore struct {
	served time.Duration
	known  bool
	extra  extra
}

type entity struct {
	vtime
	id         uint64
	newWeight  int64         // from this plan on
	usedInTurn time.Duration // service in the current turn
	open       bool          // it has a queue
	ready      bool          // one of its queues is runnable
}

func byQueue(q *sched.Queue) uint64   { return uint64(q.ID) }
func byProcess(q *sched.Queue) uint64 { return uint64(q.Process) + 1 }

// Plan implements sched.Policy.
func (f *fair) Plan(v *sched.View) sched.Plan {
	f.update(v)
	ready, total, current := 0, int64(0), -1
	for i := range f.entities {
		if e := &f.entities[i]; e.ready {
			ready++
			total += e.weight
			if e.id == f.turnOf {
				current = i
			}
		}
	}
	if current >= 0 {
		e := &f.entities[current]
		length := f.turnLength(v, e.weight, total)
		f.turnStart.postpone(v, e.usedInTurn, length)
		if v.Now >= f.turnStart.Add(length) {
			if e.usedInTurn == 0 {
				e.prepay(length)
			}
			current = -1
		}
	}
	if current < 0 {
		current = f.nextTurn(v.Now)
	}
	f.grantOnly(v, func(i int) bool { return f.entityIndex[i] == current && v.Queues[i].Runnable() })
	if ready < 2 {
		return f.plan(0)
	}
	return f.plan(f.turnStart.Add(f.turnLength(v, f.entities[current].weight, total)))
}

// turnLength returns the length of a turn. It is at least minTurnStops times as long as
// a stop takes: what stops cost is charged as service, and short turns would pay more
// of it.
func (f *fair) turnLength(v *sched.View, weight, total int64) time.Duration {
	const minTurnStops = 10
	return max(f.turn(weight, total), minTurnStops*v.Devices[0].StopTime)
}

// nextTurn starts the turn of the runnable entity with the lowest virtual time,
// and returns its index, or -1.
func (f *fair) nextTurn(now sched.Time) int {
	best := -1
	for i := range f.entities {
		if e := &f.entities[i]; e.ready && (best < 0 || e.at < f.entities[best].at) {
			best = i
		}
	}
	f.turnOf = 0
	if best >= 0 {
		f.entities[best].usedInTurn = 0
		f.turnOf, f.turnStart.Time = f.entities[best].id, now
	}
	return best
}

// update updates the entities, their virtual times and their weights. Service is
// charged by the weight that the entity had while it was served.
func (f *fair) update(v *sched.View) {
	f.updateEntities(v)
	before := f.lastServed.update(v.Queues)
	for i := range v.Queues {
		q, e := &v.Queues[i], &f.entities[f.entityIndex[i]]
		outside := before[i].extra.update(q, e.id == f.turnOf)
		if used := q.Served - before[i].served; before[i].known && used > 0 {
			e.usedInTurn += used
			if outside {
				f.clock.chargeExtra(&e.vtime, used)
			} else {
				e.charge(used)
			}
		}
		before[i].served, before[i].known = q.Served, true
	}
	for i := range f.entities {
		f.clock.see(&f.entities[i].vtime)
		f.entities[i].newWeight = 0
	}
	f.clock.tick(v.Now)
	for i := range f.entities {
		f.clock.join(&f.entities[i].vtime, f.entities[i].ready, f.bonus)
	}
	for i := range v.Queues {
		e := &f.entities[f.entityIndex[i]]
		e.newWeight = max(e.newWeight, f.weightOf(&v.Queues[i]))
	}
	if f.adjust != nil {
		f.adjust(f.entities)
	}
	for i := range f.entities {
		f.clock.setWeight(&f.entities[i].vtime, f.entities[i].newWeight)
	}
}

// updateEntities adds new entities, removes those without a queue, and updates which
// are runnable.
func (f *fair) updateEntities(v *sched.View) {
	for i := range f.entities {
		f.entities[i].open, f.entities[i].ready = false, false
	}
	var at int
	var known bool
	for i := range v.Queues {
		q := &v.Queues[i]
		if at, known = f.find(q, at); !known {
			f.entities = slices.Insert(f.entities, at, entity{id: f.entityOf(q), vtime: vtime{weight: unit}})
		}
		f.entities[at].open = true
		f.entities[at].ready = f.entities[at].ready || q.Runnable()
		at++
	}
	f.entities = slices.DeleteFunc(f.entities, func(e entity) bool { return !e.open })
	f.entityIndex, at = f.entityIndex[:0], 0
	for i := range v.Queues {
		at, _ = f.find(&v.Queues[i], at)
		f.entityIndex = append(f.entityIndex, at)
		at++
	}
}

// find returns the index of q's entity, or where to insert it. Queues are usually
// in the order of their entities, so it tries the guess before it searches.
func (f *fair) find(q *sched.Queue, guess int) (int, bool) {
	id := f.entityOf(q)
	if guess < len(f.entities) && f.entities[guess].id == id {
		return guess, true
	}
	return slices.BinarySearchFunc(f.entities, id, func(e entity, id uint64) int { return cmp.Compare(e.id, id) })
}
