package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// newShare returns a policy that gives every queue the percentage of the device in
// its share attribute. Queues without one get equal parts of the rest, at least one
// percent each. Shares that add up to more than 100 % are scaled down. Device time
// that a queue does not use goes to the others, first to those without a share.
// Every queue gets its part within a period: see fair.
func newShare() sched.Policy { return shareAmong(byQueue) }

// newShareProcess is newShare for processes: the queues of a process have one share
// together, the highest of theirs.
func newShareProcess() sched.Policy { return shareAmong(byProcess) }

func shareAmong(entityOf func(*sched.Queue) uint64) sched.Policy {
	const minTurn = time.Millisecond // keeps the cost of switching low for small shares
	period := 100 * time.Millisecond
	return &fair{
		entityOf: entityOf,
		weightOf: func(q *sched.Queue) int64 { return min(int64(q.Attr.Share), 100) * unit },
		adjust:   shareRest,
		turn:     func(weight, total int64) time.Duration { return max(part(period, weight, total), minTurn) },
		params:   params{quantumParam("period", &period, "time within which every queue or process gets its part")},
	}
}

// shareRest gives entities without a share equal parts of what the runnable entities
// with one leave.
func shareRest(entities []entity) {
	rest, others := int64(100*unit), int64(0)
	for i := range entities {
		switch e := &entities[i]; {
		case !e.ready:
		case e.newWeight > 0:
			rest -= e.newWeight
		default:
			others++
		}
	}
	each := max(rest/max(others, 1), unit)
	for i := range entities {
		if e := &entities[i]; e.newWeight == 0 {
			e.newWeight = each
		}
	}
}
