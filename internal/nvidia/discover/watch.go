package discover

import (
	"cmp"
	"iter"
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
	listTime        = 50 * time.Millisecond  // for a step of a pass; then processes are scanned
	guessTime       = 2 * time.Second        // the same where client handles are guessed: the first guess lists all clients
	roundTime       = 100 * time.Millisecond // for scans in a row; then exits and other events are looked at
	leastTurn       = 50 * time.Microsecond  // for which a scan counts
	eventTime       = 50 * time.Millisecond  // for these
	sweepTime       = time.Second            // between two ticks, for an account to have sweeps continued
	maxChecked      = 1024                   // processes per tick of which it is checked whether they still exist, for each purpose
)

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
	w.startPass(time.Now(), true)
	if w.config.Once {
		w.scanOnce()
		return
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
			w.takeEvents()
			w.continuePass(time.Now())
			w.scanDue(time.Now())
		case now := <-ticker.C:
			w.tick(now)
			w.queueSweeps()
			w.queueUnkept(false)
			w.findOlder()
		case pid := <-w.rescan:
			w.scanAnew(pid)
		}
	}
}

// scanOnce scans all processes.
func (w *Watcher) scanOnce() {
	for more := true; more && !w.stopped(); more = w.findOlder() {
		for !w.stopped() {
			if _, any := w.firstDue(); !any {
				break
			}
			w.continuePass(time.Now())
			w.scanDue(time.Now())
		}
	}
}

// takeEvents takes what has happened during a round of scans, for eventTime. While scans are due
// all the time, the loop would otherwise take an event or two in a round.
func (w *Watcher) takeEvents() {
	for begun := time.Now(); time.Since(begun) < eventTime; {
		select {
		case h := <-w.exits:
			w.exited(h)
		case c := <-w.calls:
			w.noteCall(c, time.Now())
		case pid := <-w.rescan:
			w.scanAnew(pid)
		default:
			return
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

// scanAnew makes the loop scan a process as if no client handle had been guessed for it.
func (w *Watcher) scanAnew(pid int) {
	if h := w.openers[pid]; h != nil {
		for _, c := range h.files {
			c.tries, c.retry = 0, time.Time{}
		}
	}
	if !w.config.ignores(pid) {
		w.enqueue(pid, true)
	}
}

// tick begins a pass over all processes if calls are not traced or some were lost. In any case it
// checks the openers.
func (w *Watcher) tick(now time.Time) {
	w.mu.Lock()
	traced := w.bpfErr == nil
	w.mu.Unlock()
	w.startInterval()
	if !traced {
		w.tracedSince = math.MaxUint64
		w.startPass(now, false)
	} else if lost := w.tracer.Lost(); lost != w.lost || w.overflowed {
		w.lost, w.overflowed = lost, false
		w.tracedSince = proc.BootTicks()
		w.startPass(now, true)
	}
	w.dropExited()
	w.checkOpeners()
}

// dropExited forgets what is remembered of processes that have exited.
func (w *Watcher) dropExited() {
	exited := func(pid int, start uint64) bool {
		now, err := w.proc.Stat(pid)
		return err != nil || now.Start != start
	}
	for pid, start := range someOf(w.refused) {
		if exited(pid, start) {
			w.setRefused(proc.Process{PID: pid}, false)
		}
	}
	for pid, s := range someOf(w.sweeps) {
		if exited(pid, s.start) {
			w.endSweep(pid)
		}
	}
	for pid, u := range someOf(w.unkept) {
		if exited(pid, u.start) {
			w.dropUnkept(pid)
		}
	}
}

// someOf returns maxChecked entries of a map, or all. A map begins each time with another one.
func someOf[V any](m map[int]V) iter.Seq2[int, V] {
	return func(yield func(int, V) bool) {
		n := 0
		for pid, v := range m {
			if n++; n > maxChecked || !yield(pid, v) {
				return
			}
		}
	}
}

// checkOpeners makes the loop scan openers that have closed a descriptor, which no traced call
// reports.
func (w *Watcher) checkOpeners() {
	for _, h := range w.sortedOpeners() {
		if w.hasClosed(h) {
			w.scanSoon(h.process.PID)
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
