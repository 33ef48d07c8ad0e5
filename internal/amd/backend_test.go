package amd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// machine has the test double behind a real path, with real processes.
type machine struct {
	*kfdtest.Machine
	*testing.T
}

func newMachine(t *testing.T, patched bool) *machine {
	t.Helper()
	return &machine{kfdtest.NewMachine(t, kfdtest.Config{Patched: patched}), t}
}

func (m *machine) check(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *machine) eventually(condition string, holds func() bool) {
	m.Helper()
	drivertest.Eventually(m, condition, holds)
}

// onBothDrivers runs a test on the patched and on the stock driver. method is the best
// method there.
func onBothDrivers(t *testing.T, test func(m *machine, patched bool, method string)) {
	t.Run("patched", func(t *testing.T) { test(newMachine(t, true), true, "batch") })
	t.Run("stock", func(t *testing.T) { test(newMachine(t, false), false, "debug") })
}

// host is a haltest.Host that can refuse queues and knows which processes have work.
type host struct {
	*haltest.Host
	refuse atomic.Bool
	idle   atomic.Bool // no process has work

	mu      sync.Mutex
	closing []<-chan struct{} // of withdrawn queues
	exited  int               // queues withdrawn because their process exited
}

func (h *host) QueueFound(o hal.Offer) (hal.QueueHandle, error) {
	if h.refuse.Load() {
		return nil, errors.New("refused by the test")
	}
	q, err := h.Host.QueueFound(o)
	if err != nil {
		return nil, err
	}
	return &handle{q, h}, nil
}

func (h *host) Ready(pid int) (class sched.Class, ready, known bool) {
	class, _, known = h.Host.Ready(pid)
	q := h.queue(pid)
	return class, !h.idle.Load() && q != nil && !q.Process().Settings().Attr.Paused, known
}

// queue returns the queue of a process that is offered, or nil.
func (h *host) queue(pid int) *haltest.Queue {
	for _, q := range h.Queues() {
		if q.Offer.Process.PID == pid {
			return q
		}
	}
	return nil
}

// can reports whether the queue of a process has abilities and a stop method.
func (h *host) can(pid int, want sched.Ability, method string) bool {
	q := h.queue(pid)
	return q != nil && hal.Abilities(q.Attached()) == want && q.Detail().StopMethod == method
}

// set publishes settings of a process, as an order of its owner does.
func (h *host) set(m *machine, pid int, s hal.Settings) {
	m.Helper()
	m.eventually("found", func() bool { return h.queue(pid) != nil })
	h.queue(pid).SetSettings(s)
}

// handle waits for withdrawn queues to be closed.
type handle struct {
	hal.QueueHandle
	h *host
}

func (x *handle) Withdraw(exited bool) <-chan struct{} {
	x.h.mu.Lock() // a test that no longer finds the queue must see the rest too
	defer x.h.mu.Unlock()
	done := x.QueueHandle.Withdraw(exited)
	x.h.closing = append(x.h.closing, done)
	if exited {
		x.h.exited++
	}
	return done
}

// start runs a backend until the test is over. It polls as the daemon's loop does.
func (m *machine) start(cfg amd.Config) (*amd.Backend, *host) {
	m.Helper()
	cfg.Dev, cfg.Sys, cfg.Only = m.Path, kfd.Sysfs(m.Sys), proc.Everyone
	b, h := amd.New(cfg), &host{Host: haltest.NewHost()}
	ctx, stop := context.WithCancel(context.Background())
	m.check(b.Start(ctx, h))
	var polling sync.WaitGroup
	polling.Go(func() {
		for ctx.Err() == nil {
			b.Poll(0, haltest.NewFacts())
			time.Sleep(time.Millisecond)
		}
	})
	m.Cleanup(func() {
		stop()
		polling.Wait()
		for _, q := range h.Queues() {
			<-q.Withdraw(false)
		}
		h.mu.Lock()
		for _, done := range h.closing {
			<-done
		}
		h.mu.Unlock()
		m.check(b.Close())
		m.eventually("nothing left after Close", func() bool { return m.Left() == "" })
	})
	return b, h
}

// check returns the check of a backend with that name, or nil.
func check(b *amd.Backend, name string) *hal.Check {
	for _, c := range b.Checks() {
		if c.Name == name {
			return &c
		}
	}
	return nil
}

var managed = hal.Settings{Managed: true, Attr: sched.Attr{Class: sched.Batch}}

// TestBackendOffersOneQueuePerProcess follows a process from its listing to its exit.
func TestBackendOffersOneQueuePerProcess(t *testing.T) {
	onBothDrivers(t, func(m *machine, patched bool, method string) {
		p := m.StartProcess(3)
		b, h := m.start(amd.Config{})
		if d := h.Devices(); len(d) != 1 || d[0].Info().Backend != "amd" || b.Name() != "amd" {
			m.Errorf("got devices %+v, want one of backend amd", d)
		}
		m.eventually("found", func() bool { return h.queue(p.PID) != nil })
		q := h.queue(p.PID)
		if o := q.Offer; q.Detail().NativeQueues != 3 || o.Handoff != nil || o.Gate {
			m.Errorf("got offer %+v, want one ungated queue of 3 KFD queues without handoff", o)
		}
		if patched {
			m.eventually("stoppable", func() bool { return h.can(p.PID, sched.CanInterrupt, method) })
		} else if calls := m.Calls(kfdtest.Trap(kfd.OpEnable)); calls != 0 || !h.can(p.PID, 0, "") {
			m.Errorf("unmanaged on a stock driver: got %d debug sessions, want 0", calls)
		}
		h.set(m, p.PID, managed)
		m.eventually("stoppable", func() bool { return h.can(p.PID, sched.CanInterrupt, method) })
		if got := b.Find(p.PID); got != (hal.Found{}) {
			m.Errorf("Find: got %+v, want nothing pending", got)
		}

		m.check(hal.Stop(q.Attached(), sched.LevelInterrupt))
		if got := p.Running(); got != 0 {
			m.Errorf("stopped: got %d running queues, want 0", got)
		}
		p.AddQueue()
		m.eventually("stopped with its new queue", func() bool { return p.Running() == 0 && q.Detail().NativeQueues == 4 })
		m.check(hal.Start(q.Attached(), sched.LevelInterrupt))
		if got := p.Running(); got != 4 {
			m.Errorf("started: got %d running queues, want 4", got)
		}
		p.Kill()
		m.eventually("withdrawn", func() bool { return h.queue(p.PID) == nil })
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.exited != 1 {
			m.Error("the queue of an exited process was withdrawn as if the process lived")
		}
	})
}

// TestBackendReleasesUnmanagedProcesses checks that a stock driver keeps no debug session
// of a process that is no longer managed.
func TestBackendReleasesUnmanagedProcesses(t *testing.T) {
	m := newMachine(t, false)
	p := m.StartProcess(1)
	_, h := m.start(amd.Config{})
	h.set(m, p.PID, managed)
	m.eventually("stoppable", func() bool { return h.can(p.PID, sched.CanInterrupt, "debug") })
	m.check(hal.Stop(h.queue(p.PID).Attached(), sched.LevelInterrupt))
	h.set(m, p.PID, hal.Settings{})
	m.eventually("released", func() bool { return p.Running() == 1 && m.Left() == "" && h.can(p.PID, 0, "") })
}

// TestBackendWithdrawsQueues checks that the queue of a process is withdrawn when its last
// KFD queue is destroyed, and offered again when it creates one.
func TestBackendWithdrawsQueues(t *testing.T) {
	m := newMachine(t, true)
	p := m.StartProcess(1)
	b, h := m.start(amd.Config{})
	m.eventually("found", func() bool { return h.queue(p.PID) != nil })
	m.check(kfdtest.DestroyQueue(p, p.Queues[0].Queue))
	m.eventually("withdrawn", func() bool { return h.queue(p.PID) == nil })
	if h.exited != 0 {
		t.Error("the queue of a living process was withdrawn as if the process had exited")
	}
	p.AddQueue()
	b.Find(p.PID)
	if h.queue(p.PID) == nil {
		t.Error("Find: got no offer of the new queue")
	}
}

// TestBackendStopsABundleInOneCall checks that ten queues of a process are one call of the
// patched driver and one runlist update.
func TestBackendStopsABundleInOneCall(t *testing.T) {
	m := newMachine(t, true)
	p := m.StartProcess(10)
	_, h := m.start(amd.Config{})
	m.eventually("stoppable", func() bool { return h.can(p.PID, sched.CanInterrupt, "batch") })
	q := h.queue(p.PID)
	unmaps, updates := m.Calls(kfdtest.Request(kfd.ReqBatchUnmap)), m.Updates(kfdtest.MI300X.GPU)
	if errs := q.Offer.Batcher.Switch([]hal.Queue{q.Attached()}, nil); len(errs) != 1 || errs[0] != nil || p.Running() != 0 {
		t.Fatalf("got errors %v and %d running queues, want none", errs, p.Running())
	}
	if got := m.Calls(kfdtest.Request(kfd.ReqBatchUnmap)) - unmaps; got != 1 {
		t.Errorf("got %d calls, want 1", got)
	}
	if got := m.Updates(kfdtest.MI300X.GPU) - updates; got != 1 {
		t.Errorf("got %d runlist updates, want 1", got)
	}
	// The queue that was attached first stands for the same bundle.
	first, err := q.Offer.Attach(nil)
	m.check(err)
	if errs := q.Offer.Batcher.Switch(nil, []hal.Queue{first}); errs[0] != nil || p.Running() != 10 {
		t.Errorf("got errors %v and %d running queues, want 10", errs, p.Running())
	}
	if errs := q.Offer.Batcher.Switch([]hal.Queue{struct{ hal.Queue }{first}}, nil); !errors.Is(errs[0], hal.ErrNotSupported) {
		t.Errorf("a queue of another backend: got %v, want %v", errs, hal.ErrNotSupported)
	}
}

// TestBackendRetriesOnOrder checks that each order of the owner tries again to attach
// queues that could not be stopped.
func TestBackendRetriesOnOrder(t *testing.T) {
	m := newMachine(t, false)
	p := m.StartProcess(1)
	m.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{Errno: unix.EPERM})
	b, h := m.start(amd.Config{})
	h.set(m, p.PID, managed)
	name := fmt.Sprintf("AMD queues of %d", p.PID)
	m.eventually("reported as not stoppable", func() bool { c := check(b, name); return c != nil && !c.OK && c.Fix != "" })
	m.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{})
	time.Sleep(50 * time.Millisecond)
	if !h.can(p.PID, 0, "") {
		t.Error("it was attached again without an order")
	}
	h.set(m, p.PID, managed)
	m.eventually("stoppable", func() bool { return h.can(p.PID, sched.CanInterrupt, "debug") && check(b, name) == nil })
}

// TestBackendChecks checks the texts of giveway doctor.
func TestBackendChecks(t *testing.T) {
	m := newMachine(t, false)
	p := m.StartProcess(2)
	b, h := m.start(amd.Config{})
	h.set(m, p.PID, managed)
	m.eventually("stoppable", func() bool { return h.can(p.PID, sched.CanInterrupt, "debug") })
	m.check(hal.Stop(h.queue(p.PID).Attached(), sched.LevelInterrupt))
	h.idle.Store(true)
	for _, c := range b.Checks() {
		if !strings.HasPrefix(c.Name, "AMD") || !c.OK {
			t.Errorf("got %+v, want OK", c)
		}
	}
	for name, want := range map[string]string{
		"AMD driver": "KFD 1.17", "AMD batch": "not needed", "AMD debug": "debugger interface", "AMD calls": "to stop 2 queues (0 failed)",
		"AMD slots of " + string(h.Devices()[0].Info().Device.ID): "0 of 24 slots in use",
	} {
		if c := check(b, name); c == nil || !strings.Contains(c.Detail, want) {
			t.Errorf("%s: got %+v, want %q in it", name, c, want)
		}
	}
	probed := amd.New(amd.Config{Dev: m.Path, Sys: kfd.Sysfs(m.Sys)}).Probe(t.Context())
	if len(probed) < 5 || probed[0].Name != "AMD driver" || !probed[0].OK {
		t.Errorf("Probe: got %+v, want the checks of the driver", probed)
	}
}

// TestBackendWithoutDevice checks the errors of a machine without an AMD GPU, and of a
// user who may not open the device.
func TestBackendWithoutDevice(t *testing.T) {
	m := newMachine(t, true)
	for _, tt := range []struct {
		name   string
		cfg    amd.Config
		none   bool // no AMD GPU
		checks int  // of Probe
	}{
		{"no GPU", amd.Config{Sys: kfd.Sysfs(t.TempDir())}, true, 0},
		{"no device file", amd.Config{Dev: m.Path + "-missing", Sys: kfd.Sysfs(m.Sys)}, false, 1},
	} {
		b := amd.New(tt.cfg)
		if err := b.Start(t.Context(), haltest.NewHost()); err == nil || errors.Is(err, hal.ErrNotSupported) != tt.none {
			t.Errorf("%s: Start: got %v, want not supported: %v", tt.name, err, tt.none)
		}
		if got := b.Probe(t.Context()); len(got) != tt.checks || tt.checks > 0 && (got[0].OK || got[0].Fix == "") {
			t.Errorf("%s: Probe: got %+v, want %d failed checks", tt.name, got, tt.checks)
		}
		b.Find(1)
		if got, err := b.Checks(), b.Close(); got != nil || err != nil {
			t.Errorf("%s: got checks %v, Close %v; want none", tt.name, got, err)
		}
	}
}

// TestBackendOnlyManagesOneUser checks that Config.Only hides the processes of others.
func TestBackendOnlyManagesOneUser(t *testing.T) {
	m := newMachine(t, true)
	p := m.StartProcess(1)
	b := amd.New(amd.Config{Dev: m.Path, Sys: kfd.Sysfs(m.Sys), Only: os.Getuid() + 1})
	ctx, stop := context.WithCancel(t.Context())
	h := haltest.NewHost()
	m.check(b.Start(ctx, h))
	b.Find(p.PID)
	if got := h.Queues(); len(got) != 0 {
		t.Errorf("got %d offers of another user's processes, want none", len(got))
	}
	stop()
	m.check(b.Close())
}

// TestBackendReportsInversions checks that an online process which shares too few slots
// with lower classes is reported, unless it is paused.
func TestBackendReportsInversions(t *testing.T) {
	m := newMachine(t, false)
	serve, crowd := m.StartProcess(1), m.StartProcess(int(kfdtest.MI300X.Slots))
	b, h := m.start(amd.Config{})
	m.eventually("found", func() bool { return h.queue(serve.PID) != nil && h.queue(crowd.PID) != nil })
	reported := func() bool {
		c := check(b, "AMD priority inversion")
		return c != nil && strings.Contains(c.Detail, fmt.Sprintf("process %d ", serve.PID))
	}
	if reported() {
		t.Error("an inversion is reported among processes of one class")
	}
	online := hal.Settings{Managed: true, Attr: sched.Attr{Class: sched.Online}}
	h.set(m, serve.PID, online)
	m.eventually("reported", reported)
	online.Attr.Paused = true
	h.set(m, serve.PID, online)
	m.eventually("not reported while paused", func() bool { return !reported() })
	online.Attr.Paused = false
	h.set(m, serve.PID, online)
	h.set(m, crowd.PID, managed)
	m.eventually("reported", func() bool { return h.can(crowd.PID, sched.CanInterrupt, "debug") && reported() })
	m.check(hal.Stop(h.queue(crowd.PID).Attached(), sched.LevelInterrupt))
	if crowd.Running() != 0 || reported() {
		t.Error("the lower class is stopped and the inversion is still reported")
	}
}

// fakeShim is the shim of a process with queues on one GPU.
type fakeShim struct{ count atomic.Int32 }

func (s *fakeShim) QueueCount(gpu uint32) int {
	if gpu != kfdtest.MI300X.GPU {
		return 0
	}
	return int(s.count.Load())
}

func (s *fakeShim) StopQueues(uint32, time.Duration) (int, error) { return int(s.count.Load()), nil }
func (s *fakeShim) StartQueues(uint32, time.Duration)             {}

// TestBackendFollowsTheShim checks that queues are attached again when the shim of their
// process can stop them, and when it no longer can.
func TestBackendFollowsTheShim(t *testing.T) {
	m := newMachine(t, false)
	p := m.StartProcess(1)
	m.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{Errno: unix.EPERM})
	var shim atomic.Pointer[fakeShim]
	b, h := m.start(amd.Config{Shim: func(pid int) amd.Shim {
		if s := shim.Load(); s != nil && pid == p.PID {
			return s
		}
		return nil
	}})
	h.set(m, p.PID, managed)
	name := fmt.Sprintf("AMD queues of %d", p.PID)
	m.eventually("reported as not stoppable", func() bool { return check(b, name) != nil })
	s := &fakeShim{}
	s.count.Store(1)
	shim.Store(s)
	m.eventually("stopped by the shim", func() bool { return h.can(p.PID, sched.CanInterrupt, "own") && check(b, name) == nil })
	shim.Store(nil)
	m.eventually("not stoppable without the shim", func() bool { return h.can(p.PID, 0, "") && check(b, name) != nil })

	// A shim whose count changes all the time is followed once per second.
	shim.Store(s)
	m.eventually("stopped by the shim", func() bool { return h.can(p.PID, sched.CanInterrupt, "own") })
	tried := func() int { return m.Calls(kfdtest.Trap(kfd.OpEnable)) }
	before, began := tried(), time.Now()
	for i := range int32(500) {
		s.count.Store(i % 2)
		time.Sleep(time.Millisecond)
	}
	if got, most := tried()-before, int(time.Since(began)/time.Second)+2; got > most {
		t.Errorf("got %d debug sessions, want at most %d", got, most)
	}
	s.count.Store(1)
	m.eventually("stopped by the shim", func() bool { return h.can(p.PID, sched.CanInterrupt, "own") })
}

// TestBackendOffersRefusedQueuesAgain checks that a process whose queue the daemon refuses
// is offered again by the next listing.
func TestBackendOffersRefusedQueuesAgain(t *testing.T) {
	m := newMachine(t, true)
	b, h := m.start(amd.Config{})
	h.refuse.Store(true)
	p := m.StartProcess(1)
	b.Find(p.PID)
	if h.queue(p.PID) != nil {
		t.Error("a refused queue is recorded")
	}
	h.refuse.Store(false)
	m.eventually("found", func() bool { return h.queue(p.PID) != nil })
}
