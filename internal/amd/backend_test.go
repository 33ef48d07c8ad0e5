package amd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// host is a hal.Host that records what a backend reports.
type host struct {
	mu      sync.Mutex
	devices []hal.Device
	records map[int]*record
	queues  []*offered
	ready   map[int]bool
	refuse  error // the answer to QueueFound, if not nil
}

func newHost() *host { return &host{records: map[int]*record{}, ready: map[int]bool{}} }

// record implements hal.Process.
type record struct {
	info     proc.Process
	settings atomic.Pointer[hal.Settings]
}

func (r *record) Info() proc.Process      { return r.info }
func (r *record) Settings() *hal.Settings { return r.settings.Load() }

// offered implements hal.QueueHandle.
type offered struct {
	host      *host
	record    *record
	offer     hal.Offer
	queue     hal.Queue
	detail    hal.Detail
	withdrawn chan struct{} // nil: not yet; closed: the queue is closed
	exited    bool
}

func (h *host) DeviceFound(d hal.Device) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.devices = append(h.devices, d)
}

func (h *host) QueueFound(o hal.Offer) (hal.QueueHandle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return nil, h.refuse
	}
	q, err := o.Attach(nil)
	if err != nil {
		return nil, err
	}
	r := h.record(o.Process.PID)
	r.info = o.Process
	f := &offered{host: h, record: r, offer: o, queue: q, detail: o.Detail}
	h.queues = append(h.queues, f)
	return f, nil
}

// record returns the record of a process. h.mu is held.
func (h *host) record(pid int) *record {
	r := h.records[pid]
	if r == nil {
		r = &record{}
		r.settings.Store(&hal.Settings{})
		h.records[pid] = r
	}
	return r
}

// set publishes settings of a process, as an order of its owner does.
func (h *host) set(pid int, s hal.Settings) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.record(pid).settings.Store(&s)
}

func (h *host) Wake()               {}
func (h *host) IsGuardian(int) bool { return false }

func (h *host) Ready(pid int) (class sched.Class, ready, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.records[pid]; r != nil {
		a := r.Settings().Attr
		return a.Class, h.ready[pid] && !a.Paused, true
	}
	return sched.Standard, false, false
}

// of returns the queue of a process that is offered and not withdrawn, or nil.
func (h *host) of(pid int) *offered {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.queues {
		if q.offer.Process.PID == pid && q.withdrawn == nil {
			return q
		}
	}
	return nil
}

func (o *offered) ID() sched.QueueID      { return 1 }
func (o *offered) Process() hal.Process   { return o.record }
func (o *offered) SetDevice(hal.Device)   { panic("not a gate") }
func (o *offered) Replace(q hal.Queue)    { o.set(func() { o.queue = q }) }
func (o *offered) SetDetail(d hal.Detail) { o.set(func() { o.detail = d }) }

func (o *offered) set(change func()) {
	o.host.mu.Lock()
	defer o.host.mu.Unlock()
	change()
}

func (o *offered) Withdraw(exited bool) <-chan struct{} {
	o.set(func() {
		if o.withdrawn != nil {
			return
		}
		o.withdrawn, o.exited = make(chan struct{}), exited
		go func() {
			defer close(o.withdrawn)
			if exited {
				_ = hal.Abandon(o.queue)
			} else {
				_ = o.queue.Close()
			}
		}()
	})
	return o.withdrawn
}

func (o *offered) now() (hal.Queue, hal.Detail) {
	o.host.mu.Lock()
	defer o.host.mu.Unlock()
	return o.queue, o.detail
}

// can reports whether the queue claims abilities, and is stopped by a method.
func (o *offered) can(want sched.Ability, method string) bool {
	if o == nil {
		return false
	}
	q, d := o.now()
	return hal.Abilities(q) == want && d.StopMethod == method
}

// start runs a backend against a host until the test is over. It polls as the daemon's
// loop does.
func (n *node) start(cfg amd.Config) (*amd.Backend, *host) {
	n.Helper()
	cfg.Dev, cfg.Sys, cfg.Only = n.path, kfd.Sysfs(n.sys), proc.Everyone
	b, h := amd.New(cfg), newHost()
	ctx, stop := context.WithCancel(context.Background())
	n.check(b.Start(ctx, h))
	var polling sync.WaitGroup
	polling.Go(func() {
		for ctx.Err() == nil {
			b.Poll(0, nil)
			time.Sleep(time.Millisecond)
		}
	})
	n.Cleanup(func() {
		stop()
		polling.Wait()
		h.mu.Lock()
		queues := slices.Clone(h.queues)
		h.mu.Unlock()
		for _, q := range queues {
			<-q.Withdraw(false)
		}
		n.check(b.Close())
		if left := n.kfd.Left(); left != "" {
			n.Errorf("after Close: got %q, want nothing left", left)
		}
	})
	return b, h
}

func (n *node) running(ids []kfdtest.QueueID) int {
	count := 0
	for _, id := range ids {
		if n.kfd.Active(id) {
			count++
		}
	}
	return count
}

var managed = hal.Settings{Managed: true, Attr: sched.Attr{Class: sched.Batch}}

// onBothDrivers runs a test on the patched and on the stock driver.
func onBothDrivers(t *testing.T, test func(n *node, patched bool)) {
	for _, patched := range []bool{true, false} {
		name := "stock"
		if patched {
			name = "patched"
		}
		t.Run(name, func(t *testing.T) { test(newNode(t, patched), patched) })
	}
}

// TestBackendOffersOneQueuePerProcess follows a process from its listing to its exit.
func TestBackendOffersOneQueuePerProcess(t *testing.T) {
	onBothDrivers(t, func(n *node, patched bool) {
		p, ids := n.program(3)
		b, h := n.start(amd.Config{})
		if len(h.devices) != 1 || h.devices[0].Info().Backend != "amd" || b.Name() != "amd" {
			n.Errorf("got devices %+v, want one of backend amd", h.devices)
		}
		eventually(n.T, func() bool { return h.of(p.PID) != nil })
		q := h.of(p.PID)
		if _, d := q.now(); d.NativeQueues != 3 || q.offer.Handoff != nil || q.offer.Gate {
			n.Errorf("got offer %+v, want one ungated queue of 3 KFD queues without handoff", q.offer)
		}
		if patched {
			eventually(n.T, func() bool { return q.can(sched.CanInterrupt, "batch") })
		} else if calls := n.kfd.Calls(kfdtest.Trap(kfd.OpEnable)); calls != 0 || !q.can(0, "") {
			n.Errorf("unmanaged on a stock driver: got %d debug sessions, want 0", calls)
		}
		h.set(p.PID, managed)
		method := map[bool]string{true: "batch", false: "debug"}[patched]
		eventually(n.T, func() bool { return q.can(sched.CanInterrupt, method) })
		if got := b.Find(p.PID); got != (hal.Found{}) {
			n.Errorf("Find: got %+v, want nothing pending", got)
		}

		stoppable, _ := q.now()
		n.check(hal.Stop(stoppable, sched.LevelInterrupt))
		if got := n.running(ids); got != 0 {
			n.Errorf("stopped: got %d running queues, want 0", got)
		}
		ids = append(ids, n.addQueue(p))
		eventually(n.T, func() bool { _, d := q.now(); return n.running(ids) == 0 && d.NativeQueues == 4 })
		n.check(hal.Start(stoppable, sched.LevelInterrupt))
		if got := n.running(ids); got != 4 {
			n.Errorf("started: got %d running queues, want 4", got)
		}
		p.Kill()
		eventually(n.T, func() bool { return h.of(p.PID) == nil })
		if !q.exited {
			n.Error("the process exited and the queue was withdrawn as if it had not")
		}
	})
}

// TestBackendReleasesUnmanagedProcesses checks that a stock driver keeps no debug session
// of a process that is no longer managed.
func TestBackendReleasesUnmanagedProcesses(t *testing.T) {
	n := newNode(t, false)
	p, ids := n.program(1)
	_, h := n.start(amd.Config{})
	h.set(p.PID, managed)
	eventually(t, func() bool { return h.of(p.PID).can(sched.CanInterrupt, "debug") })
	q, _ := h.of(p.PID).now()
	n.check(hal.Stop(q, sched.LevelInterrupt))
	h.set(p.PID, hal.Settings{})
	eventually(t, func() bool { return n.running(ids) == 1 && n.kfd.Left() == "" && h.of(p.PID).can(0, "") })
}

// TestBackendWithdrawsQueues checks that the queue of a process is withdrawn when its last
// KFD queue is destroyed, and offered again when it makes one.
func TestBackendWithdrawsQueues(t *testing.T) {
	n := newNode(t, true)
	p, ids := n.program(1)
	b, h := n.start(amd.Config{})
	eventually(t, func() bool { return h.of(p.PID) != nil })
	first := h.of(p.PID)
	n.check(kfd.DestroyQueue(p, ids[0].Queue))
	eventually(t, func() bool { return h.of(p.PID) == nil })
	if first.exited {
		t.Error("the process lives and the queue was withdrawn as if it had exited")
	}
	n.addQueue(p)
	b.Find(p.PID)
	if h.of(p.PID) == nil {
		t.Error("Find: got no offer of the new queue")
	}
}

// TestBackendStopsABundleInOneCall checks that ten queues of a process are one call of the
// patched driver and one runlist update.
func TestBackendStopsABundleInOneCall(t *testing.T) {
	n := newNode(t, true)
	p, ids := n.program(10)
	_, h := n.start(amd.Config{})
	eventually(t, func() bool { return h.of(p.PID).can(sched.CanInterrupt, "batch") })
	o := h.of(p.PID)
	q, _ := o.now()
	unmaps, updates := n.kfd.Calls(kfdtest.Request(kfd.ReqBatchUnmap)), n.kfd.Updates(kfdtest.MI300X.GPU)
	if errs := o.offer.Batcher.Switch([]hal.Queue{q}, nil); len(errs) != 1 || errs[0] != nil || n.running(ids) != 0 {
		t.Fatalf("got errors %v and %d running queues, want none", errs, n.running(ids))
	}
	if got := n.kfd.Calls(kfdtest.Request(kfd.ReqBatchUnmap)) - unmaps; got != 1 {
		t.Errorf("got %d calls, want 1", got)
	}
	if got := n.kfd.Updates(kfdtest.MI300X.GPU) - updates; got != 1 {
		t.Errorf("got %d runlist updates, want 1", got)
	}
	// The queue that was offered first stands for the same bundle.
	bundle, err := o.offer.Attach(nil)
	n.check(err)
	if errs := o.offer.Batcher.Switch(nil, []hal.Queue{bundle}); errs[0] != nil || n.running(ids) != 10 {
		t.Errorf("got errors %v and %d running queues, want 10", errs, n.running(ids))
	}
	if errs := o.offer.Batcher.Switch([]hal.Queue{struct{ hal.Queue }{bundle}}, nil); !errors.Is(errs[0], hal.ErrNotSupported) {
		t.Errorf("a queue of another backend: got %v, want %v", errs, hal.ErrNotSupported)
	}
}

// TestBackendRetriesOnOrder checks that each order of the owner tries again to attach
// queues that could not be stopped.
func TestBackendRetriesOnOrder(t *testing.T) {
	n := newNode(t, false)
	p, _ := n.program(1)
	n.kfd.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{Errno: unix.EPERM})
	b, h := n.start(amd.Config{})
	h.set(p.PID, managed)
	name := fmt.Sprintf("AMD queues of %d", p.PID)
	eventually(t, func() bool { c := check(b, name); return c != nil && !c.OK && c.Fix != "" })
	n.kfd.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{})
	time.Sleep(50 * time.Millisecond)
	if !h.of(p.PID).can(0, "") {
		t.Error("it was attached again without an order")
	}
	h.set(p.PID, managed)
	eventually(t, func() bool { return h.of(p.PID).can(sched.CanInterrupt, "debug") && check(b, name) == nil })
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

// TestBackendChecks holds the text of giveway doctor.
func TestBackendChecks(t *testing.T) {
	n := newNode(t, false)
	p, _ := n.program(2)
	b, h := n.start(amd.Config{})
	h.set(p.PID, managed)
	eventually(t, func() bool { return h.of(p.PID).can(sched.CanInterrupt, "debug") })
	q, _ := h.of(p.PID).now()
	n.check(hal.Stop(q, sched.LevelInterrupt))
	for _, c := range b.Checks() {
		if !strings.HasPrefix(c.Name, "AMD") || !c.OK {
			t.Errorf("got %+v, want OK", c)
		}
	}
	for name, want := range map[string]string{
		"AMD driver": "KFD 1.17", "AMD batch": "not needed", "AMD debug": "debugger interface", "AMD calls": "to stop 2 queues (0 failed)",
		"AMD slots of " + string(h.devices[0].Info().Device.ID): "0 of 24 slots in use",
	} {
		if c := check(b, name); c == nil || !strings.Contains(c.Detail, want) {
			t.Errorf("%s: got %+v, want %q in it", name, c, want)
		}
	}
	probed := amd.New(amd.Config{Dev: n.path, Sys: kfd.Sysfs(n.sys)}).Probe(t.Context())
	if len(probed) < 5 || probed[0].Name != "AMD driver" || !probed[0].OK {
		t.Errorf("Probe: got %+v, want the checks of the driver", probed)
	}
}

// TestBackendWithoutDevice checks the errors of a machine without an AMD GPU, and of a
// user who may not open the device.
func TestBackendWithoutDevice(t *testing.T) {
	n := newNode(t, true)
	for _, tt := range []struct {
		name   string
		cfg    amd.Config
		none   bool // no AMD GPU
		checks int  // of Probe
	}{
		{"no GPU", amd.Config{Sys: kfd.Sysfs(t.TempDir())}, true, 0},
		{"no device file", amd.Config{Dev: n.path + "-missing", Sys: kfd.Sysfs(n.sys)}, false, 1},
	} {
		b := amd.New(tt.cfg)
		if err := b.Start(t.Context(), newHost()); err == nil || errors.Is(err, hal.ErrNotSupported) != tt.none {
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
	n := newNode(t, true)
	p, _ := n.program(1)
	b := amd.New(amd.Config{Dev: n.path, Sys: kfd.Sysfs(n.sys), Only: os.Getuid() + 1})
	ctx, stop := context.WithCancel(t.Context())
	h := newHost()
	n.check(b.Start(ctx, h))
	b.Find(p.PID)
	if h.of(p.PID) != nil {
		t.Error("a process of another user was offered")
	}
	stop()
	n.check(b.Close())
}

// TestBackendReportsInversions checks that an online process which shares too few slots
// with lower classes is reported, unless it is paused or has no work.
func TestBackendReportsInversions(t *testing.T) {
	n := newNode(t, false)
	serve, _ := n.program(1)
	crowd, crowdIDs := n.program(int(kfdtest.MI300X.Slots))
	b, h := n.start(amd.Config{})
	eventually(t, func() bool { return h.of(serve.PID) != nil && h.of(crowd.PID) != nil })
	reported := func() bool {
		c := check(b, "AMD priority inversion")
		return c != nil && strings.Contains(c.Detail, fmt.Sprintf("process %d ", serve.PID))
	}
	h.mu.Lock()
	h.ready[serve.PID], h.ready[crowd.PID] = true, true
	h.mu.Unlock()
	if reported() {
		t.Error("an inversion is reported among processes of one class")
	}
	online := hal.Settings{Managed: true, Attr: sched.Attr{Class: sched.Online}}
	h.set(serve.PID, online)
	eventually(t, reported)
	online.Attr.Paused = true
	h.set(serve.PID, online)
	eventually(t, func() bool { return !reported() })
	online.Attr.Paused = false
	h.set(serve.PID, online)
	h.set(crowd.PID, managed)
	eventually(t, func() bool { return h.of(crowd.PID).can(sched.CanInterrupt, "debug") && reported() })
	q, _ := h.of(crowd.PID).now()
	n.check(hal.Stop(q, sched.LevelInterrupt))
	if n.running(crowdIDs) != 0 || reported() {
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
	n := newNode(t, false)
	p, _ := n.program(1)
	n.kfd.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{Errno: unix.EPERM})
	var shim atomic.Pointer[fakeShim]
	b, h := n.start(amd.Config{Shim: func(pid int) amd.Shim {
		if s := shim.Load(); s != nil && pid == p.PID {
			return s
		}
		return nil
	}})
	h.set(p.PID, managed)
	name := fmt.Sprintf("AMD queues of %d", p.PID)
	eventually(t, func() bool { return check(b, name) != nil })
	s := &fakeShim{}
	s.count.Store(1)
	shim.Store(s)
	eventually(t, func() bool { return h.of(p.PID).can(sched.CanInterrupt, "own") && check(b, name) == nil })
	shim.Store(nil)
	eventually(t, func() bool { return h.of(p.PID).can(0, "") && check(b, name) != nil })

	// A shim whose count changes all the time is followed once per second.
	shim.Store(s)
	eventually(t, func() bool { return h.of(p.PID).can(sched.CanInterrupt, "own") })
	tried := func() int { return n.kfd.Calls(kfdtest.Trap(kfd.OpEnable)) }
	before, began := tried(), time.Now()
	for i := range int32(500) {
		s.count.Store(i % 2)
		time.Sleep(time.Millisecond)
	}
	if got, most := tried()-before, int(time.Since(began)/time.Second)+2; got > most {
		t.Errorf("got %d debug sessions, want at most %d", got, most)
	}
	s.count.Store(1)
	eventually(t, func() bool { return h.of(p.PID).can(sched.CanInterrupt, "own") })
}

// TestBackendForgetsRefusedQueues checks that a process whose queue the daemon refuses is
// offered again by the next listing.
func TestBackendForgetsRefusedQueues(t *testing.T) {
	n := newNode(t, true)
	p, _ := n.program(1)
	b, h := n.start(amd.Config{})
	h.mu.Lock()
	h.refuse = errors.New("no")
	h.mu.Unlock()
	q, _ := n.program(1)
	b.Find(q.PID)
	if h.of(q.PID) != nil {
		t.Error("a refused queue is recorded")
	}
	h.mu.Lock()
	h.refuse = nil
	h.mu.Unlock()
	eventually(t, func() bool { return h.of(p.PID) != nil && h.of(q.PID) != nil })
}
