package guardian

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/sched"
)

// fileQueue is a queue whose state is in a file and so outlives the daemon: the
// slice at offset 0, at offset 8 whether the queue is stopped, and at offset 16 whether
// SetSlice hangs.
type fileQueue struct{ f *os.File }

func (q fileQueue) put(at int64, v uint64) error {
	_, err := q.f.WriteAt(binary.LittleEndian.AppendUint64(nil, v), at)
	return err
}

func (q fileQueue) get(at int64) uint64 {
	b := make([]byte, 8)
	_, _ = q.f.ReadAt(b, at)
	return binary.LittleEndian.Uint64(b)
}

func (q fileQueue) SetSlice(d time.Duration) error {
	for q.get(16) != 0 { // the call hangs until the test lets it return
		time.Sleep(time.Millisecond)
	}
	return q.put(0, uint64(d))
}
func (q fileQueue) Interrupt() error { return q.put(8, 1) }
func (q fileQueue) Restore() error   { return q.put(8, 0) }
func (q fileQueue) Abandon() error   { return q.f.Close() }
func (q fileQueue) Close() error     { return q.f.Close() }

func adoptFile(_ json.RawMessage, fd int) (hal.Queue, error) {
	return fileQueue{os.NewFile(uintptr(fd), "queue")}, nil
}

func TestMain(m *testing.M) {
	switch os.Getenv("GUARDIAN_TEST") {
	case "guardian":
		if err := Run(3, adoptFile, slog.New(slog.DiscardHandler)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "daemon":
		changeQueues(os.Getenv("GUARDIAN_TEST_DIR"), os.Getenv("GUARDIAN_TEST_SEED"))
	}
	os.Exit(m.Run())
}

func startGuardian() (*Guardian, error) {
	_ = os.Setenv("GUARDIAN_TEST", "guardian")
	return Start(os.Args[0])
}

// reporter reports actions to a guardian as the daemon does.
type reporter struct {
	*Guardian
	journal journal.Journal
}

func (r *reporter) do(q hal.Queue, a sched.Action) error {
	r.journal.Begin(a)
	if err := r.Change(a.Queue, r.journal.Of(a.Queue)); err != nil {
		return err
	}
	err := hal.Do(q, a)
	r.journal.End(a, hal.Outcome(err))
	return errors.Join(err, r.Change(a.Queue, r.journal.Of(a.Queue)))
}

// changeQueues is a daemon that changes queues at random until it is killed.
func changeQueues(dir, seed string) {
	g, err := startGuardian()
	if err != nil {
		panic(err)
	}
	n, _ := strconv.ParseUint(seed, 10, 64)
	random, r := rand.New(rand.NewPCG(n, 1)), reporter{Guardian: g}
	queues := make([]fileQueue, 4)
	for i := range queues {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(i)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			panic(err)
		}
		queues[i] = fileQueue{f}
		if err := g.Adopt(sched.QueueID(i+1), struct{}{}, int(f.Fd())); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	for {
		i := random.IntN(len(queues))
		a := sched.Action{Queue: sched.QueueID(i + 1), Verb: sched.Stop, Level: sched.LevelInterrupt}
		switch stopped := queues[i].get(8) == 1; {
		case random.IntN(2) == 0:
			a = sched.Action{Queue: a.Queue, Verb: sched.SetSlice, Slice: []time.Duration{0, sched.MinSlice}[random.IntN(2)]}
		case stopped:
			a.Verb = sched.Start
		}
		if err := r.do(queues[i], a); err != nil {
			panic(err)
		}
	}
}

// TestGuardianUndoesChangesWhenDaemonIsKilled kills a daemon at many different
// moments. All changes are undone within 5 s; without other load within 1 s.
func TestGuardianUndoesChangesWhenDaemonIsKilled(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	for seed := range rounds {
		dir := t.TempDir()
		daemon := drivertest.Start(t, drivertest.Self("GUARDIAN_TEST=daemon", "GUARDIAN_TEST_DIR="+dir, "GUARDIAN_TEST_SEED="+strconv.Itoa(seed)))
		_, _ = daemon.Out.Read(make([]byte, 8)) // ready
		time.Sleep(time.Duration(seed*seed%37) * time.Millisecond / 4)
		daemon.Kill()
		if changed := changedAfter(dir, 5*time.Second); changed != "" {
			t.Errorf("seed %d: 5 s after the daemon was killed: got %s want no change", seed, changed)
		}
	}
}

// changedAfter waits until no queue in dir is changed, but not longer than limit,
// and describes the queues that are changed then.
func changedAfter(dir string, limit time.Duration) (changed string) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		changed = ""
		for i := range 4 {
			text, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
			text = append(text, make([]byte, 16)...)
			slice, stopped := binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:])
			if slice != 0 || stopped != 0 {
				changed += fmt.Sprintf("queue %d with slice %d, stopped %d; ", i+1, slice, stopped)
			}
		}
		if changed == "" {
			return ""
		}
	}
	return changed
}

// die closes the daemon's end without a goodbye, as the kernel does when the
// daemon dies.
func (g *Guardian) die() { _ = unix.Close(g.fd); g.fd = -1 }

// guardedQueue returns a guardian and its one queue, which was sliced and stopped.
func guardedQueue(t *testing.T) (*Guardian, fileQueue) {
	t.Helper()
	g, err := startGuardian()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "q"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	q := fileQueue{f}
	t.Cleanup(func() { f.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(g.Adopt(1, struct{}{}, int(f.Fd())))
	r := reporter{Guardian: g}
	for _, a := range []sched.Action{
		{Queue: 1, Verb: sched.SetSlice, Slice: sched.MinSlice}, {Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt},
	} {
		must(r.do(q, a))
	}
	return g, q
}

func TestGuardianChangesNothingAfterClose(t *testing.T) {
	g, q := guardedQueue(t)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if q.get(0) != uint64(sched.MinSlice) || q.get(8) != 1 {
		t.Errorf("after Close: got slice %d, stopped %d, want %d, 1", q.get(0), q.get(8), sched.MinSlice)
	}
}

func TestGuardianChangesNoForgottenQueue(t *testing.T) {
	g, q := guardedQueue(t)
	if err := g.Forget(1); err != nil {
		t.Fatal(err)
	}
	g.die()
	<-g.Gone()
	if q.get(0) != uint64(sched.MinSlice) {
		t.Errorf("forgotten queue: got slice %d, want %d", q.get(0), sched.MinSlice)
	}
}

func TestGuardianUndoesChangesWhenDaemonDies(t *testing.T) {
	g, q := guardedQueue(t)
	g.die()
	<-g.Gone()
	if q.get(0) != 0 || q.get(8) != 0 {
		t.Errorf("got slice %d, stopped %d, want 0, 0", q.get(0), q.get(8))
	}
}

// TestChangeFailsWhenGuardianIsDead matters because the daemon then must not carry
// out the action.
func TestChangeFailsWhenGuardianIsDead(t *testing.T) {
	g, _ := guardedQueue(t)
	_ = g.cmd.Process.Kill()
	<-g.Gone()
	if err := g.Change(1, journal.Change{Sliced: true}); err == nil {
		t.Error("got no error from Change, want one")
	}
}

// changedQueues returns a guardian and its queues, all of which are sliced and stopped.
func changedQueues(t *testing.T, n int) (*Guardian, []fileQueue) {
	t.Helper()
	g, err := startGuardian()
	if err != nil {
		t.Fatal(err)
	}
	queues, r := make([]fileQueue, n), reporter{Guardian: g}
	for i := range queues {
		f, err := os.OpenFile(filepath.Join(t.TempDir(), "q"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		queues[i] = fileQueue{f}
		id := sched.QueueID(i + 1)
		err = g.Adopt(id, struct{}{}, int(f.Fd()))
		for _, a := range []sched.Action{
			{Queue: id, Verb: sched.SetSlice, Slice: sched.MinSlice}, {Queue: id, Verb: sched.Stop, Level: sched.LevelInterrupt},
		} {
			err = errors.Join(err, r.do(queues[i], a))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return g, queues
}

// TestLargeMessageIsNotTheGuardiansFault: a queue whose state does not fit in a message, or in the socket,
// cannot be adopted, and the guardian is still reachable.
func TestLargeMessageIsNotTheGuardiansFault(t *testing.T) {
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ours)
	defer theirs.Close()
	if err := unix.SetsockoptInt(ours, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	g := &Guardian{fd: ours}
	for _, size := range []int{maxMessage, maxMessage / 2} {
		if err := g.Adopt(1, make([]byte, size), int(theirs.Fd())); err == nil || errors.Is(err, ErrUnreachable) {
			t.Errorf("a state of %d bytes: got %v, want an error of the message", size, err)
		}
	}
	if err := g.Forget(1); err != nil {
		t.Errorf("the next message: got %v", err)
	}
}

// TestHangingCallDelaysNoOtherQueue: a call for the first queue does not return. The others
// are restored meanwhile, and the first one as soon as its call returns.
func TestHangingCallDelaysNoOtherQueue(t *testing.T) {
	g, queues := changedQueues(t, 4)
	_ = queues[0].put(16, 1)
	t.Cleanup(func() { _ = queues[0].put(16, 0) })
	g.die()
	for i, q := range queues[1:] {
		drivertest.Eventually(t, fmt.Sprintf("queue %d is restored while a call for queue 1 hangs", i+2), func() bool { return q.get(0) == 0 && q.get(8) == 0 })
	}
	if queues[0].get(8) == 0 {
		t.Error("queue 1 was started with its minimum slice")
	}
	_ = queues[0].put(16, 0)
	drivertest.Eventually(t, "queue 1 is restored", func() bool { return queues[0].get(0) == 0 && queues[0].get(8) == 0 })
	<-g.Gone()
}
