package amd

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// simShim does what shim/kfd.c does, in a simulated process with queues on one GPU.
// shim/kfd_test.go tests shim/kfd.c itself.
type simShim struct {
	gate    *shim.Gate
	process *pagetest.Process
	file    *kfdtest.File
	gpu     uint32
	hangs   atomic.Bool // it does not answer

	mu     sync.Mutex
	queues []uint32
}

// setQueues changes the queues that the shim knows.
func (s *simShim) setQueues(queues ...uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = queues
	s.process.SetQueues(0, s.gpu, uint32(len(queues)))
}

// run answers requests until quit is closed.
func (s *simShim) run(quit chan struct{}) {
	done := uint32(0)
	for {
		select {
		case <-quit:
			return
		case <-time.After(100 * time.Microsecond):
		}
		s.gate.Renew()
		if r := s.process.QueueRequest(); r.Seq != done && !s.hangs.Load() {
			done = r.Seq
			s.apply(r)
		}
	}
}

func (s *simShim) apply(r pagetest.QueueRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	percent, stopped, failed := uint32(100), uint32(0), uint32(0)
	if slices.Contains(r.Stop, s.gpu) {
		percent = 0
	}
	for _, id := range s.queues {
		switch err := kfdtest.UpdateQueue(s.file, id, 0x7f0000000000, 4096, percent, 7); {
		case err != nil:
			failed++
		case percent == 0:
			stopped++
		}
	}
	s.process.SetQueueResults(0, stopped, failed)
	s.process.Apply(r.Seq)
}

// shimHarness is a harness whose processes have shims.
type shimHarness struct {
	*harness
	mu    sync.Mutex
	shims map[int]*simShim
}

func newShimHarness(t *testing.T, cfg kfdtest.Config) *shimHarness {
	t.Helper()
	h := &shimHarness{shims: make(map[int]*simShim)}
	h.harness = newHarness(t, "amd-hws", cfg, h.find)
	return h
}

func (h *shimHarness) find(pid int) Shim {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.shims[pid]; s != nil {
		return s.gate
	}
	return nil
}

// Open implements haltest.Harness. The shim runs until the test is over.
func (h *shimHarness) Open() sched.QueueID {
	h.t.Helper()
	opened := h.harness.Open()
	id := h.queues[opened]
	status, err := shimpage.NewStatusPage()
	check(h.t, err)
	page, err := shimpage.NewPage()
	check(h.t, err)
	pageFD, doorbell, err := page.Descriptors()
	check(h.t, err)
	statusFD, err := status.Descriptor()
	check(h.t, err)
	process, err := pagetest.NewProcess(pageFD, statusFD, doorbell)
	check(h.t, err)
	s := &simShim{gate: shim.NewGate(page), process: process, file: h.KFD().Open(id.PID), gpu: h.gpu.node.GPU}
	s.setQueues(id.Queue)
	quit, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		s.run(quit)
	}()
	h.t.Cleanup(func() {
		close(quit)
		<-over
		page.Close()
		status.Close()
		check(h.t, process.Close())
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shims[id.PID] = s
	return opened
}

func (h *shimHarness) attach() (kfdtest.QueueID, *queue, *simShim) {
	h.t.Helper()
	id := h.queues[h.Open()]
	q, err := h.gpu.attach(target{pid: id.PID, queue: id.Queue})
	check(h.t, err)
	return id, q, h.shims[id.PID]
}

// undebuggable returns a GPU on which debug sessions are harmful, so that on a stock driver
// only the own method is left.
func undebuggable() []kfd.Node {
	n := kfdtest.MI300X
	n.GFX = 90008
	return []kfd.Node{n}
}

func TestConformanceOwn(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness {
		h := newShimHarness(t, kfdtest.Config{GPUs: undebuggable()})
		if _, q, _ := h.attach(); q.bestMethod() != "own" {
			t.Errorf("got method %q, want own", q.bestMethod())
		}
		return h
	})
}

// TestMethodOrder makes the methods batch, debug and own fail one after another, and
// checks that each failure is undone and that the best is tried again.
func TestMethodOrder(t *testing.T) {
	h := newShimHarness(t, kfdtest.Config{Patched: true})
	id, q, s := h.attach()
	unmap, suspend, update := kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Trap(kfd.OpSuspendQueues), kfdtest.Request(kfd.ReqUpdateQueue)
	// stop stops and starts the queue, and returns how many calls of a kind that took.
	stop := func(c kfdtest.Call, works bool) int {
		t.Helper()
		before := h.KFD().Calls(c)
		if err := h.stop(q); (err == nil) != works || h.KFD().Active(id) == works {
			t.Fatalf("stop: got %v, active %v; want it stopped: %v", err, h.KFD().Active(id), works)
		}
		if err := h.start(q); err != nil || !h.KFD().Active(id) {
			t.Fatalf("start: got %v, active %v; want it active", err, h.KFD().Active(id))
		}
		return h.KFD().Calls(c) - before
	}
	if n := stop(unmap, true); n != 1 || q.bestMethod() != "batch" {
		t.Errorf("got %d unmap calls by %s, want 1 by batch", n, q.bestMethod())
	}
	h.KFD().Inject(unmap, kfdtest.Fault{Errno: unix.EPERM})
	if n := stop(suspend, true); n == 0 {
		t.Error("without batch: got no suspend call")
	}
	h.KFD().Inject(suspend, kfdtest.Fault{Errno: unix.EPERM})
	if n := stop(update, true); n != 2 {
		t.Errorf("without debug: got %d updates by the process, want 2", n)
	}
	h.KFD().Inject(update, kfdtest.Fault{Errno: unix.EIO})
	stop(update, false)
	h.KFD().Inject(update, kfdtest.Fault{})
	s.hangs.Store(true)
	began := time.Now()
	err := h.stop(q)
	if hal.Outcome(err) != sched.Refused || !strings.Contains(err.Error(), "own: ") {
		t.Errorf("a process that does not answer: got %v, want it refused by own", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a process that does not answer: got %v, want at most 5s", took)
	}
	if r := s.process.QueueRequest(); len(r.Stop) != 0 {
		t.Errorf("after the failure: got request %+v, want it withdrawn", r)
	}
	s.hangs.Store(false)
	h.KFD().Inject(unmap, kfdtest.Fault{})
	if n := stop(unmap, true); n != 1 {
		t.Errorf("batch works again: got %d unmap calls, want 1", n)
	}
}

// TestOwnClaims checks that the own method is claimed only for queues that the shim has
// seen created.
func TestOwnClaims(t *testing.T) {
	h := newShimHarness(t, kfdtest.Config{GPUs: undebuggable()})
	_, q := h.harness.attach() // without a shim
	if len(q.methods) != 0 || !strings.Contains(q.why.Error(), "not started with the shim") {
		t.Errorf("without a shim: got methods %v because of %v, want none", q.methods, q.why)
	}
	id := h.queues[h.Open()]
	h.shims[id.PID].process.SetQueues(0, h.gpu.node.GPU+1, 1)
	if q, err := h.gpu.attach(target{pid: id.PID, queue: id.Queue}); err != nil || len(q.methods) != 0 {
		t.Errorf("queues on another GPU: got %v, %v; want no methods", q.methods, err)
	}
	if !slices.ContainsFunc(h.driver.checks(), func(c hal.Check) bool { return c.Name == "AMD own" && c.OK }) {
		t.Error("the checks do not name the own method")
	}
}

// TestOwnUnseenQueues checks that a stop fails while the process has queues that the shim
// has not seen, that queues stay stopped while any of them is to be, and that a destroyed
// queue is gone.
func TestOwnUnseenQueues(t *testing.T) {
	h := newShimHarness(t, kfdtest.Config{GPUs: undebuggable()})
	id, q, s := h.attach()
	more := createQueue(t, s.file, h.gpu)
	if err := h.stop(q); hal.Outcome(err) != sched.Refused || !strings.Contains(err.Error(), "1 of the process's 2 queues") {
		t.Errorf("with an unseen queue: got %v, want it refused", err)
	}
	drivertest.Eventually(t, "active", func() bool { return h.KFD().Active(id) })
	s.setQueues(id.Queue, more)
	h.mustStop(id, q)
	second, err := h.gpu.attach(target{pid: id.PID, queue: more})
	check(t, err)
	check(t, h.stop(second))
	if err := q.close(); err != nil || h.KFD().Active(id) {
		t.Errorf("close while another queue is to be stopped: got %v, active %v; want it stopped", err, h.KFD().Active(id))
	}
	check(t, kfdtest.DestroyQueue(s.file, more))
	s.setQueues(id.Queue)
	if err := h.stop(second); !errors.Is(err, hal.ErrGone) {
		t.Errorf("destroyed queue: got %v, want %v", err, hal.ErrGone)
	}
	drivertest.Eventually(t, "active", func() bool { return h.KFD().Active(id) })
}
