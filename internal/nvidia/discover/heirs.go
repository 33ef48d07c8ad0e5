package discover

import "time"

// A process that a GPU process forks inherits its descriptors. If it makes no call, no scan has
// seen it when the older process exits, and RM keeps the groups as long as it lives. So the exit
// of a process with groups makes the Watcher look for heirs, for heirTime at most: our copies of
// the descriptors keep the memory of the process on the GPU meanwhile.
const heirTime = 50 * time.Millisecond

// findHeirs scans processes that may have inherited the open files of a process with groups,
// which has exited.
func (w *Watcher) findHeirs(h *opener) {
	if len(h.groups) == 0 {
		return
	}
	pids, _ := w.proc.PIDs() // without them no heir is found
	for begun := time.Now(); len(pids) > 0 && time.Since(begun) < heirTime; pids = pids[1:] {
		pid := pids[0]
		s, err := w.proc.Stat(pid)
		if err != nil || s.KernelThread || s.Start < h.process.Start || w.openers[pid] != nil || w.config.ignores(pid) {
			continue // what openers share is known
		}
		var calls []call
		for _, fd := range w.someControls(pid) {
			for key := range h.groups {
				calls = append(calls, call{pid: pid, fd: fd, client: key.Client, object: key.Handle})
			}
		}
		if len(calls) > 0 {
			w.scan(pid, calls, false)
		}
	}
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
