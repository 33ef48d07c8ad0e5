package policy

import "github.com/giveway/giveway/sched"

// newNice returns hpf with the priorities that processes have on the CPU.
func newNice() sched.Policy {
	p := &hpf{}
	p.setUp(cpuRank)
	return p
}

// cpuRank returns a priority that orders queues as the kernel orders their
// processes: real-time processes first, by priority; then the others, by nice
// value. A value out of range counts as nice 0, so that a process whose priority
// cannot be read does not go ahead of others.
func cpuRank(q *sched.Queue) int32 {
	if rt := q.Attr.RealTime; rt >= 1 && rt <= 99 {
		return 100 + int32(rt)
	}
	return -int32(niceOf(q))
}

// niceOf returns the nice value of a queue's process, or 0 if it is out of range.
func niceOf(q *sched.Queue) int8 {
	if n := q.Attr.Nice; n >= -20 && n <= 19 {
		return n
	}
	return 0
}
