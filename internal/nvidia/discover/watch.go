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

// Times and limits of the loop.
const (
	burstGap        = 20 * time.Millisecond  // a burst of allocations ends after a gap of this length,
	burstMax        = 200 * time.Millisecond // or when it has lasted this long
	maxScanInterval = 30 * time.Second       // between scans of a process without the control device
	youngTime       = 30 * time.Second       // a new opener may still be making objects
	maxPending      = 4096                   // processes
	maxPendingUser  = maxPending / 4         // processes of a user
	maxCalls        = 256                    // per process
	scanTime        = 50 * time.Millisecond  // for a process; RM is asked about the rest of its descriptors by a later scan
	roundTime       = 200 * time.Millisecond // for scans in a row; then exits and other events are looked at
)

// pending collects the traced allocations of a process until it is scanned.
type pending struct {
	uid        uint32 // of the process; zero if it cannot be told
	first, due time.Time
	calls      []call
	early      earlyScan
}

// earlyScan is a scan before the end of a burst, at most one.
type earlyScan uint8

const (
	noEarlyScan earlyScan = iota
	earlyScanDue
	earlyScanDone
)

// isDue reports whether the process is to be scanned.
func (p *pending) isDue(now time.Time) bool { return p.early == earlyScanDue || !p.due.After(now) }

// nonOpener is a process that did not have the control device open when it was scanned.
type nonOpener struct {
	start       uint64
	since, next time.Time
}

// run is the Watcher's goroutine.
func (w *Watcher) run() {
	if w.tracer != nil {
		w.waiters.Go(w.readCalls)
	}
	w.loop()
	w.stop()
	if w.tracer != nil {
		w.tracer.Close()
	}
	for _, h := range w.openers {
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
	w.scanAll(time.Now(), true)
	for i := 0; w.config.Once && i < maxSweeps && w.continueSweeps(); i++ {
	}
	for w.config.Once {
		if w.stopped() || !w.findOlder() {
			return
		}
	}
	for {
		if first, any := w.firstDue(); any {
			timer.Reset(time.Until(first))
		}
		select {
		case <-w.ctx.Done():
			return
		case h := <-w.exits:
			w.exited(h)
		case c := <-w.calls:
			w.noteCall(c, time.Now())
		case <-timer.C:
			w.scanPending(time.Now())
		case now := <-ticker.C:
			w.tick(now)
			w.continueSweeps()
			w.findOlder()
		case pid := <-w.rescan:
			w.scanAnew(pid)
		}
	}
}

func (w *Watcher) stopped() bool { return w.ctx.Err() != nil }

// emit sends an event. If the Watcher ends instead, emit closes the descriptor.
func (w *Watcher) emit(e Event) {
	select {
	case w.events <- e:
	case <-w.ctx.Done():
		if e.Found != nil {
			e.Found.File.Close()
		}
	}
}

// readCalls passes traced calls to the loop.
func (w *Watcher) readCalls() {
	for {
		c, err := w.tracer.Read()
		if err != nil {
			if !w.stopped() {
				w.log.Warn("eBPF stopped: scanning /proc", "error", err)
				w.mu.Lock()
				w.bpfErr = err
				w.mu.Unlock()
			}
			return
		}
		select {
		case w.calls <- c:
		case <-w.ctx.Done():
			return
		}
	}
}

// noteCall keeps a traced call until the burst of its process has ended.
func (w *Watcher) noteCall(c call, now time.Time) {
	if w.config.ignores(c.pid) {
		return
	}
	if h := w.openers[c.pid]; c.free {
		if h == nil || !h.dependsOn(c.client, c.object) {
			return
		}
		h.noteFree(c.client, c.object)
	}
	p := w.addPending(c.pid, now)
	if p == nil {
		return
	}
	p.due = now.Add(burstGap)
	if last := p.first.Add(burstMax); p.due.After(last) {
		p.due = last
	}
	if !c.free && len(p.calls) < maxCalls {
		p.calls = append(p.calls, c)
	}
	if p.early == noEarlyScan && w.startsGroup(c) {
		p.early = earlyScanDue
	}
}

// addPending returns the pending scan of a process, made if there is none; nil: there are too
// many.
func (w *Watcher) addPending(pid int, now time.Time) *pending {
	if p := w.pending[pid]; p != nil {
		return p
	}
	uid := w.proc.userOf(pid)
	if len(w.pending) >= maxPending || w.pendingOf[uid] >= maxPendingUser {
		w.overflowed = true // so that all processes are scanned
		return nil
	}
	p := &pending{uid: uid, first: now, due: now}
	w.pending[pid] = p
	w.pendingOf[uid]++
	return p
}

// startsGroup reports whether a call made the first compute object of a client, from which
// on its group is known to be a compute group. No kernel can run before that call, so the
// process is scanned at once, and again at the end of the burst, when the group is complete.
func (w *Watcher) startsGroup(c call) bool {
	if c.free || !nvrm.IsCompute(c.class) {
		return false
	}
	if h := w.openers[c.pid]; h != nil {
		for key := range h.groups {
			if key.Client == c.client {
				return false
			}
		}
	}
	return true
}

func (w *Watcher) firstDue() (first time.Time, any bool) {
	for _, p := range w.pending {
		due := p.due
		if p.early == earlyScanDue {
			due = p.first
		}
		if !any || due.Before(first) {
			first, any = due, true
		}
	}
	return first, any
}

// scanPending scans the processes that are due. Users have their turns one after the other, so
// that one with many processes delays the others little.
func (w *Watcher) scanPending(now time.Time) {
	for begun := time.Now(); time.Since(begun) < roundTime && !w.stopped(); {
		pid := w.nextPending(now)
		if pid == 0 {
			return
		}
		p := w.pending[pid]
		if p.due.After(now) {
			p.early = earlyScanDone
		} else {
			delete(w.pending, pid)
			if w.pendingOf[p.uid]--; w.pendingOf[p.uid] == 0 {
				delete(w.pendingOf, p.uid)
			}
		}
		if len(w.turns) >= maxPending { // of users, most of which have no processes any more
			clear(w.turns)
		}
		w.turn++
		w.turns[p.uid] = w.turn
		w.scan(pid, slices.Clone(p.calls), false)
	}
}

// nextPending returns the process to be scanned next; zero: none is due.
func (w *Watcher) nextPending(now time.Time) (next int) {
	for pid, p := range w.pending {
		if !p.isDue(now) {
			continue
		}
		if next == 0 || cmp.Or(cmp.Compare(w.turns[p.uid], w.turns[w.pending[next].uid]), cmp.Compare(pid, next)) < 0 {
			next = pid
		}
	}
	return next
}

// scanAnew scans a process as if no client handle had been guessed for it.
func (w *Watcher) scanAnew(pid int) {
	if h := w.openers[pid]; h != nil {
		for _, c := range h.files {
			c.tries, c.retry = 0, time.Time{}
		}
	}
	if !w.config.ignores(pid) {
		w.scan(pid, nil, true)
	}
}

// tick scans all of /proc if calls are not traced or some were lost. Otherwise it only
// checks the openers.
func (w *Watcher) tick(now time.Time) {
	w.mu.Lock()
	traced := w.bpfErr == nil
	w.mu.Unlock()
	if !traced {
		w.tracedSince = math.MaxUint64
		w.scanAll(now, false)
		return
	}
	if lost := w.tracer.Lost(); lost != w.lost || w.overflowed {
		w.lost, w.overflowed = lost, false
		w.tracedSince = proc.BootTicks()
		w.scanAll(now, true)
		return
	}
	w.checkOpeners()
}

// checkOpeners scans openers that have closed a descriptor, which no traced call reports.
func (w *Watcher) checkOpeners() {
	for pid, start := range w.refused {
		if s, err := w.proc.Stat(pid); err != nil || s.Start != start {
			w.setRefused(proc.Process{PID: pid}, false)
		}
	}
	for _, h := range w.sortedOpeners() {
		if w.hasClosed(h) {
			w.scan(h.process.PID, nil, false)
		}
	}
}

// hasClosed reports whether a process has closed a descriptor with a known client.
func (w *Watcher) hasClosed(h *opener) bool {
	d, err := w.proc.descriptors(h.process.PID, w.config.Control)
	if err != nil {
		return true
	}
	defer d.Close()
	for fd, c := range h.files {
		if c.client != 0 && !d.isControl(fd) {
			return true
		}
	}
	return false
}

func (w *Watcher) sortedOpeners() []*opener {
	return slices.SortedFunc(maps.Values(w.openers), func(a, b *opener) int {
		return cmp.Or(cmp.Compare(a.process.Start, b.process.Start), cmp.Compare(a.process.PID, b.process.PID))
	})
}

// scanAll scans the processes: first those that were never scanned, so that old ones do not
// delay them, and each time oldest first, so that an inherited descriptor is found in the
// process that opened it. Without all it skips those that were scanned a short while
// ago: the longer a process has run without a GPU, the less often it is scanned. Handles are
// not guessed for a process whose calls were all traced.
func (w *Watcher) scanAll(now time.Time, all bool) {
	pids, err := w.proc.PIDs()
	w.mu.Lock()
	w.listErr = err
	w.mu.Unlock()
	type named struct {
		pid   int
		start uint64
		seen  int // 1: it was scanned before
	}
	var todo []named
	live := map[int]bool{}
	for _, pid := range pids {
		s, err := w.proc.Stat(pid)
		if err != nil || s.KernelThread || w.config.ignores(pid) {
			continue
		}
		live[pid] = true
		seen := 1
		if h := w.openers[pid]; h != nil && h.process.Start == s.Start {
			if !all && now.Before(h.next) {
				continue
			}
		} else if before := w.nonOpeners[pid]; before.start != s.Start {
			w.nonOpeners[pid] = nonOpener{start: s.Start, since: now}
			seen = 0
		} else if !all && now.Before(before.next) {
			continue
		}
		todo = append(todo, named{pid, s.Start, seen})
	}
	maps.DeleteFunc(w.nonOpeners, func(pid int, _ nonOpener) bool { return !live[pid] })
	slices.SortFunc(todo, func(a, b named) int {
		return cmp.Or(cmp.Compare(a.seen, b.seen), cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid))
	})
	for _, p := range todo {
		if w.stopped() {
			return
		}
		w.scan(p.pid, nil, p.start <= w.tracedSince)
		if w.openers[p.pid] != nil {
			delete(w.nonOpeners, p.pid)
		} else if s, ok := w.nonOpeners[p.pid]; ok {
			s.next = now.Add(min(max(now.Sub(s.since)/8, w.config.Poll/2), maxScanInterval))
			w.nonOpeners[p.pid] = s
		}
	}
	w.checkOpeners()
}
