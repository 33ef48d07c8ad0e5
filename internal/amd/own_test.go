package amd_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// shims are those in the processes of a made-up world. shim/kfd.c is tried on a real one.
type shims struct {
	t  *testing.T
	mu sync.Mutex
	of map[int]*puppet
}

func (s *shims) find(pid int) amd.Shim {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.of[pid]; p != nil {
		return p.gate
	}
	return nil
}

// puppet is the shim in a process with queues on one GPU.
type puppet struct {
	gate    *shim.Gate
	program *pagetest.Process
	file    *kfdtest.File
	gpu     uint32
	mu      sync.Mutex
	queues  []uint32
	asleep  atomic.Bool // it does not answer
}

// enter puts a shim in a process, which lives as long as the test.
func (s *shims) enter(file *kfdtest.File, gpu uint32, id kfdtest.QueueID) *puppet {
	s.t.Helper()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	board, err := shimpage.NewStatusPage()
	must(err)
	page, err := shimpage.NewPage()
	must(err)
	pageFD, bell, err := page.Descriptors()
	must(err)
	boardFD, err := board.Descriptor()
	must(err)
	program, err := pagetest.NewProcess(pageFD, boardFD, bell)
	must(err)
	p := &puppet{gate: shim.NewGate(page), program: program, file: file, gpu: gpu, queues: []uint32{id.Queue}}
	program.SetQueues(0, gpu, 1)
	quit, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		p.live(quit)
	}()
	s.t.Cleanup(func() {
		close(quit)
		<-over
		page.Close()
		board.Close()
		must(program.Close())
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[id.PID] = p
	return p
}

func (p *puppet) live(quit chan struct{}) {
	done := uint32(0)
	for {
		select {
		case <-quit:
			return
		case <-time.After(100 * time.Microsecond):
		}
		p.gate.Renew()
		if w := p.program.QueueRequest(); w.Seq != done && !p.asleep.Load() {
			done = w.Seq
			p.obey(w)
		}
	}
}

func (p *puppet) obey(w pagetest.QueueRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	percent, off, failed := uint32(100), uint32(0), uint32(0)
	if slices.Contains(w.Stop, p.gpu) {
		percent = 0
	}
	for _, id := range p.queues {
		switch err := kfd.UpdateQueue(p.file, id, 0x7f0000000000, 4096, percent, 7); {
		case err != nil:
			failed++
		case percent == 0:
			off++
		}
	}
	p.program.SetQueueResults(0, off, failed)
	p.program.Apply(w.Seq)
}

// ownHarness is a harness whose processes have shims.
type ownHarness struct {
	*harness
	shims *shims
}

func newOwnHarness(t *testing.T, cfg kfdtest.Config) *ownHarness {
	t.Helper()
	s := &shims{t: t, of: map[int]*puppet{}}
	return &ownHarness{newHarnessWith(t, "amd-hws", cfg, s.find), s}
}

func (h *ownHarness) Open() hal.Spec {
	spec := h.harness.Open()
	id := h.queues[spec.Queue]
	h.shims.enter(h.KFD().Open(id.PID), h.device.GPU(), id)
	return spec
}

func (h *ownHarness) attach() (kfdtest.QueueID, hal.Queue, *puppet) {
	h.t.Helper()
	spec := h.Open()
	q, err := h.device.Attach(spec)
	if err != nil {
		h.t.Fatal(err)
	}
	id := h.queues[spec.Queue]
	return id, q, h.shims.of[id.PID]
}

// noSession is a GPU on which nobody is to be debugged, so that a stock driver leaves the
// process's own way only.
func noSession() []kfd.Node {
	n := kfdtest.MI300X
	n.GFX = 90008
	return []kfd.Node{n}
}

func wayOf(q hal.Queue) string { return q.(interface{ Way() string }).Way() }

func TestConformanceOwn(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness {
		h := newOwnHarness(t, kfdtest.Config{GPUs: noSession()})
		if _, q, _ := h.attach(); wayOf(q) != "own" {
			t.Errorf("the way is %q", wayOf(q))
		}
		return h
	})
}

// TestOrder: batch, debug, own, and then none that this package knows of; each is left
// when it fails, and what it began is undone.
func TestOrder(t *testing.T) {
	h := newOwnHarness(t, kfdtest.Config{Patched: true})
	id, q, p := h.attach()
	batch, suspend := kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Trap(kfd.OpSuspendQueues)
	calls := func(c kfdtest.Call, do func()) int {
		before := h.KFD().Calls(c)
		do()
		return h.KFD().Calls(c) - before
	}
	stop := func(works bool) {
		t.Helper()
		if err := hal.Stop(q, sched.LevelInterrupt); (err == nil) != works {
			t.Fatal(err)
		}
		if h.KFD().Active(id) == works {
			t.Fatal("it runs, or does not, as it should not")
		}
		if err := hal.Start(q, sched.LevelInterrupt); err != nil || !h.KFD().Active(id) {
			t.Fatalf("it does not run: %v", err)
		}
	}
	update := kfdtest.Request(kfd.ReqUpdateQueue)
	if wayOf(q) != "batch" || calls(batch, func() { stop(true) }) != 1 {
		t.Error("the first is not batch")
	}
	h.KFD().Inject(batch, kfdtest.Fault{Errno: unix.EPERM})
	if calls(suspend, func() { stop(true) }) == 0 {
		t.Error("the second is not debug")
	}
	h.KFD().Inject(suspend, kfdtest.Fault{Errno: unix.EPERM})
	if calls(update, func() { stop(true) }) != 2 {
		t.Error("the third is not the process's own")
	}
	h.KFD().Inject(update, kfdtest.Fault{Errno: unix.EIO})
	stop(false)
	h.KFD().Inject(update, kfdtest.Fault{})
	p.asleep.Store(true)
	began := time.Now()
	err := hal.Stop(q, sched.LevelInterrupt)
	if hal.Outcome(err) != sched.Refused || !strings.Contains(err.Error(), "own: ") {
		t.Errorf("a program that does not answer: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it was waited for for %v", took)
	}
	if w := p.program.QueueRequest(); len(w.Stop) != 0 {
		t.Errorf("it is to go off still: %+v", w)
	}
	p.asleep.Store(false)
	h.KFD().Inject(batch, kfdtest.Fault{})
	if calls(batch, func() { stop(true) }) != 1 {
		t.Error("the best is not tried again")
	}
}

// TestOwnClaims: only of a program whose shim has seen the queue made is it claimed that
// it can be stopped so.
func TestOwnClaims(t *testing.T) {
	h := newOwnHarness(t, kfdtest.Config{GPUs: noSession()})
	_, q := h.harness.attach() // without a shim
	if hal.Abilities(q) != 0 || !strings.Contains(q.(interface{ Why() error }).Why().Error(), "not started with the shim") {
		t.Errorf("without a shim: %v", hal.Abilities(q))
	}
	spec := h.Open()
	p := h.shims.of[h.queues[spec.Queue].PID]
	p.program.SetQueues(0, h.device.GPU()+1, 1)
	if q, err := h.device.Attach(spec); err != nil || hal.Abilities(q) != 0 {
		t.Errorf("on another GPU: %v, %v", hal.Abilities(q), err)
	}
	if !slices.ContainsFunc(h.driver.Doctor(), func(c amd.Check) bool { return c.Name == "own" && c.OK }) {
		t.Error("the doctor does not name it")
	}
}

// TestOwnUnseen: a queue that the shim has not seen made is not off with the others, so
// none is; and one that is no more is gone.
func TestOwnUnseen(t *testing.T) {
	h := newOwnHarness(t, kfdtest.Config{GPUs: noSession()})
	id, q, p := h.attach()
	more, err := kfd.CreateQueue(p.file, kfd.NewQueue{GPU: h.device.GPU(), Type: kfd.TypeComputeAQL, Ring: 0x7f0000000000, RingSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if err := hal.Stop(q, sched.LevelInterrupt); hal.Outcome(err) != sched.Refused || !strings.Contains(err.Error(), "1 of the process's 2 queues") {
		t.Errorf("%v", err)
	}
	eventually(t, func() bool { return h.KFD().Active(id) })
	p.mu.Lock()
	p.queues = append(p.queues, more)
	p.program.SetQueues(0, p.gpu, 2)
	p.mu.Unlock()
	if err := hal.Stop(q, sched.LevelInterrupt); err != nil || h.KFD().Active(id) {
		t.Errorf("%v", err)
	}
	h.device.Offer(77, amd.Target{PID: id.PID, Queue: more})
	second, err := h.device.Attach(hal.Spec{Queue: 77})
	if err != nil {
		t.Fatal(err)
	}
	if err := hal.Stop(second, sched.LevelInterrupt); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil || h.KFD().Active(id) {
		t.Errorf("one is given up while another is to be stopped: %v", err)
	}
	if err := kfd.DestroyQueue(p.file, more); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.queues = p.queues[:1]
	p.program.SetQueues(0, p.gpu, 1)
	p.mu.Unlock()
	if err := hal.Stop(second, sched.LevelInterrupt); !errors.Is(err, hal.ErrGone) {
		t.Errorf("a queue that was destroyed: %v", err)
	}
	eventually(t, func() bool { return h.KFD().Active(id) }) // nobody is left who wants it off
}
