package discover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/giveway/giveway/internal/proc"
)

// A process may have a million descriptors, and any of them may be of the control device. So
// that such processes do not delay others, a scan looks at lookWindow descriptors of one
// process and asks RM about maxAsks of them, or about fewer if that takes longer than scanTime. A
// later scan goes on where this one stopped.
const (
	lookWindow  = 1024
	maxAsks     = 64
	minAsks     = 8    // however long it takes: more than CUDA has
	maxControls = 1024 // descriptors of the control device that are remembered for a process
	// maxOnceScans limits the scans of one process by a Watcher that scans once: the process may
	// open files faster than they are read.
	maxOnceScans = 2048
)

// sweep is how far the descriptors of a process with more than lookWindow of them were read.
type sweep struct {
	start uint64 // of the process
	next  int    // the next descriptor; zero: all were read
}

// controls returns descriptors of the control device: those already known, those that traced
// calls named, and those among the next descriptors of the process's sweep.
func (w *Watcher) controls(p proc.Process, h *opener, calls []call) ([]int, error) {
	d, err := w.proc.descriptors(p.PID, w.config.Control)
	if err != nil {
		w.endSweep(p.PID)
		return nil, err
	}
	defer d.Close()
	s := w.sweeps[p.PID]
	if s.start != p.Start {
		s = sweep{start: p.Start}
	}
	from := s.next
	fds, looked, next, err := d.controls(from)
	if err != nil {
		w.endSweep(p.PID)
		return nil, err
	}
	w.looks.Add(uint64(looked))
	if s.next = next; from == 0 && next == 0 {
		w.endSweep(p.PID)
	} else {
		w.setSweep(p.PID, s)
	}
	for _, fd := range namedFDs(h, calls) {
		if d.isControl(fd) {
			fds = append(fds, fd)
		}
	}
	slices.Sort(fds)
	return slices.Compact(fds), nil
}

// namedFDs returns the descriptors of an opener, which may be nil, and of traced calls.
func namedFDs(h *opener, calls []call) (fds []int) {
	if h != nil {
		fds = slices.AppendSeq(fds, maps.Keys(h.files))
	}
	for _, c := range calls {
		fds = append(fds, c.fd)
	}
	return fds
}

// someControls returns descriptors of the control device of a process, known ones if it is an
// opener, without continuing its sweep.
func (w *Watcher) someControls(pid int) []int {
	if h := w.openers[pid]; h != nil {
		return slices.Sorted(maps.Keys(h.files))
	}
	fds, _ := w.firstControls(pid)
	return fds
}

// firstControls returns the descriptors of the control device among the first lookWindow
// descriptors of a process, and how many were looked at.
func (w *Watcher) firstControls(pid int) (fds []int, looked int) {
	d, err := w.proc.descriptors(pid, w.config.Control)
	if err != nil {
		return nil, 0
	}
	defer d.Close()
	fds, looked, _, _ = d.controls(0) // a process that cannot be read has none
	w.looks.Add(uint64(looked))
	return fds, looked
}

func (w *Watcher) setSweep(pid int, s sweep) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweeps[pid] = s
}

func (w *Watcher) endSweep(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sweeps, pid)
}

// queueSweeps queues the processes whose descriptors were not all read, or not all asked about.
// Handles are not guessed for a process whose calls were all traced.
func (w *Watcher) queueSweeps() {
	for _, pid := range w.unfinished() {
		start := w.sweeps[pid].start
		if h := w.openers[pid]; h != nil {
			start = h.process.Start
		}
		w.enqueue(pid, start <= w.tracedSince)
	}
}

// isUnfinished reports whether not all descriptors of a process were read and asked about.
func (w *Watcher) isUnfinished(pid int) bool {
	h := w.openers[pid]
	return w.sweeps[pid].next != 0 || h != nil && h.hasUnasked()
}

// unfinished returns such processes, in order.
func (w *Watcher) unfinished() (pids []int) {
	for pid := range w.sweeps {
		if w.isUnfinished(pid) {
			pids = append(pids, pid)
		}
	}
	for pid, h := range w.openers {
		if w.sweeps[pid].next == 0 && h.hasUnasked() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// setFiles makes fds, which are sorted, the descriptors of an opener. If there are too many,
// those without a client about which RM was asked make room.
func (w *Watcher) setFiles(h *opener, fds []int) {
	for fd, c := range h.files {
		if _, open := slices.BinarySearch(fds, fd); !open {
			w.setClient(c, 0)
			delete(h.files, fd)
		}
	}
	for _, fd := range fds {
		if h.files[fd] != nil {
			continue
		}
		if len(h.files) >= maxControls {
			maps.DeleteFunc(h.files, func(_ int, c *controlFD) bool { return c.client == 0 && c.asked > 0 })
		}
		if len(h.files) < maxControls {
			h.files[fd] = &controlFD{}
		}
	}
}

// hasUnasked reports whether RM was never asked about a descriptor of the process.
func (h *opener) hasUnasked() bool {
	for _, c := range h.files {
		if c.asked == 0 {
			return true
		}
	}
	return false
}

// nextFiles returns the descriptors about which to ask RM in this scan, and the others.
// Those that calls named come first, then those about which RM was not asked for the longest
// time. Of the chosen ones those with a known client come first: once one has led to a
// compute group no handles are guessed for the others, because CUDA has one client per
// process.
func (h *opener) nextFiles(calls []call) (turn, rest []int) {
	called := map[int]bool{}
	for _, c := range calls {
		called[c.fd] = true
	}
	all := slices.SortedFunc(maps.Keys(h.files), func(a, b int) int {
		return cmp.Or(first(called[a], called[b]), cmp.Compare(h.files[a].asked, h.files[b].asked), cmp.Compare(a, b))
	})
	n := min(len(all), maxAsks)
	turn, rest = all[:n], all[n:]
	known := func(fd int) bool { return called[fd] || h.files[fd].client != 0 }
	slices.SortFunc(turn, func(a, b int) int {
		return cmp.Or(first(known(a), known(b)), cmp.Compare(h.files[a].asked, h.files[b].asked), cmp.Compare(a, b))
	})
	return turn, rest
}

// first orders a before b if only a is true.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// sweepDetail says how many processes have too many descriptors to be read in one scan.
func sweepDetail(processes int) string {
	if processes == 0 {
		return fmt.Sprintf("no process has more than %d", lookWindow)
	}
	return fmt.Sprintf("%d processes have more than %d: they are read %d at a time", processes, lookWindow, lookWindow)
}
