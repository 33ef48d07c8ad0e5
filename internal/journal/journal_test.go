package journal_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// TestUndoRestoresEveryQueue makes random actions with random outcomes, stops at a
// random point, and checks that Undo restores every queue, slices before starts.
func TestUndoRestoresEveryQueue(t *testing.T) {
	type state struct {
		level sched.Level
		slice time.Duration
		bound uint32
	}
	apply := func(s state, a sched.Action) state {
		switch a.Verb {
		case sched.Stop:
			s.level = a.Level
		case sched.Start:
			s.level = 0
		case sched.SetSlice:
			s.slice = a.Slice
		case sched.SetBound:
			s.bound = a.Bound
		}
		return s
	}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var j journal.Journal
		device := map[sched.QueueID]state{}
		for range r.IntN(30) {
			q := sched.QueueID(1 + r.IntN(3))
			a := sched.Action{Queue: q, Verb: sched.Verb(1 + r.IntN(4)), Level: sched.Level(1 + r.IntN(3))}
			if stopped := device[q].level != 0; stopped == (a.Verb == sched.Stop) && a.Verb <= sched.Start {
				continue // the scheduler neither stops a stopped queue nor starts a running one
			}
			if a.Verb == sched.Start {
				a.Level = device[q].level
			}
			if r.IntN(2) == 0 {
				a.Slice, a.Bound = sched.MinSlice, 4
			}
			j.Begin(a)
			outcome := []sched.Outcome{sched.Done, sched.Refused, sched.Unsupported, sched.Partial}[r.IntN(4)]
			tookEffect := (outcome == sched.Refused && a.Verb > sched.Start || outcome == sched.Partial) && r.IntN(2) == 0
			if outcome == sched.Done || tookEffect {
				device[q] = apply(device[q], a)
			}
			if r.IntN(10) > 0 { // else the daemon crashed before End
				j.End(a, outcome)
			} else {
				break
			}
		}
		started := false
		for _, a := range j.Undo() {
			started = started || a.Verb == sched.Start
			if started && a.Verb == sched.SetSlice {
				t.Fatalf("seed %d: %v comes after a start", seed, a)
			}
			device[a.Queue] = apply(device[a.Queue], a)
			j.End(a, sched.Done)
		}
		for q, s := range device {
			if s != (state{}) {
				t.Fatalf("seed %d: queue %d after Undo: got %+v, want no change", seed, q, s)
			}
		}
		if !j.Empty() {
			t.Fatalf("seed %d: after Undo: got entries %v, want none", seed, j.Undo())
		}
	}
}
