package daemon

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

var errBusy = errors.New("busy")

// pausedQueue returns a daemon with a journal and the queue of a process that is paused.
func pausedQueue(t *testing.T) (*Daemon, *fakeBackend, func(), proc.Process, hal.QueueHandle) {
	t.Helper()
	d, b, stop := newKeptDaemon(t)
	p, _ := sleeper(t)
	q := b.mustOffer(t, p)
	if _, err := d.Change(ourselves, p.PID, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return b.hardware(p.PID).stopped })
	return d, b, stop, p, q
}

// changeOf returns what a supervisor lists as changed of a queue.
func (s *supervisor) changeOf(id sched.QueueID) journal.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.journal.Of(id)
}

// TestRestoreThatFailsIsRepeated: a withdrawn queue that cannot be started stays in the journal,
// and a later offer of the same queue is not changed. It is started as soon as that works.
func TestRestoreThatFailsIsRepeated(t *testing.T) {
	d, b, stop, p, q := pausedQueue(t)
	defer stop()
	b.setStuck(p.PID, func() error { return errBusy })
	restored := q.Withdraw(false)
	time.Sleep(100 * time.Millisecond)
	select {
	case <-restored:
		t.Error("the queue is stopped and counts as restored")
	default:
	}
	if got, want := d.guardian.changeOf(q.ID()), (journal.Change{Level: sched.LevelInterrupt}); got != want {
		t.Errorf("while the queue is stopped: got %+v in the journal, want %+v", got, want)
	}
	if all, _, err := d.cfg.Journal.Left(); len(all) != 1 || err != nil {
		t.Errorf("while the queue is stopped: got %v, %v in the journal on disk; want one change", all, err)
	}
	b.setStuck(p.PID, nil)
	select {
	case <-restored:
	case <-time.After(5 * time.Second):
		t.Fatal("the queue was not restored")
	}
	if got := b.hardware(p.PID); got != (hardware{}) {
		t.Errorf("got %+v, want no change left", got)
	}
	if got := d.guardian.changeOf(q.ID()); got != (journal.Change{}) {
		t.Errorf("after the queue was restored: got %+v in the journal, want nothing", got)
	}
}

// TestRestoreThatFailsIsGivenUpWithTheProcess: the process of a queue that cannot be started
// exits, so nothing is left to undo.
func TestRestoreThatFailsIsGivenUpWithTheProcess(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	defer stop()
	p, cmd := sleeper(t)
	q := b.mustOffer(t, p)
	if _, err := d.Change(ourselves, p.PID, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return b.hardware(p.PID).stopped })
	b.setStuck(p.PID, func() error { return errBusy })
	restored := q.Withdraw(false)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	select {
	case <-restored:
	case <-time.After(5 * time.Second):
		t.Error("the queue of a process that has exited is still tried")
	}
	if got := d.guardian.changeOf(q.ID()); got != (journal.Change{}) {
		t.Errorf("got %+v in the journal, want nothing", got)
	}
}

// TestGuardianGetsNoGoodbyeWithAChangeInForce: a withdrawn queue cannot be restored before the
// daemon ends, because calls for it fail or hang. The guardian and the journal keep its change.
func TestGuardianGetsNoGoodbyeWithAChangeInForce(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	for name, stuck := range map[string]func() error{
		"fails": func() error { return errBusy },
		"hangs": func() error { <-hang; return errBusy },
	} {
		t.Run(name, func(t *testing.T) {
			d, b, stop, p, q := pausedQueue(t)
			b.setStuck(p.PID, stuck)
			q.Withdraw(false)
			time.Sleep(20 * time.Millisecond)
			stop()
			g := d.guardian.guardian
			if g == nil {
				t.Fatal("no guardian runs")
			}
			select {
			case <-g.Gone():
				t.Error("the guardian has ended with a change in force")
			case <-time.After(50 * time.Millisecond):
			}
			g.Kill()
			<-g.Gone()
			s := openJournal(b.dir)
			defer s.Close()
			if all, _, err := s.Left(); len(all) != 1 || err != nil {
				t.Errorf("got %v, %v in the journal on disk; want one change", all, err)
			}
		})
	}
}

// TestPartialStopIsUndone: a stop fails and leaves the queue stopped. The change is in the
// journal, and the queue is started as soon as that works, although its process is paused.
func TestPartialStopIsUndone(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	defer stop()
	p, _ := sleeper(t)
	q := b.mustOffer(t, p)
	b.refuse = map[int]error{p.PID: hal.ErrPartial}
	b.setStuck(p.PID, func() error { return errBusy })
	if _, err := d.Change(ourselves, p.PID, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopped", func() bool { return b.hardware(p.PID).stopped })
	time.Sleep(20 * time.Millisecond)
	if got, want := d.guardian.changeOf(q.ID()), (journal.Change{Level: sched.LevelInterrupt}); got != want {
		t.Errorf("while the queue is stopped: got %+v in the journal, want %+v", got, want)
	}
	b.setStuck(p.PID, nil)
	eventually(t, "it is started", func() bool { n, _ := b.starts(p.PID); return n > 0 })
}

// memoryJournal is a changeJournal that only keeps a journal.
type memoryJournal struct{ journal.Journal }

func (j *memoryJournal) Begin(a sched.Action) error { j.Journal.Begin(a); return nil }

func (j *memoryJournal) End(a sched.Action, o sched.Outcome) error { j.Journal.End(a, o); return nil }

func (j *memoryJournal) Undo(id sched.QueueID) []sched.Action { return j.Of(id).Undo(id) }

// badSlice is a queue whose slice cannot be set until a time.
type badSlice struct {
	until                 time.Time
	sliced, stopped, over bool
	startedAt             time.Time
}

func (q *badSlice) SetSlice(d time.Duration) error {
	if d == 0 && time.Now().Before(q.until) {
		return errBusy
	}
	q.sliced = d != 0
	return nil
}

func (q *badSlice) Interrupt() error { q.stopped = true; return nil }
func (q *badSlice) Restore() error   { q.stopped, q.startedAt = false, time.Now(); return nil }
func (q *badSlice) Close() error     { q.over = true; return nil }

// TestRestoreSetsTheSliceFirst: a queue whose slice cannot be set back is not started with it,
// unless that takes longer than sliceFirst. It is closed when everything is undone.
func TestRestoreSetsTheSliceFirst(t *testing.T) {
	for name, c := range map[string]struct{ bad, started time.Duration }{
		"soon": {500 * time.Millisecond, 500 * time.Millisecond}, "late": {5 * time.Second, sliceFirst},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				q := &badSlice{until: began.Add(c.bad)}
				e := newExecutor(&memoryJournal{}, func(...sched.Event) {})
				e.add(1, q, workerConfig{journaled: true})
				for _, a := range []sched.Action{
					{Queue: 1, Verb: sched.SetSlice, Slice: sched.MinSlice}, {Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt},
				} {
					e.Execute([]sched.Action{a})
					synctest.Wait()
				}
				undone := false
				e.remove(1, removal{hasLeft: func() bool { return false }, failed: func() {}, removed: func(ok bool) { undone = ok }})
				e.closing.Wait()
				if !undone || q.sliced || q.stopped || !q.over {
					t.Errorf("got undone %v and %+v, want everything undone and the queue closed", undone, q)
				}
				if got := q.startedAt.Sub(began); got < c.started || got > 2*c.started+lastUndoPause {
					t.Errorf("started after %v, want %v or a little more", got, c.started)
				}
			})
		})
	}
}
