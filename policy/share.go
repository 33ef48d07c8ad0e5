package policy

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// share gives every queue the percentage of the device that it asked for. Those
// that asked for nothing share what is left equally, each at least one percent,
// so that nobody starves for not asking. What is asked for beyond the whole is
// scaled down; what is not used goes to the others, first to those that asked
// for nothing. Within a period everybody has had its part: see fair.
//
// share-process is the same with processes in place of queues: a process has
// what its queues use together, and asks for the most that any of them does.
type share struct {
	knobs
	fair
	period time.Duration
}

// leastTurn keeps small shares from being eaten by the cost of switching.
const leastTurn = time.Millisecond

func newShare() sched.Policy        { return shareAmong(byQueue) }
func newShareProcess() sched.Policy { return shareAmong(byProcess) }

func shareAmong(party func(*sched.Queue) uint64) sched.Policy {
	p := &share{period: 100 * time.Millisecond}
	p.fair = fair{
		party: party,
		ask:   func(q *sched.Queue) int64 { return min(int64(q.Attr.Share), 100) * unit },
		deal:  dealRest,
		turn: func(weight, total int64) time.Duration {
			return max(part(p.period, weight, total), leastTurn)
		},
	}
	p.knobs = knobs{quantumKnob("period", &p.period, "time within which everybody has had its part")}
	return p
}

// dealRest gives those that asked for nothing equal parts of what the others
// with work leave.
func dealRest(parties []party) {
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
