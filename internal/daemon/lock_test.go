package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"golang.org/x/sys/unix"
)

// Users of the tests in this file. Their processes exist in a slowProc only.
const (
	alice = 50001
	bob   = 50002
)

// slowProc is a table of processes that takes as long to read as the test says. It
// reports each call that was made with the daemon's lock held.
type slowProc struct {
	mu        sync.Mutex
	processes map[int]proc.Process
	hang      map[uint32]chan struct{} // by user: reading such a process waits for it

	d      *Daemon
	locked atomic.Int64 // calls made with d.mu held
	calls  atomic.Int64
}

func newSlowProc() *slowProc {
	return &slowProc{processes: make(map[int]proc.Process), hang: make(map[uint32]chan struct{})}
}

// add adds a process.
func (s *slowProc) add(p proc.Process) proc.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[p.PID] = p
	return p
}

// remove removes a process, which has exited.
func (s *slowProc) remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.processes, pid)
}

// hold makes every read of a user's processes wait until release is called.
func (s *slowProc) hold(uid uint32) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.hang[uid] = c
	return sync.OnceFunc(func() { close(c) })
}

func (s *slowProc) Process(pid int) (proc.Process, error) {
	s.calls.Add(1)
	s.mu.Lock()
	p, there := s.processes[pid]
	wait := s.hang[p.UID]
	s.mu.Unlock()
	if !s.unlocked() {
		s.locked.Add(1)
	} else if there && wait != nil {
		<-wait
	}
	if !there {
		return p, os.ErrNotExist
	}
	return p, nil
}

func (s *slowProc) Stat(pid int) (proc.Stat, error) {
	p, err := s.Process(pid)
	return proc.Stat{Parent: p.Parent, Start: p.Start}, err
}

// unlocked reports whether the lock of the daemon is free at some moment of this call. If
// the caller holds it, it is not.
func (s *slowProc) unlocked() bool {
	if s.d == nil || s.locked.Load() > 0 {
		return s.d == nil
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
		if s.d.mu.TryLock() {
			s.d.mu.Unlock()
			return true
		}
	}
	return false
}

// newSlowDaemon makes a daemon whose table of processes is slow.
func newSlowDaemon(t *testing.T) (*Daemon, *fakeBackend, *slowProc) {
	t.Helper()
	s, b := newSlowProc(), newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	d.procs = s
	return d, b, s
}

// family adds a shell of a user with n children that use the device.
func family(t *testing.T, b *fakeBackend, s *slowProc, uid uint32, shell, n int) (pids []int) {
	t.Helper()
	s.add(proc.Process{PID: shell, Start: uint64(shell), UID: uid, GID: uid, Parent: 1})
	for i := range n {
		p := s.add(proc.Process{PID: shell + 1 + i, Start: uint64(shell + 1 + i), UID: uid, GID: uid, Parent: shell})
		b.mustOffer(t, p)
		pids = append(pids, p.PID)
	}
	return pids
}

func of(uid uint32) server.Caller { return server.Caller{UID: uid, GID: uid, Account: uid} }

// within fails the test if f has not returned after a generous time.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: no answer within 20 s", what)
	}
}

// TestNoCallReadsProcUnderTheLock: while reading the processes of one user hangs and that
// user gives 100 orders at once, the loop takes turns and other users are answered. No file
// of /proc is ever read with the daemon's lock held.
func TestNoCallReadsProcUnderTheLock(t *testing.T) {
	d, b, s := newSlowDaemon(t)
	defer runDaemon(t, d)()
	s.d = d
	d.users.lookup = func(uint32) account { // a lookup reads files, too
		if !s.unlocked() {
			s.locked.Add(1)
		}
		return account{name: "user"}
	}
	family(t, b, s, alice, 10_000, 200)
	bobs := family(t, b, s, bob, 20_000, 2)
	release := s.hold(alice)
	defer release()
	var ended sync.WaitGroup
	for i := range 100 {
		ended.Go(func() { _, _ = d.Change(of(alice), 10_000, tree(fmt.Sprint("weight=", i+1))) })
		ended.Go(func() {
			_, end, err := d.BeginRun(server.Caller{UID: alice, GID: alice, PID: 10_000, Account: alice}, api.Run{Values: attr.Must("class=batch")})
			if err == nil {
				end()
			}
		})
	}
	ended.Go(func() { // found while its user's processes cannot be read
		_, _ = b.offer(s.add(proc.Process{PID: 10_900, Start: 10_900, UID: alice, Parent: 10_000}))
	})
	for range 20 {
		within(t, "a turn of the loop", func() { d.events.inLoop(func() {}) })
		within(t, "processes", func() {
			if got := len(d.Processes()); got < 202 {
				t.Errorf("got %d processes, want at least 202", got)
			}
		})
		within(t, "status", func() { d.Status() })
		within(t, "set", func() {
			if _, err := d.Change(of(bob), bobs[0], given("class=batch")); err != nil {
				t.Error(err)
			}
		})
		within(t, "set --tree", func() {
			if _, err := d.Change(of(bob), 20_000, tree("weight=3")); err != nil {
				t.Error(err)
			}
		})
	}
	release()
	within(t, "the orders of the first user", ended.Wait)
	if n := s.locked.Load(); n > 0 || s.calls.Load() == 0 {
		t.Errorf("got %d of %d reads of /proc with the daemon's lock held, want 0 of some", n, s.calls.Load())
	}
}

// lockedLog is a log handler that counts messages written with the daemon's lock held.
type lockedLog struct {
	slog.Handler
	*slowProc
}

func (lockedLog) Enabled(context.Context, slog.Level) bool { return true }

func (l lockedLog) Handle(context.Context, slog.Record) error {
	if l.calls.Add(1); !l.unlocked() {
		l.locked.Add(1)
	}
	return nil
}

// TestNothingIsLoggedUnderTheLock: the reader of a log may be slow. A device whose configured
// policy cannot be applied is found.
func TestNothingIsLoggedUnderTheLock(t *testing.T) {
	b, s := newFakeBackend(t.TempDir()), newSlowProc()
	d := newTestDaemon(b)
	s.d, d.cfg.Log = d, slog.New(lockedLog{slog.DiscardHandler, s})
	d.conf.Devices = []api.Policy{{Device: "fake0", Name: "no such policy"}}
	defer runDaemon(t, d)()
	eventually(t, "a message is logged", func() bool { return s.calls.Load() > 0 })
	if n := s.locked.Load(); n > 0 {
		t.Errorf("got %d of %d messages with the daemon's lock held, want 0", n, s.calls.Load())
	}
}

// TestConnectingShimDoesNotStopTheLoop: while reading about a process that connects hangs,
// the loop takes turns, so that the leases of held gates are renewed, and other processes
// connect.
func TestConnectingShimDoesNotStopTheLoop(t *testing.T) {
	gates, s := newShim(), newSlowProc()
	d := newTestDaemon(gates)
	d.procs = s
	defer runDaemon(t, d)()
	known := func() proc.Process {
		p, _ := sleeper(t)
		return s.add(p)
	}
	connect := func(p proc.Process) error {
		fds, _, err := gates.Admit(server.ShimProcess{PID: p.PID, UID: p.UID, Runtime: "opencl"})
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return err
	}
	held, page := admitProcess(t, gates, known(), "opencl")
	if _, err := d.Change(ourselves, held, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gate is closed", func() bool { return page.Page.Gate.Load() == pageabi.GateClosed })
	slow := known()
	slow.UID = alice
	s.add(slow)
	release := s.hold(alice)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer release()
	begun := s.calls.Load()
	for range 20 {
		ended.Go(func() { _ = connect(slow) })
	}
	eventually(t, "a process connects", func() bool { return s.calls.Load() > begun })
	lease := page.Page.Lease.Load()
	eventually(t, "the lease is renewed three times", func() bool {
		renewed := 0
		for ; renewed < 3; renewed++ {
			was := page.Page.Lease.Load()
			for end := time.Now().Add(2 * time.Second); page.Page.Lease.Load() == was; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					return false
				}
			}
		}
		return page.Page.Lease.Load() > lease
	})
	within(t, "another process connects", func() {
		if err := connect(known()); err != nil {
			t.Error(err)
		}
	})
}
