package policy

import "github.com/giveway/giveway/sched"

// newNice makes hpf by the priority that the process has on the CPU.
func newNice() sched.Policy {
	p := &hpf{}
	p.setUp(cpuRank)
	return p
}

// cpuRank orders queues as the kernel would their processes: real-time before
// all others, the higher priority first; then by nice, the lower first. What is
// out of range is not known, and what is not known is plain nice 0: nobody gets
// ahead by being unreadable.
func cpuRank(q *sched.Queue) int32 {
	if rt := q.Attr.RealTime; rt >= 1 && rt <= 99 {
		return 100 + int32(rt)
	}
	return -int32(niceOf(q))
}

func niceOf(q *sched.Queue) int8 {
	if n := q.Attr.Nice; n >= -20 && n <= 19 {
		return n
	}
	return 0
}
