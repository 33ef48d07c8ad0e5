package amd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// daemonPID is the pid of the daemon in a World.
const daemonPID = 900

// worldTracer is the Tracer of a World.
type worldTracer struct{ *kfdtest.World }

func (tr worldTracer) Seize(pid int) error {
	if !tr.Trace(unix.Gettid(), pid) {
		return unix.EPERM
	}
	return nil
}
func (tr worldTracer) Continue(pid int) bool            { return tr.Leader(pid) != 0 }
func (tr worldTracer) Release(pid int)                  { tr.Trace(0, pid) }
func (worldTracer) Signals() (<-chan os.Signal, func()) { return nil, func() {} }

// harness is a driver with a simulated GPU. It implements haltest.Harness with bundles of
// one queue.
type harness struct {
	*kfdtest.Harness
	t      *testing.T
	driver *driver
	gpu    *gpu
	queues map[sched.QueueID]kfdtest.QueueID
}

func newHarness(t *testing.T, model string, cfg kfdtest.Config, shim func(int) Shim) *harness {
	t.Helper()
	cfg.Sys = t.TempDir()
	h, err := kfdtest.NewHarness(model, cfg)
	check(t, err)
	h.World.Start(daemonPID, 0)
	d, err := open(Config{Sys: kfd.Sysfs(cfg.Sys), File: h.KFD().Open(daemonPID), Tracer: worldTracer{h.World}, Shim: shim})
	check(t, err)
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Errorf("close: got %v, want no error", err)
		}
		if left := h.KFD().Left(); left != "" {
			t.Errorf("after close: got %q, want nothing left", left)
		}
		for _, v := range h.Violations() {
			t.Errorf("simulator: %s", v)
		}
	})
	return &harness{h, t, d, d.gpus[0], make(map[sched.QueueID]kfdtest.QueueID)}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *harness) Device() hal.Device { return h.gpu }

func (h *harness) Attach(id sched.QueueID) (hal.Queue, error) {
	q := h.queues[id]
	return newBundle(h.gpu).attach([]uint32{q.Queue}, target{pid: q.PID}, retry{})
}

func (h *harness) Open() sched.QueueID {
	id := sched.QueueID(len(h.queues) + 1)
	q, err := h.Harness.Open(1000 + int(id))
	check(h.t, err)
	h.queues[id] = q
	return id
}

func (h *harness) Submit(id sched.QueueID, d time.Duration) { h.Harness.Submit(h.queues[id], d) }
func (h *harness) Completed(id sched.QueueID) uint64        { return h.Harness.Completed(h.queues[id]) }

// attach starts a process with one queue and attaches the queue.
func (h *harness) attach() (kfdtest.QueueID, *queue) {
	h.t.Helper()
	id := h.queues[h.Open()]
	q, err := h.gpu.attach(target{pid: id.PID, queue: id.Queue})
	check(h.t, err)
	return id, q
}

// addQueue creates and attaches another queue of a process.
func (h *harness) addQueue(pid int) (kfdtest.QueueID, *queue) {
	h.t.Helper()
	id := createQueue(h.t, h.KFD().Open(pid), h.gpu)
	q, err := h.gpu.attach(target{pid: pid, queue: id})
	check(h.t, err)
	return kfdtest.QueueID{PID: pid, Queue: id}, q
}

func createQueue(t *testing.T, f kfd.Ioctler, g *gpu) uint32 {
	t.Helper()
	id, err := kfdtest.CreateQueue(f, kfdtest.NewQueue{GPU: g.node.GPU, Type: kfdtest.TypeComputeAQL, Ring: 0x7f0000000000, RingSize: 4096})
	check(t, err)
	return id
}

func (h *harness) stop(q *queue) error  { return h.driver.stop([]*queue{q})[0] }
func (h *harness) start(q *queue) error { return h.driver.start([]*queue{q})[0] }

// mustStop stops a queue and checks that it does not run.
func (h *harness) mustStop(id kfdtest.QueueID, q *queue) {
	h.t.Helper()
	if err := h.stop(q); err != nil || h.KFD().Active(id) {
		h.t.Fatalf("stop: got %v, active %v; want it stopped", err, h.KFD().Active(id))
	}
}

var gfx12 = kfd.Node{
	Index: 1, GPU: 777, Name: "navi", GFX: 120000, Slots: 8, Capability: kfd.CapTrapDebug | kfd.CapTrapDebugFirmware,
}

func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		name   string
		model  string
		cfg    kfdtest.Config
		method string
	}{
		{"Batch", "amd-hws", kfdtest.Config{Patched: true}, "batch"},
		{"Debug", "amd-hws", kfdtest.Config{}, "debug"},
		{"BatchMES", "amd-mes", kfdtest.Config{Patched: true, GPUs: []kfd.Node{gfx12}}, "batch"},
		{"DebugMES", "amd-mes", kfdtest.Config{GPUs: []kfd.Node{gfx12}}, "debug"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			haltest.Run(t, func(t *testing.T) haltest.Harness {
				h := newHarness(t, tt.model, tt.cfg, nil)
				if _, q := h.attach(); q.bestMethod() != tt.method {
					t.Errorf("got method %q, want %q", q.bestMethod(), tt.method)
				}
				return h
			})
		})
	}
}

// TestClaims checks on which GPUs and drivers a queue claims that it can be interrupted,
// and what the check of the debug method says.
func TestClaims(t *testing.T) {
	node := func(gfx kfd.GFX, capability uint32) []kfd.Node {
		n := kfdtest.MI300X
		n.GFX, n.Capability = gfx, capability
		return []kfd.Node{n}
	}
	const can = kfd.CapTrapDebug | kfd.CapTrapDebugFirmware
	second := kfdtest.MI300X
	second.Index, second.GPU, second.GFX = 2, 4711, 110000
	for _, tt := range []struct {
		name  string
		cfg   kfdtest.Config
		can   sched.Ability
		debug string // in the check of the debug method; empty: it works
	}{
		{"MI300X", kfdtest.Config{}, sched.CanInterrupt, ""},
		{"MI200", kfdtest.Config{GPUs: node(90010, can)}, sched.CanInterrupt, ""},
		{"gfx1201", kfdtest.Config{GPUs: node(120001, can)}, sched.CanInterrupt, ""},
		{"gfx1100", kfdtest.Config{GPUs: node(110000, can)}, 0, "halves the compute units"},
		{"gfx1100, patched", kfdtest.Config{GPUs: node(110000, can), Patched: true}, sched.CanInterrupt, "halves the compute units"},
		{"MI100", kfdtest.Config{GPUs: node(90008, can)}, 0, "only one process"},
		{"RDNA2", kfdtest.Config{GPUs: node(100300, can)}, 0, "only one process"},
		{"old firmware", kfdtest.Config{GPUs: node(90402, kfd.CapTrapDebug)}, 0, "firmware"},
		{"unsuitable second GPU", kfdtest.Config{GPUs: []kfd.Node{kfdtest.MI300X, second}}, 0, "GPU 4711 is gfx1100"},
		{"no hardware scheduler", kfdtest.Config{NoHWS: true, Patched: true}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(t, "amd-hws", tt.cfg, nil)
			q, err := h.Attach(h.Open())
			if tt.can != 0 && err != nil {
				t.Fatal(err)
			}
			if got := hal.Abilities(q); got != tt.can {
				t.Errorf("got abilities %v, want %v", got, tt.can)
			}
			check(t, q.Close())
			c := h.driver.methodCheck("debug", "works")
			if c.OK != (tt.debug == "") || !strings.Contains(c.Detail, tt.debug) {
				t.Errorf("got check %+v, want %q in it", c, tt.debug)
			}
		})
	}
}

// TestOldDriver checks that the debug method is not used before KFD 1.13.
func TestOldDriver(t *testing.T) {
	sys := t.TempDir()
	k := kfdtest.New(kfdtest.Config{Version: kfd.Version{Major: 1, Minor: 12}, Sys: sys})
	d, err := open(Config{Sys: kfd.Sysfs(sys), File: k.Open(os.Getpid())})
	check(t, err)
	defer d.close()
	if c := d.methodCheck("debug", "works"); c.OK || !strings.Contains(c.Detail, "KFD is 1.12, 1.13 is needed") {
		t.Errorf("got %+v, want it to fail with the versions", c)
	}
}

// TestDriverChecks checks the names of the checks, and the check of ptrace for each
// setting of Yama.
func TestDriverChecks(t *testing.T) {
	for scope, ok := range map[string]bool{"": true, "0\n": true, "1\n": true, "2\n": true, "3\n": false} {
		sys, proc := t.TempDir(), t.TempDir()
		if scope != "" {
			dir := filepath.Join(proc, "sys/kernel/yama")
			check(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "ptrace_scope"), []byte(scope), 0o600)))
		}
		d, err := open(Config{Sys: kfd.Sysfs(sys), Proc: proc, File: kfdtest.New(kfdtest.Config{Sys: sys}).Open(os.Getpid())})
		check(t, err)
		names := map[string]bool{}
		for _, c := range d.checks() {
			names[c.Name] = true
			if c.Name == "AMD ptrace" && c.OK != ok || c.Name == "AMD batch" && c.OK != ok || c.Detail == "" {
				t.Errorf("scope %q: got %+v, want OK %v", scope, c, ok)
			}
		}
		if len(names) != 7 || !names["AMD CWSR of amd-0000000000abcdef"] || !names["AMD reservation of amd-0000000000abcdef"] || !names["AMD driver"] || !names["AMD debug"] || !names["AMD slots of amd-0000000000abcdef"] {
			t.Errorf("got checks %v", names)
		}
		check(t, d.close())
	}
}

// TestFallback checks that when the best method fails, the next is used, that a queue is
// started by the method that stopped it, and that the best is tried again next time.
func TestFallback(t *testing.T) {
	unmap := kfdtest.Request(kfd.ReqBatchUnmap)
	for name, f := range map[string]kfdtest.Fault{
		"errno":    {Errno: unix.EPERM},
		"busy":     {Errno: unix.EBUSY},
		"hardware": {Hardware: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, "amd-hws", kfdtest.Config{Patched: true}, nil)
			id, q := h.attach()
			h.KFD().Inject(unmap, f)
			h.mustStop(id, q)
			if stops, _, fallbacks := h.driver.stats.totals(); fallbacks != 1 || stops.calls != 2 || stops.failed != 1 {
				t.Errorf("got %+v and %d fallbacks, want 2 calls, 1 failed, 1 fallback", stops, fallbacks)
			}
			h.KFD().Inject(unmap, kfdtest.Fault{})
			remaps := h.KFD().Calls(kfdtest.Request(kfd.ReqFastRemap))
			check(t, h.start(q))
			if !h.KFD().Active(id) || h.KFD().Calls(kfdtest.Request(kfd.ReqFastRemap)) != remaps {
				t.Error("the queue was not started by the method that stopped it")
			}
			h.mustStop(id, q)
			if _, _, fallbacks := h.driver.stats.totals(); fallbacks != 1 {
				t.Errorf("got %d fallbacks, want 1: the best method was not tried again", fallbacks)
			}
		})
	}
	t.Run("both", func(t *testing.T) {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: true}, nil)
		id, q := h.attach()
		h.KFD().Inject(unmap, kfdtest.Fault{Errno: unix.EIO})
		h.KFD().Inject(kfdtest.Trap(kfd.OpSuspendQueues), kfdtest.Fault{Hardware: true})
		err := h.stop(q)
		if hal.Outcome(err) != sched.Refused || !errors.Is(err, unix.EIO) || !errors.Is(err, kfd.ErrHardware) {
			t.Errorf("got %v, want the errors of both methods", err)
		}
		if !h.KFD().Active(id) {
			t.Error("a failed stop left the queue stopped")
		}
	})
}

// TestGone checks that a queue or process that no longer exists is reported as gone, and
// needs no undoing.
func TestGone(t *testing.T) {
	for _, patched := range []bool{false, true} {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: patched}, nil)
		id, q := h.attach()
		other, q2 := h.attach()
		h.mustStop(other, q2)
		check(t, kfdtest.DestroyQueue(h.KFD().Open(id.PID), id.Queue))
		if err := h.stop(q); hal.Outcome(err) != sched.Gone {
			t.Errorf("patched %v, destroyed queue: got %v, want %v", patched, err, hal.ErrGone)
		}
		h.World.Kill(other.PID)
		drivertest.Eventually(t, "dead", func() bool { return !h.KFD().Active(other) })
		if err := q2.close(); err != nil {
			t.Errorf("patched %v, close: got %v, want no error", patched, err)
		}
		if err := q.abandon(); err != nil {
			t.Errorf("patched %v, abandon: got %v, want no error", patched, err)
		}
		if _, err := h.gpu.attach(target{pid: id.PID, queue: 99}); !errors.Is(err, hal.ErrGone) {
			t.Errorf("patched %v, unknown queue: got %v, want %v", patched, err, hal.ErrGone)
		}
	}
}

// TestReusedPID checks that a process whose pid is reused during a call is reported as
// gone, and that the new process with that pid is not stopped.
func TestReusedPID(t *testing.T) {
	for _, patched := range []bool{false, true} {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: patched}, nil)
		id, err := h.Harness.Open(4000)
		check(t, err)
		var looks, dies atomic.Int32
		dies.Store(1 << 20)
		q, err := h.gpu.attach(target{pid: id.PID, queue: id.Queue, alive: func() bool { return looks.Add(1) <= dies.Load() }})
		check(t, err)
		// It dies before the call or, for the batch method, during the call. A traced
		// process keeps its pid.
		for left := range int32(2) {
			if left == 1 && !patched {
				continue
			}
			dies.Store(looks.Load() + left)
			if err := h.stop(q); !errors.Is(err, hal.ErrGone) {
				t.Errorf("patched %v, after %d looks: got %v, want %v", patched, left, err, hal.ErrGone)
			}
			if !h.KFD().Active(id) || h.KFD().Left() != "" {
				t.Errorf("patched %v, after %d looks: got active %v, %q; want the new process untouched", patched, left, h.KFD().Active(id), h.KFD().Left())
			}
		}
	}
}

// TestStopIsOneCall checks that stopping many queues of a process is one call and one
// runlist update.
func TestStopIsOneCall(t *testing.T) {
	const n = 64
	for _, patched := range []bool{false, true} {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: patched}, nil)
		first, q := h.attach()
		queues := []*queue{q}
		for range n - 1 {
			_, q := h.addQueue(first.PID)
			queues = append(queues, q)
		}
		must := func(errs []error) {
			t.Helper()
			check(t, errors.Join(errs...))
		}
		must(h.driver.stop(queues)) // this may open a session
		must(h.driver.start(queues))
		before := h.KFD().Updates(h.gpu.node.GPU)
		stops, _, _ := h.driver.stats.totals()
		must(h.driver.stop(queues[:n-1]))
		if got := h.KFD().Updates(h.gpu.node.GPU) - before; got != 1 {
			t.Errorf("patched %v: got %d runlist updates, want 1", patched, got)
		}
		now, _, _ := h.driver.stats.totals()
		if now.calls-stops.calls != 1 || now.queues-stops.queues != n-1 {
			t.Errorf("patched %v: got %+v after %+v, want one call more", patched, now, stops)
		}
		want := slotUse{slots: kfdtest.MI300X.Slots, active: 1, stopped: n - 1, exact: patched}
		if u, err := h.gpu.slotUse(); err != nil || u != want {
			t.Errorf("patched %v: got %+v, %v; want %+v", patched, u, err, want)
		}
	}
}

// TestNewQueues checks that queues that are created during a debug session can be stopped,
// including one with the id of a destroyed queue.
func TestNewQueues(t *testing.T) {
	h := newHarness(t, "amd-hws", kfdtest.Config{}, nil)
	id, q := h.attach()
	h.mustStop(id, q)
	born, q2 := h.addQueue(id.PID)
	h.mustStop(born, q2)
	if h.KFD().Active(id) {
		t.Error("the first queue runs again")
	}
	if got := h.KFD().Calls(kfdtest.Trap(kfd.OpEnable)); got != 2 {
		t.Errorf("got %d sessions, want 2: one for the proof and one for the stops", got)
	}
	check(t, h.start(q2))
	f := h.KFD().Open(id.PID)
	check(t, kfdtest.DestroyQueue(f, born.Queue))
	if again := createQueue(t, f, h.gpu); again != born.Queue {
		t.Fatalf("got queue %d, want id %d again", again, born.Queue)
	}
	h.mustStop(born, q2)
}

// TestExec checks that a new session is opened when the driver has ended the session of a
// process, as it does when the process calls exec.
func TestExec(t *testing.T) {
	h := newHarness(t, "amd-hws", kfdtest.Config{}, nil)
	id, q := h.attach()
	for _, op := range []uint32{kfd.OpQueueSnapshot, kfd.OpSuspendQueues} {
		h.mustStop(id, q)
		h.KFD().Inject(kfdtest.Trap(op), kfdtest.Fault{Errno: unix.EINVAL, Times: 1})
		q2, err := h.gpu.attach(target{pid: id.PID, queue: id.Queue})
		check(t, err)
		h.mustStop(id, q2)
	}
	h.KFD().Inject(kfdtest.Trap(kfd.OpSuspendQueues), kfdtest.Fault{Errno: unix.EINVAL})
	if err := h.stop(q); hal.Outcome(err) != sched.Gone {
		t.Errorf("repeated EINVAL: got %v, want %v", err, hal.ErrGone)
	}
}

// TestForeignProcesses checks that a process that another debugger traces, or that belongs
// to another user, cannot be stopped.
func TestForeignProcesses(t *testing.T) {
	h := newHarness(t, "amd-hws", kfdtest.Config{}, nil)
	id := h.queues[h.Open()]
	h.World.Trace(1, id.PID)
	q, err := h.gpu.attach(target{pid: id.PID, queue: id.Queue})
	check(t, err)
	if len(q.methods) != 0 || !errors.Is(q.why, unix.EPERM) || !errors.Is(q.why, hal.ErrNotSupported) {
		t.Errorf("traced by another: got methods %v because of %v, want none because of EPERM", q.methods, q.why)
	}
	if err := h.stop(q); hal.Outcome(err) != sched.Unsupported {
		t.Errorf("stop without a method: got %v, want %v", err, hal.ErrNotSupported)
	}
	h.World.Trace(0, id.PID)

	sys := t.TempDir()
	h2, err := kfdtest.NewHarness("amd-hws", kfdtest.Config{Patched: true, Sys: sys})
	check(t, err)
	h2.World.Start(daemonPID, 1234) // not root
	d, err := open(Config{Sys: kfd.Sysfs(sys), File: h2.KFD().Open(daemonPID), Tracer: refusingTracer{}})
	check(t, err)
	defer d.close()
	id, err = h2.Open(3000)
	check(t, err)
	q, err = d.gpus[0].attach(target{pid: id.PID, queue: id.Queue})
	if err != nil || len(q.methods) != 0 {
		t.Errorf("another user's process: got %v, %v; want no methods", q.methods, err)
	}
}

type refusingTracer struct{ worldTracer }

func (refusingTracer) Seize(int) error { return unix.EPERM }
func (refusingTracer) Release(int)     {}
