package daemon

import (
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/server"
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
