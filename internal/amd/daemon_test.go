package amd_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/backends"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/daemon"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/shim/pagetest"
	preload "github.com/giveway/giveway/shim"
)

// The tests in this file run the real daemon with the AMD and shim backends on the test
// double behind a real path, with real processes.

// Modes of the test binary, set by the environment variable modeEnv.
const (
	modeEnv      = "AMD_TEST_MODE"
	modeGuardian = "guardian"
	modeDaemon   = "daemon" // with the arguments device, sysfs and, optionally, socket
)

// TestMain runs the test binary as a guardian or a daemon if the environment says so.
func TestMain(m *testing.M) {
	switch os.Getenv(modeEnv) {
	case modeGuardian:
		_ = guardian.Run(3, backends.Adopt, slog.New(slog.DiscardHandler))
	case modeDaemon:
		d, gates := newDaemon(os.Args[1], os.Args[2])
		if len(os.Args) > 3 {
			s := server.New(d, server.Config{Socket: os.Args[3], Pages: gates})
			go func() { _ = s.Serve(context.Background()) }()
		}
		_ = d.Run(context.Background())
	default:
		os.Exit(m.Run())
	}
}

// newDaemon makes a daemon. In modeDaemon every process is of class batch.
func newDaemon(device, sys string) (*daemon.Daemon, *shim.Backend) {
	gates, err := shim.New(proc.Everyone)
	if err != nil {
		panic(err)
	}
	b := amd.New(amd.Config{Dev: device, Sys: kfd.Sysfs(sys), Only: proc.Everyone, Shim: func(pid int) amd.Shim {
		if g := gates.GateOf(pid); g != nil {
			return g
		}
		return nil
	}})
	file := config.Config{Policy: api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}}}
	if os.Getenv(modeEnv) == modeDaemon {
		file.Rules = []config.Rule{{Attrs: attr.Must("class=batch")}}
		// The shim's thread needs a CPU to stop a process within a turn.
		file.Policy = api.Policy{Name: "rr", Params: map[string]string{"quantum": "200ms"}}
	}
	d, err := daemon.New(daemon.Config{
		File:     file,
		Guardian: []string{"/usr/bin/env", modeEnv + "=" + modeGuardian, os.Args[0]},
		Backends: []hal.Backend{gates, b},
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	return d, gates
}

// runningDaemon is a daemon that runs until stop is called or the test is over.
type runningDaemon struct {
	*daemon.Daemon
	m          *machine
	gates      *shim.Backend
	socket     string
	stopServer func() // which disconnects the shims
	stop       func()
}

func (m *machine) daemon() *runningDaemon {
	m.Helper()
	d := &runningDaemon{m: m, socket: filepath.Join(m.TempDir(), "s")}
	d.Daemon, d.gates = newDaemon(m.Path, m.Sys)
	ctx, cancel := context.WithCancel(context.Background())
	s := server.New(d.Daemon, server.Config{Socket: d.socket, Pages: d.gates})
	m.check(s.Listen())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := d.Run(ctx); err != nil {
			m.Errorf("daemon: got %v, want no error", err)
		}
	})
	m.eventually("started", func() bool { return len(d.Status().Devices) > 0 })
	serving, stopServing := context.WithCancel(ctx)
	served := make(chan struct{})
	ended.Go(func() { defer close(served); _ = s.Serve(serving) })
	d.stopServer = func() {
		stopServing()
		<-served
	}
	d.stop = func() {
		cancel()
		ended.Wait()
	}
	m.Cleanup(d.stop)
	return d
}

func (d *runningDaemon) change(pid int, c api.Change) {
	d.m.Helper()
	_, err := d.Change(server.Caller{All: true}, pid, c)
	d.m.check(err)
}

// queue returns the queue of a process in giveway ps, or nil.
func (d *runningDaemon) queue(pid int) *api.Queue {
	for _, p := range d.Processes() {
		if p.PID == pid && len(p.Queues) == 1 {
			return &p.Queues[0]
		}
	}
	return nil
}

// can reports whether the queue of a process has a stop method and abilities.
func (d *runningDaemon) can(pid int, method string, want ...string) bool {
	q := d.queue(pid)
	return q != nil && q.Way == method && slices.Equal(q.Can, want)
}

// holds returns how often a launch of a process waited at its gate.
func (d *runningDaemon) holds(pid int) uint64 {
	for _, p := range d.Processes() {
		if p.PID == pid && p.Shim != nil {
			return p.Shim.Holds
		}
	}
	return 0
}

func (d *runningDaemon) state(pid int) string {
	if q := d.queue(pid); q != nil {
		return q.State
	}
	return ""
}

// failed reports whether the doctor has a failed check whose name begins so.
func (d *runningDaemon) failed(name string) bool {
	return slices.ContainsFunc(d.Status().Checks, func(c api.Check) bool { return strings.HasPrefix(c.Name, name) && !c.OK })
}

var (
	asOnline   = api.Change{Values: attr.Must("class=online")}
	asBatch    = api.Change{Values: attr.Must("class=batch")}
	asStandard = api.Change{Values: attr.Must("class=standard")}
	asIdle     = api.Change{Values: attr.Must("class=idle")}
	paused     = api.Change{Values: attr.Must("paused=true")}
	resumed    = api.Change{Values: attr.Must("paused=false")}
)

// TestDaemonSchedulesProcesses follows two processes through classes, pause and resume, a
// new queue, the exit of one, and the end of the daemon.
func TestDaemonSchedulesProcesses(t *testing.T) {
	onBothDrivers(t, func(m *machine, _ bool, _ string) {
		train := m.StartProcess(3)
		d := m.daemon()
		m.eventually("found", func() bool { q := d.queue(train.PID); return q != nil && q.KFDQueues == 3 })
		if q := d.queue(train.PID); !strings.HasPrefix(q.Device, "amd-") || q.State != "running" {
			m.Errorf("got %+v, want it running on an AMD device", q)
		}
		if calls := m.Calls(kfdtest.Trap(kfd.OpEnable)); calls != 0 || m.Left() != "" {
			m.Errorf("an unmanaged process: got %d debug sessions, %q; want none", calls, m.Left())
		}
		serve := m.StartProcess(1)
		d.change(serve.PID, asStandard) // before a listing can have found it

		d.change(train.PID, paused)
		m.eventually("stopped", func() bool { return train.Running() == 0 })
		m.eventually("shown as stopped", func() bool {
			q := d.queue(train.PID)
			return q.State == "stopped" && slices.Equal(q.Can, []string{"interrupt"})
		})
		train.AddQueue()
		m.eventually("stopped", func() bool { return train.Running() == 0 })
		if serve.Running() != 1 {
			m.Error("the other process was stopped too")
		}
		d.change(train.PID, resumed)
		m.eventually("running", func() bool { return train.Running() == 4 })

		d.change(train.PID, asBatch)
		d.change(serve.PID, asOnline)
		m.eventually("stopped", func() bool { return train.Running() == 0 })
		if serve.Running() != 1 {
			m.Error("the online process was stopped")
		}
		serve.Kill()
		m.eventually("running alone", func() bool { return train.Running() == 4 && len(d.Processes()) == 1 })

		d.change(train.PID, paused)
		m.eventually("stopped", func() bool { return train.Running() == 0 })
		d.stop()
		if train.Running() != 4 {
			m.Errorf("after the daemon: got %d running queues, want 4", train.Running())
		}
		m.eventually("nothing left", func() bool { return m.Left() == "" })
	})
}

// enter connects a process to the shim backend, as the shim in it does.
func (d *runningDaemon) enter(pid int) (inside *pagetest.Process, leave func()) {
	d.m.Helper()
	fds, leave, err := d.gates.Admit(server.ShimProcess{PID: pid, UID: uint32(os.Getuid()), Runtime: "hip"})
	d.m.check(err)
	inside, err = pagetest.NewProcess(fds[0], fds[1], fds[2])
	d.m.check(err)
	return inside, leave
}

// TestDaemonCombinesGateAndQueues checks that a process with a gate and KFD queues is one
// queue that can do what either can, and that the KFD queues outlive the gate.
func TestDaemonCombinesGateAndQueues(t *testing.T) {
	onBothDrivers(t, func(m *machine, _ bool, method string) {
		p := m.StartProcess(2)
		d := m.daemon()
		inside, leave := d.enter(p.PID)
		d.change(p.PID, asBatch)
		m.eventually("holdable and stoppable", func() bool { return d.can(p.PID, method, "hold", "interrupt", "bound") })
		if q := d.queue(p.PID); !strings.HasPrefix(q.Device, "amd-") {
			m.Errorf("got device %s, want an AMD device", q.Device)
		}
		d.change(p.PID, paused)
		m.eventually("stopped", func() bool { return p.Running() == 0 })
		leave()
		m.check(inside.Close())
		m.eventually("stoppable without its gate", func() bool { return d.can(p.PID, method, "interrupt") })
		if p.Running() != 0 {
			m.Error("the queues started when the gate was withdrawn")
		}
		d.change(p.PID, resumed)
		m.eventually("running", func() bool { return p.Running() == 2 })
	})
}

// TestDaemonRestoreEndsSessions checks that after giveway restore a process is unmanaged
// and in no debug session.
func TestDaemonRestoreEndsSessions(t *testing.T) {
	m := newMachine(t, false)
	p := m.StartProcess(1)
	d := m.daemon()
	d.change(p.PID, paused)
	m.eventually("stopped", func() bool { return p.Running() == 0 })
	m.check(d.Restore(server.Caller{All: true}))
	m.eventually("restored", func() bool { return p.Running() == 1 && m.Left() == "" && d.can(p.PID, "") })
}

// TestDaemonStopsInOneCall checks that the stop of a process with ten queues is one call
// of the patched driver and one runlist update.
func TestDaemonStopsInOneCall(t *testing.T) {
	m := newMachine(t, true)
	p := m.StartProcess(10)
	d := m.daemon()
	m.eventually("stoppable", func() bool { return d.can(p.PID, "batch", "interrupt") })
	unmaps, updates := m.Calls(kfdtest.Request(kfd.ReqBatchUnmap)), m.Updates(kfdtest.MI300X.GPU)
	d.change(p.PID, paused)
	m.eventually("stopped", func() bool { return p.Running() == 0 })
	if got := m.Calls(kfdtest.Request(kfd.ReqBatchUnmap)) - unmaps; got != 1 {
		t.Errorf("got %d calls, want 1", got)
	}
	if got := m.Updates(kfdtest.MI300X.GPU) - updates; got != 1 {
		t.Errorf("got %d runlist updates, want 1", got)
	}
}

// TestDaemonRetriesRefusedStops checks that a stop that the driver refused is repeated.
func TestDaemonRetriesRefusedStops(t *testing.T) {
	m := newMachine(t, true)
	p := m.StartProcess(2)
	d := m.daemon()
	m.eventually("stoppable", func() bool { return d.can(p.PID, "batch", "interrupt") })
	m.Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{Hardware: true})
	m.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{Errno: unix.EPERM})
	d.change(p.PID, paused)
	m.eventually("refused", func() bool { return d.failed("AMD calls") && p.Running() == 2 })
	m.Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{})
	m.eventually("stopped", func() bool { return p.Running() == 0 })
}

// TestDaemonSurvivesHangingCall checks that a call of the driver that hangs delays neither
// the daemon nor other processes.
func TestDaemonSurvivesHangingCall(t *testing.T) {
	m := newMachine(t, true)
	first := m.StartProcess(1)
	second := m.StartProcess(1)
	d := m.daemon()
	m.eventually("stoppable", func() bool { return d.can(first.PID, "batch", "interrupt") && d.can(second.PID, "batch", "interrupt") })
	hang, unmap := make(chan struct{}), kfdtest.Request(kfd.ReqBatchUnmap)
	m.Inject(unmap, kfdtest.Fault{Hang: hang, Times: 1})
	calls := m.Calls(unmap)
	d.change(first.PID, paused)
	m.eventually("in the call", func() bool { return m.Calls(unmap) > calls })
	d.change(second.PID, paused)
	m.eventually("stopped beside the hanging call", func() bool { return second.Running() == 0 })
	close(hang)
	m.eventually("stopped after the hang", func() bool { return first.Running() == 0 })
}

// startDaemon starts a daemon in a process of its own.
func (m *machine) startDaemon(socket ...string) *exec.Cmd {
	m.Helper()
	cmd := exec.Command(os.Args[0], append([]string{m.Path, m.Sys}, socket...)...)
	cmd.Env = append(os.Environ(), modeEnv+"="+modeDaemon)
	m.check(cmd.Start())
	m.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// TestDriverRestoresWhenDaemonIsKilled kills the daemon while it has queues stopped, alone or
// together with its guardian.
func TestDriverRestoresWhenDaemonIsKilled(t *testing.T) {
	onBothDrivers(t, func(m *machine, _ bool, _ string) {
		first, second := m.StartProcess(2), m.StartProcess(3)
		running := func() int { return first.Running() + second.Running() }
		for round := range 4 {
			cmd := m.startDaemon()
			m.eventually("stopped", func() bool { return running() < 5 })
			time.Sleep(time.Duration(round*7) * time.Millisecond)
			if round%2 == 1 && drivertest.KillChildren(cmd.Process.Pid) == 0 {
				t.Error("the daemon has no guardian")
			}
			m.check(cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
			m.eventually("restored by the driver", func() bool { return running() == 5 && m.Left() == "" })
		}
	})
}

// TestDaemonReservesSlots checks that slots are reserved for the queues of online processes,
// shown, released when there is no such process and when the daemon is killed, and that a
// stock driver is asked for none.
func TestDaemonReservesSlots(t *testing.T) {
	onBothDrivers(t, func(m *machine, patched bool, _ string) {
		serve := m.StartProcess(2)
		d := m.daemon()
		m.eventually("found", func() bool { return d.queue(serve.PID) != nil })
		d.change(serve.PID, asOnline)
		if !patched {
			m.eventually("attached", func() bool { return len(d.queue(serve.PID).Can) > 0 })
			if q := d.queue(serve.PID); q.ReservedSlots != 0 || d.failed("AMD reservation") {
				m.Errorf("on a stock driver: got %+v and %+v, want no reservation", q, d.Status().Checks)
			}
			return
		}
		reserved := func() bool { return strings.Contains(m.Left(), "reserved") }
		m.eventually("reserved and shown", func() bool {
			s := d.Status().Devices[0].Slots
			return reserved() && d.queue(serve.PID).ReservedSlots == 2 && s != nil && s.Reserved == 2 && s.Total == int(kfdtest.MI300X.Slots)
		})
		d.change(serve.PID, asBatch)
		m.eventually("released", func() bool { return !reserved() && d.queue(serve.PID).ReservedSlots == 0 })
		d.change(serve.PID, asOnline)
		m.eventually("reserved again", reserved)
		d.stop()
		m.eventually("released at the end", func() bool { return m.Left() == "" })

		socket := filepath.Join(m.TempDir(), "killed")
		cmd := m.startDaemon(socket)
		c := client.New(socket)
		m.eventually("online", func() bool {
			_, err := c.Change(context.Background(), serve.PID, asOnline)
			return err == nil
		})
		m.eventually("reserved by the other daemon", reserved)
		m.check(cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		m.eventually("released by the driver", func() bool { return m.Left() == "" })
	})
}

// TestDaemonDoctor checks the status of the daemon and the check of a process that
// another debugger traces.
func TestDaemonDoctor(t *testing.T) {
	m := newMachine(t, false)
	d := m.daemon()
	if s := d.Status(); len(s.Devices) != 1 || s.Devices[0].Backend != "amd" || !strings.Contains(s.Devices[0].Model, "gfx942") {
		t.Errorf("got devices %+v, want one gfx942", s.Devices)
	}
	if d.failed("AMD") {
		t.Errorf("got %+v, want no failed check", d.Status().Checks)
	}
	p := m.StartProcess(1)
	m.check(unix.PtraceSeize(p.PID)) // this thread is the other debugger
	d.change(p.PID, paused)
	m.eventually("reported as not stoppable", func() bool { return d.failed(fmt.Sprintf("AMD queues of %d", p.PID)) })
	if p.Running() != 1 {
		t.Error("the process was stopped")
	}
}

// TestDaemonReportsInversions checks that an online process which shares too few slots
// with a lower class is reported, and no longer when the lower class is stopped.
func TestDaemonReportsInversions(t *testing.T) {
	m := newMachine(t, false)
	serve, crowd := m.StartProcess(1), m.StartProcess(int(kfdtest.MI300X.Slots))
	d := m.daemon()
	m.eventually("found", func() bool { return d.queue(serve.PID) != nil && d.queue(crowd.PID) != nil })
	reported := func() bool { return d.failed("AMD priority inversion") }
	if reported() {
		t.Error("an inversion is reported among processes of one class")
	}
	d.change(serve.PID, asOnline)
	m.eventually("reported", reported)
	d.change(crowd.PID, asBatch)
	m.eventually("resolved", func() bool { return crowd.Running() == 0 && !reported() })
}

// TestDaemonWithoutDeviceFile checks that a daemon that may not open KFD says so.
func TestDaemonWithoutDeviceFile(t *testing.T) {
	m := newMachine(t, true)
	p := m.StartProcess(1)
	d, _ := newDaemon(m.Path+"-missing", m.Sys)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	m.eventually("reported", func() bool {
		return slices.ContainsFunc(d.Status().Checks, func(c api.Check) bool { return strings.Contains(c.Detail, "-missing") && !c.OK })
	})
	if _, err := d.Change(server.Caller{All: true}, p.PID, paused); err == nil {
		t.Error("an order for a process that the daemon cannot know was accepted")
	}
	stop()
	m.check(<-ended)
}

// preloaded is a C process that runs under the shim as it is built for use.
type preloaded struct {
	m   *machine
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
	ids []kfdtest.QueueID
}

// buildPreloaded compiles shim/test/kfdwork.c and writes the library, or skips the test.
func (m *machine) buildPreloaded() (dir string) {
	m.Helper()
	library, err := preload.Library()
	if err != nil {
		m.Skip(err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		m.Skip("gcc is needed to compile shim/test/kfdwork.c")
	}
	dir = m.TempDir()
	m.check(os.WriteFile(filepath.Join(dir, "libgiveway.so"), library, 0o600))
	if out, err := exec.Command("gcc", "-O2", "-o", filepath.Join(dir, "work"), "../../shim/test/kfdwork.c", "-pthread").CombinedOutput(); err != nil {
		m.Fatalf("gcc: %v: %s", err, out)
	}
	return dir
}

func (m *machine) preloaded(dir, socket string, queues int) *preloaded {
	m.Helper()
	p := &preloaded{m: m, cmd: exec.Command(filepath.Join(dir, "work"), m.Path)}
	p.cmd.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(dir, "libgiveway.so"), "GIVEWAY_SOCKET="+socket)
	in, err := p.cmd.StdinPipe()
	m.check(err)
	out, err := p.cmd.StdoutPipe()
	m.check(err)
	p.in, p.out = in, bufio.NewReader(out)
	m.check(p.cmd.Start())
	m.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // it was killed
	})
	p.expect("ready\n")
	for range queues {
		p.addQueue()
	}
	return p
}

func (p *preloaded) pid() int { return p.cmd.Process.Pid }

func (p *preloaded) expect(want string) {
	p.m.Helper()
	if line, err := p.out.ReadString('\n'); err != nil || line != want {
		p.m.Fatalf("got line %q, %v; want %q", line, err, want)
	}
}

func (p *preloaded) addQueue() {
	p.m.Helper()
	id := uint32(len(p.ids))
	_, err := fmt.Fprintf(p.in, "create %d 2 %d 8192 100 7 96\n", kfdtest.MI300X.GPU, 1<<30)
	p.m.check(err)
	p.expect(fmt.Sprintf("created 0 77 %d\n", id))
	p.ids = append(p.ids, kfdtest.QueueID{PID: p.pid(), Queue: id})
}

// have reports whether all its queues have a percentage and a priority, and are otherwise
// as they were created.
func (p *preloaded) have(percent, priority uint32) bool {
	for _, id := range p.ids {
		if s, _ := p.m.State(id); s != (kfdtest.State{Ring: 1 << 30, RingSize: 8192, Percent: percent, Priority: priority}) {
			return false
		}
	}
	return true
}

// stoppedBySignal reports whether each of its threads has been stopped by a signal.
func (p *preloaded) stoppedBySignal() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid()))
	return len(threads) > 0 && !slices.ContainsFunc(threads, func(file string) bool {
		text, _ := os.ReadFile(file)
		_, state, _ := strings.Cut(string(text), ") ")
		return !strings.HasPrefix(state, "T")
	})
}

// TestDaemonAsksTheShim checks that where the driver does not let the daemon stop queues,
// a process with the shim stops its own, and that its class sets their priority.
func TestDaemonAsksTheShim(t *testing.T) {
	m := newMachine(t, false)
	dir := m.buildPreloaded()
	d := m.daemon()
	p := m.preloaded(dir, d.socket, 2) // its runtime is not enabled, so it cannot be debugged
	d.change(p.pid(), asBatch)
	m.eventually("stoppable, with the priority of its class", func() bool { return d.can(p.pid(), "own", "interrupt") && p.have(100, 3) })
	d.change(p.pid(), paused)
	m.eventually("stopped", func() bool { return p.have(0, 3) && d.state(p.pid()) == "stopped" })
	p.addQueue()
	if !p.have(0, 3) {
		t.Error("a queue that was created in a stopped process runs")
	}
	m.eventually("known with its new queue", func() bool { return d.queue(p.pid()).KFDQueues == 3 })
	time.Sleep(2 * time.Second) // longer than a lease
	if !p.have(0, 3) || d.state(p.pid()) != "stopped" {
		t.Errorf("after 2 s: got state %s, want stopped", d.state(p.pid()))
	}
	d.change(p.pid(), resumed)
	m.eventually("running", func() bool { return p.have(100, 3) })
	d.change(p.pid(), asOnline)
	m.eventually("of the online priority", func() bool { return p.have(100, 11) })
	d.change(p.pid(), asStandard)
	m.eventually("as created", func() bool { return p.have(100, 7) })

	checks := d.Status().Checks
	if !slices.ContainsFunc(checks, func(c api.Check) bool { return c.Name == "AMD own" && c.OK }) || d.failed("AMD queues of") {
		t.Errorf("got checks %+v, want AMD own and no queues that cannot be stopped", checks)
	}

	m.check(p.cmd.Process.Signal(unix.SIGSTOP))
	m.eventually("stopped by SIGSTOP", p.stoppedBySignal)
	d.change(p.pid(), paused)
	m.eventually("asked without an answer", func() bool { return d.failed("AMD calls") })
	if !p.have(100, 7) {
		t.Error("the queues of a process that does not run were changed")
	}
	m.check(p.cmd.Process.Signal(unix.SIGCONT))
	m.eventually("stopped after SIGCONT", func() bool { return p.have(0, 7) && d.state(p.pid()) == "stopped" })
	d.change(p.pid(), asIdle)
	m.eventually("stopped, of the idle priority", func() bool { return p.have(0, 0) })
	d.stop()
	m.eventually("as created", func() bool { return p.have(100, 7) })
}

// TestDaemonFollowsTheShim checks that what can be done to a process is found out again
// when its shim connects after its queues are known, and when the shim disconnects.
func TestDaemonFollowsTheShim(t *testing.T) {
	m := newMachine(t, false)
	socket := filepath.Join(t.TempDir(), "later")
	p := m.preloaded(m.buildPreloaded(), socket, 1)
	d := m.daemon()
	m.eventually("found", func() bool { q := d.queue(p.pid()); return q != nil && q.KFDQueues == 1 })
	d.change(p.pid(), paused)
	m.eventually("reported as not stoppable", func() bool { return d.failed("AMD queues of") })
	if !p.have(100, 7) || !d.can(p.pid(), "") {
		t.Errorf("got %+v, want a queue that cannot be stopped", d.queue(p.pid()))
	}
	m.check(os.Symlink(d.socket, socket))
	time.Sleep(1100 * time.Millisecond) // the shim waits so long before it connects again
	p.addQueue()
	m.eventually("stopped by the shim", func() bool { return p.have(0, 7) && d.can(p.pid(), "own", "interrupt") })
	d.stopServer()
	m.eventually("restored without the shim", func() bool { return p.have(100, 7) && d.can(p.pid(), "") })
	d.change(p.pid(), resumed)
	m.eventually("running", func() bool { return d.state(p.pid()) == "running" })
}

// TestShimRestoresWhenDaemonIsKilled checks that processes put their own queues back when
// the daemon is killed.
func TestShimRestoresWhenDaemonIsKilled(t *testing.T) {
	m := newMachine(t, false)
	dir, socket := m.buildPreloaded(), filepath.Join(t.TempDir(), "s")
	cmd := m.startDaemon(socket)
	// A shim that is not answered tries again only at its process's next call of the driver.
	m.eventually("answering", func() bool { _, err := client.New(socket).Status(t.Context()); return err == nil })
	first, second := m.preloaded(dir, socket, 2), m.preloaded(dir, socket, 3)
	m.eventually("stopped", func() bool { return first.have(0, 3) || second.have(0, 3) })
	m.check(cmd.Process.Kill())
	began := time.Now()
	_ = cmd.Wait() // it was killed
	m.eventually("as created", func() bool { return first.have(100, 7) && second.have(100, 7) })
	// The lease is 0.8 s. The rest of the limit is for a busy machine.
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("got %v, want at most 3s", took)
	}
}

// TestDaemonFallsBack makes the methods to stop a process fail one after another: batch,
// debug, own, and then its gate is held.
func TestDaemonFallsBack(t *testing.T) {
	m := newMachine(t, true)
	p := m.StartProcess(2)
	d := m.daemon()
	inside, leave := d.enter(p.PID)
	defer func() {
		leave()
		m.check(inside.Close())
	}()
	inside.SetQueues(0, kfdtest.MI300X.GPU, 2)
	d.change(p.PID, asBatch)
	m.eventually("holdable and stoppable", func() bool { return d.can(p.PID, "batch", "hold", "interrupt", "bound") })

	refused := kfdtest.Fault{Errno: unix.EPERM}
	m.Inject(kfdtest.Request(kfd.ReqBatchUnmap), refused)
	d.change(p.PID, paused)
	m.eventually("stopped in a debug session", func() bool { return p.Running() == 0 && m.Left() != "" }) // in a debug session
	d.change(p.PID, resumed)
	m.eventually("running", func() bool { return p.Running() == 2 })

	m.Inject(kfdtest.Trap(kfd.OpSuspendQueues), refused)
	d.change(p.PID, paused) // the shim does not answer either
	m.eventually("held at its gate", func() bool { return d.state(p.PID) == "stopped" && p.Running() == 2 })
	waited := make(chan bool, 1)
	go func() { waited <- inside.Launch() }()
	m.eventually("waiting at its gate", func() bool { return d.holds(p.PID) == 1 })
	d.change(p.PID, resumed)
	if !<-waited {
		t.Error("a launch did not wait at the held gate")
	}

	quit := make(chan struct{})
	var answering sync.WaitGroup
	answering.Go(func() { answer(p, inside, quit) })
	defer func() {
		close(quit)
		answering.Wait()
	}()
	m.eventually("stopped by its shim", func() bool {
		d.change(p.PID, paused)
		time.Sleep(20 * time.Millisecond) // a method that was refused is not tried again at once
		off := p.Running() == 0 && d.state(p.PID) == "stopped"
		d.change(p.PID, resumed)
		return off
	})
	m.eventually("running", func() bool { return p.Running() == 2 })
	m.Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{})
	updates := m.Calls(kfdtest.Request(kfd.ReqUpdateQueue))
	d.change(p.PID, paused)
	m.eventually("stopped", func() bool { return p.Running() == 0 })
	if got := m.Calls(kfdtest.Request(kfd.ReqUpdateQueue)) - updates; got != 0 {
		t.Errorf("with a working batch method: got %d updates by the process, want 0", got)
	}
}

// answer does what the shim does: it stops and starts the queues of a process as asked.
func answer(p *kfdtest.Process, inside *pagetest.Process, quit chan struct{}) {
	done := uint32(0)
	for {
		select {
		case <-quit:
			return
		case <-time.After(200 * time.Microsecond):
		}
		r := inside.QueueRequest()
		if r.Seq == done {
			continue
		}
		done = r.Seq
		percent, off := uint32(100), uint32(0)
		if len(r.Stop) > 0 {
			percent, off = 0, uint32(len(p.Queues))
		}
		for _, id := range p.Queues {
			if kfdtest.UpdateQueue(p, id.Queue, 1<<30, 4096, percent, 7) != nil {
				return
			}
		}
		inside.SetQueueResults(0, off, 0)
		inside.Apply(done)
	}
}
