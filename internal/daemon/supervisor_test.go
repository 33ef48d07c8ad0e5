package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// TestSupervisorStartsAGuardianLater: the first guardian cannot be started, the second one
// can. It is sent the queues that were adopted meanwhile.
func TestSupervisorStartsAGuardianLater(t *testing.T) {
	program := filepath.Join(t.TempDir(), "guardian")
	s := newSupervisor([]string{program}, nil, slog.New(slog.DiscardHandler), func(string) {})
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
	_ = s.End(action, sched.Unsupported)
	if err := s.Begin(sched.Action{Queue: 2, Verb: sched.SetSlice, Slice: sched.MinSlice}); err != errNotAdopted {
		t.Errorf("a queue that the guardian does not have: got %v, want %v", err, errNotAdopted)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// TestLargeStateKeepsNoGuardianOut: the state of a queue that is found while no guardian runs does not
// fit in a message. The queue is refused, or dropped, and a guardian is started for the others.
func TestLargeStateKeepsNoGuardianOut(t *testing.T) {
	guardianPause = time.Millisecond
	defer func() { guardianPause = time.Second }()
	program := filepath.Join(t.TempDir(), "guardian")
	s := newSupervisor([]string{program}, nil, slog.New(slog.DiscardHandler), func(string) {})
	null := int(openNull(t).Fd())
	large := adoption{Backend: "fake", State: make([]int, 40_000)}
	if err := s.adopt(1, large, null); err == nil {
		t.Error("a queue whose state is too large was adopted")
	}
	if err := s.adopt(2, adoption{Backend: "fake"}, null); err != nil {
		t.Fatal(err)
	}
	own, err := copyFD(null)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.adopted[3] = adopted{adoption: large, fd: own} // as if only the socket could tell that it is too large
	s.mu.Unlock()
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec /usr/bin/env DAEMON_TEST=guardian "+os.Args[0]+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a guardian runs", func() bool { return s.check().OK })
	for id, want := range map[sched.QueueID]error{1: errNotAdopted, 2: nil, 3: errNotAdopted} {
		action := sched.Action{Queue: id, Verb: sched.SetSlice, Slice: sched.MinSlice}
		if err := s.Begin(action); err != want {
			t.Errorf("change queue %d: got %v, want %v", id, err, want)
		}
		_ = s.End(action, sched.Unsupported)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// TestSupervisorReplacesAGuardian kills 50 guardians: each is replaced and gets the queues,
// and no descriptor is leaked.
func TestSupervisorReplacesAGuardian(t *testing.T) {
	guardianPause = time.Millisecond
	defer func() { guardianPause = time.Second }()
	s := newSupervisor([]string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, nil, slog.New(slog.DiscardHandler), func(string) {})
	count := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	for id := range 4 {
		if err := s.adopt(sched.QueueID(id+1), adoption{Backend: "fake"}, int(openNull(t).Fd())); err != nil {
			t.Fatal(err)
		}
	}
	before, last := count(), 0
	for range 50 {
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
	eventually(t, "the last guardian runs", func() bool { return s.isReplaced(last) })
	eventually(t, "no descriptor is left open", func() bool { return count() <= before })
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// TestSupervisorReplacesAGuardianThatHangs: a queue that cannot be sent to a guardian is sent
// to the next one, and can then be changed.
func TestSupervisorReplacesAGuardianThatHangs(t *testing.T) {
	guardianPause = time.Millisecond
	defer func() { guardianPause = time.Second }()
	s := newSupervisor([]string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, nil, slog.New(slog.DiscardHandler), func(string) {})
	first := s.guardian.PID()
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer s.close() // kills a guardian that still hangs
	null := int(openNull(t).Fd())
	last := sched.QueueID(0)
	for ; s.isGuardian(first) && last < 10_000; last++ { // until its socket is full
		if err := s.adopt(last+1, adoption{Backend: "fake"}, null); err != nil {
			t.Fatalf("queue %d: got %v", last+1, err)
		}
	}
	action := sched.Action{Queue: last, Verb: sched.SetSlice, Slice: sched.MinSlice}
	eventually(t, "another guardian has the last queue", func() bool { return s.Begin(action) == nil && !s.isGuardian(first) })
	_ = s.End(action, sched.Unsupported)
}

// TestStartOfAGuardianDelaysNoOther: a new guardian takes no messages. Until it is given up,
// discovery is told which process is a guardian, queues come and go, and changes are undone.
func TestStartOfAGuardianDelaysNoOther(t *testing.T) {
	guardianPause = time.Millisecond
	defer func() { guardianPause = time.Second }()
	good := []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}
	notes := make(chan string, 100)
	s := newSupervisor(good, nil, slog.New(slog.DiscardHandler), func(text string) { notes <- text })
	large := adoption{Backend: "fake", State: make([]int, 10_000)}
	null := int(openNull(t).Fd())
	for id := range sched.QueueID(100) { // more than fit in a socket
		if err := s.adopt(id+1, large, null); err != nil {
			t.Fatal(err)
		}
	}
	stop := sched.Action{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt}
	if err := errors.Join(s.Begin(stop), s.End(stop, sched.Done)); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	first := s.guardian.PID()
	s.argv = []string{"sleep", "600"} // reads nothing
	s.mu.Unlock()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var slowest time.Duration
	for text, id := "", sched.QueueID(1000); text != "could not be started; nothing is changed until one runs"; id++ {
		began := time.Now()
		s.isGuardian(first)
		if err := s.adopt(id, large, null); err != nil {
			t.Fatal(err)
		}
		s.forget(id)
		slowest = max(slowest, time.Since(began))
		select {
		case text = <-notes:
		case <-time.After(time.Millisecond):
		}
	}
	if slowest > sendLimit/2 {
		t.Errorf("a queue was adopted and forgotten in %v, want less than %v", slowest, sendLimit/2)
	}
	start := sched.Action{Queue: 1, Verb: sched.Start, Level: sched.LevelInterrupt}
	if err := errors.Join(s.Begin(start), s.End(start, sched.Done)); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	s.argv = good
	s.mu.Unlock()
	eventually(t, "a guardian runs", func() bool { return s.check().OK })
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// sendLimit is how long a message to a guardian that does not read takes.
const sendLimit = time.Second

// loseGuardian kills the guardian and lets no other one start.
func loseGuardian(t *testing.T, s *supervisor) {
	t.Helper()
	s.mu.Lock()
	pid := s.guardian.PID()
	s.argv = []string{filepath.Join(t.TempDir(), "missing")}
	s.mu.Unlock()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no guardian runs", func() bool { return !s.check().OK })
}

// TestUndoNeedsNoGuardian: without a guardian nothing more is changed, and what is changed can
// be undone. The daemon ends with an error as long as a change is in force.
func TestUndoNeedsNoGuardian(t *testing.T) {
	s := newSupervisor([]string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, nil, slog.New(slog.DiscardHandler), func(string) {})
	if err := s.adopt(1, adoption{Backend: "fake"}, int(openNull(t).Fd())); err != nil {
		t.Fatal(err)
	}
	slice := sched.Action{Queue: 1, Verb: sched.SetSlice, Slice: sched.MinSlice}
	stop := sched.Action{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt}
	for _, a := range []sched.Action{slice, stop} {
		if err := errors.Join(s.Begin(a), s.End(a, sched.Done)); err != nil {
			t.Fatal(err)
		}
	}
	loseGuardian(t, s)
	for _, a := range []sched.Action{slice, stop} {
		if err := s.Begin(a); err != errNoGuardian {
			t.Errorf("%v: got %v, want %v", a, err, errNoGuardian)
		}
	}
	if err := s.close(); err == nil {
		t.Error("the queue is changed at the end: got no error")
	}
	for _, a := range []sched.Action{{Queue: 1, Verb: sched.SetSlice}, {Queue: 1, Verb: sched.Start, Level: sched.LevelInterrupt}} {
		if err := errors.Join(s.Begin(a), s.End(a, sched.Done)); err != nil {
			t.Errorf("%v: got %v", a, err)
		}
	}
	if err := s.close(); err != nil {
		t.Errorf("everything is undone at the end: got %v", err)
	}
}

// TestDaemonRestoresWithoutAGuardian: a queue that was changed while a guardian ran is
// restored when the daemon ends, although no guardian runs any more.
func TestDaemonRestoresWithoutAGuardian(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	stop := runDaemon(t, d)
	p, _ := sleeper(t)
	b.mustOffer(t, p)
	if _, err := d.Change(ourselves, p.PID, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return b.hardware(p.PID).stopped })
	loseGuardian(t, d.guardian)
	stop()
	if got := b.hardware(p.PID); got != (hardware{}) {
		t.Errorf("after the daemon stopped: got %+v, want no change left", got)
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

// superviseUntilKilled keeps a guardian running and prints the pid of each. The guardian is
// this program again, told by GIVEWAY_GUARDIAN what it is.
func superviseUntilKilled(argv []string) {
	_ = os.Unsetenv("DAEMON_TEST")
	s := newSupervisor(argv, nil, slog.New(slog.DiscardHandler), func(string) {})
	for last := 0; ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		if s.guardian != nil && s.guardian.PID() != last {
			last = s.guardian.PID()
			fmt.Println(last)
		}
		s.mu.Unlock()
	}
}

// TestGuardianOfAReplacedProgram: the program is moved and another file takes its place, as an
// upgrade does. A guardian that dies is replaced all the same, by the old program.
func TestGuardianOfAReplacedProgram(t *testing.T) {
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "giveway")
	if err := os.WriteFile(program, text, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, guardian.Self)
	cmd.Env = append(os.Environ(), "DAEMON_TEST=supervisor")
	child := drivertest.Start(t, cmd)
	lines := bufio.NewScanner(child.Out)
	if !lines.Scan() {
		t.Fatal("no guardian was started")
	}
	if err := errors.Join(os.Rename(program, program+".old"), os.WriteFile(program, []byte("the new version"), 0o700), os.Remove(program+".old")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		pid, _ := strconv.Atoi(lines.Text())
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		next := make(chan bool, 1)
		go func() { next <- lines.Scan() }()
		select {
		case <-next:
		case <-time.After(10 * time.Second):
			t.Fatal("no guardian was started after the program was replaced")
		}
	}
}

// isReplaced reports whether another guardian than the one with this pid runs.
func (s *supervisor) isReplaced(pid int) bool {
	g, _ := s.state()
	return g != nil && g.PID() != pid
}

// replaceGuardianDuringAnAction stops queue 1 of a fake backend and begins to set its slice, which
// turns out to be unsupported after the guardian was replaced. Then it waits to be killed.
func replaceGuardianDuringAnAction(dir string) {
	guardianPause = time.Millisecond
	s := newSupervisor([]string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, nil, slog.New(slog.DiscardHandler), func(string) {})
	f, err := os.Create(filepath.Join(dir, "1"))
	if err != nil {
		panic(err)
	}
	stop := sched.Action{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt}
	slice := sched.Action{Queue: 1, Verb: sched.SetSlice, Slice: sched.MinSlice}
	q := &fakeQueue{b: newFakeBackend(dir), f: f}
	err = errors.Join(s.adopt(1, adoption{Backend: "fake"}, int(f.Fd())), s.Begin(stop), q.Interrupt(), s.End(stop, sched.Done), s.Begin(slice))
	g, _ := s.state()
	first := g.PID()
	if err = errors.Join(err, syscall.Kill(first, syscall.SIGKILL)); err != nil {
		panic(err)
	}
	for !s.isReplaced(first) {
		time.Sleep(time.Millisecond)
	}
	if err := s.End(slice, sched.Unsupported); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	select {}
}

// TestReplacedGuardianKnowsEveryChange: the guardian is replaced while an action is under way that
// then changes nothing. The new one undoes what was changed before the action.
func TestReplacedGuardianKnowsEveryChange(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	cmd := drivertest.Self("DAEMON_TEST=replace")
	cmd.Args = []string{os.Args[0], b.dir}
	child := drivertest.Start(t, cmd)
	if _, err := child.Out.Read(make([]byte, 8)); err != nil || !b.hardware(1).stopped {
		t.Fatalf("got %v and %+v, want the queue stopped", err, b.hardware(1))
	}
	child.Kill()
	eventually(t, "the queue is started", func() bool { return b.hardware(1) == hardware{} })
}

// BenchmarkChange measures what the guardian and the journal cost each action, both before
// and after it: with the journal on tmpfs, as in a runtime directory, and without one.
func BenchmarkChange(b *testing.B) {
	for _, disk := range []bool{false, true} {
		b.Run(fmt.Sprintf("journal=%v", disk), func(b *testing.B) {
			var store *journal.Store
			if disk {
				dir, err := os.MkdirTemp("/dev/shm", "giveway")
				if err != nil {
					b.Skip("no tmpfs at /dev/shm")
				}
				defer os.RemoveAll(dir)
				store = openJournal(dir)
			}
			s := newSupervisor([]string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, store, slog.New(slog.DiscardHandler), func(string) {})
			if err := s.adopt(1, adoption{Backend: "fake", State: make([]int, 64)}, int(os.Stdin.Fd())); err != nil {
				b.Fatal(err)
			}
			stop := sched.Action{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt}
			start := sched.Action{Queue: 1, Verb: sched.Start, Level: sched.LevelInterrupt}
			for i := 0; b.Loop(); i++ {
				a := []sched.Action{stop, start}[i%2]
				if err := errors.Join(s.Begin(a), s.End(a, sched.Done)); err != nil {
					b.Fatal(err)
				}
			}
			_ = errors.Join(s.close(), store.Close())
		})
	}
}

// TestQueueFoundWhileTheDiskIsFull: a queue that is found while the journal cannot be written is not
// changed. It is changed when there is room again, and the journal lists it then.
func TestQueueFoundWhileTheDiskIsFull(t *testing.T) {
	var log bytes.Buffer
	path := journalPath(journalDir(t))
	disk, err := journal.Open(path, 0, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s := newSupervisor([]string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]}, disk, slog.New(slog.DiscardHandler), func(string) {})
	defer func() {
		if err := errors.Join(s.close(), disk.Close()); err != nil {
			t.Error(err)
		}
	}()
	d := &Daemon{cfg: Config{Journal: disk}}
	stop := sched.Action{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt}
	fillDisk(t, path, func() {
		if err := s.adopt(1, adoption{Backend: "fake"}, int(openNull(t).Fd())); err != nil {
			t.Errorf("adopt a queue while the disk is full: got %v", err)
		}
		for range 10 {
			if err := s.Begin(stop); err == nil {
				t.Error("a change that the journal does not list was permitted")
			}
		}
		if c := d.journalCheck(); c.OK {
			t.Errorf("while the disk is full: got check %+v, want a failure", c)
		}
	})
	eventually(t, "the queue may be changed", func() bool { return s.Begin(stop) == nil })
	if c := d.journalCheck(); !c.OK {
		t.Errorf("when there is room: got check %+v, want it OK", c)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("got %d errors in the log, want 1:\n%s", n, log.String())
	}
	if all, _, err := disk.Left(); len(all) != 1 || all[0].Queue.Backend != "fake" || all[0].Change.Level != sched.LevelInterrupt || err != nil {
		t.Errorf("got %+v, %v in the journal, want the queue and its change", all, err)
	}
	_ = s.End(stop, sched.Gone)
}

// fillDisk calls f while the journal at path, which is open, cannot be written.
func fillDisk(t *testing.T, path string, f func()) {
	t.Helper()
	inTheWay := path + ".new" // as the file that replaces a removed one is called
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(inTheWay)
	f()
}
