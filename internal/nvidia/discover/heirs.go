package discover

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A process that a GPU process forks inherits its descriptors. If it makes no call, no scan has
// seen it when the older process exits, and RM keeps the groups as long as it lives. So the exit
// of a process with groups makes the Watcher look for heirs. Our copies of the descriptors keep
// the memory of the process on the GPU meanwhile, and the Watcher does nothing else, so the search
// is limited: by numbers, because a limit in time would make it miss heirs on a busy machine.
const (
	maxHeirPIDs  = 4096                  // processes that are looked at: about 6 ms, and their looks
	maxHeirLooks = 12288                 // descriptors that are looked at: about 45 ms
	maxHeirFDs   = 4                     // descriptors of the process that has exited
	folderLooks  = 4                     // for how many of maxHeirLooks opening a folder of descriptors counts
	minHeirs     = 4                     // processes that are scanned however long it takes,
	heirTime     = 50 * time.Millisecond // and then more of them until the search has taken this long
)

// heir is a process that may have inherited the open files of a process that has exited.
type heir struct {
	pid      int
	sameUser bool
	fds      []int // of the control device
}

// findHeirs scans processes that may have inherited the open files of a process with groups,
// which has exited. They are kept, even if there is no place for them, until the groups that
// they have are reported for them.
func (w *Watcher) findHeirs(h *opener) (found []int) {
	if len(h.groups) == 0 {
		return nil
	}
	w.inHeirSearch = true
	defer func() { w.inHeirSearch = false }()
	begun := time.Now()
	for i, p := range w.likelyHeirs(h) {
		if i >= minHeirs && time.Since(begun) > heirTime {
			return found
		}
		var calls []call
		for _, fd := range p.fds {
			for key := range h.groups {
				calls = append(calls, call{pid: p.pid, fd: fd, client: key.Client, object: key.Handle})
			}
		}
		w.scan(p.pid, calls, false)
		found = append(found, p.pid)
	}
	return found
}

// scanSharers scans the processes that share the groups of one that has exited: some at once,
// so that their groups are not without an owner for long, and the others when it is their turn.
func (w *Watcher) scanSharers(h *opener) {
	begun, scans := time.Now(), 0
	for _, o := range w.sortedOpeners() {
		if !o.sharesGroup || w.openers[o.process.PID] != o {
			continue
		}
		o.memberOf = slices.DeleteFunc(o.memberOf, func(m membership) bool { return m.Server == h.process.ID() })
		if scans++; scans > minHeirs && time.Since(begun) > heirTime {
			w.scanSoon(o.process.PID)
			continue
		}
		o.sharesGroup = false
		w.scan(o.process.PID, nil, false)
	}
}

// keepHeirs gives places to heirs, except those that wait for a scan because they share a group.
func (w *Watcher) keepHeirs(pids []int) {
	for _, pid := range pids {
		if h := w.openers[pid]; h != nil && (!h.sharesGroup || w.pending[pid] == nil) {
			w.keep(h)
		}
	}
}

// likelyHeirs returns processes with descriptors of the control device that may be heirs of h,
// those of its user first. A forked process has the descriptors of its parent under the same
// numbers. These are looked at first, in all processes, so that a process with many descriptors
// does not keep the others from being looked at.
func (w *Watcher) likelyHeirs(h *opener) []heir {
	control, err := deviceAt(unix.AT_FDCWD, w.config.Control, 0)
	if err != nil {
		return nil
	}
	candidates, numbers := w.heirCandidates(h), h.groupFDs()
	var found, rest []heir
	left := maxHeirLooks
	for _, p := range candidates {
		if left <= 0 {
			break
		}
		left -= len(numbers)
		if p.fds = w.controlsAmong(p.pid, numbers, control); len(p.fds) > 0 {
			found = append(found, p)
		} else {
			rest = append(rest, p)
		}
	}
	for _, p := range rest {
		if left <= 0 {
			break
		}
		var looked int
		p.fds, looked = w.firstControls(p.pid)
		left -= looked + folderLooks
		if len(p.fds) > 0 {
			found = append(found, p)
		}
	}
	sortSameUserFirst(found)
	return found
}

// heirCandidates returns the youngest processes that are no openers, those of the user of h
// first. What openers share is known. Start times are not compared: reading them takes longer
// than a look, and the heirs of a process may be older than the one that inherits its groups.
func (w *Watcher) heirCandidates(h *opener) []heir {
	pids, _ := w.proc.PIDs() // without them no heir is found
	w.proc.sortYoungestFirst(pids)
	var all []heir
	for _, pid := range pids[:min(len(pids), maxHeirPIDs)] {
		if w.openers[pid] != nil || w.config.ignores(pid) {
			continue
		}
		// The processes of the user who started a setuid program may have inherited from it.
		uid := w.proc.userOf(pid)
		all = append(all, heir{pid: pid, sameUser: uid == h.process.UID || uid == h.process.Starter})
	}
	sortSameUserFirst(all)
	return all
}

func sortSameUserFirst(all []heir) {
	slices.SortStableFunc(all, func(a, b heir) int { return first(a.sameUser, b.sameUser) })
}

// groupFDs returns the descriptors through which the groups of a process were found.
func (h *opener) groupFDs() []int {
	fds := map[int]bool{}
	for _, g := range h.groups {
		fds[g.fd] = true
	}
	sorted := slices.Sorted(maps.Keys(fds))
	return sorted[:min(len(sorted), maxHeirFDs)]
}

// controlsAmong returns those of some descriptors that a process has and that are of the control
// device.
func (w *Watcher) controlsAmong(pid int, fds []int, control device) (found []int) {
	w.looks.Add(uint64(len(fds)))
	for _, fd := range fds {
		if have, err := deviceAt(unix.AT_FDCWD, w.proc.Path(pid, "fd/"+strconv.Itoa(fd)), 0); err == nil && have == control {
			found = append(found, fd)
		}
	}
	return found
}

// isShared reports whether a further process has the open file of a group.
func (w *Watcher) isShared(key Key) bool {
	for _, o := range w.openers {
		if o.shared[key] && !o.pidfd.Exited() {
			return true
		}
	}
	return false
}
