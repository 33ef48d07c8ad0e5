// Package journal lists the changes made to queues, so that they can be undone, in memory
// (Journal) and on disk (Store). The Store also keeps the orders that users gave.
package journal

import (
	"cmp"
	"slices"

	"github.com/giveway/giveway/sched"
)

// Journal lists the changes that have been made and not undone. An entry is
// written before its change is made and removed after the change is undone. So
// after a crash, undoing all entries undoes every change. Undoing a change that
// was never made is harmless. The zero value is an empty journal.
type Journal struct{ entries []entry }

type entry struct {
	queue sched.QueueID
	Change
	before Change // before the pending action
}

// Change is what was changed of one queue.
type Change struct {
	Level   sched.Level `json:"level,omitempty"` // at which the queue is stopped; zero if it is not
	Sliced  bool        `json:"sliced,omitempty"`
	Bounded bool        `json:"bounded,omitempty"`
}

// Undo returns the actions that undo the change: slice and bound before the start.
func (c Change) Undo(q sched.QueueID) (all []sched.Action) {
	if c.Sliced {
		all = append(all, sched.Action{Queue: q, Verb: sched.SetSlice})
	}
	if c.Bounded {
		all = append(all, sched.Action{Queue: q, Verb: sched.SetBound})
	}
	if c.Level != sched.LevelNone {
		all = append(all, sched.Action{Queue: q, Verb: sched.Start, Level: c.Level})
	}
	return all
}

// Adds reports whether an action may leave a change behind. Any other action only undoes one.
func Adds(a sched.Action) bool {
	return a.Verb == sched.Stop || a.Verb == sched.SetSlice && a.Slice != 0 || a.Verb == sched.SetBound && a.Bound != 0
}

// Begin records that an action is about to be carried out. One that only undoes adds nothing:
// what it undoes stays listed until End.
func (j *Journal) Begin(a sched.Action) {
	if _, changed := j.index(a.Queue); !changed && !Adds(a) {
		return
	}
	e := j.entry(a.Queue)
	if e.before = e.Change; !Adds(a) {
		return
	}
	switch a.Verb {
	case sched.Stop:
		e.Level = a.Level
	case sched.SetSlice:
		e.Sliced = true
	case sched.SetBound:
		e.Bounded = true
	}
}

// End records the outcome of an action. It does nothing if Forget was called for
// the queue since Begin.
func (j *Journal) End(a sched.Action, outcome sched.Outcome) {
	i, ok := j.index(a.Queue)
	if !ok {
		return
	}
	e := &j.entries[i]
	switch {
	case outcome == sched.Gone:
		e.Change = Change{}
	case outcome == sched.Unsupported || outcome == sched.Refused && a.Verb == sched.Stop:
		e.Change = e.before // the action changed nothing
	case outcome == sched.Refused || outcome == sched.Partial: // the action may have taken effect: keep the entry
	case a.Verb == sched.Start:
		e.Level = sched.LevelNone
	case a.Verb == sched.SetSlice:
		e.Sliced = a.Slice != 0
	case a.Verb == sched.SetBound:
		e.Bounded = a.Bound != 0
	}
	if e.Change == (Change{}) {
		j.Forget(a.Queue)
	}
}

// Set records what is changed of a queue. The guardian is told so; only the daemon, which
// carries out the actions, knows what was changed before the pending one.
func (j *Journal) Set(q sched.QueueID, c Change) {
	if c == (Change{}) {
		j.Forget(q)
		return
	}
	j.entry(q).Change = c
}

// Forget removes the entry of a queue that no longer exists.
func (j *Journal) Forget(q sched.QueueID) {
	if i, ok := j.index(q); ok {
		j.entries = slices.Delete(j.entries, i, i+1)
	}
}

// Empty reports whether there is nothing to undo.
func (j *Journal) Empty() bool { return len(j.entries) == 0 }

// Len returns how many queues have changes.
func (j *Journal) Len() int { return len(j.entries) }

// Undo returns the actions that undo all changes: every slice and bound before
// any start, because two running queues with the minimum slice livelock.
func (j *Journal) Undo() []sched.Action {
	var first, then []sched.Action
	for _, e := range j.entries {
		for _, a := range e.Change.Undo(e.queue) {
			if a.Verb == sched.Start {
				then = append(then, a)
			} else {
				first = append(first, a)
			}
		}
	}
	return append(first, then...)
}

// Of returns what was changed of a queue, the pending action included.
func (j *Journal) Of(q sched.QueueID) Change {
	if i, ok := j.index(q); ok {
		return j.entries[i].Change
	}
	return Change{}
}

func (j *Journal) index(q sched.QueueID) (int, bool) {
	return slices.BinarySearchFunc(j.entries, q, func(e entry, q sched.QueueID) int { return cmp.Compare(e.queue, q) })
}

func (j *Journal) entry(q sched.QueueID) *entry {
	i, ok := j.index(q)
	if !ok {
		j.entries = slices.Insert(j.entries, i, entry{queue: q})
	}
	return &j.entries[i]
}
