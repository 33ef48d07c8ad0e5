package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

// amdMachine is a machine with an AMD GPU: a driver's double behind a real path, and real
// programs.
type amdMachine struct {
	*testing.T
	kfd       *kfdtest.KFD
	path, sys string
}

func newAMDMachine(t *testing.T, patched bool) *amdMachine {
	t.Helper()
	m := &amdMachine{T: t, sys: t.TempDir()}
	m.kfd = kfdtest.New(kfdtest.Config{Patched: patched, Sys: m.sys})
	m.path = kfdtest.Mounted(t, m.kfd).Path
	return m
}

// bothDrivers runs a test on the driver with our patch and on the one without.
func bothDrivers(t *testing.T, test func(*amdMachine)) {
	for _, patched := range []bool{true, false} {
		t.Run(map[bool]string{true: "patched", false: "stock"}[patched], func(t *testing.T) { test(newAMDMachine(t, patched)) })
	}
}

// amdProgram is a program with compute queues.
type amdProgram struct {
	*kfdtest.Program
	m   *amdMachine
	ids []kfdtest.QueueID
}

func (m *amdMachine) program(queues int) *amdProgram {
	m.Helper()
	p := &amdProgram{Program: kfdtest.Start(m, os.Getuid()), m: m}
	m.check(p.Open(m.path))
	m.check(kfd.SetRuntime(p, true))
	for range queues {
		p.addQueue()
	}
	return p
}

func (p *amdProgram) addQueue() {
	p.m.Helper()
	id, err := kfd.CreateQueue(p, kfd.NewQueue{GPU: kfdtest.MI300X.GPU, Type: kfd.TypeComputeAQL, Ring: 1 << 30, RingSize: 4096})
	p.m.check(err)
	p.ids = append(p.ids, kfdtest.QueueID{PID: p.PID, Queue: id})
}

// running counts its queues that may run.
func (p *amdProgram) running() int {
	n := 0
	for _, id := range p.ids {
		if p.m.kfd.Active(id) {
			n++
		}
	}
	return n
}

func (m *amdMachine) check(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func newAMDDaemon(path, sys string) *Daemon {
	d, err := New(Config{
		Policy:   api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}},
		Guardian: []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]},
		Discover: discover.Config{Only: proc.Everyone}, NoNVIDIA: true,
		AMD: amd.Config{Dev: path, Sys: kfd.Sysfs(sys)},
		Rule: func(_ proc.Process, a sched.Attr) (sched.Attr, bool) { // for the daemon that is killed
			a.Class = sched.Batch
			return a, os.Getenv("DAEMON_TEST") == "amd-daemon"
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	return d
}

// daemon runs one until stop is called, or the test is over.
func (m *amdMachine) daemon() (d *Daemon, stop func()) {
	m.Helper()
	d = newAMDDaemon(m.path, m.sys)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	<-d.ready
	over := false
	stop = func() {
		if cancel(); over {
			return
		}
		over = true
		select {
		case err := <-ended:
			if err != nil {
				m.Error(err)
			}
		case <-time.After(20 * time.Second):
			m.Error("the daemon does not end")
		}
	}
	m.Cleanup(stop)
	return d, stop
}

func (m *amdMachine) change(d *Daemon, p *amdProgram, c api.Change) {
	m.Helper()
	_, err := d.Change(p.PID, c)
	m.check(err)
}

func (m *amdMachine) eventually(what string, so func() bool) { m.Helper(); eventually(m.T, what, so) }

// amdOf is what the API tells of a program's queue; nil: nothing.
func amdOf(d *Daemon, p *amdProgram) *api.Queue {
	for _, q := range d.Processes() {
		if q.PID == p.PID && len(q.Queues) == 1 {
			return &q.Queues[0]
		}
	}
	return nil
}

var (
	asOnline   = api.Change{Class: new("online")}
	asBatch    = api.Change{Class: new("batch")}
	asStandard = api.Change{Class: new("standard")}
	paused     = api.Change{Paused: new(true)}
	resumed    = api.Change{Paused: new(false)}
)

// TestAMDDay lives a day with two programs: they are listed and left alone, classed,
// paused, resumed, joined by new queues, and left as they were found.
func TestAMDDay(t *testing.T) {
	bothDrivers(t, func(m *amdMachine) {
		train := m.program(3)
		d, stop := m.daemon()
		m.eventually("it is found", func() bool { q := amdOf(d, train); return q != nil && q.Native == 3 })
		if q := amdOf(d, train); !strings.HasPrefix(q.Device, "amd-") || q.State != "running" {
			m.Errorf("it is %+v", q)
		}
		if n := m.kfd.Calls(kfdtest.Trap(kfd.OpEnable)); n != 0 || m.kfd.Left() != "" {
			m.Errorf("who was only listed is not left alone: %d sessions, %s", n, m.kfd.Left())
		}
		serve := m.program(1) // set before anybody can have looked for it
		m.change(d, serve, asStandard)

		m.change(d, train, paused)
		m.eventually("all of its queues are stopped", func() bool { return train.running() == 0 })
		m.eventually("that is told", func() bool {
			q := amdOf(d, train)
			return q.State == "stopped" && slices.Equal(q.Can, []string{"interrupt"})
		})
		train.addQueue()
		m.eventually("a queue that it makes meanwhile is stopped too", func() bool { return train.running() == 0 })
		if serve.running() != 1 {
			m.Error("the other does not run")
		}
		m.change(d, train, resumed)
		m.eventually("all of its queues run", func() bool { return train.running() == 4 })

		m.change(d, train, asBatch)
		m.change(d, serve, asOnline)
		m.eventually("batch work is stopped while there is online work", func() bool { return train.running() == 0 })
		if serve.running() != 1 {
			m.Error("online work does not run")
		}
		serve.Kill()
		m.eventually("when that is gone it runs, and the dead is forgotten", func() bool {
			return train.running() == 4 && len(d.Processes()) == 1
		})

		m.change(d, train, paused)
		m.eventually("all of its queues are stopped", func() bool { return train.running() == 0 })
		stop()
		if train.running() != 4 || m.kfd.Left() != "" {
			m.Errorf("the daemon has ended, and %d of 4 run; %s", train.running(), m.kfd.Left())
		}
	})
}

// TestAMDWithShim: a program that has a shim is one queue, which its gate can hold and the
// driver can stop, whichever is there first; and when the shim goes the driver stays.
func TestAMDWithShim(t *testing.T) {
	bothDrivers(t, func(m *amdMachine) {
		p := m.program(2)
		d, _ := m.daemon()
		fds, leave, err := d.Admit(server.Visitor{PID: p.PID, UID: uint32(os.Getuid()), Runtime: "hip"})
		m.check(err)
		for _, fd := range fds {
			m.check(unix.Close(fd))
		}
		can := func(want ...string) func() bool {
			return func() bool {
				q := amdOf(d, p)
				return q != nil && strings.HasPrefix(q.Device, "amd-") && slices.Equal(q.Can, want)
			}
		}
		m.change(d, p, asBatch)
		m.eventually("it can be held and stopped", can("hold", "interrupt", "bound"))
		m.change(d, p, paused)
		m.eventually("it is stopped", func() bool { return p.running() == 0 })
		leave()
		m.eventually("without its shim it can be stopped", can("interrupt"))
		if p.running() != 0 {
			m.Error("when its shim went it came to run")
		}
		m.change(d, p, resumed)
		m.eventually("it runs", func() bool { return p.running() == 2 })
	})
}

// TestAMDUnsetIsGivenUp: with a stock driver who is as everybody else again is in no
// debug session any more.
func TestAMDUnsetIsGivenUp(t *testing.T) {
	m := newAMDMachine(t, false)
	p := m.program(1)
	d, _ := m.daemon()
	m.change(d, p, paused)
	m.eventually("it is stopped", func() bool { return p.running() == 0 })
	m.check(d.Restore())
	m.eventually("it runs, and nothing is left of the session", func() bool { return p.running() == 1 && m.kfd.Left() == "" })
	m.eventually("nothing can be done to it", func() bool { q := amdOf(d, p); return q != nil && len(q.Can) == 0 })
}

// TestAMDTurnIsOneCall: what is decided together for queues of a process is one call to
// the patched driver.
func TestAMDTurnIsOneCall(t *testing.T) {
	m := newAMDMachine(t, true)
	p := m.program(10)
	d, _ := m.daemon()
	m.eventually("it is found and can be stopped", func() bool { q := amdOf(d, p); return q != nil && len(q.Can) == 1 })
	unmaps, updates := m.kfd.Calls(kfdtest.Request(kfd.ReqBatchUnmap)), m.kfd.Updates(kfdtest.MI300X.GPU)
	m.change(d, p, paused)
	m.eventually("it is stopped", func() bool { return p.running() == 0 })
	if n := m.kfd.Calls(kfdtest.Request(kfd.ReqBatchUnmap)) - unmaps; n != 1 {
		m.Errorf("%d calls for ten queues", n)
	}
	if n := m.kfd.Updates(kfdtest.MI300X.GPU) - updates; n != 1 {
		m.Errorf("%d updates of the runlist for ten queues", n)
	}
}

// TestAMDPartly: of queues that cannot all be stopped none stays so.
func TestAMDPartly(t *testing.T) {
	bothDrivers(t, func(m *amdMachine) {
		p := m.program(2)
		driver, err := amd.Open(amd.Config{Dev: m.path, Sys: kfd.Sysfs(m.sys)})
		m.check(err)
		defer driver.Close()
		b := newBundle(&amdGPU{driver.Devices()[0]}, 1)
		ids := []uint32{p.ids[0].Queue, p.ids[1].Queue}
		q, err := b.hold(ids, amd.Target{PID: p.PID}, retry{})
		m.check(err)
		m.check(hal.Stop(q, sched.LevelInterrupt))
		m.check(hal.Start(q, sched.LevelInterrupt))
		if p.running() != 2 {
			m.Fatalf("%d run", p.running())
		}
		whole := b.parts[ids[1]]
		b.parts[ids[1]] = struct{ hal.Queue }{whole} // nothing can be done to it
		if err := hal.Stop(q, sched.LevelInterrupt); !errors.Is(err, hal.ErrNotSupported) || p.running() != 2 {
			m.Errorf("%d run, and the error is %v", p.running(), err)
		}
		b.parts[ids[1]] = whole
		m.check(hal.Stop(q, sched.LevelInterrupt))
		if p.running() != 0 {
			m.Errorf("%d run", p.running())
		}
		m.check(q.Close())
		if p.running() != 2 || m.kfd.Left() != "" {
			m.Errorf("%d run; %s", p.running(), m.kfd.Left())
		}
	})
}

// TestAMDRefused: what the driver could not do is tried again.
func TestAMDRefused(t *testing.T) {
	m := newAMDMachine(t, true)
	p := m.program(2)
	d, _ := m.daemon()
	m.eventually("it is found and can be stopped", func() bool { q := amdOf(d, p); return q != nil && len(q.Can) == 1 })
	m.kfd.Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{Hardware: true})
	m.kfd.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{Errno: unix.EPERM})
	m.change(d, p, paused)
	m.eventually("it was tried", func() bool { return d.amd.driver.Stats().Stops.Failed > 0 })
	m.eventually("it runs", func() bool { return p.running() == 2 })
	m.kfd.Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{})
	m.eventually("it is tried again and stopped", func() bool { return p.running() == 0 })
}

// TestAMDHangs: a driver's call that hangs holds up neither the daemon nor another
// program.
func TestAMDHangs(t *testing.T) {
	m := newAMDMachine(t, true)
	first, second := m.program(1), m.program(1)
	d, _ := m.daemon()
	m.eventually("both can be stopped", func() bool {
		a, b := amdOf(d, first), amdOf(d, second)
		return a != nil && b != nil && len(a.Can) == 1 && len(b.Can) == 1
	})
	hang := make(chan struct{})
	m.kfd.Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{Hang: hang, Times: 1})
	calls := m.kfd.Calls(kfdtest.Request(kfd.ReqBatchUnmap))
	m.change(d, first, paused)
	m.eventually("the call hangs", func() bool { return m.kfd.Calls(kfdtest.Request(kfd.ReqBatchUnmap)) > calls })
	m.change(d, second, paused)
	m.eventually("the other is stopped", func() bool { return second.running() == 0 })
	close(hang)
	m.eventually("both are", func() bool { return first.running() == 0 })
}

// TestAMDKilled kills the daemon while it has a program's queues stopped: the driver
// puts them back.
func TestAMDKilled(t *testing.T) {
	bothDrivers(t, func(m *amdMachine) {
		programs := []*amdProgram{m.program(2), m.program(3)}
		for round := range 3 {
			cmd := exec.Command(os.Args[0], m.path, m.sys)
			cmd.Env = append(os.Environ(), "DAEMON_TEST=amd-daemon")
			m.check(cmd.Start())
			m.eventually("somebody is stopped", func() bool { return programs[0].running()+programs[1].running() < 5 })
			time.Sleep(time.Duration(round*7) * time.Millisecond)
			m.check(cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
			m.eventually("everything runs", func() bool {
				return programs[0].running() == 2 && programs[1].running() == 3 && m.kfd.Left() == ""
			})
		}
	})
}

// TestAMDDoctor: what works is told, what was done, and what cannot be.
func TestAMDDoctor(t *testing.T) {
	m := newAMDMachine(t, false)
	p := m.program(2)
	d, _ := m.daemon()
	m.change(d, p, paused)
	m.eventually("it is stopped", func() bool { return p.running() == 0 })
	s := d.Status()
	if len(s.Devices) != 1 || s.Devices[0].Backend != "amd" || !strings.Contains(s.Devices[0].Model, "gfx942") {
		m.Errorf("the devices are %+v", s.Devices)
	}
	checks := map[string]api.Check{}
	for _, c := range s.Checks {
		checks[c.Name] = c
		if strings.HasPrefix(c.Name, "AMD") && !c.OK {
			m.Errorf("%+v", c)
		}
	}
	for name, says := range map[string]string{
		"AMD driver": "KFD 1.17", "AMD batch": "not needed", "AMD debug": "debugger interface", "AMD calls": "to stop 2 queues (0 failed)",
		"AMD slots of " + s.Devices[0].ID: "0 of 24 slots in use",
	} {
		if !strings.Contains(checks[name].Detail, says) {
			m.Errorf("%q is not in %s: %+v", says, name, checks[name])
		}
	}

	other := m.program(1)
	m.check(unix.PtraceSeize(other.PID)) // by this thread: somebody debugs it
	m.change(d, other, paused)
	name := fmt.Sprintf("AMD queues of %d", other.PID)
	m.eventually("it is told why it cannot be stopped", func() bool {
		return slices.ContainsFunc(d.Status().Checks, func(c api.Check) bool { return c.Name == name && !c.OK })
	})
	if other.running() != 1 {
		m.Error("it does not run")
	}
}

// TestAMDInversion: an online program that takes turns with others for too few slots is
// told of.
func TestAMDInversion(t *testing.T) {
	m := newAMDMachine(t, false)
	serve, crowd := m.program(1), m.program(int(kfdtest.MI300X.Slots))
	d, _ := m.daemon()
	m.eventually("both are found", func() bool { return amdOf(d, serve) != nil && amdOf(d, crowd) != nil })
	told := func() bool {
		return slices.ContainsFunc(d.Status().Checks, func(c api.Check) bool {
			return c.Name == "AMD priority inversion" && strings.Contains(c.Detail, fmt.Sprintf("process %d ", serve.PID))
		})
	}
	if told() {
		m.Error("among equals there is no inversion")
	}
	m.change(d, serve, asOnline)
	m.eventually("it is told of", told)
	m.change(d, crowd, asBatch)
	m.eventually("the crowd gives way, and it is no more", func() bool { return crowd.running() == 0 && !told() })
}

// TestAMDLeftAlone: a daemon that is told to leaves AMD's driver alone, and one without
// the right to it says so.
func TestAMDLeftAlone(t *testing.T) {
	m := newAMDMachine(t, true)
	p := m.program(1)
	for _, spoil := range []func(*Config){
		func(c *Config) { c.NoAMD = true },
		func(c *Config) { c.AMD.Dev += "-is-not-there" },
	} {
		d := newAMDDaemon(m.path, m.sys)
		spoil(&d.cfg)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		<-d.ready
		if _, err := d.Change(p.PID, paused); err == nil {
			t.Error("it was changed")
		}
		if !slices.ContainsFunc(d.Status().Checks, func(c api.Check) bool { return c.Name == "AMD" }) {
			t.Error("nobody says so")
		}
		stop()
		m.check(<-ended)
	}
}
