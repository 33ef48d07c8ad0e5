package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// newCFS returns the completely fair scheduler of Linux, one queue at a time: the
// queue with the lowest virtual run time runs for its part of the latency target,
// but not less than the granularity. A new queue starts at the virtual run time that
// all would have if they were served at once. One that was idle starts at most bonus
// below that, so that it neither gains by idling nor waits for the others to catch up.
func newCFS() sched.Policy {
	latency, granularity := 20*time.Millisecond, 2*time.Millisecond
	p := &fair{
		entityOf: byQueue,
		weightOf: func(q *sched.Queue) int64 { return q.Weight() * niceWeight[20+niceOf(q)] },
		turn:     func(weight, total int64) time.Duration { return max(part(latency, weight, total), granularity) },
	}
	p.params = params{
		quantumParam("latency", &latency, "time in which every ready queue runs once"),
		quantumParam("granularity", &granularity, "shortest turn, even if the latency is then exceeded"),
		durationParam("bonus", &p.bonus, 0, time.Second, "how far below the others' virtual run time a queue starts that was idle"),
	}
	return p
}

// part returns d*weight/total. It uses floating point because users set the
// weights and the product may overflow. The explicit conversion rounds the
// quotient, so that the result is the same on all machines.
func part(d time.Duration, weight, total int64) time.Duration {
	return time.Duration(float64(d) * (float64(weight) / float64(total)))
}

// niceWeight is sched_prio_to_weight of Linux's kernel/sched/core.c, for nice -20
// to 19: a factor of 1.25 for each step, and unit at nice 0.
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
