package discover

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// Times and bounds of the loop.
const (
	settle     = 20 * time.Millisecond  // a burst of allocations ends when none came for so long,
	settleMost = 200 * time.Millisecond // or when it has lasted so long
	lookMost   = 30 * time.Second       // between looks at a process that holds nothing
	youngFor   = 30 * time.Second       // a holder may still be making what it holds
	maxPending = 4096                   // processes
	maxHints   = 256                    // of one process
)

// A hint is a client, and an object of it, that a call through fd has named.
type hint struct {
	fd     int
	client nvrm.Handle
	object nvrm.Handle
}

// pending gathers what calls of one process said, until it is looked at.
type pending struct {
	first, due time.Time
	hints      []hint
}

// A sighting is of a process that held nothing when it was looked at.
type sighting struct {
	start       uint64
	first, next time.Time
}

// run is the loop that owns the Watcher's state.
func (w *Watcher) run() {
	if w.tracer != nil {
		w.waiters.Go(w.readCalls)
	}
	w.loop()
	w.stop()
	if w.tracer != nil {
		w.tracer.Close()
	}
	for _, h := range w.holders {
		h.pidfd.Close()
	}
	w.waiters.Wait()
	close(w.events)
}

func (w *Watcher) loop() {
	ticker := time.NewTicker(w.config.Poll)
	defer ticker.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	w.look(time.Now(), true)
	for w.config.Once {
		if w.stopped() || !w.seekOlder() {
			return
		}
	}
	for {
		if first, any := w.firstDue(); any {
			timer.Reset(time.Until(first))
		}
		select {
		case <-w.done:
			return
		case h := <-w.exits:
			w.exited(h)
		case c := <-w.calls:
			w.note(c, time.Now())
		case <-timer.C:
			w.lookAtPending(time.Now())
		case now := <-ticker.C:
			w.tick(now)
			w.seekOlder()
		case <-w.wake:
			w.lookAtAsked()
		}
	}
}

func (w *Watcher) stopped() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// emit hands an event over. When nobody will take it any more, its descriptor is
// closed here.
func (w *Watcher) emit(e Event) {
	select {
	case w.events <- e:
	case <-w.done:
		if e.Found != nil {
			e.Found.File.Close()
		}
	}
}

// readCalls carries calls from the kernel to the loop.
func (w *Watcher) readCalls() {
	for {
		c, err := w.tracer.Read()
		if err != nil {
			if !w.stopped() {
				w.log.Warn("eBPF stopped; allocations are no longer seen", "error", err)
				w.mu.Lock()
				w.bpfErr = err
				w.mu.Unlock()
			}
			return
		}
		select {
		case w.calls <- c:
		case <-w.done:
			return
		}
	}
}

// note keeps what a call said until its process's burst is over.
func (w *Watcher) note(c call, now time.Time) {
	if w.config.ours(c.pid) {
		return
	}
	if h := w.holders[c.pid]; c.free && (h == nil || !h.touches(c.client, c.object)) {
		return
	}
	p := w.pending[c.pid]
	if p == nil {
		if len(w.pending) >= maxPending {
			w.missed = true
			return
		}
		p = &pending{first: now}
		w.pending[c.pid] = p
	}
	p.due = now.Add(settle)
	if last := p.first.Add(settleMost); p.due.After(last) {
		p.due = last
	}
	if !c.free && len(p.hints) < maxHints {
		p.hints = append(p.hints, hint{c.fd, c.client, c.object})
	}
}

func (w *Watcher) firstDue() (first time.Time, any bool) {
	for _, p := range w.pending {
		if !any || p.due.Before(first) {
			first, any = p.due, true
		}
	}
	return first, any
}

func (w *Watcher) lookAtPending(now time.Time) {
	for _, pid := range slices.Sorted(maps.Keys(w.pending)) {
		if p := w.pending[pid]; !p.due.After(now) && !w.stopped() {
			delete(w.pending, pid)
			w.scan(pid, p.hints, false)
		}
	}
}

func (w *Watcher) lookAtAsked() {
	w.mu.Lock()
	asked := w.asked
	w.asked = map[int]bool{}
	w.mu.Unlock()
	for _, pid := range slices.Sorted(maps.Keys(asked)) {
		if h := w.holders[pid]; h != nil {
			for _, c := range h.files {
				c.tries, c.retry = 0, time.Time{}
			}
		}
		if !w.config.ours(pid) {
			w.scan(pid, nil, true)
		}
	}
}

// tick does what cannot wait for an event: all of /proc where there are none, or
// where some were lost; otherwise only whether holders still hold.
func (w *Watcher) tick(now time.Time) {
	w.mu.Lock()
	traced := w.bpfErr == nil
	w.mu.Unlock()
	if !traced {
		w.traced = math.MaxUint64
		w.look(now, false)
		return
	}
	if lost := w.tracer.Lost(); lost != w.lost || w.missed {
		w.lost, w.missed = lost, false
		w.traced = proc.BootTicks()
		w.look(now, true)
		return
	}
	w.verify()
}

// verify looks at the holders that closed a descriptor: no call told us.
func (w *Watcher) verify() {
	for pid, start := range w.refused {
		if s, err := w.proc.Stat(pid); err != nil || s.Start != start {
			w.setRefused(proc.Process{PID: pid}, false)
		}
	}
	for _, h := range w.sortedHolders() {
		for fd, c := range h.files {
			if c.client != 0 && !w.proc.isControl(h.process.PID, fd, w.config.Control) {
				w.scan(h.process.PID, nil, false)
				break
			}
		}
	}
}

func (w *Watcher) sortedHolders() []*holder {
	return slices.SortedFunc(maps.Values(w.holders), func(a, b *holder) int {
		return cmp.Or(cmp.Compare(a.process.Start, b.process.Start), cmp.Compare(a.process.PID, b.process.PID))
	})
}

// look goes through the processes, oldest first, so that a descriptor that was
// inherited is found where it came from. Without all, it leaves out those looked
// at a short while ago. A process that went on without a GPU for long is looked
// at less and less often. One whose every call is seen is not guessed about.
func (w *Watcher) look(now time.Time, all bool) {
	pids, err := w.proc.PIDs()
	w.mu.Lock()
	w.procErr = err
	w.mu.Unlock()
	type named struct {
		pid   int
		start uint64
	}
	var todo []named
	live := map[int]bool{}
	for _, pid := range pids {
		s, err := w.proc.Stat(pid)
		if err != nil || s.KernelThread || w.config.ours(pid) {
			continue
		}
		live[pid] = true
		if h := w.holders[pid]; h != nil && h.process.Start == s.Start {
			if !all && now.Before(h.next) {
				continue
			}
		} else if before := w.seen[pid]; before.start != s.Start {
			w.seen[pid] = sighting{start: s.Start, first: now}
		} else if !all && now.Before(before.next) {
			continue
		}
		todo = append(todo, named{pid, s.Start})
	}
	maps.DeleteFunc(w.seen, func(pid int, _ sighting) bool { return !live[pid] })
	slices.SortFunc(todo, func(a, b named) int { return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid)) })
	for _, p := range todo {
		if w.stopped() {
			return
		}
		w.scan(p.pid, nil, p.start <= w.traced)
		if w.holders[p.pid] != nil {
			delete(w.seen, p.pid)
		} else if s, ok := w.seen[p.pid]; ok {
			s.next = now.Add(min(max(now.Sub(s.first)/8, w.config.Poll/2), lookMost))
			w.seen[p.pid] = s
		}
	}
	w.verify()
}
