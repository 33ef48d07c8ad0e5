package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// mlfq, the multi-level feedback queue, runs one queue at a time, from the top
// level that has a runnable queue; the queues of a level take turns. A queue that
// has had the device for a quantum moves one level down, where the quantum is
// twice as long. So long work moves down and short work stays at the top. Time
// used counts until the queue moves, so a queue gains nothing by pausing before
// its quantum is over. Every boost period all queues return to their start level, the
// one whose turn it was behind the others.
//
// A queue starts at level 0, the top; one of priority -n starts at level n.
type mlfq struct {
	params
	planner
	levels  int
	quantum time.Duration
	boost   time.Duration

	states       perQueue[mlfqState]
	turnOf       sched.QueueID
	chargedUntil sched.Time // for turnOf
	nextBoost    sched.Time
	lastPosition uint64 // the highest position given to a queue
}

// mlfqState is the state of one queue.
type mlfqState struct {
	level    int
	used     time.Duration // of the current quantum
	position uint64        // in the order of its level, lowest first; zero for a new queue
}

func newMLFQ() sched.Policy {
	p := &mlfq{levels: 4, quantum: 10 * time.Millisecond, boost: time.Second}
	p.params = params{
		intParam("levels", &p.levels, 1, 16, "number of levels"),
		quantumParam("quantum", &p.quantum, "length of a turn at the top level; it doubles at every level below"),
		durationParam("boost", &p.boost, time.Millisecond, time.Hour, "time after which all queues return to their start level"),
	}
	return p
}

// Plan implements sched.Policy.
func (p *mlfq) Plan(v *sched.View) sched.Plan {
	states := p.states.update(v.Queues)
	p.move(v, states)
	current := first(v, func(i, j int) bool { return states[i].before(&states[j]) })
	p.turnOf = p.grantOne(v, current)
	ready, fallen := 0, false
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Runnable() {
			ready++
			fallen = fallen || states[i].level > p.startLevel(q)
		}
	}
	if ready < 2 {
		return p.plan(0)
	}
	wake := v.Now.Add(p.quantumAt(states[current].level) - states[current].used)
	if fallen {
		wake = min(wake, p.nextBoost)
	}
	return p.plan(wake)
}

// move charges the queue whose turn it was, and moves every queue to its level.
func (p *mlfq) move(v *sched.View, states []mlfqState) {
	held := v.Now.Sub(p.chargedUntil)
	p.chargedUntil = v.Now
	boost := v.Now >= p.nextBoost
	if boost {
		p.nextBoost = v.Now.Add(p.boost)
	}
	for i := range v.Queues {
		q, r := &v.Queues[i], &states[i]
		if r.position == 0 {
			r.level = p.startLevel(q)
			p.moveToEnd(r)
		}
		r.level = min(r.level, p.levels-1)
		if q.ID == p.turnOf {
			r.used += held
		}
		for quantum := p.quantumAt(r.level); r.used >= quantum; quantum = p.quantumAt(r.level) {
			if r.level == p.levels-1 {
				r.used = 0
			} else {
				r.level++
				r.used -= quantum
			}
			p.moveToEnd(r)
		}
		if boost {
			r.level, r.used = p.startLevel(q), 0
			if q.ID == p.turnOf { // otherwise the same queue could get an extra turn in every period
				p.moveToEnd(r)
			}
		}
	}
}

func (p *mlfq) startLevel(q *sched.Queue) int {
	return int(min(max(-int64(q.Attr.Priority), 0), int64(p.levels-1)))
}

func (p *mlfq) quantumAt(level int) time.Duration { return p.quantum << level }

// moveToEnd puts a queue last in its level.
func (p *mlfq) moveToEnd(r *mlfqState) {
	p.lastPosition++
	r.position = p.lastPosition
}

func (r *mlfqState) before(s *mlfqState) bool {
	return r.level < s.level || r.level == s.level && r.position < s.position
}
