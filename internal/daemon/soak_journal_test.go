package daemon

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/journal"
)

// checkJournal checks that every queue that is changed is in the journal on disk. A change
// is in the journal before it is made and until it is undone, so a queue that is seen
// changed without being listed was changed meanwhile, or is not listed at all: then it is
// never found listed.
func (s *soak) checkJournal() {
	missing := map[int]int{} // by pid: how often
	const tries = 10
	for range tries {
		changed := s.changedQueues()
		listed := s.journaled()
		if listed == nil {
			return
		}
		for _, pid := range changed {
			if !listed[pid] {
				missing[pid]++
			}
		}
		if len(missing) == 0 {
			return
		}
		time.Sleep(3 * time.Millisecond)
	}
	for pid, n := range missing {
		if n == tries {
			s.violation("the queue of process %d is changed and not in the journal", pid)
		}
	}
}

// changedQueues returns the processes whose queues are stopped or have another slice.
func (s *soak) changedQueues() (pids []int) {
	b := fakeBackend{dir: s.path("queues")}
	for _, p := range s.sleepers {
		if b.hardware(p.Process.Pid) != (hardware{}) {
			pids = append(pids, p.Process.Pid)
		}
	}
	return pids
}

// journaled returns the processes that have changes in the journal on disk. It reads a copy,
// because the daemon has locked the journal. It returns nil if there is none.
func (s *soak) journaled() map[int]bool {
	text, err := os.ReadFile(journal.Path(s.path("s")))
	if err != nil {
		return nil
	}
	s.write("journal-copy", string(text))
	if err := os.Chmod(s.path("journal-copy"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	store, err := journal.OpenLocked(s.path("journal-copy"), slog.New(slog.DiscardHandler))
	if err != nil || store.Damaged() != nil {
		return nil // the copy has half a record, or was made while the daemon replaced the file
	}
	defer store.Close()
	all, _, _ := store.Left()
	listed := map[int]bool{}
	for _, l := range all {
		listed[l.Queue.Process.PID] = true
	}
	return listed
}

// paused returns the processes that their owner has paused.
func (s *soak) paused() (pids []int) {
	var all []api.Process
	_ = s.call("list processes", func(ctx context.Context) (err error) { all, err = s.client.Processes(ctx); return err })
	for _, p := range all {
		if p.Attrs.Bool(attr.Paused) && p.Attrs.Source(attr.Paused) == attr.FromSet {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// checkKept checks that processes that were paused before a daemon was killed are paused
// when the next daemon has found them. Simulated processes end with their daemon.
func (s *soak) checkKept(pids []int) {
	for _, pid := range pids {
		if pid == canaryPID() || pid > 4<<20 {
			continue
		}
		s.mu.Lock()
		s.figures.kept++
		s.mu.Unlock()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			found, paused := s.isPaused(pid)
			if found && !paused {
				s.violation("process %d was paused before the daemon was killed, and is not afterwards", pid)
			}
			if found || time.Now().After(end) || !isRunning(pid) {
				break
			}
		}
	}
}

func (s *soak) isPaused(pid int) (found, paused bool) {
	var all []api.Process
	_ = s.call("list processes", func(ctx context.Context) (err error) { all, err = s.client.Processes(ctx); return err })
	for _, p := range all {
		if p.PID == pid && len(p.Queues) > 0 {
			return true, p.Attrs.Bool(attr.Paused)
		}
	}
	return false, false
}

// isRunning reports whether a process exists and is not a zombie.
func isRunning(pid int) bool { return usageOf(pid).kB > 0 }
