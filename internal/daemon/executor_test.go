package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// named is a queue that has only a name.
type named string

func (named) Close() error { return nil }

// callRecorder is a hal.Batcher and a changeJournal that records calls. It refuses to stop the
// queue "bad".
type callRecorder struct {
	mu   sync.Mutex
	log  []string
	hang chan struct{} // Switch waits for it; nil: it does not wait
}

func (r *callRecorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *callRecorder) Switch(off, on []hal.Queue) []error {
	r.note("off %v on %v", off, on)
	if r.hang != nil {
		<-r.hang
	}
	errs := make([]error, len(off)+len(on))
	if i := slices.Index(off, hal.Queue(named("bad"))); i >= 0 {
		errs[i] = errors.New("no")
	}
	return errs
}

// own is a queue that can be interrupted by calls of its own.
type own struct {
	named
	r *callRecorder
}

func (q own) Interrupt() error { q.r.note("interrupt %v", q.named); return nil }
func (q own) Restore() error   { q.r.note("restore %v", q.named); return nil }

func (r *callRecorder) Begin(a sched.Action) error { r.note("begin %d", a.Queue); return nil }

func (r *callRecorder) End(a sched.Action, _ sched.Outcome) error {
	r.note("end %d", a.Queue)
	return nil
}

func (r *callRecorder) Undo(sched.QueueID) []sched.Action { return nil }

// TestBatchIsOneCall: stops and starts that were decided together for queues with a batcher
// are one call, with an outcome for each queue and no journal. A queue that is removed
// meanwhile is closed after the call.
func TestBatchIsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &callRecorder{hang: make(chan struct{})}
		var mu sync.Mutex
		outcomes := map[sched.QueueID]sched.Outcome{}
		e := newExecutor(r, func(evs ...sched.Event) {
			mu.Lock()
			defer mu.Unlock()
			for _, ev := range evs {
				outcomes[ev.Queue] = ev.Outcome
			}
		})
		for id, name := range map[sched.QueueID]named{1: "a", 2: "bad", 3: "c"} {
			e.add(id, name, workerConfig{batcher: r})
		}
		e.Execute([]sched.Action{
			{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt},
			{Queue: 3, Verb: sched.Start, Level: sched.LevelInterrupt},
			{Queue: 2, Verb: sched.Stop, Level: sched.LevelInterrupt},
		})
		synctest.Wait()
		if len(outcomes) != 0 {
			t.Errorf("during the call: got outcomes %v, want none", outcomes)
		}
		closed := make(chan struct{})
		e.remove(1, removal{removed: func(bool) {}})
		go func() { e.closing.Wait(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("a queue was closed during a call for it")
		default:
		}
		close(r.hang)
		<-closed
		synctest.Wait()
		if got, want := strings.Join(r.log, "; "), "off [a bad] on [c]"; got != want {
			t.Errorf("got calls %q, want %q", got, want)
		}
		if want := map[sched.QueueID]sched.Outcome{1: sched.Done, 2: sched.Refused, 3: sched.Done}; fmt.Sprint(outcomes) != fmt.Sprint(want) {
			t.Errorf("got outcomes %v, want %v", outcomes, want)
		}
		e.remove(2, removal{exited: true, removed: func(bool) {}})
		e.remove(3, removal{exited: true, removed: func(bool) {}})
		e.closing.Wait()
	})
}

// TestJournaledQueueIsNotBatched: a queue with a batcher whose changes do not undo themselves is in
// the journal before and after its call, and one that must wait is not changed before.
func TestJournaledQueueIsNotBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &callRecorder{}
		e := newExecutor(r, func(...sched.Event) {})
		after := make(chan struct{})
		e.add(1, own{"a", r}, workerConfig{batcher: r, journaled: true})
		e.add(2, own{"b", r}, workerConfig{batcher: r, after: after})
		stop := sched.Action{Verb: sched.Stop, Level: sched.LevelInterrupt}
		for id := range sched.QueueID(2) {
			stop.Queue = id + 1
			e.Execute([]sched.Action{stop})
		}
		synctest.Wait()
		if got, want := strings.Join(r.log, "; "), "begin 1; interrupt a; end 1"; got != want {
			t.Errorf("got calls %q, want %q", got, want)
		}
		close(after)
		synctest.Wait()
		if got, want := r.log[len(r.log)-1], "interrupt b"; got != want {
			t.Errorf("when it may be changed: got %q, want %q", got, want)
		}
		for id := range sched.QueueID(2) {
			e.remove(id+1, removal{exited: true, removed: func(bool) {}})
		}
		e.closing.Wait()
	})
}

// TestBatchAtTheEndStopsNothing: a batch that is still due when the executor ends starts queues and
// stops none.
func TestBatchAtTheEndStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &callRecorder{}
		outcomes := map[sched.QueueID]sched.Outcome{}
		e := newExecutor(r, func(evs ...sched.Event) {
			for _, ev := range evs {
				outcomes[ev.Queue] = ev.Outcome
			}
		})
		e.add(1, named("a"), workerConfig{batcher: r})
		e.add(2, named("b"), workerConfig{batcher: r})
		e.end()
		e.Execute([]sched.Action{
			{Queue: 1, Verb: sched.Stop, Level: sched.LevelInterrupt},
			{Queue: 2, Verb: sched.Start, Level: sched.LevelInterrupt},
		})
		synctest.Wait()
		if got, want := strings.Join(r.log, "; "), "off [] on [b]"; got != want {
			t.Errorf("got calls %q, want %q", got, want)
		}
		if want := map[sched.QueueID]sched.Outcome{1: sched.Refused, 2: sched.Done}; fmt.Sprint(outcomes) != fmt.Sprint(want) {
			t.Errorf("got outcomes %v, want %v", outcomes, want)
		}
		for id := range sched.QueueID(2) {
			e.remove(id+1, removal{exited: true, removed: func(bool) {}})
		}
		e.closing.Wait()
	})
}
