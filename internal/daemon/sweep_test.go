package daemon

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/proc"
)

// countedProc is a ProcSource that takes a while for each process, and counts them.
type countedProc struct {
	*slowProc
	mu    sync.Mutex
	spent time.Duration
}

func (p *countedProc) Stat(pid int) (proc.Stat, error) {
	began := time.Now()
	time.Sleep(50 * time.Microsecond)
	p.mu.Lock()
	p.spent += time.Since(began)
	p.mu.Unlock()
	return p.slowProc.Stat(pid)
}

// TestSweepsTakeLittleTime checks that a user with many processes that are remembered, some of which
// come and go all the time, does not keep the daemon busy with looking at them.
func TestSweepsTakeLittleTime(t *testing.T) {
	d, p := newTestDaemon(), &countedProc{slowProc: newSlowProc()}
	d.procs = p
	for i := range 20 {
		known := d.lockProcess(p.add(proc.Process{PID: 10_000 + i, Start: 1, Parent: 1}))
		known.hasOrders = true
		d.mu.Unlock()
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	p.spent = 0
	began := time.Now()
	go func() {
		for ctx.Err() == nil {
			select {
			case d.exits <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	d.followExits(ctx)
	if took := time.Since(began); p.spent > took/4 {
		t.Errorf("in %v the daemon looked for processes that have exited for %v", took, p.spent)
	}
	if p.spent == 0 {
		t.Error("the daemon has not looked for processes that have exited")
	}
}
