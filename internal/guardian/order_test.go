package guardian

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// watchedQueue calls a function when it is restored.
type watchedQueue struct {
	*memoryQueue
	restored func()
}

func (q watchedQueue) Restore() error {
	q.restored()
	return q.memoryQueue.Restore()
}

// TestUndoDoesNotWaitForTheJournalOnDisk: the queue is restored before the journal on disk, which may be
// large or on a disk that hangs, is read and written anew. Then the change is removed from it.
func TestUndoDoesNotWaitForTheJournalOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	log := slog.New(slog.DiscardHandler)
	store, err := journal.OpenLocked(path, log)
	if err != nil {
		t.Fatal(err)
	}
	change := journal.Change{Level: sched.LevelInterrupt}
	if err := store.PutQueue(1, journal.Queue{}); err != nil {
		t.Fatal(err)
	}
	if err := store.PutChange(1, change); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	untouched := false
	q := watchedQueue{&memoryQueue{stopped: true}, func() {
		now, err := os.Stat(path)
		untouched = err == nil && os.SameFile(before, now)
	}}
	s := &server{path: path, lock: -1, queues: map[sched.QueueID]hal.Queue{1: q}, log: log}
	s.journal.Set(1, change)
	if err := s.undo(); err != nil || q.stopped {
		t.Fatalf("undo: got %v, stopped %v", err, q.stopped)
	}
	if !untouched {
		t.Error("the journal on disk was opened before the queue was restored")
	}
	if store, err = journal.OpenLocked(path, log); err != nil {
		t.Fatal(err)
	}
	if left, _, err := store.Left(); len(left) != 0 || err != nil {
		t.Errorf("the journal on disk: got %v, %v, want no change", left, err)
	}
}
