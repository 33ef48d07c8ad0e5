package daemon

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
)

func journalPath(dir string) string { return filepath.Join(dir, "journal") }

// openJournal opens the journal of a fake backend.
func openJournal(dir string) *journal.Store {
	s, err := journal.Open(journalPath(dir), 10*time.Second, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	return s
}

// killBoth kills a daemon and its guardian so that neither notices the end of the other.
func killBoth(t *testing.T, daemon *drivertest.Child) {
	t.Helper()
	_ = syscall.Kill(daemon.PID, syscall.SIGSTOP)
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", daemon.PID))
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", daemon.PID))
	for _, name := range all {
		more, _ := os.ReadFile(name)
		text = append(append(text, ' '), more...)
	}
	killed := 0
	for _, field := range strings.Fields(string(text)) {
		var pid int
		_, _ = fmt.Sscan(field, &pid)
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed == 0 {
		t.Fatal("the daemon has no guardian")
	}
	daemon.Kill()
}

// killedTogether runs f after a daemon that rotates three batch processes was killed
// together with its guardian, at random moments. Changed says whether a queue is changed.
func killedTogether(t *testing.T, f func(b *fakeBackend, changed func() bool)) {
	b := newFakeBackend(t.TempDir())
	args := []string{b.dir}
	var pids []int
	for range 3 {
		p, _ := sleeper(t)
		pids = append(pids, p.PID)
		args = append(args, fmt.Sprint(p.PID))
	}
	changed := func() bool {
		return slices.ContainsFunc(pids, func(pid int) bool { return b.hardware(pid) != hardware{} })
	}
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	leftChanged := 0
	for range rounds {
		cmd := drivertest.Self("DAEMON_TEST=daemon")
		cmd.Args = append([]string{os.Args[0]}, args...)
		child := drivertest.Start(t, cmd)
		_, _ = child.Out.Read(make([]byte, 8)) // ready
		eventually(t, "the daemon has changed a queue", changed)
		time.Sleep(time.Duration(rand.IntN(30_000)) * time.Microsecond)
		killBoth(t, child)
		if changed() {
			leftChanged++
		}
		f(b, changed)
	}
	if leftChanged == 0 {
		t.Error("no daemon left a change, so nothing was tested")
	}
}

// TestNextDaemonUndoesWhatBothLeft: the next daemon finds the queues in the journal and
// restores them before it does anything else.
func TestNextDaemonUndoesWhatBothLeft(t *testing.T) {
	killedTogether(t, func(b *fakeBackend, changed func() bool) {
		d := newTestDaemon(newFakeBackend(b.dir))
		d.cfg.Journal = openJournal(b.dir)
		stop := runDaemon(t, d)
		if changed() {
			t.Error("a queue is changed when the next daemon runs")
		}
		if c := d.journalCheck(); !c.OK {
			t.Errorf("got check %+v, want it OK", c)
		}
		stop()
	})
}

// TestRestoreWithoutDaemonUndoesWhatBothLeft is what 'giveway restore' does.
func TestRestoreWithoutDaemonUndoesWhatBothLeft(t *testing.T) {
	killedTogether(t, func(b *fakeBackend, changed func() bool) {
		s := openJournal(b.dir)
		defer s.Close()
		if _, _, err := guardian.UndoLeft(s, []hal.Backend{b}, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
		if changed() {
			t.Error("a queue is changed after the restore")
		}
		if all, _, _ := s.Left(); len(all) != 0 {
			t.Errorf("got %v in the journal, want nothing", all)
		}
	})
}

// TestGuardianEmptiesTheJournal: the guardian alone restores everything, and the next daemon
// waits for it and finds nothing to undo.
func TestGuardianEmptiesTheJournal(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	p, _ := sleeper(t)
	second, _ := sleeper(t)
	cmd := drivertest.Self("DAEMON_TEST=daemon")
	cmd.Args = []string{os.Args[0], b.dir, fmt.Sprint(p.PID), fmt.Sprint(second.PID)}
	child := drivertest.Start(t, cmd)
	_, _ = child.Out.Read(make([]byte, 8))
	eventually(t, "the queue is changed", func() bool { return b.hardware(p.PID) != hardware{} })
	child.Kill()
	s := openJournal(b.dir)
	defer s.Close()
	if all, _, err := s.Left(); len(all) != 0 || err != nil || b.hardware(p.PID) != (hardware{}) {
		t.Errorf("got %v, %v in the journal and %+v, want nothing", all, err, b.hardware(p.PID))
	}
}

// TestLeftChangeOfAnExitedProcessIsForgotten: nothing is left to undo, and the pid may be
// another process's.
func TestLeftChangeOfAnExitedProcessIsForgotten(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	other, _ := sleeper(t)
	s := openJournal(b.dir)
	for id, q := range []journal.Queue{{}, {Backend: "fake"}, {Backend: "fake"}} {
		q.Process.PID = map[int]int{1: dead.Process.Pid, 2: other.PID}[id]
		if id > 0 {
			_ = s.PutQueue(1, q)
			_ = s.PutChange(1, journal.Change{Sliced: true})
			if n, last, err := guardian.UndoLeft(s, []hal.Backend{b}, slog.New(slog.DiscardHandler)); n != 1 || last != 1 || err != nil {
				t.Errorf("got %d, %d, %v; want 1, 1, no error", n, last, err)
			}
		}
	}
	if keys := s.Keys(""); len(keys) != 0 {
		t.Errorf("got %v, want no keys", keys)
	}
	_ = s.PutQueue(7, journal.Queue{Backend: "unknown"})
	_ = s.PutChange(7, journal.Change{Sliced: true})
	if _, last, err := guardian.UndoLeft(s, []hal.Backend{b}, slog.New(slog.DiscardHandler)); last != 7 || err == nil || len(s.Keys("")) != 2 {
		t.Errorf("a queue that cannot be found again: got %d, %v, %v; want an error, and its entry kept", last, err, s.Keys(""))
	}
	_ = s.Close()
}
