package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// wfq shares a device in proportion to weight.
//
// Where the hardware shares its time in slices and lets us set all of them,
// everybody runs and the slices are in proportion: the least weight of all has
// base, the others as many times that. No slice is longer than longest, so a
// round of n busy queues takes at most n times that; beyond longest/base to one
// the proportion is lost. Slices depend on which queues there are, not on who
// has work, so that nothing is called for a request.
//
// Elsewhere one queue runs at a time: see fair.
type wfq struct {
	knobs
	fair
	base    time.Duration
	longest time.Duration
	quantum time.Duration
}

func newWFQ() sched.Policy {
	p := &wfq{base: 2 * time.Millisecond, longest: 50 * time.Millisecond, quantum: 10 * time.Millisecond}
	p.fair = fair{
		party: byQueue,
		ask:   func(q *sched.Queue) int64 { return q.Weight() * unit },
		turn:  func(_, _ int64) time.Duration { return p.quantum },
	}
	p.knobs = knobs{
		quantumKnob("base", &p.base, "slice of the least weight, where there are slices; never less than the device can use"),
		quantumKnob("longest", &p.longest, "longest slice"),
		quantumKnob("quantum", &p.quantum, "how long a turn is, where there are no slices"),
	}
	return p
}

// Plan implements sched.Policy.
func (p *wfq) Plan(v *sched.View) sched.Plan {
	dev := &v.Devices[0]
	if !dev.Sliced() {
		return p.fair.Plan(v)
	}
	least := int64(0)
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Can&sched.CanSlice == 0 {
			return p.fair.Plan(v)
		}
		if w := q.Weight(); least == 0 || w < least {
			least = w
		}
	}
	p.update(v) // in case a queue without slices comes
	p.begin()
	base := max(p.base, dev.MinSharedSlice)
	longest := max(p.longest, base)
	for i := range v.Queues {
		q := &v.Queues[i]
		slice := longest
		if ratio := q.Weight() / least; ratio <= int64(longest/base) {
			slice = min(longest, base*time.Duration(q.Weight())/time.Duration(least))
		}
		p.grants = append(p.grants, sched.Grant{Queue: q.ID, Slice: slice})
	}
	return p.plan(0)
}
