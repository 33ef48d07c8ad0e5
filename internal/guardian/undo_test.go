package guardian

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// TestUndoGivesUpAQueueWhoseCallHangs: the queue is reported, keeps its entry, and is not
// started with its minimum slice. The others are restored.
func TestUndoGivesUpAQueueWhoseCallHangs(t *testing.T) {
	callTimeout = 20 * time.Millisecond
	defer func() { callTimeout = 5 * time.Second }()
	hang := make(chan struct{})
	defer close(hang)
	undone := map[string]bool{}
	var mu sync.Mutex
	task := func(name string, q hal.Queue) Task {
		return Task{
			Name: name, Open: func() (hal.Queue, error) { return q, nil }, Undone: func() {
				mu.Lock()
				defer mu.Unlock()
				undone[name] = true
			},
			Actions: []sched.Action{{Verb: sched.SetSlice}, {Verb: sched.Start, Level: sched.LevelInterrupt}},
		}
	}
	bad, good := &memoryQueue{hang: hang, stopped: true}, &memoryQueue{stopped: true}
	err := Undo([]Task{task("bad", bad), task("good", good)}, slog.New(slog.DiscardHandler))
	if !errors.Is(err, errHangs) || !strings.Contains(err.Error(), "bad") {
		t.Errorf("got error %v, want one that names the queue whose call hangs", err)
	}
	if undone["bad"] || !undone["good"] || good.stopped || !bad.stopped {
		t.Errorf("got undone %v, stopped: bad %v, good %v; want only good undone and started", undone, bad.stopped, good.stopped)
	}
}

// memoryQueue is a queue whose SetSlice may hang.
type memoryQueue struct {
	hang    chan struct{}
	stopped bool
}

func (q *memoryQueue) SetSlice(time.Duration) error {
	if q.hang != nil {
		<-q.hang
	}
	return nil
}
func (q *memoryQueue) Interrupt() error { q.stopped = true; return nil }
func (q *memoryQueue) Restore() error   { q.stopped = false; return nil }
func (q *memoryQueue) Close() error     { return nil }

// TestUndoNeverLetsASecondShortSliceRun: with calls that fail and take long at random, the
// number of running queues with a short slice never rises.
func TestUndoNeverLetsASecondShortSliceRun(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		d := &shortSlices{short: map[int]bool{}, stopped: map[int]bool{}}
		var tasks []Task
		for i := range 6 {
			d.short[i] = true
			q := deviceQueue{d, i, time.Duration(r.IntN(3000)) * time.Microsecond, new(atomic.Int32)}
			q.failures.Store(int32(r.IntN(4)))
			actions := []sched.Action{{Verb: sched.SetSlice}}
			if i > 0 { // one runs with a short slice
				d.stopped[i] = true
				actions = append(actions, sched.Action{Verb: sched.Start, Level: sched.LevelInterrupt})
			}
			tasks = append(tasks, Task{Name: fmt.Sprint(i), Open: func() (hal.Queue, error) { return q, nil }, Actions: actions})
		}
		if err := Undo(tasks, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if d.most > 1 || len(d.short)+len(d.stopped) > 0 {
			t.Fatalf("seed %d: got %d running queues with a short slice, want 1; left short %v, stopped %v", seed, d.most, d.short, d.stopped)
		}
	}
}

// shortSlices is a device that counts running queues with a short slice.
type shortSlices struct {
	mu             sync.Mutex
	short, stopped map[int]bool
	most           int
}

type deviceQueue struct {
	*shortSlices
	id       int
	takes    time.Duration
	failures *atomic.Int32
}

func (q deviceQueue) do(change func()) error {
	time.Sleep(q.takes)
	if q.failures.Add(-1) >= 0 {
		return errors.New("busy")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
	n := 0
	for id := range q.short {
		if !q.stopped[id] {
			n++
		}
	}
	q.most = max(q.most, n)
	return nil
}

func (q deviceQueue) SetSlice(time.Duration) error { return q.do(func() { delete(q.short, q.id) }) }
func (q deviceQueue) Interrupt() error             { return q.do(func() { q.stopped[q.id] = true }) }

func (q deviceQueue) Restore() error { return q.do(func() { delete(q.stopped, q.id) }) }
func (q deviceQueue) Close() error   { return nil }
