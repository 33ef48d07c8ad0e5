package proc

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"time"
)

// The kernel reads /proc/PID/cmdline and environ from the memory of the process, for which it
// takes the process's mmap lock. A process can keep that lock for as long as it likes: it maps a
// file of a FUSE server that does not answer, reads it in one thread and calls mmap in another.
// So these files are read by goroutines that are left behind if they take too long.

// Limits on reads that hang.
const (
	memoryTimeout     = 200 * time.Millisecond // after which a read hangs
	slowMemoryTimeout = 50 * time.Millisecond  // the same, for an owner whose processes hung lately
	slowMemoryTime    = time.Minute            // how long that is remembered
	maxHangingOfOwner = 4
	maxHanging        = 256
)

var errMemoryHangs = errors.New("the process does not let its memory be read")

// memoryOwner is whose reads are counted together: the processes of a user, outside of
// containers or in one of them.
type memoryOwner struct {
	uid       uint32
	container string // the outermost one, which a process cannot choose
}

// hangingReads are the reads that hang, by owner.
type hangingReads struct {
	mu  sync.Mutex
	of  map[memoryOwner]*hangingOwner
	all int
}

type hangingOwner struct {
	pids      map[int]int // reads by process
	slowUntil time.Time
}

var memoryReads = hangingReads{of: make(map[memoryOwner]*hangingOwner)}

// timeout returns how long to wait for a read; zero: it must not begin, because others hang.
func (h *hangingReads) timeout(o memoryOwner, pid int, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch u := h.of[o]; {
	case h.all >= maxHanging:
		return 0
	case u == nil:
		return memoryTimeout
	case u.pids[pid] > 0 || len(u.pids) >= maxHangingOfOwner:
		return 0
	case now.Before(u.slowUntil):
		return slowMemoryTimeout
	}
	return memoryTimeout
}

// add counts a read that hangs.
func (h *hangingReads) add(o memoryOwner, pid int, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.of, func(_ memoryOwner, u *hangingOwner) bool { return len(u.pids) == 0 && now.After(u.slowUntil) })
	u := h.of[o]
	if u == nil {
		u = &hangingOwner{pids: make(map[int]int)}
		h.of[o] = u
	}
	u.pids[pid]++
	u.slowUntil = now.Add(slowMemoryTime)
	h.all++
}

// remove is called when a read that hung has returned.
func (h *hangingReads) remove(o memoryOwner, pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.of[o]
	if u.pids[pid]--; u.pids[pid] == 0 {
		delete(u.pids, pid)
	}
	h.all--
}

// ReadMemory returns at most limit bytes of a file of /proc/PID that the kernel reads from the
// memory of the process. It counts for the owner of process of. It returns soon even if the
// process keeps its memory locked.
func (p FS) ReadMemory(of *Process, pid int, name string, limit int64) (string, error) {
	container, _, _ := strings.Cut(of.Containers, "/")
	owner := memoryOwner{of.UID, container}
	wait := memoryReads.timeout(owner, pid, time.Now())
	if wait == 0 {
		return "", errMemoryHangs
	}
	type result struct {
		text string
		err  error
	}
	done, hangs := make(chan result), make(chan struct{})
	go func() {
		text, err := p.read(pid, name, limit)
		select {
		case done <- result{text, err}:
		case <-hangs:
			memoryReads.remove(owner, pid)
		}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.text, r.err
	case <-timer.C:
		memoryReads.add(owner, pid, time.Now())
		close(hangs)
		return "", errMemoryHangs
	}
}
