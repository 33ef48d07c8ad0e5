package policy

import (
	"math"

	"github.com/giveway/giveway/sched"
)

// hpf, highest priority first, runs the runnable queues of the highest priority
// together and stops the others. A queue whose request is expected now counts as
// runnable. The scheduler's floor keeps the others from starving. No queue is stopped
// for an uncounted one: that goes ahead by its slice, where the device has slices.
type hpf struct {
	params
	planner
	arrivals
	rank func(*sched.Queue) int32 // the priority of a queue
}

// hpfGlobal is hpf for all devices together: a runnable queue on one device stops
// queues of lower priority on all devices. It is for jobs whose parts on different
// devices wait for each other.
type hpfGlobal struct{ *hpf }

func (hpfGlobal) allDevices() {}

func newHPF() sched.Policy       { return makeHPF(priorityRank) }
func newHPFGlobal() sched.Policy { return &hpfGlobal{makeHPF(priorityRank)} }
func newNice() sched.Policy      { return makeHPF(cpuRank) }

func makeHPF(rank func(*sched.Queue) int32) *hpf {
	p := &hpf{rank: rank}
	p.params = p.arrivalParams()
	return p
}

// Plan implements sched.Policy.
func (p *hpf) Plan(v *sched.View) sched.Plan {
	lead := p.leadTime(v.Devices)
	// topBusy is the highest rank for which other queues are stopped. An uncounted queue of a
	// higher rank, topRunnable, goes ahead by its slice instead.
	topBusy, topRunnable, lowest := int32(math.MinInt32), int32(math.MinInt32), int32(math.MaxInt32)
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Runnable() {
			topRunnable, lowest = max(topRunnable, p.rank(q)), min(lowest, p.rank(q))
		}
		if due, _ := p.due(q, v.Now, lead); due || knownBusy(q) {
			topBusy = max(topBusy, p.rank(q))
		}
	}
	p.grantOnly(v, func(i int) bool { return p.rank(&v.Queues[i]) >= topBusy })
	if topRunnable > topBusy {
		p.goAheadBySlice(v, func(i int) bool { return p.rank(&v.Queues[i]) >= topRunnable })
	}

	// An expected request matters only if a runnable queue must stop for it.
	wake := sched.Time(0)
	for i := range v.Queues {
		if q := &v.Queues[i]; !knownBusy(q) && p.rank(q) > lowest {
			_, change := p.due(q, v.Now, lead)
			wake = earlier(wake, change)
		}
	}
	return p.plan(wake)
}

func priorityRank(q *sched.Queue) int32 { return q.Attr.Priority }

// cpuRank orders queues as the kernel orders their processes: real-time processes
// first, by priority; then the others, by nice value. A value out of range counts
// as nice 0, so that a process whose priority cannot be read does not go ahead of
// others.
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
