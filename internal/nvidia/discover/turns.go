package discover

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/proc"
)

// Scans wait in queues, one for each account. The next scan is one of the account whose scans
// have taken the least time, so accounts with much to scan have equal shares of the time. A user
// with many processes, or with processes that take long to scan, delays a scan of a user with few
// by one scan.
//
//	traced calls ──────────> pending ─┐
//	processes that are due ─> queue ──┴─> nextScan: the account with the least time
//
// Time that an account has not used is lost: an account that had nothing to scan begins with the
// time of the account whose turn was last (start-time fair queueing).

// account is what the processes of one user make the Watcher do and remember. Subordinate uids
// count for their user.
type account struct {
	used    time.Duration // for how long its processes were scanned
	pending int           // processes with traced calls that wait for a scan
	queue   []int         // pids of further processes to be scanned, the next one first
	swept   time.Duration // for how long sweeps were continued since the last tick
	places  int           // taken by openers without a group: see keep.go
	unkept  int           // processes for which there was no place
	more    bool          // there were more of those than maxUnkept
}

// unknownUser is the account of processes that cannot be read, most of which have exited.
const unknownUser = math.MaxUint32

// accountOf returns the account of a process.
func (w *Watcher) accountOf(pid int) uint32 {
	uid, err := w.proc.starterOf(pid)
	if err != nil {
		return unknownUser
	}
	return w.accountOfUser(uid)
}

func (w *Watcher) accountOfUser(uid uint32) uint32 {
	if w.config.Account != nil {
		return w.config.Account(uid)
	}
	return uid
}

// account returns what is kept of an account.
func (w *Watcher) account(id uint32) *account {
	a := w.accounts[id]
	if a == nil {
		a = &account{}
		w.accounts[id] = a
	}
	return a
}

// startInterval lets sweeps be continued again, and forgets accounts of which nothing is kept.
func (w *Watcher) startInterval() {
	for id, a := range w.accounts {
		a.swept = 0
		if a.pending == 0 && len(a.queue) == 0 && a.places == 0 && a.unkept == 0 {
			delete(w.accounts, id)
		}
	}
}

// pending collects the traced allocations of a process until it is scanned.
type pending struct {
	account    uint32
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

// addPending returns the pending scan of a process, made if there is none; nil: there are too
// many.
func (w *Watcher) addPending(pid int, now time.Time) *pending {
	if p := w.pending[pid]; p != nil {
		return p
	}
	id := w.accountOf(pid)
	a := w.account(id)
	if len(w.pending) >= maxPending || a.pending >= maxPendingUser {
		w.overflowed = true // so that all processes are scanned
		return nil
	}
	p := &pending{account: id, first: now, due: now}
	w.pending[pid] = p
	a.pending++
	return p
}

// scanSoon makes the loop scan a process, as if it had been traced.
func (w *Watcher) scanSoon(pid int) { w.addPending(pid, time.Now()) }

// enqueue makes the loop scan a process when it is its turn. mayGuess permits to guess client
// handles.
func (w *Watcher) enqueue(pid int, mayGuess bool) {
	before, queued := w.queued[pid]
	w.queued[pid] = before || mayGuess
	if !queued {
		a := w.account(w.accountOf(pid))
		a.queue = append(a.queue, pid)
	}
}

// firstDue returns when a process is to be scanned, or the pass to go on.
func (w *Watcher) firstDue() (first time.Time, any bool) {
	if len(w.pass) > 0 || len(w.queued) > 0 {
		return time.Time{}, true
	}
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

// next is a scan that may be the next one.
type next struct {
	account *account
	used    time.Duration // by the account; what it did not use in time is lost
	pid     int
	pending *pending // nil: the process is the first in the queue of its account
}

// before orders scans: accounts by the time that they have used, and of an account traced calls
// first.
func (n next) before(o next) bool {
	return o.account == nil || cmp.Or(
		cmp.Compare(n.used, o.used), first(n.pending != nil, o.pending != nil), cmp.Compare(n.pid, o.pid)) < 0
}

// nextScan returns the scan to be made next; without an account: none is due.
func (w *Watcher) nextScan(now time.Time) (n next) {
	for pid, p := range w.pending {
		a := w.accounts[p.account]
		if o := (next{a, max(a.used, w.used), pid, p}); p.isDue(now) && o.before(n) {
			n = o
		}
	}
	for _, a := range w.accounts {
		if len(a.queue) == 0 {
			continue
		}
		if o := (next{a, max(a.used, w.used), a.queue[0], nil}); o.before(n) {
			n = o
		}
	}
	return n
}

// scanDue scans the processes that are due, for roundTime.
func (w *Watcher) scanDue(now time.Time) {
	for begun := time.Now(); time.Since(begun) < roundTime && !w.stopped(); {
		n := w.nextScan(now)
		if n.account == nil {
			return
		}
		w.takeTurn(n, now)
	}
}

// takeTurn makes a scan that nextScan returned.
func (w *Watcher) takeTurn(n next, now time.Time) {
	begun := time.Now()
	defer func() { n.account.used = n.used + max(time.Since(begun), leastTurn) }()
	w.used = n.used
	if n.pending != nil {
		w.scanPending(n, now)
	} else {
		w.scanQueued(n.account)
	}
}

// scanPending scans a process with traced calls.
func (w *Watcher) scanPending(n next, now time.Time) {
	if n.pending.due.After(now) {
		n.pending.early = earlyScanDone
	} else {
		delete(w.pending, n.pid)
		n.account.pending--
	}
	w.scan(n.pid, slices.Clone(n.pending.calls), false)
}

// scanQueued scans the first process in the queue of an account. If not all of its descriptors
// were looked at, it goes to the end of the queue, as long as that takes the account no more
// than sweepTime between two ticks.
func (w *Watcher) scanQueued(a *account) {
	pid := a.queue[0]
	mayGuess := w.queued[pid]
	a.queue = a.queue[1:]
	delete(w.queued, pid)
	begun := time.Now()
	w.scan(pid, nil, mayGuess)
	for i := 0; w.config.Once && i < maxOnceScans && w.isUnfinished(pid) && !w.stopped(); i++ {
		w.scan(pid, nil, mayGuess)
	}
	w.setNext(pid, begun)
	if !w.isUnfinished(pid) || w.config.Once {
		return
	}
	if a.swept += time.Since(begun); a.swept < sweepTime {
		w.enqueue(pid, mayGuess)
	}
}

// setNext sets when the next pass scans a process without the control device.
func (w *Watcher) setNext(pid int, now time.Time) {
	s, ok := w.nonOpeners[pid]
	switch {
	case !ok:
	case w.openers[pid] != nil:
		delete(w.nonOpeners, pid)
	default:
		s.scanned = now
		s.next = now.Add(min(max(now.Sub(s.since)/8, w.config.Poll/2), maxScanInterval))
		w.nonOpeners[pid] = s
	}
}

// nonOpener is a process that did not have the control device open when it was scanned, or of
// which nothing is kept.
type nonOpener struct {
	start         uint64
	since         time.Time
	scanned, next time.Time // zero: it was not scanned yet
}

// startPass begins to look at all processes for those that are due to be scanned. With all,
// every process is due. A pass that has not ended goes on behind the new processes.
func (w *Watcher) startPass(now time.Time, all bool) {
	pids, err := w.proc.PIDs()
	w.mu.Lock()
	w.listErr = err
	w.mu.Unlock()
	if all {
		w.scanSince = now
	}
	w.proc.sortYoungestFirst(pids)
	slices.Reverse(pids)
	w.dropNonOpeners(pids)
	var unknown, known []int
	for _, pid := range pids {
		if _, seen := w.nonOpeners[pid]; seen || w.openers[pid] != nil {
			known = append(known, pid)
		} else {
			unknown = append(unknown, pid)
		}
	}
	slices.Sort(known)
	at, _ := slices.BinarySearch(known, w.passed+1)
	w.pass = slices.Concat(unknown, known[at:], known[:at])
}

// dropNonOpeners forgets those that are not among pids.
func (w *Watcher) dropNonOpeners(pids []int) {
	live := make(map[int]bool, len(pids))
	for _, pid := range pids {
		live[pid] = true
	}
	for pid := range w.nonOpeners {
		if !live[pid] {
			delete(w.nonOpeners, pid)
		}
	}
}

// continuePass queues the processes that are due among the next ones of the pass, for listTime:
// first those that were never scanned, so that old ones do not delay them, and each time oldest
// first, so that an inherited descriptor is found in the process that opened it. Handles are not
// guessed for a process whose calls were all traced.
func (w *Watcher) continuePass(now time.Time) {
	var due []dueProcess
	n := 0
	for begun := time.Now(); n < len(w.pass) && (time.Since(begun) < listTime || w.config.Once); n++ {
		if p, ok := w.dueProcess(w.pass[n], now); ok {
			due = append(due, p)
		}
	}
	w.pass = w.pass[n:]
	slices.SortFunc(due, func(a, b dueProcess) int {
		return cmp.Or(first(!a.scanned, !b.scanned), cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID))
	})
	for _, p := range due {
		w.enqueue(p.PID, p.Start <= w.tracedSince)
	}
}

// dueProcess is a process that a pass found to be due.
type dueProcess struct {
	proc.ID
	scanned bool // before
}

// dueProcess reports whether a process is due to be scanned. The longer a process has run
// without a GPU, the less often it is.
func (w *Watcher) dueProcess(pid int, now time.Time) (dueProcess, bool) {
	s, err := w.proc.Stat(pid)
	if err != nil || s.KernelThread || w.config.ignores(pid) {
		return dueProcess{}, false
	}
	p := dueProcess{ID: proc.ID{PID: pid, Start: s.Start}}
	var scanned, next time.Time
	if h := w.openers[pid]; h != nil && h.process.Start == s.Start {
		w.passed, scanned, next = pid, h.scanned, h.next
	} else if before, ok := w.nonOpeners[pid]; ok && before.start == s.Start {
		w.passed, scanned, next = pid, before.scanned, before.next
	} else {
		w.nonOpeners[pid] = nonOpener{start: s.Start, since: now}
	}
	p.scanned = !scanned.IsZero()
	return p, scanned.Before(w.scanSince) || !now.Before(next)
}
