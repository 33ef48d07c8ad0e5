package sim

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/giveway/giveway/sched"
)

// TestTimelineAgainstASortedList sets, moves and cancels random timers and compares the
// order in which they fire with a list sorted by time and order of setting.
func TestTimelineAgainstASortedList(t *testing.T) {
	type due struct {
		at sched.Time
		n  uint64
		id int
	}
	rng := rand.New(rand.NewPCG(7, 7))
	var l timeline
	var want []due
	var fired []int
	timers := make([]*timer, 50)
	for i := range timers {
		timers[i] = &timer{fire: func() { fired = append(fired, i) }}
	}
	now := sched.Time(0)
	for step := range 20000 {
		i := rng.IntN(len(timers))
		switch rng.IntN(4) {
		case 0, 1:
			at := now + sched.Time(rng.IntN(100))
			want = slices.DeleteFunc(want, func(d due) bool { return d.id == i })
			l.set(timers[i], at)
			want = append(want, due{at, l.setCount, i})
		case 2:
			want = slices.DeleteFunc(want, func(d due) bool { return d.id == i })
			l.cancel(timers[i])
		default:
			if len(want) == 0 {
				continue
			}
			first := slices.MinFunc(want, func(a, b due) int {
				if a.at != b.at {
					return int(a.at - b.at)
				}
				return int(a.n) - int(b.n)
			})
			want = slices.DeleteFunc(want, func(d due) bool { return d.id == first.id })
			now = l.next()
			l.fire()
			if got := fired[len(fired)-1]; got != first.id || now != first.at {
				t.Fatalf("step %d: timer %d fired at %d, want %d at %d", step, got, now, first.id, first.at)
			}
		}
	}
}
