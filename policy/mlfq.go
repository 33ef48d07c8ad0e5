package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// mlfq, the multi-level feedback queue, runs one queue at a time, of the highest
// level there is; within a level they take turns. A queue that has held the
// device for a quantum falls a level, where quanta are twice as long: long work
// sinks, short work stays on top. What a queue has used counts until it falls,
// so it gains nothing by pausing just before. After every boost all are back
// where they started.
//
// A queue starts at the top, level 0; one of priority -n starts at level n.
type mlfq struct {
	knobs
	planner
	levels  int
	quantum time.Duration
	boost   time.Duration

	rungs  ledger[rung]
	holder sched.QueueID
	since  sched.Time // up to when the holder has been charged
	rise   sched.Time // when all go back to where they started
	last   uint64     // number given out at the end of a line
}

// rung is where a queue stands.
type rung struct {
	level int
	used  time.Duration // of the quantum
	place uint64        // in line, least first; zero for a newcomer
}

func newMLFQ() sched.Policy {
	p := &mlfq{levels: 4, quantum: 10 * time.Millisecond, boost: time.Second}
	p.knobs = knobs{
		intKnob("levels", &p.levels, 1, 16, "how many levels there are"),
		quantumKnob("quantum", &p.quantum, "how long a turn is at the top; twice as long at every level below"),
		durationKnob("boost", &p.boost, time.Millisecond, time.Hour, "how long until all are back where they started"),
	}
	return p
}

// Plan implements sched.Policy.
func (p *mlfq) Plan(v *sched.View) sched.Plan {
	rungs := p.rungs.update(v.Queues)
	p.move(v, rungs)
	rivals, fallen, first := 0, false, -1
	for i := range v.Queues {
		if !contends(&v.Queues[i]) {
			continue
		}
		rivals++
		fallen = fallen || rungs[i].level > p.start(&v.Queues[i])
		if first < 0 || rungs[i].before(&rungs[first]) {
			first = i
		}
	}
	p.holder = 0
	if first >= 0 {
		p.holder = v.Queues[first].ID
	}
	p.only(v, func(i int) bool { return i == first })
	if rivals < 2 {
		return p.plan(0)
	}
	wake := v.Now.Add(p.quantumAt(rungs[first].level) - rungs[first].used)
	if fallen {
		wake = min(wake, p.rise)
	}
	return p.plan(wake)
}

// move charges the holder, and brings every queue to its level.
func (p *mlfq) move(v *sched.View, rungs []rung) {
	held := v.Now.Sub(p.since)
	p.since = v.Now
	boost := v.Now >= p.rise
	if boost {
		p.rise = v.Now.Add(p.boost)
	}
	for i := range v.Queues {
		q, r := &v.Queues[i], &rungs[i]
		if r.place == 0 {
			r.level = p.start(q)
			p.queueUp(r)
		}
		r.level = min(r.level, p.levels-1)
		if q.ID == p.holder {
			r.used += held
		}
		for quantum := p.quantumAt(r.level); r.used >= quantum; quantum = p.quantumAt(r.level) {
			if r.level == p.levels-1 {
				r.used = 0
			} else {
				r.level++
				r.used -= quantum
			}
			p.queueUp(r)
		}
		if boost {
			r.level, r.used = p.start(q), 0
		}
	}
}

func (p *mlfq) start(q *sched.Queue) int {
	return int(min(max(-int64(q.Attr.Priority), 0), int64(p.levels-1)))
}

func (p *mlfq) quantumAt(level int) time.Duration { return p.quantum << level }

// queueUp puts r at the end of its line.
func (p *mlfq) queueUp(r *rung) {
	p.last++
	r.place = p.last
}

func (r *rung) before(s *rung) bool {
	return r.level < s.level || r.level == s.level && r.place < s.place
}
