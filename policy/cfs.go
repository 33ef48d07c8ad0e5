package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// cfs is the completely fair scheduler of Linux, one queue at a time: the least
// virtual run time first, for its part of the latency target, but not less than
// the granularity. Newcomers start at the least virtual run time there is, and
// sleepers come back no further behind it than the bonus, so that neither gains
// by it nor has to wait for the others to catch up.
type cfs struct {
	knobs
	fair
	latency     time.Duration
	granularity time.Duration
}

func newCFS() sched.Policy {
	p := &cfs{latency: 20 * time.Millisecond, granularity: 2 * time.Millisecond}
	p.fair = fair{
		party: byQueue,
		ask:   func(q *sched.Queue) int64 { return q.Weight() * niceWeight[20+niceOf(q)] },
		turn: func(weight, total int64) time.Duration {
			return max(part(p.latency, weight, total), p.granularity)
		},
	}
	p.knobs = knobs{
		quantumKnob("latency", &p.latency, "time in which every queue with work runs once"),
		quantumKnob("granularity", &p.granularity, "shortest turn, whatever the latency"),
		durationKnob("bonus", &p.bonus, 0, time.Second, "how far behind the others a queue that has slept may come back"),
	}
	return p
}

// part returns d*weight/total. By floating point, since the weights are other
// people's and the product may not fit; the conversion keeps all machines alike.
func part(d time.Duration, weight, total int64) time.Duration {
	return time.Duration(float64(d) * (float64(weight) / float64(total)))
}

// niceWeight is sched_prio_to_weight of kernel/sched/core.c, for nice -20 to 19:
// 1.25 to one a step, and unit at nice 0.
var niceWeight = [40]int64{
	88761, 71755, 56483, 46273, 36291,
	29154, 23254, 18705, 14949, 11916,
	9548, 7620, 6100, 4904, 3906,
	3121, 2501, 1991, 1586, 1277,
	1024, 820, 655, 526, 423,
	335, 272, 215, 172, 137,
	110, 87, 70, 56, 45,
	36, 29, 23, 18, 15,
}
