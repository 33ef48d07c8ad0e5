package nvidia

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/nvidia/nvtrace"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

const testGPU = "GPU-abcd0000-0000-0000-0000-000000000001"

// testConfig is for a backend on the driver double with a known driver, no trace and no
// eBPF.
func testConfig(control string) Config {
	return Config{
		Root:       driverRoot("580.159.04"),
		GPUPattern: filepath.Join(filepath.Dir(control), "nvidia%d"),
		Control:    control,
		Only:       proc.Everyone,
		NoTrace:    true,
		Poll:       20 * time.Millisecond,
		NoBPF:      true,
	}
}

// driverRoot is a root directory with a driver of that version; empty: with none.
func driverRoot(version string) fs.FS {
	root := fstest.MapFS{"proc/driver/nvidia/gpus/0000:01:00.0/information": {Data: []byte(
		"Model: \t\t NVIDIA H200\nGPU UUID: \t " + testGPU + "\nDevice Minor: \t 3\n")}}
	if version != "" {
		root["proc/driver/nvidia/version"] = &fstest.MapFile{Data: []byte(
			"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " + version + "  Release Build\n")}
	}
	return root
}

func newDouble(t *testing.T) (*nvrmtest.RM, *nvrmtest.Mount) {
	t.Helper()
	rm := nvrmtest.New(nvrmtest.Config{UUID: [16]byte{0xab, 0xcd, 15: 1}})
	return rm, nvrmtest.Mounted(t, rm)
}

// start starts a backend. stop ends it as the daemon does: every queue is closed before
// Close is called.
func start(t *testing.T, cfg Config) (b *Backend, h *fakeHost, stop func()) {
	t.Helper()
	b, h = New(cfg), &fakeHost{turns: map[int]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	if err := b.Start(ctx, h); err != nil {
		t.Fatal(err)
	}
	return b, h, func() {
		cancel()
		for _, q := range h.open() {
			_ = q.queue.Close()
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// made is a CUDA context that this process has made on the double.
type made struct {
	file *nvrm.File
	nvrmtest.Context
	process proc.Process
}

func makeContext(t *testing.T, control string) made {
	t.Helper()
	f, err := nvrm.Open(control)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c, err := nvrmtest.NewContext(f)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Look(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return made{f, c, p}
}

// group is the compute group as discovery reports it, with n channels and a descriptor of
// its own.
func (m made) group(t *testing.T, n int) *discover.Group {
	t.Helper()
	fd, err := syscall.Dup(m.file.Fd())
	if err != nil {
		t.Fatal(err)
	}
	return &discover.Group{
		Key: discover.Key{Client: m.Client, Handle: m.Compute.Group}, Process: m.process, GPU: testGPU, Subdevice: m.Subdevice,
		Channels: m.Compute.Channels[:n], File: nvrm.NewFile(fd),
	}
}

func (m made) slice(t *testing.T) time.Duration {
	t.Helper()
	d, err := nvrm.Group{File: m.file, Client: m.Client, Handle: m.Compute.Group}.Timeslice()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// newOnDouble returns a backend that is not started, on a double on which this process has
// made a context.
func newOnDouble(t *testing.T, h *fakeHost) (*Backend, *fakeHost, made, *nvrmtest.RM) {
	t.Helper()
	rm, m := newDouble(t)
	b := New(testConfig(m.Path))
	b.host = h
	return b, h, makeContext(t, m.Path), rm
}

// writes returns how often the driver was asked to change something.
func writes(rm *nvrmtest.RM) int {
	return rm.Calls(nvrmtest.Control(nvrmtest.SetTimeslice)) + rm.Calls(nvrmtest.Control(nvrmtest.DisableChannels))
}

func isClosed(f *nvrm.File) bool { return f.Close() != nil }

// TestProcessesAreFoundAndGivenUp runs the backend on two processes until one is killed
// and the daemon shuts down.
func TestProcessesAreFoundAndGivenUp(t *testing.T) {
	rm, m := newDouble(t)
	first, second := m.Start(t), m.Start(t)
	b, h, stop := start(t, testConfig(m.Path))
	drivertest.Eventually(t, "the first group is pending", func() bool {
		p := b.Find(first.PID).Pending
		return p != nil && p.PID == first.PID
	})
	drivertest.Eventually(t, "both groups can be controlled", func() bool {
		return len(h.open()) == 2 && !slices.ContainsFunc(h.open(), func(q *fakeQueue) bool { return q.detail.Load().Settling })
	})
	for _, q := range h.open() {
		if got, want := hal.Abilities(q.queue), sched.CanSlice|sched.CanInterrupt; got != want {
			t.Errorf("process %d: abilities: got %v, want %v", q.Info().PID, got, want)
		}
		if got, want := *q.detail.Load(), (hal.Detail{FoundSlice: defaultSlice}); !reflect.DeepEqual(got, want) {
			t.Errorf("process %d: detail: got %+v, want %+v", q.Info().PID, got, want)
		}
	}
	if len(h.devices) != 1 {
		t.Fatalf("devices: got %d, want 1", len(h.devices))
	}
	if i := h.devices[0].Info(); i.Device.ID != testGPU || i.Model != "NVIDIA H200" || i.Index != 3 || i.Backend != "nvidia" {
		t.Errorf("device: got %+v", i)
	}
	clients := rm.Clients()
	second.Kill()
	drivertest.Eventually(t, "the killed process is withdrawn and its clients are freed", func() bool {
		return len(h.open()) == 1 && rm.Clients() == clients/2
	})
	h.mu.Lock()
	for _, q := range h.queues {
		if q.Info().PID == second.PID && !q.exited && !q.detail.Load().Settling {
			t.Error("the queue of the killed process was withdrawn as if the process lived")
		}
	}
	h.mu.Unlock()
	if f := b.Find(1); f != (hal.Found{}) {
		t.Errorf("Find of a process without groups: got %+v", f)
	}
	stop()
	if n := rm.Clients(); n != clients/2 {
		t.Errorf("clients after Close: got %d, want %d", n, clients/2)
	}
}

// TestMPSServerGroupIsShared checks that the group of an MPS server can be sliced only, is
// shown as shared, and is named when a client of the server is looked for.
func TestMPSServerGroupIsShared(t *testing.T) {
	b, h, made, _ := newOnDouble(t, &fakeHost{})
	g := made.group(t, 0)
	g.MPSServer = true
	b.arrived(g, time.Time{})
	b.offerDue(time.Now())
	q := h.open()[0]
	if got := hal.Abilities(q.queue); got != sched.CanSlice {
		t.Errorf("abilities: got %v, want %v", got, sched.CanSlice)
	}
	if got := q.detail.Load().SharedBy; got != "mps" {
		t.Errorf("shared by: got %q, want mps", got)
	}
	if note := b.Find(1).Note; !strings.Contains(note, "MPS") {
		t.Errorf("note: got %q, want one that names the MPS server", note)
	}
}

// TestGuardianRestoresHandedOffGroup checks that the state of an offer, as JSON, and a copy
// of the descriptor are enough to restore a group.
func TestGuardianRestoresHandedOffGroup(t *testing.T) {
	b, h, made, rm := newOnDouble(t, &fakeHost{})
	b.arrived(made.group(t, 8), time.Time{})
	b.offerDue(time.Now())
	q := h.open()[0]
	state, err := json.Marshal(q.offer.Handoff.State)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(q.offer.Handoff.FD)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(q.queue.(hal.Slicer).SetSlice(sched.MinSlice), q.queue.(hal.Interrupter).Interrupt()); err != nil {
		t.Fatal(err)
	}
	adopted, err := New(Config{}).Adopt(state, fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := adopted.Close(); err != nil {
		t.Error(err)
	}
	if d := made.slice(t); d != defaultSlice || rm.Disabled(made.Client, made.Compute.Channels[0]) {
		t.Errorf("slice: got %v, want %v; channels must be enabled", d, defaultSlice)
	}
	if _, err := b.Adopt([]byte("{"), -1); err == nil {
		t.Error("state that is no JSON: got no error")
	}
}

// TestRestoreAllWithoutDaemon checks that groups which were left changed get CUDA's slice
// and run.
func TestRestoreAllWithoutDaemon(t *testing.T) {
	rm, m := newDouble(t)
	p := m.Start(t)
	m.Start(t)
	g := findGroup(t, m.Path, p.PID)
	group := nvrm.Group{File: g.File, Client: g.Client, Handle: g.Handle}
	if err := errors.Join(group.SetTimeslice(time.Microsecond), nvrm.DisableChannels(g.File, g.Client, g.Subdevice, g.Channels, true)); err != nil {
		t.Fatal(err)
	}
	rm.Inject(nvrmtest.Control(nvrmtest.GetGIDInfo), nvrmtest.Fault{Latency: time.Second, Times: 1}) // a slow driver is waited for
	got, err := New(testConfig(m.Path)).RestoreAll(t.Context())
	if want := (hal.Restored{Queues: 2, Slices: 1}); got != want || err != nil {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if d, err := group.Timeslice(); d != defaultSlice || err != nil || rm.Disabled(g.Client, g.Channels[0]) {
		t.Errorf("slice: got %v, %v; want %v; channels must be enabled", d, err, defaultSlice)
	}
}

// findGroup returns the compute group of another process.
func findGroup(t *testing.T, control string, pid int) *discover.Group {
	t.Helper()
	w, err := discover.Watch(t.Context(), discover.Config{Control: control, Only: proc.Everyone, NoBPF: true, Once: true})
	if err != nil {
		t.Fatal(err)
	}
	var found *discover.Group
	for ev := range w.Events() {
		switch {
		case ev.Found == nil:
		case ev.Found.Process.PID == pid:
			found = ev.Found
			t.Cleanup(func() { found.File.Close() })
		default:
			ev.Found.File.Close()
		}
	}
	if found == nil {
		t.Fatalf("process %d has no compute group", pid)
	}
	return found
}

// TestUnknownDriver checks what is done with a driver that is not in the table: everything
// but the trace if its self-test passes, nothing otherwise.
func TestUnknownDriver(t *testing.T) {
	for _, tt := range []struct {
		name     string
		version  string
		broken   bool // the driver answers DISABLE_CHANNELS in its own way
		readOnly bool
		traced   bool
		detail   string
	}{
		{"known and run", "580.159.04", false, false, true, "580.159.04, open module, known: compared with its source, branch run on hardware"},
		{"known", "570.211.01", false, false, true, "never run on hardware"},
		{"unknown, passes", "610.57.04", false, false, false, "unknown: its self-test passed"},
		{"no version, passes", "", false, false, false, "of unknown version, unknown: its self-test passed"},
		{"unknown, fails", "700.01.02", true, true, false, "self-test failed (wrong calls: an unknown channel: got"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rm, m := newDouble(t)
			if tt.broken {
				rm.Inject(nvrmtest.Control(nvrmtest.DisableChannels), nvrmtest.Fault{Status: nvrm.ErrInvalidArgument})
			}
			cfg := testConfig(m.Path)
			cfg.Root, cfg.NoTrace = driverRoot(tt.version), false
			cfg.openTrace = func(nvtrace.Config) (traceReader, error) { return &fakeTrace{}, nil }
			b, h := New(cfg), &fakeHost{}
			b.host = h
			driver, usable := b.driver.check()
			if driver.OK == tt.readOnly || !usable || !strings.Contains(driver.Detail, tt.detail) || driver.OK != (driver.Fix == "") {
				t.Errorf("check: got %+v, want %q", driver, tt.detail)
			}
			before := writes(rm)
			made := makeContext(t, m.Path)
			b.arrived(made.group(t, 8), time.Time{})
			b.offerDue(time.Now())
			q := h.open()[0]
			want := sched.CanSlice | sched.CanInterrupt
			if tt.readOnly {
				want = 0
			}
			if got := hal.Abilities(q.queue); got != want {
				t.Errorf("abilities: got %v, want %v", got, want)
			}
			if (q.offer.Handoff == nil) != tt.readOnly {
				t.Errorf("handoff: got %v", q.offer.Handoff)
			}
			if got := q.detail.Load().FoundSlice; got != defaultSlice {
				t.Errorf("found slice: got %v, want %v", got, defaultSlice)
			}
			if got := h.devices[0].(hal.Tracing).Tracing(); got != tt.traced {
				t.Errorf("tracing: got %v, want %v", got, tt.traced)
			}
			if err := q.queue.Close(); err != nil {
				t.Error(err)
			}
			if n := writes(rm) - before; tt.readOnly && n != 0 {
				t.Errorf("writes to a driver that must not be changed: got %d, want 0", n)
			}
		})
	}
}

// TestRestoreAllIsReadOnly checks that restore, too, leaves a driver alone that failed its
// self-test.
func TestRestoreAllIsReadOnly(t *testing.T) {
	rm, m := newDouble(t)
	m.Start(t)
	rm.Inject(nvrmtest.Control(nvrmtest.DisableChannels), nvrmtest.Fault{Status: nvrm.ErrInvalidArgument})
	cfg := testConfig(m.Path)
	cfg.Root = driverRoot("700.01.02")
	got, err := New(cfg).RestoreAll(t.Context())
	if got != (hal.Restored{}) || err == nil || !strings.Contains(err.Error(), "self-test failed") {
		t.Errorf("got %+v, %v; want an error about the self-test", got, err)
	}
}

// TestDriverIsWaitedFor checks that a driver which is loaded after the daemon has started
// is found, and that a machine without one has no failed check.
func TestDriverIsWaitedFor(t *testing.T) {
	defer func(d time.Duration) { driverInterval = d }(driverInterval)
	driverInterval = 10 * time.Millisecond
	_, m := newDouble(t)
	later := filepath.Join(t.TempDir(), "nvidiactl")
	cfg := testConfig(later)
	cfg.Root = driverRoot("")
	b, h, stop := start(t, cfg)
	defer stop()
	for _, c := range append(b.Checks(), b.Probe(t.Context())...) {
		if !c.OK || c.Detail != "none is loaded" {
			t.Errorf("check without a driver: got %+v", c)
		}
	}
	b.Find(1)
	m.Start(t)
	if err := os.Symlink(m.Path, later); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the group is offered", func() bool { return len(h.open()) == 1 })
}

// TestCheckWithoutControlDevice checks what doctor says where the control device of a
// loaded driver is missing.
func TestCheckWithoutControlDevice(t *testing.T) {
	b := New(testConfig(filepath.Join(t.TempDir(), "nvidiactl")))
	if c := b.Checks(); len(c) != 1 || c[0].OK || !strings.Contains(c[0].Detail, "580.159.04 is loaded") || c[0].Fix == "" {
		t.Errorf("no device file: got %+v", c)
	}
	if n := b.KernelLogLines(); n != 0 {
		t.Errorf("kernel log lines: got %d, want 0", n)
	}
}

// TestProbe checks what doctor says without a daemon.
func TestProbe(t *testing.T) {
	_, m := newDouble(t)
	m.Start(t)
	names := map[string]bool{}
	for _, c := range New(testConfig(m.Path)).Probe(t.Context()) {
		names[c.Name] = c.OK
	}
	for name, want := range map[string]bool{"NVIDIA driver": true, "control device": true, "processes": true, "eBPF": false} {
		if got, listed := names[name]; got != want || !listed {
			t.Errorf("check %q: got %v, listed %v; want %v", name, got, listed, want)
		}
	}
}
