package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/giveway/giveway/sched"
)

// TestSupervisorStartsAGuardianLater: the first guardian cannot be started, the second one
// can. It is sent the queues that were adopted meanwhile.
func TestSupervisorStartsAGuardianLater(t *testing.T) {
	program := filepath.Join(t.TempDir(), "guardian")
	s := newSupervisor([]string{program}, nil, slog.New(slog.DiscardHandler))
	action := sched.Action{Queue: 1, Verb: sched.SetSlice, Slice: sched.MinSlice}
	if err := s.adopt(1, adoption{Backend: "fake"}, int(openNull(t).Fd())); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(action); err != errNoGuardian {
		t.Errorf("without a guardian: got %v, want %v", err, errNoGuardian)
	}
	if s.check().OK {
		t.Error("without a guardian the check is OK")
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec /usr/bin/env DAEMON_TEST=guardian "+os.Args[0]+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a guardian runs", func() bool { return s.check().OK })
	if err := s.Begin(action); err != nil {
		t.Errorf("with a guardian: got %v", err)
	}
	if err := s.Begin(sched.Action{Queue: 2, Verb: sched.SetSlice}); err != errNotAdopted {
		t.Errorf("a queue that the guardian does not have: got %v, want %v", err, errNotAdopted)
	}
	if err := s.close(true); err != nil {
		t.Error(err)
	}
}

// TestSupervisorReplacesAGuardian kills guardians: each is replaced, and no descriptor is
// leaked.
func TestSupervisorReplacesAGuardian(t *testing.T) {
	s := newSupervisor([]string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, nil, slog.New(slog.DiscardHandler))
	count := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	before, last := count(), 0
	for range 2 {
		eventually(t, "a new guardian runs", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.guardian == nil || s.guardian.PID() == last {
				return false
			}
			last = s.guardian.PID()
			return true
		})
		if err := syscall.Kill(last, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the last guardian runs", func() bool { return s.check().OK && !s.isGuardian(last) })
	if after := count(); after > before {
		t.Errorf("got %d descriptors, want at most %d", after, before)
	}
	if err := s.close(true); err != nil {
		t.Error(err)
	}
}

func openNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
