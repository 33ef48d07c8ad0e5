package discover

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/quota"
)

// A process that has the control device open costs the Watcher a pidfd, a goroutine and a
// record for each of its descriptors. Any user can have tens of thousands of such processes,
// so what is kept of those without a channel group is limited: each takes a place, and one
// more for every filesPerPlace descriptors. A process for which there is no place is scanned like
// any other, and nothing is kept of it afterwards, unless it has a group. It is scanned again
// when there is a place.
const (
	maxPlaces     = 4096 // of all accounts but root's; fewer if the Watcher may have few descriptors
	filesPerPlace = 16
	placesShare   = 8    // at most one part in so many of the descriptors that the Watcher may have
	accountShare  = 8    // one part in so many of the places is the most that an account may have
	rootShare     = 4    // root has as many places of its own as one part in so many
	maxUnkept     = 1024 // processes of an account that are remembered because there is no place for them
	maxKnown      = 1024 // objects named by traced calls that are remembered for a process
)

// mostPlaces returns how many places there are for all accounts but root's.
func mostPlaces() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return maxPlaces
	}
	return int(min(maxPlaces, limit.Cur/placesShare))
}

// hasPlace reports whether an account may have so many more places.
func (w *Watcher) hasPlace(id uint32, a *account, places int) bool {
	if id == 0 {
		return a.places+places <= w.places/rootShare
	}
	q := quota.Quota{All: w.places, Each: w.places / accountShare}
	return q.Allows(a.places, w.placesTaken, places)
}

// isControlled reports whether queues depend on a process: it has a group, or is a client of an
// MPS server that has one. Such a process takes no place: the device limits how many there are.
func (h *opener) isControlled() bool { return len(h.groups) > 0 || len(h.memberOf) > 0 }

// keep gives a process its places after a scan. If there are none, it forgets the process.
func (w *Watcher) keep(h *opener) {
	if w.openers[h.process.PID] != h {
		return
	}
	w.leavePlaces(h)
	exempt := w.inHeirSearch || w.config.Once && w.isUnfinished(h.process.PID)
	if !h.isControlled() && !exempt && !w.takePlaces(h) {
		w.forget(h)
		w.addUnkept(h)
		return
	}
	w.waitForExit(h)
}

// takePlaces counts the places of a process; false: there are none.
func (w *Watcher) takePlaces(h *opener) bool {
	id := w.accountOfUser(h.process.Starter)
	a := w.account(id)
	places := max(1, (len(h.files)+filesPerPlace-1)/filesPerPlace)
	if !w.hasPlace(id, a, places) {
		return false
	}
	h.account, h.places = id, places
	a.places += places
	if id != 0 {
		w.placesTaken += places
	}
	return true
}

// leavePlaces gives up the places of a process.
func (w *Watcher) leavePlaces(h *opener) {
	if h.places == 0 {
		return
	}
	w.account(h.account).places -= h.places
	if h.account != 0 {
		w.placesTaken -= h.places
	}
	h.places = 0
}

// waitForExit passes the exit of a process to the loop.
func (w *Watcher) waitForExit(h *opener) {
	if h.waits {
		return
	}
	h.waits = true
	w.waiters.Go(func() {
		if h.pidfd.WaitExit() {
			select {
			case w.exits <- h:
			case <-w.ctx.Done():
			}
		}
	})
}

// unkept is a process that has the control device open and of which nothing is kept.
type unkept struct {
	start   uint64
	account uint32
}

func (w *Watcher) addUnkept(h *opener) {
	id := w.accountOfUser(h.process.Starter)
	a := w.account(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.unkept >= maxUnkept {
		a.more, w.unkeptMore = true, true
		return
	}
	a.unkept++
	w.unkept[h.process.PID] = unkept{h.process.Start, id}
}

func (w *Watcher) dropUnkept(pid int) {
	u, ok := w.unkept[pid]
	if !ok {
		return
	}
	w.account(u.account).unkept--
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unkept, pid)
}

// queueUnkept queues as many processes as there are places for, or all of them. Where not all
// processes were remembered, a pass finds the others.
func (w *Watcher) queueUnkept(all bool) {
	queued := map[uint32]int{}
	for _, pid := range slices.Sorted(maps.Keys(w.unkept)) {
		u := w.unkept[pid]
		if queued[u.account]++; all || w.hasPlace(u.account, w.account(u.account), queued[u.account]) {
			w.enqueue(pid, u.start <= w.tracedSince)
		}
	}
	more := false
	for id, a := range w.accounts {
		if a.more && a.unkept < maxUnkept && w.hasPlace(id, a, a.unkept+1) {
			a.more, w.overflowed = false, true
		}
		more = more || a.more
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unkeptMore = more
}

// unkeptDetail says how many processes are not kept. w.mu is held.
func (w *Watcher) unkeptDetail() string {
	most := max(1, w.places/accountShare)
	if len(w.unkept) == 0 {
		return fmt.Sprintf("no user has more than %d processes without a channel group", most)
	}
	than := ""
	if w.unkeptMore {
		than = "more than "
	}
	return fmt.Sprintf("%s%d processes without a channel group are not kept: a user may have %d, fewer with many descriptors; each is found when it makes a group",
		than, len(w.unkept), most)
}
