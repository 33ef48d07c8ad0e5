package nvtrace

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// maxTracked is how many processes an Account keeps the usage of.
const maxTracked = 1 << 12

// Usage is the GPU time of one process since Account.Track was called for it.
type Usage struct {
	Resident  time.Duration // time that its contexts were on the GPU; never decreases
	SwitchIns uint64        // how often one came on
	// Visits counts the visits by their length. A context that comes on again at once, although its
	// slice was not over, goes on with its visit: a call that stops a group saves and loads the context
	// on the GPU, whichever it is. Arrived, Left and Known are not set.
	Visits  sched.Visits
	Arrived int64 // GPU time at which one last came on after none was for MinAbsence; zero: never
	Left    int64 // GPU time at which one last went off; zero: never

	pid  uint32
	over bool // the slice of the visit that ended then was
}

// table holds the usage of the tracked processes, sorted by pid.
type table []Usage

func (t table) find(pid uint32) (int, bool) {
	return slices.BinarySearchFunc(t, pid, func(u Usage, pid uint32) int { return cmp.Compare(u.pid, pid) })
}

// of returns the usage of a process; nil: it is not tracked.
func (t table) of(pid uint32) *Usage {
	if i, ok := t.find(pid); ok {
		return &t[i]
	}
	return nil
}

// Track keeps the usage of a process from now on. It returns false if there is no room for
// it. A process that is tracked already keeps its usage.
func (a *Account) Track(pid uint32) bool {
	i, ok := a.tracked.find(pid)
	if !ok && len(a.tracked) < maxTracked {
		a.tracked = slices.Insert(a.tracked, i, Usage{pid: pid})
		ok = true
	}
	return ok
}

// Forget ends the tracking of a process, which has exited: its pid may be used again.
func (a *Account) Forget(pid uint32) {
	if i, ok := a.tracked.find(pid); ok {
		a.tracked = slices.Delete(a.tracked, i, i+1)
	}
}

// Usage returns the usage of a process up to the last Advance. ok is false if the process is
// not tracked.
func (a *Account) Usage(pid uint32) (u Usage, ok bool) {
	p := a.tracked.of(pid)
	if p == nil {
		return Usage{}, false
	}
	u = *p
	u.Visits.Alone += a.aloneNow(pid)
	return u, true
}
