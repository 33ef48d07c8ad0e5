package discover

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/proc"
)

// TestUsersAreScannedInTurn checks that a user with many processes delays the scans of other
// users' processes little, whether their calls were traced or a pass found them due, and can
// fill only a part of the table of traced calls.
func TestUsersAreScannedInTurn(t *testing.T) {
	w, err := newWatcher(t.Context(), Config{Proc: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	const most = 1 << 22 // no process has such a pid
	for pid, id := range map[int]uint32{most + 1: 7, most + 2: 7, most + 3: 7, most + 4: 8, most + 5: 9, most + 9: 10} {
		w.pending[pid] = &pending{account: id, due: now}
		w.account(id).pending++
	}
	w.pending[most+9].due = now.Add(time.Second)
	for pid, id := range map[int]uint32{most + 6: 7, most + 7: 8, most + 8: 10} {
		w.account(id).queue = []int{pid}
		w.queued[pid] = false
	}
	var order []int
	for n := w.nextScan(now); n.account != nil; n = w.nextScan(now) {
		order = append(order, n.pid-most)
		before := n.used
		w.takeTurn(n, now)
		if n.account.used < before+leastTurn {
			t.Errorf("a turn was not counted: got %v after %v", n.account.used, before)
		}
		n.account.used = before + time.Second
	}
	if want := []int{1, 4, 5, 8, 2, 7, 3, 6}; !slices.Equal(order, want) {
		t.Errorf("order of scans: got %v, want %v", order, want)
	}
	w.startInterval()
	if len(w.pending) != 1 || len(w.queued) != 0 || len(w.accounts) != 1 {
		t.Errorf("left: %v, %v and %v; want one traced call of one account", w.pending, w.queued, w.accounts)
	}
	for i := range maxPending {
		w.noteCall(call{pid: most + 10 + i}, now) // of a process that cannot be read
	}
	if n := w.account(unknownUser).pending; n != maxPendingUser || !w.overflowed {
		t.Errorf("an account has %d pending scans, overflowed %v; want %d and true", n, w.overflowed, maxPendingUser)
	}
}

// hostile is a user with many processes.
const hostile = 65534

// manyOldProcesses lists processes of the hostile user that are older than all others and take
// as long to scan as possible without the control device.
func manyOldProcesses(t *testing.T, n int) *crowdedProc {
	t.Helper()
	files := newCrowdedProc(t)
	files.setUser(files.heavy, hostile)
	files.setStart(files.heavy, 1)
	files.addHeavy(10_000_000, n) // no process has such a pid
	return files
}

// TestPassDelaysNoOtherUser checks that a process which starts while a pass scans many processes
// of another user is scanned within two turns, and that the pass goes on where it was.
func TestPassDelaysNoOtherUser(t *testing.T) {
	const processes = 300
	files := manyOldProcesses(t, processes)
	_, path, m := mounted(t)
	w, err := newWatcher(t.Context(), Config{Proc: files.root, Control: path, Only: proc.Everyone, NoBPF: true})
	if err != nil {
		t.Fatal(err)
	}
	scans := 0
	scanNext := func() bool {
		n := w.nextScan(time.Now())
		if n.account == nil {
			return false
		}
		scans++
		w.takeTurn(n, time.Now())
		return true
	}
	startPass := func() {
		w.startPass(time.Now(), true)
		for len(w.pass) > 0 { // each call for a limited time
			w.continuePass(time.Now())
		}
	}
	startPass()
	for range processes / 2 {
		scanNext()
	}
	p := m.Start(t)
	files.add(p.PID, "/proc/"+strconv.Itoa(p.PID))
	go func() {
		for e := range w.events {
			e.Found.File.Close()
		}
	}()
	startPass()
	before := w.looks.Load()
	for scans = 0; w.openers[p.PID] == nil && scanNext(); {
	}
	if looks := w.looks.Load() - before; w.openers[p.PID] == nil || scans > 2 || looks > 2*lookWindow {
		t.Errorf("the process was scanned after %d scans and %d descriptors, want at most 2 and %d", scans, looks, 2*lookWindow)
	}
	for scanNext() {
	}
	unscanned := 0
	for _, s := range w.nonOpeners {
		if s.scanned.IsZero() {
			unscanned++
		}
	}
	if n := len(w.nonOpeners); n != processes || unscanned > 0 {
		t.Errorf("after the pass: %d processes, %d of them never scanned; want %d and none", n, unscanned, processes)
	}
	w.stop()
	w.forget(w.openers[p.PID])
	w.waiters.Wait()
	close(w.events)
}

// TestPassIsMadeInSteps checks that a pass which was interrupted goes on behind the processes
// that were looked at.
func TestPassIsMadeInSteps(t *testing.T) {
	files := newCrowdedProc(t)
	files.addHeavy(10_000_000, 10)
	w, err := newWatcher(t.Context(), Config{Proc: files.root, Only: proc.Everyone})
	if err != nil {
		t.Fatal(err)
	}
	w.startPass(time.Now(), true)
	for len(w.pass) > 0 {
		w.continuePass(time.Now())
	}
	w.startPass(time.Now(), true)
	w.pass = w.pass[:4]
	for len(w.pass) > 0 {
		w.continuePass(time.Now())
	}
	files.addHeavy(20_000_000, 1)
	w.startPass(time.Now(), false)
	var got []int
	for _, pid := range w.pass {
		got = append(got, pid%10_000_000)
	}
	if want := []int{0, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3}; !slices.Equal(got, want) || w.pass[0] != 20_000_000 {
		t.Errorf("got %v, want the new process and then those from the fifth on", w.pass)
	}
}

// TestAccountsShareTime checks that accounts share time, not scans: an account with many short
// scans is done after one long scan of each of the others, and one that had nothing to do has no
// more than its share afterwards.
func TestAccountsShareTime(t *testing.T) {
	const alice, bob, short, long = 1000, 1001, time.Millisecond, 60 * time.Millisecond
	w, err := newWatcher(t.Context(), Config{Proc: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	fill := func(id uint32, n int) { w.account(id).queue = make([]int, n) }
	scans := func(n int) (of map[*account]int) {
		of = map[*account]int{}
		for range n {
			s := w.nextScan(time.Now())
			s.account.queue = s.account.queue[1:]
			took := short
			if s.account == w.account(hostile) {
				took = long
			}
			of[s.account]++
			w.used, s.account.used = s.used, s.used+took
		}
		return of
	}
	fill(hostile, 1000)
	scans(100)
	fill(alice, 40)
	fill(bob, 40)
	if got := scans(81); got[w.account(alice)] != 40 || got[w.account(bob)] != 40 {
		t.Errorf("of 81 scans: got %d and %d, want 40 each", got[w.account(alice)], got[w.account(bob)])
	}
	scans(100)
	fill(alice, 1000)
	if got := scans(130); got[w.account(hostile)] != 2 {
		t.Errorf("of 130 scans, each 60th long: got %d long ones, want 2", got[w.account(hostile)])
	}
}
