package daemon

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// hangingProc is a ProcSource whose files hang while the test says so.
type hangingProc struct {
	hangs atomic.Bool
	reads atomic.Int64
	end   chan struct{}
}

func (h *hangingProc) wait() {
	if h.hangs.Load() {
		h.reads.Add(1)
		<-h.end
	}
}

func (h *hangingProc) Process(pid int) (proc.Process, error) {
	h.wait()
	return proc.System.Process(pid)
}

func (h *hangingProc) Stat(pid int) (proc.Stat, error) {
	h.wait()
	return proc.System.Stat(pid)
}

// TestSecondPageDoesNotDelayTheLoop: a process with a page asks for another, as after exec, and its
// files in /proc hang while the daemon reads them. The loop goes on, and so do other processes.
func TestSecondPageDoesNotDelayTheLoop(t *testing.T) {
	b := newShim()
	d := newTestDaemon(b)
	h := &hangingProc{end: make(chan struct{})}
	d.procs = h
	defer runDaemon(t, d)()
	p, _ := sleeper(t)
	admit := func() func() {
		_, leave, err := b.Admit(server.ShimProcess{PID: p.PID, Account: 65201, Runtime: "queue"})
		if err != nil {
			t.Error(err)
			return func() {}
		}
		return leave
	}
	<-d.ready
	first := admit()
	h.hangs.Store(true)
	second := make(chan func(), 1)
	go func() { second <- admit() }()
	eventually(t, "the daemon reads the process again", func() bool { return h.reads.Load() > 0 })
	turned := make(chan struct{})
	go func() { d.events.inLoop(func() {}); close(turned) }()
	select {
	case <-turned:
	case <-time.After(2 * time.Second):
		t.Error("the loop has taken no turn for 2 s while files of a process are read")
	}
	h.hangs.Store(false)
	close(h.end)
	<-turned
	leave := <-second
	if q := d.allProcesses(); len(q) != 1 || len(q[0].queues) != 1 {
		t.Errorf("got %d processes, want the one with a queue", len(q))
	}
	first()
	if q := d.allProcesses(); len(q) != 1 {
		t.Error("the end of the first connection withdrew the second page")
	}
	leave()
}
