package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// share gives every queue the percentage of the device in its share attribute.
// Queues without one get equal parts of the rest, at least one percent each.
// Shares that add up to more than 100 % are scaled down. Device time that a queue
// does not use goes to the others, first to those without a share. Every queue
// gets its part within a period: see fair.
//
// share-process is the same for processes: the queues of a process have one share
// together, the highest of theirs.
type share struct {
	params
	fair
	period time.Duration
}

// minTurn keeps the cost of switching small for small shares.
const minTurn = time.Millisecond

func newShare() sched.Policy        { return shareAmong(byQueue) }
func newShareProcess() sched.Policy { return shareAmong(byProcess) }

func shareAmong(party func(*sched.Queue) uint64) sched.Policy {
	p := &share{period: 100 * time.Millisecond}
	p.fair = fair{
		party:    party,
		weightOf: func(q *sched.Queue) int64 { return min(int64(q.Attr.Share), 100) * unit },
		adjust:   shareRest,
		turn: func(weight, total int64) time.Duration {
			return max(part(p.period, weight, total), minTurn)
		},
	}
	p.params = params{quantumParam("period", &p.period, "time within which every queue or process gets its part")}
	return p
}

// shareRest gives parties without a share equal parts of what the runnable parties
// with one leave.
func shareRest(parties []party) {
	rest, others := int64(100*unit), int64(0)
	for i := range parties {
		switch p := &parties[i]; {
		case !p.ready:
		case p.weight > 0:
			rest -= p.weight
		default:
			others++
		}
	}
	each := max(rest/max(others, 1), unit)
	for i := range parties {
		if p := &parties[i]; p.weight == 0 {
			p.weight = each
		}
	}
}
