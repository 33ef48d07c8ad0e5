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

// named is a queue that is nothing but a name.
type named string

func (named) Close() error { return nil }

// recorder is a device that stops and starts many queues in one call, and a keeper. It
// refuses to stop the queue "bad".
type recorder struct {
	mu   sync.Mutex
	log  []string
	hang chan struct{} // nil: it does not
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Switch(off, on []hal.Queue) []error {
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

func (r *recorder) Begin(a sched.Action) error { r.note("begin %d", a.Queue); return nil }

func (r *recorder) End(a sched.Action, _ sched.Outcome) error { r.note("end %d", a.Queue); return nil }

// TestTurnIsOneCall: what was decided together for queues of one device that batches is
// one call, with an outcome for each queue, and nobody is told who would have to undo it.
// A queue that is given up meanwhile is so when the call is over.
func TestTurnIsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{hang: make(chan struct{})}
		var mu sync.Mutex
		came := map[sched.QueueID]sched.Outcome{}
		e := newExecutor(r, func(evs ...sched.Event) {
			mu.Lock()
			defer mu.Unlock()
			for _, ev := range evs {
				came[ev.Queue] = ev.Outcome
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
		if len(came) != 0 {
			t.Errorf("it hangs, and yet %v came", came)
		}
		left := make(chan struct{})
		e.remove(1, false, func() {})
		go func() { e.leaving.Wait(); close(left) }()
		synctest.Wait()
		select {
		case <-left:
			t.Error("a queue was given up in the middle of a call")
		default:
		}
		close(r.hang)
		<-left
		synctest.Wait()
		if got := strings.Join(r.log, "; "); got != "off [a bad] on [c]" {
			t.Error(got)
		}
		if want := map[sched.QueueID]sched.Outcome{1: sched.Done, 2: sched.Refused, 3: sched.Done}; fmt.Sprint(came) != fmt.Sprint(want) {
			t.Errorf("%v came", came)
		}
		e.remove(2, true, func() {})
		e.remove(3, true, func() {})
		e.leaving.Wait()
	})
}
