package record

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestWindows checks at any time that the windows have the last 10 s and 60 s, of a process
// that waits from 20 s to 50 s.
func TestWindows(t *testing.T) {
	a := twoClients(false, new([]Entry))
	a.Progress(0, 1, &sched.Counters{Known: true})
	for now := sched.Time(0); now <= 130_000*ms; now += 100 * ms {
		switch now {
		case 20_000 * ms:
			a.Progress(now, 1, &sched.Counters{Submitted: 1, Known: true})
		case 50_000 * ms:
			a.Progress(now, 1, &sched.Counters{Submitted: 1, Completed: 1, Known: true})
		}
		a.Update(now, func() []sched.Queue { return nil })
		got := a.Delays()
		if got.WindowEnd != time.Duration(now) {
			t.Fatalf("at %v the windows end at %v", time.Duration(now), got.WindowEnd)
		}
		if len(got.Delays) == 0 {
			continue
		}
		within := func(window sched.Time) time.Duration {
			return max(0, min(now, 50_000*ms).Sub(max(now-window, 20_000*ms)))
		}
		d := got.Delays[0]
		if (d.Last10-within(10_000*ms)).Abs() > time.Millisecond || (d.Last60-within(60_000*ms)).Abs() > time.Millisecond {
			t.Fatalf("at %v: got %v and %v, want %v and %v", time.Duration(now), d.Last10, d.Last60, within(10_000*ms), within(60_000*ms))
		}
	}
}
