package journal_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// TestUndoPutsEverythingBack: whatever was done, in whatever order and with
// whatever outcome, and wherever the journal is read, what it says to do puts a
// device back as it was, slices before starts.
func TestUndoPutsEverythingBack(t *testing.T) {
	type state struct {
		level  sched.Level
		slice  time.Duration
		window uint32
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
			s.window = a.Bound
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
			outcome := sched.Outcome(r.IntN(3))
			doubt := outcome == sched.Refused && a.Verb > sched.Start && r.IntN(2) == 0
			if outcome == sched.Done || doubt {
				device[q] = apply(device[q], a)
			}
			if r.IntN(10) > 0 { // else: it crashed before it could tell
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
				t.Fatalf("seed %d: queue %d is left with %+v", seed, q, s)
			}
		}
		if !j.Empty() {
			t.Fatalf("seed %d: undone, and yet there is more: %v", seed, j.Undo())
		}
	}
}
