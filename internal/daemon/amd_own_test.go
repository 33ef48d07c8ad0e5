package daemon

import (
	"bufio"
	"context"
	"fmt"
	"io"
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
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/shim"
)

// shimmed is a program in C, with the preload library as it is built for use.
type shimmed struct {
	m   *amdMachine
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
	ids []kfdtest.QueueID
}

// preload compiles the program and writes the library; or skips the test.
func (m *amdMachine) preload() (dir string) {
	m.Helper()
	library, err := shim.Library()
	if err != nil {
		m.Skip(err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		m.Skip("the program of this test needs gcc")
	}
	dir = m.TempDir()
	m.check(os.WriteFile(filepath.Join(dir, "libgiveway.so"), library, 0o600))
	if out, err := exec.Command("gcc", "-O2", "-o", filepath.Join(dir, "work"), "../../shim/test/kfdwork.c", "-pthread").CombinedOutput(); err != nil {
		m.Fatalf("%v: %s", err, out)
	}
	return dir
}

func (m *amdMachine) shimmed(dir, socket string, queues int) *shimmed {
	m.Helper()
	p := &shimmed{m: m, cmd: exec.Command(filepath.Join(dir, "work"), m.path)}
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
	p.hear("ready\n")
	for range queues {
		p.addQueue()
	}
	return p
}

func (p *shimmed) hear(want string) {
	p.m.Helper()
	if line, err := p.out.ReadString('\n'); err != nil || line != want {
		p.m.Fatalf("it says %q, %v; want %q", line, err, want)
	}
}

func (p *shimmed) addQueue() {
	p.m.Helper()
	id := uint32(len(p.ids))
	_, err := fmt.Fprintf(p.in, "create %d 2 %d 8192 100 7 96\n", kfdtest.MI300X.GPU, 1<<30)
	p.m.check(err)
	p.hear(fmt.Sprintf("created 0 77 %d\n", id))
	p.ids = append(p.ids, kfdtest.QueueID{PID: p.cmd.Process.Pid, Queue: id})
}

// are reports whether all its queues are as they were made but for these.
func (p *shimmed) are(percent, priority uint32) bool {
	for _, id := range p.ids {
		if s, _ := p.m.kfd.State(id); s != (kfdtest.State{Ring: 1 << 30, RingSize: 8192, Percent: percent, Priority: priority}) {
			return false
		}
	}
	return true
}

func (p *shimmed) change(d *Daemon, c api.Change) {
	p.m.Helper()
	_, err := d.Change(p.cmd.Process.Pid, c)
	p.m.check(err)
}

// standsStill reports whether each of its threads has been stopped by a signal.
func (p *shimmed) standsStill() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	return len(threads) > 0 && !slices.ContainsFunc(threads, func(file string) bool {
		text, _ := os.ReadFile(file)
		_, state, _ := strings.Cut(string(text), ") ")
		return !strings.HasPrefix(state, "T")
	})
}

// of is what the API tells of its queue.
func (p *shimmed) of(d *Daemon) api.Queue {
	if q := amdOf(d, &amdProgram{Program: &kfdtest.Program{PID: p.cmd.Process.Pid}}); q != nil {
		return *q
	}
	return api.Queue{}
}

func (p *shimmed) can(d *Daemon, way string, want ...string) func() bool {
	return func() bool { q := p.of(d); return q.Way == way && slices.Equal(q.Can, want) }
}

// TestAMDOwn: where the driver lets the daemon stop nothing, a program with the shim stops
// its own queues, and a class gives them a priority.
func TestAMDOwn(t *testing.T) {
	m := newAMDMachine(t, false)
	dir := m.preload()
	d := newAMDDaemon(m.path, m.sys)
	socket, stop := serve(t, d)
	p := m.shimmed(dir, socket, 2) // without a runtime that could be debugged
	p.change(d, asBatch)
	m.eventually("it can be stopped", p.can(d, "own", "interrupt"))
	m.eventually("it has the priority of its class", func() bool { return p.are(100, 3) })
	p.change(d, paused)
	m.eventually("its queues are off", func() bool { return p.are(0, 3) })
	p.addQueue()
	if !p.are(0, 3) {
		t.Error("a queue that it makes meanwhile runs")
	}
	m.eventually("the new one is known", func() bool { return p.of(d).Native == 3 })
	time.Sleep(2 * time.Second) // more than any lease
	if q := p.of(d); !p.are(0, 3) || q.State != "stopped" {
		t.Errorf("it came to run: %+v", q)
	}
	p.change(d, resumed)
	m.eventually("they run", func() bool { return p.are(100, 3) })
	p.change(d, asOnline)
	m.eventually("it has the priority of its class", func() bool { return p.are(100, 11) })
	p.change(d, asStandard)
	m.eventually("it has its own again", func() bool { return p.are(100, 7) })

	checks := d.Status().Checks
	if !slices.ContainsFunc(checks, func(c api.Check) bool { return c.Name == "AMD own" && c.OK }) {
		t.Error("the doctor does not name it")
	}
	if slices.ContainsFunc(checks, func(c api.Check) bool { return strings.HasPrefix(c.Name, "AMD queues of") }) {
		t.Errorf("the doctor says that it cannot be stopped: %+v", checks)
	}

	m.check(p.cmd.Process.Signal(unix.SIGSTOP))
	m.eventually("it stands still", p.standsStill)
	p.change(d, paused)
	m.eventually("it is asked, and does not answer", func() bool { return d.amd.driver.Stats().Stops.Failed > 0 })
	if !p.are(100, 7) {
		t.Error("its queues are off")
	}
	m.check(p.cmd.Process.Signal(unix.SIGCONT))
	m.eventually("it is asked again, and they are off", func() bool { return p.are(0, 7) && p.of(d).State == "stopped" })
	p.change(d, asIdle)
	m.eventually("so they stay", func() bool { return p.are(0, 0) })
	stop()
	m.eventually("the daemon has ended: they are as they were made", func() bool { return p.are(100, 7) })
}

var asIdle = api.Change{Class: new("idle")}

// TestAMDOwnComesAndGoes: what can be done is looked at again when the shim comes after
// the queues are known, and when it goes.
func TestAMDOwnComesAndGoes(t *testing.T) {
	m := newAMDMachine(t, false)
	socket := filepath.Join(t.TempDir(), "later")
	p := m.shimmed(m.preload(), socket, 1)
	d := newAMDDaemon(m.path, m.sys)
	at, _ := serve(t, d)
	m.eventually("it is found", func() bool { return p.of(d).Native == 1 })
	p.change(d, paused)
	m.eventually("it is told why it cannot be stopped", func() bool {
		return slices.ContainsFunc(d.Status().Checks, func(c api.Check) bool { return strings.HasPrefix(c.Name, "AMD queues of") && !c.OK })
	})
	if !p.are(100, 7) || !p.can(d, "")() {
		t.Errorf("%+v", p.of(d))
	}
	m.check(os.Symlink(at, socket))
	time.Sleep(1100 * time.Millisecond) // so long it does not ask again
	p.addQueue()
	m.eventually("its shim has come, and stops them", func() bool { return p.are(0, 7) && p.can(d, "own", "interrupt")() })
	d.mu.Lock()
	d.seeOff(d.processes[p.cmd.Process.Pid].guest)
	d.mu.Unlock()
	m.eventually("its shim has gone: they run", func() bool { return p.are(100, 7) && p.can(d, "")() })
	p.change(d, resumed)
	m.eventually("that is what the daemon thinks as well", func() bool { return p.of(d).State == "running" })
}

// TestAMDOwnKilled: when the daemon is killed the programs put their queues back.
func TestAMDOwnKilled(t *testing.T) {
	m := newAMDMachine(t, false)
	dir, socket := m.preload(), filepath.Join(t.TempDir(), "s")
	host := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], m.path, m.sys, socket)
		cmd.Env = append(os.Environ(), "DAEMON_TEST=amd-daemon")
		m.check(cmd.Start())
		m.eventually("it listens", func() bool { _, err := os.Stat(socket); return err == nil })
		return cmd
	}
	cmd := host()
	programs := []*shimmed{m.shimmed(dir, socket, 2), m.shimmed(dir, socket, 3)}
	m.eventually("somebody is stopped", func() bool { return programs[0].are(0, 3) || programs[1].are(0, 3) })
	m.check(cmd.Process.Kill())
	began := time.Now()
	_ = cmd.Wait() // it was killed
	m.eventually("everything is as it was made", func() bool { return programs[0].are(100, 7) && programs[1].are(100, 7) })
	// The lease is 0.8 s; the rest is for a machine that has other things to do.
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("that took %v", took)
	}
}

// amdUntilKilled is a daemon in a process of its own, with a socket if it is given one.
func amdUntilKilled(args []string) {
	d := newAMDDaemon(args[0], args[1])
	if len(args) > 2 {
		s := server.New(d, server.Config{Socket: args[2]})
		go func() {
			<-d.ready
			_ = s.Serve(context.Background())
		}()
	}
	_ = d.Run(context.Background())
}

// TestAMDFallsBack goes down all the ways to stop a program, and up again: batch, debug,
// its own, and its gate.
func TestAMDFallsBack(t *testing.T) {
	m := newAMDMachine(t, true)
	p := m.program(2)
	d, _ := m.daemon()
	fds, leave, err := d.Admit(server.Visitor{PID: p.PID, UID: uint32(os.Getuid()), Runtime: "hip"})
	m.check(err)
	defer leave()
	inside, err := shimpage.Enter(fds[0], fds[1], fds[2])
	m.check(err)
	defer func() { m.check(inside.Leave()) }()
	inside.Owns(0, kfdtest.MI300X.GPU, 2)
	m.change(d, p, asBatch)
	m.eventually("it can be held and stopped", func() bool {
		q := amdOf(d, p)
		return q != nil && q.Way == "batch" && slices.Equal(q.Can, []string{"hold", "interrupt", "bound"})
	})

	refused := kfdtest.Fault{Errno: unix.EPERM}
	m.kfd.Inject(kfdtest.Request(kfd.ReqBatchUnmap), refused)
	m.change(d, p, paused)
	m.eventually("it is stopped by a debugger's call", func() bool { return p.running() == 0 && m.kfd.Left() != "" })
	m.change(d, p, resumed)
	m.eventually("it runs", func() bool { return p.running() == 2 })

	m.kfd.Inject(kfdtest.Trap(kfd.OpSuspendQueues), refused)
	m.change(d, p, paused) // and its shim does not answer
	m.eventually("it is stopped by its gate", func() bool { return amdOf(d, p).State == "stopped" && p.running() == 2 })
	passed := make(chan bool, 1)
	go func() { passed <- inside.Pass() }()
	m.eventually("a launch waits", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.processes[p.PID].guest.page.Counters().Flags&shimpage.Held != 0
	})
	m.change(d, p, resumed)
	if !<-passed {
		t.Error("the launch has not waited")
	}

	quit := make(chan struct{})
	var obeying sync.WaitGroup
	obeying.Go(func() { obey(p, inside, quit) })
	defer func() { // before its page is gone
		close(quit)
		obeying.Wait()
	}()
	m.eventually("its shim answers, and it is stopped by its own call", func() bool {
		m.change(d, p, paused)
		time.Sleep(20 * time.Millisecond) // one that was refused lately is not tried at once
		off := p.running() == 0 && amdOf(d, p).State == "stopped"
		m.change(d, p, resumed)
		return off
	})
	m.eventually("it runs", func() bool { return p.running() == 2 })
	m.kfd.Inject(kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Fault{})
	updates := m.kfd.Calls(kfdtest.Request(kfd.ReqUpdateQueue))
	m.change(d, p, paused)
	m.eventually("it is stopped by the best again", func() bool { return p.running() == 0 })
	if n := m.kfd.Calls(kfdtest.Request(kfd.ReqUpdateQueue)) - updates; n != 0 {
		t.Errorf("%d updates", n)
	}
}

// TestAMDOwnFlickers: a program that says all the time that it has queues, and that it has
// none, does not have the driver asked each time.
func TestAMDOwnFlickers(t *testing.T) {
	m := newAMDMachine(t, false)
	m.kfd.Inject(kfdtest.Trap(kfd.OpEnable), kfdtest.Fault{Errno: unix.EPERM})
	p := m.program(1)
	d, _ := m.daemon()
	fds, leave, err := d.Admit(server.Visitor{PID: p.PID, UID: uint32(os.Getuid())})
	m.check(err)
	defer leave()
	inside, err := shimpage.Enter(fds[0], fds[1], fds[2])
	m.check(err)
	defer func() { m.check(inside.Leave()) }()
	m.change(d, p, asBatch)
	tried := func() int { return m.kfd.Calls(kfdtest.Trap(kfd.OpEnable)) }
	m.eventually("it was tried", func() bool { return tried() > 0 })
	before, began := tried(), time.Now()
	for i := range uint32(500) {
		inside.Owns(0, kfdtest.MI300X.GPU, i%2)
		time.Sleep(time.Millisecond)
	}
	if n, most := tried()-before, int(time.Since(began)/queuesEvery)+2; n > most {
		t.Errorf("tried %d times more, want %d at most", n, most)
	}
	inside.Owns(0, kfdtest.MI300X.GPU, 1)
	m.eventually("in the end it is heard", func() bool { q := amdOf(d, p); return q != nil && q.Way == "own" })
}

// obey does as a shim is told about the queues of a program.
func obey(p *amdProgram, inside *shimpage.Program, quit chan struct{}) {
	done := uint32(0)
	for {
		select {
		case <-quit:
			return
		case <-time.After(200 * time.Microsecond):
		}
		w := inside.Wished()
		if w.Turn == done {
			continue
		}
		done = w.Turn
		percent, off := uint32(100), uint32(0)
		if len(w.Off) > 0 {
			percent, off = 0, 2
		}
		for _, id := range p.ids {
			if kfd.UpdateQueue(p, id.Queue, 1<<30, 4096, percent, 7) != nil {
				return
			}
		}
		inside.Did(0, off, 0)
		inside.Obey(done)
	}
}
