package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// fair runs one party at a time: of those with work the one that has come least
// far in virtual time. This is start-time fair queueing (Goyal, Vin and Cheng,
// 1996): two parties with work all along are never further apart than one turn
// of each, divided by weight. A party is a queue, or all queues of a process.
//
// A policy that is fair says what a party is, what it weighs and how long its
// turn is.
type fair struct {
	planner
	party func(*sched.Queue) uint64               // a number, not zero
	ask   func(*sched.Queue) int64                // weight in units; a party's is the most any of its queues asks for
	deal  func([]party)                           // optional: makes weights of what was asked for
	turn  func(weight, total int64) time.Duration // of a party, where those with work have that total weight
	bonus time.Duration                           // how far before the clock a sleeper may come back

	seen    ledger[sighting]
	parties []party // in order of number
	of      []int   // the party of each queue of the view
	clock   vclock

	holder uint64     // whose turn it is; zero is nobody's
	since  sched.Time // when it began
}

// sighting is a queue's Served when last looked at.
type sighting struct {
	served time.Duration
	known  bool
}

// party is one that fair is fair to.
type party struct {
	vtime
	id     uint64
	weight int64
	used   time.Duration // of the turn under way
	queues int
	ready  bool // has work now
}

func byQueue(q *sched.Queue) uint64   { return uint64(q.ID) }
func byProcess(q *sched.Queue) uint64 { return uint64(q.Process) + 1 }

// Plan brings the accounts up to date and plans the party whose turn it is.
func (f *fair) Plan(v *sched.View) sched.Plan {
	f.update(v)
	rivals, total, mine := 0, int64(0), -1
	for i := range f.parties {
		if p := &f.parties[i]; p.ready {
			rivals++
			total += p.weight
			if p.id == f.holder {
				mine = i
			}
		}
	}
	if mine >= 0 {
		length := f.turn(f.parties[mine].weight, total)
		if v.Now >= f.since.Add(length) {
			if p := &f.parties[mine]; p.used == 0 {
				p.prepay(length, p.weight)
			}
			mine = -1
		}
	}
	if mine < 0 {
		mine = f.pass(v.Now)
	}
	f.only(v, func(i int) bool { return f.of[i] == mine && contends(&v.Queues[i]) })
	if rivals < 2 {
		return f.plan(0)
	}
	return f.plan(f.since.Add(f.turn(f.parties[mine].weight, total)))
}

// pass gives the turn to the party that is owed most, and returns its place.
func (f *fair) pass(now sched.Time) int {
	best := -1
	for i := range f.parties {
		if p := &f.parties[i]; p.ready && (best < 0 || p.at < f.parties[best].at) {
			best = i
		}
	}
	f.holder = 0
	if best >= 0 {
		f.parties[best].used = 0
		f.holder, f.since = f.parties[best].id, now
	}
	return best
}

// update brings the parties and their virtual times up to date.
func (f *fair) update(v *sched.View) {
	f.enrol(v)
	seen := f.seen.update(v.Queues)
	for i := range v.Queues {
		q, s := &v.Queues[i], &seen[i]
		p := &f.parties[f.of[i]]
		if used := q.Served - s.served; s.known && used > 0 {
			p.used += used
			p.charge(used, p.weight)
		}
		*s = sighting{served: q.Served, known: true}
	}
	for i := range f.parties {
		f.parties[i].weight = 0
		f.clock.see(&f.parties[i].vtime)
	}
	f.clock.tick()
	for i := range v.Queues {
		p := &f.parties[f.of[i]]
		p.weight = max(p.weight, f.ask(&v.Queues[i]))
	}
	for i := range f.parties {
		f.clock.join(&f.parties[i].vtime, f.parties[i].ready, f.bonus)
	}
	if f.deal != nil {
		f.deal(f.parties)
	}
}

// enrol makes a party of whoever is new, forgets those whose queues have all
// gone, and notes who has work.
func (f *fair) enrol(v *sched.View) {
	for i := range f.parties {
		f.parties[i].queues, f.parties[i].ready = 0, false
	}
	at := 0
	for i := range v.Queues {
		id, known := f.party(&v.Queues[i]), false
		if at, known = f.place(id, at); !known {
			f.parties = slices.Insert(f.parties, at, party{id: id, weight: unit})
		}
		f.parties[at].queues++
		f.parties[at].ready = f.parties[at].ready || contends(&v.Queues[i])
		at++
	}
	f.parties = slices.DeleteFunc(f.parties, func(p party) bool { return p.queues == 0 })
	f.of = f.of[:0]
	at = 0
	for i := range v.Queues {
		at, _ = f.place(f.party(&v.Queues[i]), at)
		f.of = append(f.of, at)
		at++
	}
}

// place finds a party, or where it should be. Queues mostly come in the order
// of their parties, so it looks at the guess before it searches.
func (f *fair) place(id uint64, guess int) (int, bool) {
	if guess < len(f.parties) && f.parties[guess].id == id {
		return guess, true
	}
	return slices.BinarySearchFunc(f.parties, id, func(p party, id uint64) int { return cmp.Compare(p.id, id) })
}
