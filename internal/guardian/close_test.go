package guardian

import (
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// closeHangs is a queue with the last copy of its descriptor, whose driver does not return from
// close(2).
type closeHangs struct{ fileQueue }

func (closeHangs) Abandon() error { select {} }

// TestCloseThatHangsDelaysNoOther: the process of queue 1 has exited, and close(2) of the guardian's
// copy hangs. Queue 2 is changed and undone all the same.
func TestCloseThatHangsDelaysNoOther(t *testing.T) {
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	adopted := 0
	adopt := func(_ json.RawMessage, fd int) (hal.Queue, error) {
		q := fileQueue{os.NewFile(uintptr(fd), "queue")}
		if adopted++; adopted == 1 {
			return closeHangs{q}, nil
		}
		return q, nil
	}
	ended := make(chan error, 1)
	go func() { ended <- Run(int(theirs.Fd()), adopt, slog.New(slog.DiscardHandler)) }()
	g := &Guardian{fd: ours}
	var files []fileQueue
	for i := range sched.QueueID(2) {
		f, err := os.Create(filepath.Join(t.TempDir(), "queue"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, fileQueue{f})
		if err := g.Adopt(i+1, struct{}{}, int(f.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Forget(1); err != nil {
		t.Fatal(err)
	}
	if err := g.Change(2, journal.Change{Level: sched.LevelInterrupt}); err != nil {
		t.Fatal(err)
	}
	if err := files[1].Interrupt(); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(ours) // the daemon is killed
	select {
	case err := <-ended:
		if err != nil || files[1].get(8) != 0 {
			t.Errorf("got %v and stopped = %d, want queue 2 started", err, files[1].get(8))
		}
	case <-time.After(5 * time.Second):
		t.Error("the guardian waits for close(2) of queue 1 and undoes nothing")
	}
}

// TestUndoDoesNotWaitForClose: the changes of a queue are undone, and then close(2) of its descriptor
// hangs. Undo returns and reports the queue as undone.
func TestUndoDoesNotWaitForClose(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "queue"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	q, undone, ended := fileQueue{f}, make(chan struct{}, 1), make(chan error, 1)
	if err := q.Interrupt(); err != nil {
		t.Fatal(err)
	}
	go func() {
		ended <- Undo([]Task{{
			Name: "queue 1", Open: func() (hal.Queue, error) { return closeHangs{q}, nil }, Undone: func() { undone <- struct{}{} },
			Actions: []sched.Action{{Verb: sched.SetSlice}, {Verb: sched.Start, Level: sched.LevelInterrupt}},
		}}, slog.New(slog.DiscardHandler))
	}()
	select {
	case err := <-ended:
		if err != nil || q.get(8) != 0 || len(undone) != 1 {
			t.Errorf("got %v, stopped = %d, reported %d times as undone; want the queue started and reported once", err, q.get(8), len(undone))
		}
	case <-time.After(10 * time.Second):
		t.Error("Undo waits for close(2)")
	}
}

// TestKilledGuardianIsGone: a guardian that was killed counts as gone before it has exited, because a
// driver call that hangs keeps its process.
func TestKilledGuardianIsGone(t *testing.T) {
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	g := &Guardian{fd: ours, cmd: cmd, exited: make(chan struct{}), gone: make(chan struct{})} // its exit is not seen
	g.Kill()
	select {
	case <-g.Gone():
	case <-time.After(5 * time.Second):
		t.Fatal("a guardian that was killed is not gone")
	}
	began := time.Now()
	_ = g.Close()
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close waited %v for a guardian that was killed", took)
	}
}
