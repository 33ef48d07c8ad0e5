package amd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// us is the process of the daemon, in the made-up world.
const us = 900

// tracer is ptrace in the made-up world.
type tracer struct{ *kfdtest.World }

func (tr tracer) Seize(pid int) error {
	if !tr.Trace(unix.Gettid(), pid) {
		return unix.EPERM
	}
	return nil
}
func (tr tracer) Attend(pid int) bool { return tr.Leader(pid) != 0 }
func (tr tracer) Release(pid int)     { tr.Trace(0, pid) }
func (tracer) News() (<-chan os.Signal, func()) {
	return nil, func() {}
}

// harness drives the backend on a driver that decodes bytes, with a simulated GPU
// behind it.
type harness struct {
	*kfdtest.Harness
	t      *testing.T
	driver *amd.Driver
	device *amd.Device
	queues map[sched.QueueID]kfdtest.QueueID
}

func newHarness(t *testing.T, model string, cfg kfdtest.Config) *harness {
	t.Helper()
	return newHarnessWith(t, model, cfg, nil)
}

func newHarnessWith(t *testing.T, model string, cfg kfdtest.Config, shim func(int) amd.Shim) *harness {
	t.Helper()
	cfg.Sys = t.TempDir()
	h, err := kfdtest.NewHarness(model, cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.World.Start(us, 0)
	d, err := amd.Open(amd.Config{Sys: kfd.Sysfs(cfg.Sys), File: h.KFD().Open(us), Tracer: tracer{h.World}, Shim: shim})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if left := h.KFD().Left(); left != "" {
			t.Error(left)
		}
		for _, v := range h.Violations() {
			t.Error(v)
		}
	})
	return &harness{h, t, d, d.Devices()[0], map[sched.QueueID]kfdtest.QueueID{}}
}

func (h *harness) Device() hal.Attacher { return h.device }

func (h *harness) Open() hal.Spec {
	id := sched.QueueID(len(h.queues) + 1)
	q, err := h.Harness.Open(1000 + int(id))
	if err != nil {
		h.t.Fatal(err)
	}
	h.queues[id] = q
	h.device.Offer(id, amd.Target{PID: q.PID, Queue: q.Queue, Priority: 7})
	return hal.Spec{Queue: id, Native: uint64(q.Queue)}
}

func (h *harness) Submit(s hal.Spec, d time.Duration) { h.Harness.Submit(h.queues[s.Queue], d) }
func (h *harness) Completed(s hal.Spec) uint64        { return h.Harness.Completed(h.queues[s.Queue]) }

func (h *harness) attach() (kfdtest.QueueID, hal.Queue) {
	h.t.Helper()
	spec := h.Open()
	q, err := h.device.Attach(spec)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.queues[spec.Queue], q
}

var gfx12 = kfd.Node{
	Index: 1, GPU: 777, Name: "navi", GFX: 120000, Slots: 8, XCCs: 1, ClockMHz: 2400,
	Capability: kfd.CapTrapDebug | kfd.CapTrapDebugFirmware,
}

func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		name  string
		model string
		cfg   kfdtest.Config
		way   string
	}{
		{"Batch", "amd-hws", kfdtest.Config{Patched: true}, "batch"},
		{"Debug", "amd-hws", kfdtest.Config{}, "debug"},
		{"BatchMES", "amd-mes", kfdtest.Config{Patched: true, GPUs: []kfd.Node{gfx12}}, "batch"},
		{"DebugMES", "amd-mes", kfdtest.Config{GPUs: []kfd.Node{gfx12}}, "debug"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			haltest.Run(t, func(t *testing.T) haltest.Harness {
				h := newHarness(t, tt.model, tt.cfg)
				if _, q := h.attach(); q.(interface{ Way() string }).Way() != tt.way {
					t.Errorf("the way is not %s", tt.way)
				}
				return h
			})
		})
	}
}

// TestWhatIsClaimed: a queue that cannot be interrupted here is one that does not
// claim it, and the doctor says why.
func TestWhatIsClaimed(t *testing.T) {
	node := func(gfx kfd.GFX, capability uint32) []kfd.Node {
		n := kfdtest.MI300X
		n.GFX, n.Capability = gfx, capability
		return []kfd.Node{n}
	}
	const can = kfd.CapTrapDebug | kfd.CapTrapDebugFirmware
	second := kfdtest.MI300X
	second.Index, second.GPU, second.GFX = 2, 4711, 110000
	for _, tt := range []struct {
		name string
		cfg  kfdtest.Config
		can  sched.Ability
		why  string // of the debug way
	}{
		{"MI300X", kfdtest.Config{}, sched.CanInterrupt, ""},
		{"MI200", kfdtest.Config{GPUs: node(90010, can)}, sched.CanInterrupt, ""},
		{"gfx1201", kfdtest.Config{GPUs: node(120001, can)}, sched.CanInterrupt, ""},
		{"gfx1100", kfdtest.Config{GPUs: node(110000, can)}, 0, "halves the compute units"},
		{"gfx1100, patched", kfdtest.Config{GPUs: node(110000, can), Patched: true}, sched.CanInterrupt, "halves the compute units"},
		{"MI100", kfdtest.Config{GPUs: node(90008, can)}, 0, "only one process"},
		{"RDNA2", kfdtest.Config{GPUs: node(100300, can)}, 0, "only one process"},
		{"old firmware", kfdtest.Config{GPUs: node(90402, kfd.CapTrapDebug)}, 0, "firmware"},
		{"another GPU that would suffer", kfdtest.Config{GPUs: []kfd.Node{kfdtest.MI300X, second}}, 0, "GPU 4711 is gfx1100"},
		{"no hardware scheduler", kfdtest.Config{NoHWS: true, Patched: true}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(t, "amd-hws", tt.cfg)
			_, q := h.attach()
			if got := hal.Abilities(q); got != tt.can {
				t.Errorf("it claims to %v, want %v", got, tt.can)
			}
			for _, c := range h.driver.Doctor() {
				if c.Name == "debug" && (c.OK != (tt.why == "") || !strings.Contains(c.Detail, tt.why)) {
					t.Errorf("the doctor says %+v, want %q", c, tt.why)
				}
			}
		})
	}
}

// TestVersionGate: an old driver is not asked for what it has not.
func TestVersionGate(t *testing.T) {
	sys := t.TempDir()
	k := kfdtest.New(kfdtest.Config{Version: kfd.Version{Major: 1, Minor: 12}, Sys: sys})
	d, err := amd.Open(amd.Config{Sys: kfd.Sysfs(sys), File: k.Open(os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range d.Doctor() {
		if c.Name == "debug" && (c.OK || !strings.Contains(c.Detail, "KFD is 1.12, 1.13 is needed")) {
			t.Errorf("%+v", c)
		}
	}
}

// TestDoctor: each rule of the system for tracing is told.
func TestDoctor(t *testing.T) {
	for scope, ok := range map[string]bool{"": true, "0\n": true, "1\n": true, "2\n": true, "3\n": false} {
		sys, proc := t.TempDir(), t.TempDir()
		if scope != "" {
			dir := filepath.Join(proc, "sys/kernel/yama")
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "ptrace_scope"), []byte(scope), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		d, err := amd.Open(amd.Config{Sys: kfd.Sysfs(sys), Proc: proc, File: kfdtest.New(kfdtest.Config{Sys: sys}).Open(os.Getpid())})
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, c := range d.Doctor() {
			names[c.Name] = true
			if c.Name == "ptrace" && c.OK != ok || c.Name == "batch" && c.OK || c.Detail == "" {
				t.Errorf("scope %q: %+v", scope, c)
			}
		}
		if len(names) != 5 || !names["ptrace"] || !names["slots of amd-0000000000abcdef"] {
			t.Errorf("it looks at %v", names)
		}
		d.Close()
	}
}

// TestNoGPU: a machine without one is not supported, and no file is left open.
func TestNoGPU(t *testing.T) {
	_, err := amd.Open(amd.Config{Sys: kfd.Sysfs(t.TempDir())})
	if !errors.Is(err, hal.ErrNotSupported) {
		t.Error(err)
	}
}

// TestFallBack: when the best way fails at the time, the next is used, and undone
// in its own way.
func TestFallBack(t *testing.T) {
	for name, f := range map[string]kfdtest.Fault{
		"errno":    {Errno: unix.EPERM},
		"busy":     {Errno: unix.EBUSY},
		"hardware": {Hardware: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, "amd-hws", kfdtest.Config{Patched: true})
			id, q := h.attach()
			h.KFD().Inject(kfdtest.Request(kfd.ReqBatchUnmap), f)
			if err := hal.Stop(q, sched.LevelInterrupt); err != nil {
				t.Fatal(err)
			}
			if h.KFD().Active(id) {
				t.Error("it runs")
			}
			if s := h.driver.Stats(); s.Fallbacks != 1 || s.Stops.Calls != 2 || s.Stops.Failed != 1 {
				t.Errorf("%+v", s)
			}
			h.KFD().Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{})
			remaps := h.KFD().Calls(kfdtest.Request(kfd.ReqFastRemap))
			if err := hal.Start(q, sched.LevelInterrupt); err != nil {
				t.Fatal(err)
			}
			if !h.KFD().Active(id) || h.KFD().Calls(kfdtest.Request(kfd.ReqFastRemap)) != remaps {
				t.Error("it was not put back in the way that it was stopped")
			}
			if err := hal.Stop(q, sched.LevelInterrupt); err != nil || h.driver.Stats().Fallbacks != 1 {
				t.Errorf("the best way was not tried again: %v, %+v", err, h.driver.Stats())
			}
		})
	}
	t.Run("both", func(t *testing.T) {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: true})
		id, q := h.attach()
		h.KFD().Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{Errno: unix.EIO})
		h.KFD().Inject(kfdtest.Trap(kfd.OpSuspendQueues), kfdtest.Fault{Hardware: true})
		err := hal.Stop(q, sched.LevelInterrupt)
		if hal.Outcome(err) != sched.Refused || !errors.Is(err, unix.EIO) || !errors.Is(err, kfd.ErrHardware) {
			t.Errorf("%v", err)
		}
		if !h.KFD().Active(id) {
			t.Error("a stop that failed left it stopped")
		}
	})
}

// TestGone: of what is no more the scheduler is told so, and nothing need be undone.
func TestGone(t *testing.T) {
	for _, patched := range []bool{false, true} {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: patched})
		id, q := h.attach()
		other, q2 := h.attach()
		if err := hal.Stop(q2, sched.LevelInterrupt); err != nil {
			t.Fatal(err)
		}
		if err := kfd.DestroyQueue(h.KFD().Open(id.PID), id.Queue); err != nil {
			t.Fatal(err)
		}
		if err := hal.Stop(q, sched.LevelInterrupt); hal.Outcome(err) != sched.Gone {
			t.Errorf("patched %v: a queue that was destroyed: %v", patched, err)
		}
		h.World.Kill(other.PID)
		eventually(t, func() bool { return !h.KFD().Active(other) })
		if err := q2.Close(); err != nil {
			t.Errorf("patched %v: %v", patched, err)
		}
		if err := hal.Abandon(q); err != nil {
			t.Errorf("patched %v: %v", patched, err)
		}
		if _, err := h.device.Attach(hal.Spec{Queue: 99}); !errors.Is(err, hal.ErrGone) {
			t.Errorf("a queue that was never offered: %v", err)
		}
	}
}

// TestNumberReused: a process that ends during a call may have left its number to
// another, which is left alone.
func TestNumberReused(t *testing.T) {
	for _, patched := range []bool{false, true} {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: patched})
		id, err := h.Harness.Open(4000)
		if err != nil {
			t.Fatal(err)
		}
		var looks, dies atomic.Int32
		dies.Store(1 << 20)
		h.device.Offer(1, amd.Target{PID: id.PID, Queue: id.Queue, Alive: func() bool { return looks.Add(1) <= dies.Load() }})
		q, err := h.device.Attach(hal.Spec{Queue: 1})
		if err != nil {
			t.Fatal(err)
		}
		// It dies before the call or, as the batch way must find out, in it: a process
		// that is traced keeps its number.
		for left := range int32(2) {
			if left == 1 && !patched {
				continue
			}
			dies.Store(looks.Load() + left)
			if err := hal.Stop(q, sched.LevelInterrupt); !errors.Is(err, hal.ErrGone) {
				t.Errorf("patched %v, %d looks: %v", patched, left, err)
			}
			if !h.KFD().Active(id) || h.KFD().Left() != "" {
				t.Errorf("patched %v, %d looks: another process was not left alone: %s", patched, left, h.KFD().Left())
			}
		}
	}
}

// TestSwitch: any number of queues of a process is one call and one update of the
// runlist.
func TestSwitch(t *testing.T) {
	const n = 64
	for _, patched := range []bool{false, true} {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: patched})
		first, err := h.Harness.Open(5000)
		if err != nil {
			t.Fatal(err)
		}
		f := h.KFD().Open(first.PID)
		var queues []hal.Queue
		for i := range n {
			id := first.Queue
			if i > 0 {
				id, err = kfd.CreateQueue(f, kfd.NewQueue{GPU: h.device.GPU(), Type: kfd.TypeComputeAQL, Ring: 1 << 20, RingSize: 4096})
				if err != nil {
					t.Fatal(err)
				}
			}
			h.device.Offer(sched.QueueID(i+1), amd.Target{PID: first.PID, Queue: id})
			q, err := h.device.Attach(hal.Spec{Queue: sched.QueueID(i + 1)})
			if err != nil {
				t.Fatal(err)
			}
			queues = append(queues, q)
		}
		check := func(errs []error) {
			t.Helper()
			for _, err := range errs {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		check(h.device.Switch(queues, nil)) // a session may be opened
		check(h.device.Switch(nil, queues))
		before, calls := h.KFD().Updates(h.device.GPU()), h.driver.Stats()
		check(h.device.Switch(queues[:n-1], queues[n-1:]))
		if got := h.KFD().Updates(h.device.GPU()) - before; got != 1 {
			t.Errorf("patched %v: %d updates for %d queues", patched, got, n-1)
		}
		now := h.driver.Stats()
		if now.Stops.Calls-calls.Stops.Calls != 1 || now.Stops.Queues-calls.Stops.Queues != n-1 {
			t.Errorf("patched %v: %+v after %+v", patched, now, calls)
		}
		if u, err := h.device.Usage(); err != nil || u.Stopped != n-1 || u.Active != 1 || u.Exact != patched {
			t.Errorf("patched %v: %v, %v", patched, u, err)
		}
		for _, q := range queues {
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestNewQueues: a queue that was born after the session began can be stopped.
func TestNewQueues(t *testing.T) {
	h := newHarness(t, "amd-hws", kfdtest.Config{})
	id, q := h.attach()
	if err := hal.Stop(q, sched.LevelInterrupt); err != nil {
		t.Fatal(err)
	}
	born, err := kfd.CreateQueue(h.KFD().Open(id.PID), kfd.NewQueue{GPU: h.device.GPU(), Type: kfd.TypeComputeAQL, Ring: 1 << 20, RingSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	h.device.Offer(50, amd.Target{PID: id.PID, Queue: born})
	q2, err := h.device.Attach(hal.Spec{Queue: 50})
	if err != nil {
		t.Fatal(err)
	}
	if err := hal.Stop(q2, sched.LevelInterrupt); err != nil {
		t.Error(err)
	}
	if h.KFD().Active(id) || h.KFD().Active(kfdtest.QueueID{PID: id.PID, Queue: born}) {
		t.Error("one of them runs")
	}
	if n := h.KFD().Calls(kfdtest.Trap(kfd.OpEnable)); n != 2 {
		t.Errorf("%d sessions for a proof and a stop", n)
	}
	// Another queue takes the place of one that was attached.
	if err := hal.Start(q2, sched.LevelInterrupt); err != nil {
		t.Fatal(err)
	}
	f := h.KFD().Open(id.PID)
	if err := kfd.DestroyQueue(f, born); err != nil {
		t.Fatal(err)
	}
	again, err := kfd.CreateQueue(f, kfd.NewQueue{GPU: h.device.GPU(), Type: kfd.TypeComputeAQL, Ring: 1 << 20, RingSize: 4096})
	if err != nil || again != born {
		t.Fatal(again, err)
	}
	if err := hal.Stop(q2, sched.LevelInterrupt); err != nil || h.KFD().Active(kfdtest.QueueID{PID: id.PID, Queue: born}) {
		t.Errorf("a new queue with an old number: %v", err)
	}
}

// TestAnotherProgram: a process that runs another program is in no session any more,
// and gets another.
func TestAnotherProgram(t *testing.T) {
	h := newHarness(t, "amd-hws", kfdtest.Config{})
	id, q := h.attach()
	for _, op := range []uint32{kfd.OpQueueSnapshot, kfd.OpSuspendQueues} {
		if err := hal.Stop(q, sched.LevelInterrupt); err != nil {
			t.Fatal(err)
		}
		h.KFD().Inject(kfdtest.Trap(op), kfdtest.Fault{Errno: unix.EINVAL, Times: 1})
		h.device.Offer(60, amd.Target{PID: id.PID, Queue: id.Queue})
		q2, err := h.device.Attach(hal.Spec{Queue: 60})
		if err != nil {
			t.Fatal(err)
		}
		if err := hal.Stop(q2, sched.LevelInterrupt); err != nil || h.KFD().Active(id) {
			t.Errorf("operation %d: %v", op, err)
		}
	}
	h.KFD().Inject(kfdtest.Trap(kfd.OpSuspendQueues), kfdtest.Fault{Errno: unix.EINVAL})
	if err := hal.Stop(q, sched.LevelInterrupt); hal.Outcome(err) != sched.Gone {
		t.Errorf("again and again: %v", err)
	}
}

// TestWrapped: a queue that somebody has wrapped is switched as well.
func TestWrapped(t *testing.T) {
	h := newHarness(t, "amd-hws", kfdtest.Config{})
	id, q := h.attach()
	wrapped := struct {
		hal.Queue
		hal.Interrupter
	}{q, q.(hal.Interrupter)}
	if errs := h.device.Switch([]hal.Queue{wrapped}, nil); len(errs) != 1 || errs[0] != nil || h.KFD().Active(id) {
		t.Errorf("%v", errs)
	}
	if errs := h.device.Switch(nil, []hal.Queue{wrapped}); len(errs) != 1 || errs[0] != nil || !h.KFD().Active(id) {
		t.Errorf("%v", errs)
	}
}

// TestForeign: of a process that is traced by somebody else, or is another user's,
// only what is proved is claimed.
func TestForeign(t *testing.T) {
	h := newHarness(t, "amd-hws", kfdtest.Config{})
	spec := h.Open()
	h.World.Trace(1, h.queues[spec.Queue].PID)
	q, err := h.device.Attach(spec)
	if err != nil || hal.Abilities(q) != 0 {
		t.Errorf("%v, %v", hal.Abilities(q), err)
	}
	if why := q.(interface{ Why() error }).Why(); !errors.Is(why, unix.EPERM) || !errors.Is(why, hal.ErrNotSupported) {
		t.Errorf("because %v", why)
	}
	h.World.Trace(0, h.queues[spec.Queue].PID)

	sys := t.TempDir()
	h2, err := kfdtest.NewHarness("amd-hws", kfdtest.Config{Patched: true, Sys: sys})
	if err != nil {
		t.Fatal(err)
	}
	h2.World.Start(us, 1234) // no root
	d, err := amd.Open(amd.Config{Sys: kfd.Sysfs(sys), File: h2.KFD().Open(us), Tracer: refuser{}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	id, err := h2.Open(3000)
	if err != nil {
		t.Fatal(err)
	}
	d.Devices()[0].Offer(1, amd.Target{PID: id.PID, Queue: id.Queue})
	q, err = d.Devices()[0].Attach(hal.Spec{Queue: 1})
	if err != nil || hal.Abilities(q) != 0 {
		t.Errorf("another user's: %v, %v", hal.Abilities(q), err)
	}
}

type refuser struct{ tracer }

func (refuser) Seize(int) error { return unix.EPERM }
func (refuser) Release(int)     {}

func eventually(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time")
		}
	}
}
