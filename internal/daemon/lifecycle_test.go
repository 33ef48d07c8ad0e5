package daemon

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// TestShutdownUnderLoad stops the daemon while queues and gates come and go and users give
// orders: everything ends, every queue is restored, and no worker is left.
func TestShutdownUnderLoad(t *testing.T) {
	b, gates := newFakeBackend(t.TempDir()), newShim()
	d := newTestDaemon(gates, b)
	stop := runDaemon(t, d)
	over := make(chan struct{})
	var ended sync.WaitGroup
	var pids []int
	repeat := func(f func(r *rand.Rand)) {
		seed := uint64(len(pids))
		ended.Go(func() {
			for r := rand.New(rand.NewPCG(seed, 0)); ; {
				select {
				case <-over:
					return
				default:
					f(r)
				}
			}
		})
	}
	for range 3 {
		p, _ := sleeper(t)
		pids = append(pids, p.PID)
		repeat(func(r *rand.Rand) {
			q, err := b.offer(p)
			if err != nil {
				return // the daemon is stopping
			}
			_, _ = d.Change(ourselves, p.PID, given([]string{"class=batch", "paused=true", "paused=false", "class=online"}[r.IntN(4)]))
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			<-q.Withdraw(false)
		})
		repeat(func(r *rand.Rand) {
			fds, leave, err := gates.Admit(server.ShimProcess{PID: p.PID, UID: uint32(os.Getuid()), Runtime: "cuda"})
			if err != nil {
				return
			}
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			leave()
		})
	}
	repeat(func(r *rand.Rand) {
		_, _ = d.SetPolicy(ourselves, api.Policy{Name: []string{"giveway", "rr", "slo"}[r.IntN(3)]})
		_ = d.Status()
		_ = d.Processes()
	})
	time.Sleep(500 * time.Millisecond)
	stop()
	close(over)
	ended.Wait()
	for _, pid := range pids {
		if got := b.hardware(pid); got != (hardware{}) {
			t.Errorf("process %d: got %+v, want no change left", pid, got)
		}
	}
	d.exec.mu.Lock()
	if n := len(d.exec.workers); n != 0 {
		t.Errorf("got %d workers, want 0", n)
	}
	d.exec.mu.Unlock()
	if _, err := b.host.QueueFound(hal.Offer{Device: fakeDevice{}, Attach: func(hal.Queue) (hal.Queue, error) { return named("late"), nil }}); err == nil {
		t.Error("a queue was accepted after the daemon stopped")
	}
}

// callingLog is a log that calls the loop, once it has ended.
type callingLog struct {
	slog.Handler
	ended chan struct{}
	call  func()
}

func (l *callingLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "more was asked for than the limits allow" {
		<-l.ended
		time.Sleep(200 * time.Millisecond) // the loop undoes what it changed, and ends
		l.call()
	}
	return nil
}

func (l *callingLog) Enabled(context.Context, slog.Level) bool { return true }

// TestCallsOfTheLoopEndWithIt: a goroutine that Run waits for and that calls the loop when the
// loop has ended does not keep the daemon from ending.
func TestCallsOfTheLoopEndWithIt(t *testing.T) {
	d := newTestDaemon(newFakeBackend(t.TempDir()))
	log := &callingLog{slog.DiscardHandler, make(chan struct{}), func() { d.events.inLoop(func() {}) }}
	d.cfg.Log = slog.New(log)
	stop := runDaemon(t, d)
	d.reduced <- reducedAttr{process: &process{}} // logged by a goroutine that Run waits for
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	close(log.ended)
	select {
	case <-stopped:
	case <-time.After(10 * time.Second):
		t.Fatal("the daemon did not end")
	}
}

// TestProcessKeepsTheAttributesOfAnEndedRun: a process of a run that has ended closes its queue and
// opens another.
func TestProcessKeepsTheAttributesOfAnEndedRun(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	defer stop()
	p, cmd := sleeper(t)
	_, end, err := d.BeginRun(server.Caller{PID: p.PID, All: true}, api.Run{Values: attr.Must("class=batch")})
	if err != nil {
		t.Fatal(err)
	}
	h := b.mustOffer(t, p)
	end()
	<-h.Withdraw(false)
	d.sweep()
	h = b.mustOffer(t, p)
	if got := d.Processes()[0].Class(); got != "batch" {
		t.Errorf("got class %s, want batch", got)
	}
	<-h.Withdraw(false)
	_, _ = cmd.Process.Kill(), cmd.Wait()
	d.sweep()
	if n := len(d.allProcesses()); n != 0 {
		t.Errorf("got %d processes after it has exited, want none", n)
	}
}

// TestGoneQueueIsNotOpenedAgain: the driver says that a queue is gone, and only later does the backend
// learn that the process has exited. Meanwhile its gate is withdrawn, which changes what can be done to
// the queue.
func TestGoneQueueIsNotOpenedAgain(t *testing.T) {
	b, gates := newFakeBackend(t.TempDir()), newShim()
	d := newTestDaemon(b, gates)
	defer runDaemon(t, d)()
	<-d.ready
	p, _ := sleeper(t)
	b.mu.Lock()
	b.refuse = map[int]error{p.PID: hal.ErrGone}
	b.mu.Unlock()
	fds, leave, err := gates.Admit(server.ShimProcess{PID: p.PID, UID: uint32(os.Getuid()), Runtime: "cuda"})
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if _, err := b.offer(p); err != nil {
		t.Fatal(err)
	}
	queues := func() (all []sched.Queue) {
		d.events.inLoop(func() { all = d.sched.Queues(nil) })
		return all
	}
	if n := len(queues()); n != 1 {
		t.Fatalf("the scheduler has %d queues, want 1", n)
	}
	if _, err := d.Change(ourselves, p.PID, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the scheduler has learnt that the queue is gone", func() bool { return len(queues()) == 0 })
	leave()
	if all := queues(); len(all) != 0 {
		t.Errorf("the scheduler has opened queue %d of device %q again", all[0].ID, all[0].Device)
	}
}
