package backends

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
)

// TestKilledTogetherOnNVIDIA kills the daemon and its guardian at random moments while they
// schedule three batch processes and an online one, each of which has a slice of its own.
// Then the next daemon, or 'giveway restore', finds every group from the journal and leaves
// it as it was found.
func TestKilledTogetherOnNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	path := filepath.Join(t.TempDir(), "journal")
	want := map[int]group{}
	online := 0
	for i := range 4 {
		pid, own := m.Start(t).PID, group{slice: time.Duration(i+5) * time.Millisecond}
		withGroup(t, m.Path, pid, func(g nvrm.Group) error { return g.SetTimeslice(own.slice) })
		want[pid] = own
		online = pid
	}
	state := func() map[int]group {
		got := map[int]group{}
		for pid := range want {
			got[pid] = groupOf(t, rm, m.Path, pid)
		}
		return got
	}
	changed := func() bool { return fmt.Sprint(state()) != fmt.Sprint(want) }
	if changed() {
		t.Fatalf("got %v at first, want %v", state(), want)
	}
	rounds, left := 10, 0
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		env := []string{"BACKENDS_TEST=daemon", "BACKENDS_TEST_CONTROL=" + m.Path, "BACKENDS_TEST_JOURNAL=" + path, fmt.Sprint("BACKENDS_TEST_ONLINE=", online)}
		child := drivertest.Start(t, drivertest.Self(env...))
		_, _ = child.Out.Read(make([]byte, 8)) // ready
		drivertest.Eventually(t, "the daemon has changed slices", func() bool { return state()[online].slice == 20*time.Millisecond })
		time.Sleep(time.Duration(rand.IntN(40_000)) * time.Microsecond)
		if child.KillWithChildren() == 0 {
			t.Fatal("the daemon has no guardian")
		}
		if changed() {
			left++
		}
		began := time.Now()
		s, err := journal.Open(path, 10*time.Second, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 { // as giveway restore does
			n, _, err := guardian.UndoLeft(s, []hal.Backend{onDouble(m.Path)}, slog.New(slog.DiscardHandler))
			if err = errors.Join(err, s.Close()); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d groups restored in %v", n, time.Since(began))
		} else {
			_ = s.Close()
			stop := run(t, newDaemon(m.Path, path)) // without rules and online processes it changes nothing itself
			drivertest.Eventually(t, "the next daemon has restored everything", func() bool { return !changed() })
			stop()
		}
		if got := state(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("round %d: got %v, want %v", round, got, want)
		}
	}
	if left == 0 {
		t.Error("no daemon left a change, so nothing was tested")
	}
}

// TestHangingCallOnNVIDIA kills the daemon; the first call of its guardian then hangs for 4 s.
// The other groups are restored meanwhile.
func TestHangingCallOnNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	var pids []int
	for range 4 {
		pids = append(pids, m.Start(t).PID)
	}
	online := pids[3]
	changed := func() (n int) {
		for _, pid := range pids {
			if groupOf(t, rm, m.Path, pid) != asFound {
				n++
			}
		}
		return n
	}
	if n := changed(); n > 0 {
		t.Fatalf("%d groups are changed at first", n)
	}
	child := drivertest.Start(t, drivertest.Self("BACKENDS_TEST=daemon", "BACKENDS_TEST_CONTROL="+m.Path, fmt.Sprint("BACKENDS_TEST_ONLINE=", online)))
	_, _ = child.Out.Read(make([]byte, 8)) // ready
	drivertest.Eventually(t, "all groups are changed", func() bool { return changed() == 4 })
	_ = syscall.Kill(child.PID, syscall.SIGSTOP)
	time.Sleep(50 * time.Millisecond) // calls that are under way end
	rm.Inject(nvrmtest.Control(nvrmtest.SetTimeslice), nvrmtest.Fault{Latency: 4 * time.Second, Times: 1})
	killed := time.Now()
	child.Kill()
	drivertest.Eventually(t, "three groups are restored", func() bool { return changed() == 1 })
	if took := time.Since(killed); took > 3*time.Second {
		t.Errorf("three groups were restored after %v, want that they do not wait for the call of 4 s", took)
	} else {
		t.Logf("three groups were restored after %v", took)
	}
	drivertest.Eventually(t, "the fourth is restored when its call has returned", func() bool { return changed() == 0 })
}

// TestReopenedGroups: a process that has exited has nothing left to undo, and neither has a
// group that its process has freed; a descriptor that may not be copied is an error.
func TestReopenedGroups(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	p := m.Start(t)
	b := onDouble(m.Path)
	info, err := lookID(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reopen(info, []byte(`{"client":1,"group":2}`)); !errors.Is(err, hal.ErrGone) {
		t.Errorf("a group that does not exist: got %v, want %v", err, hal.ErrGone)
	}
	if _, err := b.Reopen(info, []byte(`{`)); err == nil || errors.Is(err, hal.ErrGone) {
		t.Errorf("a state that is no JSON: got %v, want another error than %v", err, hal.ErrGone)
	}
	other := info
	other.Start++
	if _, err := b.Reopen(other, []byte(`{}`)); !errors.Is(err, hal.ErrGone) {
		t.Errorf("a pid that was reused: got %v, want %v", err, hal.ErrGone)
	}
	p.Kill()
	if _, err := b.Reopen(info, []byte(`{}`)); !errors.Is(err, hal.ErrGone) {
		t.Errorf("a process that has exited: got %v, want %v", err, hal.ErrGone)
	}
}

func lookID(pid int) (proc.ID, error) {
	p, err := proc.Look(pid)
	return p.ID(), err
}
